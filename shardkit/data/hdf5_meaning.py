"""What attributes of a dataset say that its numbers mean, by the conventions of netCDF files.

    stored int16 [120, -32767, 80]                          meant float32 [13.0, nan, 9.0]
    scale_factor 0.1, add_offset 1.0, _FillValue -32767     stored * scale_factor + add_offset

What is not there (`_FillValue`, `missing_value`) is NaN among floats. Integers have none: one that
is not there is refused where it is read. By netCDF4 and xarray a netCDF file reads the same.
Source: CF conventions 1.11, sections 2.5.1 and 8.1.
"""

from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy

from ..checkpoint.format.hdf5 import h5py
from ..errors import InputError
from ..files.reading import library

_MISSING = "_FillValue", "missing_value"
_PACKED = "scale_factor", "add_offset"
_MOST_VALUES = 64  # of one attribute


@dataclass(frozen=True, eq=False)
class Meaning:
    """What the numbers of one dataset mean.

    missing         values as stored that stand for none; NaN is not among them
    scale, offset   of packed numbers
    dtype           of the numbers that are meant
    """

    missing: numpy.ndarray
    scale: float
    offset: float
    dtype: numpy.dtype
    path: Path
    field: str

    def of(self, values: numpy.ndarray) -> numpy.ndarray:
        """Return the numbers that these mean. Errors: InputError on an integer that is none."""
        is_missing = numpy.isin(values, self.missing) if self.missing.size else None
        found = values.astype(self.dtype.newbyteorder("="), copy=False)
        if self.scale != 1.0 or self.offset:
            number = found.dtype.type
            found = found * number(self.scale) + number(self.offset)
        if is_missing is None or not is_missing.any():
            return found
        if found.dtype.kind != "f":
            raise InputError(
                f"{self.field} of {self.path} holds {values[is_missing][0]}, which its attributes "
                "say stands for no value; wanted one in each row: leave such rows out, or write "
                "the field as floats, of which NaN says so",
                self.path,
                self.field,
            )
        found = found if found is not values else found.copy()
        found[is_missing] = numpy.nan
        return found


def meaning_of(dataset: "h5py.Dataset", path: Path, field: str) -> Meaning | None:
    """Return what the attributes say; None: the numbers are as they stand.

    Errors: InputError on attributes that are no numbers.
    """
    stored = dataset.dtype
    if stored.kind not in "iuf":
        return None
    with library(path, field):
        about = {name: _numbers(dataset, name, path, field) for name in _MISSING + _PACKED}
    missing = numpy.concatenate([_as_stored(about[name], stored) for name in _MISSING])
    scale, offset = (about[name] for name in _PACKED)
    is_packed = bool((scale != 1).any() or (offset != 0).any())
    if not missing.size and not is_packed:
        return None
    meant = numpy.result_type(stored, numpy.float32, scale, offset) if is_packed else stored
    return Meaning(missing, _first(scale, 1.0), _first(offset, 0.0), meant, path, field)


def _first(numbers, usual: float) -> float:
    return float(numbers[0]) if numbers.size else usual


def _as_stored(numbers, stored: numpy.dtype) -> numpy.ndarray:
    """Return those of the numbers that the dtype can have: NaN is NaN without a word."""
    numbers = numbers[~numpy.isnan(numbers)]
    if stored.kind != "f":
        limits = numpy.iinfo(stored)
        numbers = numbers[(numbers >= limits.min) & (numbers <= limits.max)]
    return numbers.astype(stored)


def _numbers(dataset, name: str, path: Path, field: str) -> numpy.ndarray:
    """Return the numbers of an attribute, [] if there is none."""
    if name not in dataset.attrs:
        return numpy.empty(0, numpy.float32 if name in _PACKED else dataset.dtype)
    about = dataset.attrs.get_id(name)
    most = 1 if name in _PACKED else _MOST_VALUES
    size = 0 if about.shape is None else prod(about.shape)
    if about.dtype.kind not in "iuf" or not 0 < size <= most:
        raise InputError(
            f"{field} of {path} has an attribute {name} of {about.dtype} {about.shape}; wanted a "
            "number: it says what the numbers of the dataset mean",
            path,
            field,
        )
    return numpy.atleast_1d(dataset.attrs[name]).reshape(-1)
