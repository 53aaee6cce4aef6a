"""What is put as Samples: the stream of a run, whose samples have the places of puts."""

import hashlib
from typing import Any

import numpy

from ..annotations import Tree
from ..data.samples import Samples
from ..errors import ConfigurationError
from .reading import Reading

Chosen = str | tuple[str, ...]  # names of fields


class StreamSamples(Samples):
    """The samples of a stream, read by all trainers together and in the order of the stream.

    x, y       names of fields
    expected   samples of an epoch
    """

    is_numbered = False

    def __init__(self, reading: Reading, buffer: str, x: Any, y: Any, expected: int):
        self._reading, self._buffer = reading, buffer
        self._x, self._y = x, y
        self._expected = expected

    def __len__(self):
        return self._expected

    def read(self, numbers, draw=None):
        if draw is None:
            raise ConfigurationError(
                "a stream is read once, in its order; validate on samples of their own: "
                "Training(model, (c.samples(), held_out))"
            )
        fields = self._reading.read(draw.positions, waits=True)
        assert fields is not None
        return chosen(fields, self._x), chosen(fields, self._y)

    def fingerprint(self):
        text = f"stream {self._buffer} {self._x} {self._y}"
        return hashlib.sha256(text.encode()).hexdigest()


def chosen(fields: dict[str, numpy.ndarray], names: Chosen) -> Tree:
    """Return a field, or several as a dict. Errors: ConfigurationError."""
    for name in (names,) if isinstance(names, str) else names:
        if name not in fields:
            raise ConfigurationError(
                f"no field {name!r} was put; wanted one of {', '.join(sorted(fields))}"
            )
    return fields[names] if isinstance(names, str) else {name: fields[name] for name in names}
