"""Records: the fields of a put as bytes of one size, as they travel and lie in buffers.

| number int64 | time float64 | weight float64 | ... 64 | field | field | ...    each at a 64th
"""

import json
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy

from ..errors import ShapeError

ALIGNMENT = 64
HEADER = numpy.dtype([("number", "<i8"), ("time", "<f8"), ("weight", "<f8")])
STAMPS = {"time": 8, "weight": 16}  # what a record has beside its fields, and its byte
_KINDS = "biufc"


@dataclass(frozen=True)
class RecordForm:
    """The fields of all records of a coupling: (name, dtype, shape) of each, in order of names."""

    fields: tuple[tuple[str, str, tuple[int, ...]], ...]

    @classmethod
    def of(cls, arrays: dict[str, Any]) -> "RecordForm":
        """Return the form of these arrays. Errors: ShapeError on what is no array of numbers."""
        found = {name: numpy.asarray(arrays[name]) for name in sorted(arrays)}
        for name, array in found.items():
            if name in STAMPS or array.dtype.kind not in _KINDS or not array.size:
                raise ShapeError(
                    f"put({name} = {array.dtype} {list(array.shape)}); wanted an array of numbers "
                    f"that is not empty, of another name than {' and '.join(STAMPS)}"
                )
        fields = ((name, each.dtype.str, each.shape) for name, each in found.items())
        return cls(tuple(fields))

    @classmethod
    def from_text(cls, text: str) -> "RecordForm":
        """Return the form that text() wrote."""
        fields = json.loads(text)
        return cls(tuple((name, dtype, tuple(shape)) for name, dtype, shape in fields))

    def text(self) -> str:
        """Return it as JSON."""
        return json.dumps(self.fields)

    @cached_property
    def layout(self) -> numpy.dtype:
        """A record as NumPy has it: where its stamps and fields lie."""
        kinds = [numpy.dtype((dtype, shape)) for _, dtype, shape in self.fields]
        units = [-(-kind.itemsize // ALIGNMENT) for kind in kinds]
        starts = [ALIGNMENT * unit for unit in accumulate(units, initial=1)]
        return numpy.dtype(
            {
                "names": [*STAMPS, *(name for name, _, _ in self.fields)],
                "formats": [*(HEADER[name] for name in STAMPS), *kinds],
                "offsets": [*STAMPS.values(), *starts[:-1]],
                "itemsize": starts[-1],
            }
        )

    @property
    def record_bytes(self) -> int:
        """Bytes of a record."""
        return self.layout.itemsize

    def read(self, records, *, stamps: bool = True) -> dict[str, numpy.ndarray]:
        """Return the fields and stamps of records [n, record_bytes]: {name: [n, *shape]}, fresh."""
        places = numpy.ascontiguousarray(records).view(self.layout)[:, 0]
        names = self.layout.names or ()
        return {name: places[name].copy() for name in names if stamps or name not in STAMPS}

    def __str__(self):
        texts = []
        for name, dtype, shape in self.fields:
            texts.append(f"{name} {numpy.dtype(dtype)} {list(shape)}")
        return ", ".join(texts)


class RecordMemory:
    """Memory that records of one form are written into: where each field lies is found once.

    content   [record_bytes] uint8
    """

    def __init__(self, form: RecordForm, content: numpy.ndarray):
        self._form, self.content = form, content
        whole = content.view(form.layout)  # [1]
        names = [name for name, _, _ in form.fields]
        self._places = {name: whole[name].squeeze(0) for name in names}
        self._header = content[: HEADER.itemsize].view(HEADER)

    def write(self, arrays: dict[str, Any], number: int, time: float, weight: float) -> None:
        """Copy fields and stamps. Errors: ShapeError if the arrays have another form."""
        if arrays.keys() != self._places.keys():
            raise ShapeError(f"put({', '.join(sorted(arrays))}); the first put was {self._form}")
        for name, place in self._places.items():
            values = numpy.asarray(arrays[name])
            if values.shape != place.shape or values.dtype != place.dtype:
                raise ShapeError(
                    f"put({name} = {values.dtype} {list(values.shape)}); the first put was "
                    f"{self._form}, and all are alike"
                )
            place[...] = values
        self._header[0] = number, time, weight


def header_of(records) -> numpy.ndarray:
    """Return the headers of records [..., record_bytes], [...] of HEADER."""
    heads = numpy.ascontiguousarray(records[..., : HEADER.itemsize])
    return heads.view(HEADER)[..., 0]
