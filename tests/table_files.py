"""Writes the same rows of numbers in each format of tables."""

import os

import h5py
import numpy
import pytest

ROWS = 5000  # several blocks of 4 KiB, so that one byte in the middle is in no corner
SUFFIXES = (".npy", ".npz", ".csv", ".h5", ".parquet")


def rows():
    """Numbers [5000, 3] float64."""
    return numpy.random.default_rng(0).normal(size=(ROWS, 3)).round(6)


def write(path, values):
    """Write columns a, b, c, or one array, by the suffix of the path."""
    if path.suffix == ".npy":
        numpy.save(path, values)
    elif path.suffix == ".npz":
        numpy.savez(path, a=values[:, 0], b=values[:, 1], c=values[:, 2])
    elif path.suffix == ".csv":
        lines = [",".join(map(str, row)) for row in values.tolist()]
        path.write_text("\n".join(["a,b,c", *lines]) + "\n")
    elif path.suffix == ".h5":
        made = path.with_name("made.h5")  # who has the other one open keeps it
        with h5py.File(made, "w") as file:
            file.create_dataset("a", data=values, chunks=(100, 3), track_times=False)
        os.replace(made, path)
    else:
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        table = pyarrow.table({name: values[:, i] for i, name in enumerate("abc")})
        parquet.write_table(table, path)
