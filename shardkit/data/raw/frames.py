"""Frames in HDF5 files: DataFrame.to_hdf of pandas, and tables of PyTables, read whole.

    format="table", PyTables   table           records: members are columns, or blocks of them
    format="fixed"             block0_values   [rows, columns] of one type; block0_items: names

What pandas says of columns is pickled. It is read as the texts that are in it, and never run.
"""

import pickletools
from pathlib import Path
from typing import Any

import numpy

from ...errors import InputError
from ...files.reading import library
from .. import hdf5
from ..arrow import arrow
from ..hdf5_claims import check_claims
from ..hdf5_headers import VirtualMessages

_TEXTS = "UNICODE", "INT", "LONG"  # of pickles
_NONE = b"N."
_TIMES = "datetime64", "timedelta64"
_FRAMES = "frame", "frame_table", "series_table"  # of pandas


def frame_of(path: Path) -> Any:
    """Return the frame of an HDF5 file as a pyarrow.Table; None if it holds arrays.

    Errors: InputError, ConfigurationError.
    """
    file = hdf5.open_to_read(path)
    with library(path):
        found = hdf5.datasets(file).items()
        datasets = {
            name: each
            for name, each in found
            if not isinstance(each, VirtualMessages) and "/_i_" not in f"/{name}"
        }
        above = dict.fromkeys(name.rpartition("/")[0] for name in datasets if "/meta/" not in name)
        frames = [group for group in above if "pandas_type" in file[group or "/"].attrs]
        tables = [name for name in datasets if datasets[name].attrs.get("CLASS") == b"TABLE"]
        if not frames and not len(tables) == len(datasets) == 1:
            return None
        if len(frames) > 1:
            raise InputError(f"{path} holds the frames {', '.join(frames)}; wanted one", path)
        (group,) = frames or [tables[0].rpartition("/")[0]]
        return _Frame(path, datasets, group, file[group or "/"].attrs).table()


class _Frame:
    """The datasets of a frame, which lie in a group; said: the attributes of this."""

    def __init__(self, path: Path, datasets: dict, group: str, said):
        self._path, self._datasets = path, datasets
        missing = said.get("nan_rep", _NONE)
        self._missing = b"" if missing == _NONE else missing
        kind = _text(said.get("pandas_type", b"frame"))
        if kind not in _FRAMES:
            raise InputError(f"{path} holds a {kind} of pandas; wanted a frame: to_frame()", path)
        self._above = f"{group}/" if group else ""
        self._pa = arrow(path).pa

    def table(self):
        """Return its columns."""
        columns: dict[str, Any] = {}
        for name, dataset in self._datasets.items():
            kind = name.removeprefix(self._above)
            if dataset.dtype.names and "/" not in kind:
                columns |= self._of_records(self._values(name), dataset.attrs)
            elif kind.startswith("block") and kind.endswith("_values"):
                items = name.removesuffix("values") + "items"
                names = self._values(items).tolist() if items in self._datasets else []
                type_ = _text(dataset.attrs.get("value_type", b""))
                columns |= self._of_block([*map(_text, names)], self._values(name), type_)
            elif kind == "axis1" and (type_ := _text(dataset.attrs.get("kind"))).startswith(_TIMES):
                columns |= self._of_block(["index"], self._values(name)[:, None], type_)
        return self._pa.table(columns)

    def _values(self, name: str) -> numpy.ndarray:
        dataset = self._datasets[name]
        if "shape" in dataset.attrs:
            raise InputError(f"{name} of {self._path} has no rows; wanted one or more", self._path)
        if dataset.dtype.hasobject:
            raise InputError(
                f"{name} of {self._path} holds objects of Python, such as texts; write them with "
                "to_hdf(..., format='table')",
                self._path,
                name,
            )
        check_claims(dataset, self._path, name)
        return dataset[:]

    def _of_records(self, records, said) -> dict[str, Any]:
        """Return the columns of records, but for an index that is no time."""
        columns: dict[str, Any] = {}
        for member in records.dtype.names:
            kind = said.get(f"{member}_kind", b"")
            type_ = said.get(f"{member}_dtype", kind).decode("latin-1")
            if member == "index" and kind and not type_.startswith(_TIMES):
                continue
            shape = records.dtype[member].shape
            places = [f"[{','.join(map(str, at))}]" for at in numpy.ndindex(shape)]
            names = _texts(kind) or ([member + at for at in places] if shape else [member])
            block = records[member].reshape(len(records), -1)
            missing = said.get(f"{member}_nan_rep", self._missing)
            columns |= self._of_block(names, block, type_, missing, member)
        return columns

    def _of_block(self, names, block, type_: str, missing=b"", member="") -> dict[str, Any]:
        """Return columns of one type; datetime64[us]: as pandas says it."""
        if len(names) != block.shape[1]:
            raise InputError(
                f"{self._path} has names of several levels (MultiIndex); wanted plain names",
                self._path,
            )
        if type_.startswith(_TIMES):
            block = block.view(type_ if "[" in type_ else f"{type_}[ns]")
        coded = f"{self._above}meta/{member}/meta/table"
        categories = self._values(coded)["values"] if coded in self._datasets else None
        columns = [self._column(column, categories, missing) for column in block.T]
        return dict(zip(names, columns))

    def _column(self, values, categories, missing):
        pa = self._pa
        if categories is not None:
            codes = pa.array(values, mask=values < 0)
            return pa.DictionaryArray.from_arrays(codes, self._column(categories, None, missing))
        if values.dtype.kind != "S":
            return pa.array(values)
        is_none = (values == b"") | (values == missing)
        return pa.array(values.astype(object), pa.binary(), mask=is_none).cast(pa.string())


def _texts(pickled: bytes) -> list[str]:
    """Return the texts and numbers in a pickle, which is not run; [] of what is none."""
    codes = pickletools.genops(pickled) if pickled.startswith(b"(") else ()
    return [str(value) for code, value, _ in codes if code.name in _TEXTS]


def _text(said) -> str:
    return said.decode() if isinstance(said, bytes) else str(said)
