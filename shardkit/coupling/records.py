"""Records: the fields of a put as bytes of one size, as they travel and lie in buffers.

| number int64 | time float64 | weight float64 | ... 64 | field | field | ...    each at a 64th
"""

import json
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy

from ..errors import ShapeError

ALIGNMENT = 64
HEADER = numpy.dtype([("number", "<i8"), ("time", "<f8"), ("weight", "<f8")])
STAMPS = ("time", "weight")  # names that a record has beside its fields
_KINDS = "biufc"


@dataclass(frozen=True)
class PutField:
    """An array of every record."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    def __str__(self):
        return f"{self.name} {numpy.dtype(self.dtype)} {list(self.shape)}"

    @property
    def num_bytes(self) -> int:
        """Bytes of its values."""
        return prod(self.shape) * numpy.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class RecordForm:
    """The fields of all records of a coupling, in the order of their names."""

    fields: tuple[PutField, ...]

    @classmethod
    def of(cls, arrays: dict[str, Any]) -> "RecordForm":
        """Return the form of these arrays. Errors: ShapeError on what is no array of numbers."""
        return cls(tuple(_field(name, arrays[name]) for name in sorted(arrays)))

    @classmethod
    def from_text(cls, text: str) -> "RecordForm":
        """Return the form that text() wrote."""
        fields = []
        for name, shape, dtype in json.loads(text):
            fields.append(PutField(name, tuple(shape), dtype))
        return cls(tuple(fields))

    def text(self) -> str:
        """Return it as JSON."""
        return json.dumps([[field.name, field.shape, field.dtype] for field in self.fields])

    @property
    def record_bytes(self) -> int:
        """Bytes of a record."""
        return self._starts()[-1]

    def _starts(self) -> list[int]:
        """Return where each field begins, and where the record ends."""
        starts = [ALIGNMENT]
        for field in self.fields:
            num_units = -(-field.num_bytes // ALIGNMENT)
            starts.append(starts[-1] + num_units * ALIGNMENT)
        return starts

    def write(self, record, arrays: dict[str, Any], number: int, time: float, weight: float):
        """Copy fields and stamps into a record, [record_bytes] uint8.

        Errors: ShapeError if the arrays have another form.
        """
        if arrays.keys() != {field.name for field in self.fields}:
            raise ShapeError(f"put({', '.join(sorted(arrays))}); the first put was {self}")
        for field, start in zip(self.fields, self._starts()):
            values = numpy.asarray(arrays[field.name])
            if values.shape != field.shape or values.dtype.str != field.dtype:
                raise ShapeError(
                    f"put({field.name} = {values.dtype} {list(values.shape)}); the first put was "
                    f"{self}, and all are alike"
                )
            place = record[start : start + field.num_bytes].view(field.dtype)
            numpy.copyto(place.reshape(field.shape), values)
        record[: HEADER.itemsize].view(HEADER)[0] = number, time, weight

    def read(self, records, *, stamps: bool = True) -> dict[str, numpy.ndarray]:
        """Return the fields and stamps of records [n, record_bytes]: {name: [n, *shape]}, fresh."""
        arrays = {}
        for field, start in zip(self.fields, self._starts()):
            part = numpy.ascontiguousarray(records[:, start : start + field.num_bytes])
            arrays[field.name] = part.view(field.dtype).reshape(-1, *field.shape)
        heads = header_of(records)
        return arrays | ({name: heads[name].copy() for name in STAMPS} if stamps else {})

    def __str__(self):
        return ", ".join(map(str, self.fields))


def header_of(records) -> numpy.ndarray:
    """Return the headers of records [..., record_bytes], [...] of HEADER."""
    heads = numpy.ascontiguousarray(records[..., : HEADER.itemsize])
    return heads.view(HEADER)[..., 0]


def _field(name: str, values) -> PutField:
    array = numpy.asarray(values)
    if name in STAMPS or array.dtype.kind not in _KINDS or not array.size:
        raise ShapeError(
            f"put({name} = {array.dtype} {list(array.shape)}); wanted an array of numbers that is "
            f"not empty, of another name than {' and '.join(STAMPS)}"
        )
    return PutField(name, array.shape, array.dtype.str)
