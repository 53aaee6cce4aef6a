"""A run whose samples are a stream: what is put as Samples, and what follows after each step."""

import hashlib
from typing import Any

import numpy

from ..annotations import Tree
from ..data.samples import Samples
from ..errors import ConfigurationError
from ..parallel.model.callback import Callback
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


class CouplingCallback(Callback):
    """Publish the model, send step and loss, and let checkpoints say how far the stream was read.

    Parameters
    ----------
    coupled
        The Coupled of this rank.
    publish_every
        Steps between two models for predict(); 0: none.

    Notes
    -----
    It stands behind callbacks that publish by themselves: from its after_step on, a solver rank
    that waits for a first model without which it puts nothing is refused.
    """

    on_all_ranks = True

    def __init__(self, coupled: Any, publish_every: int) -> None:
        self._coupled, self._publish_every = coupled, publish_every
        self._run: Any = None

    def at_start(self, run: Any) -> None:
        self._run = run
        self._coupled.go_on_from(run.model)

    def after_step(self, step: int, loss: float) -> None:
        model, position = self._run.model, self._run.stream.position
        self._coupled.steer(step=step, loss=loss)
        if self._publish_every and step % self._publish_every == 0:
            self._coupled.publish(model)
        self._coupled.note_in(model, position.of_step(step))  # trained, and published
