"""Virtual datasets of HDF5: read where every row is in a source that is there, else refused."""

import os
import random

import h5py
import numpy
import pytest

from shardkit import ConfigurationError
from shardkit.testing.base import InputError
from shardkit.testing.data import TableSamples, lookup3, open_table

PART, PARTS, WIDTH = 7, 5, 3
ROWS = PART * PARTS


def values():
    return numpy.random.default_rng(0).normal(size=(ROWS, WIDTH)).astype("f4")


def write_sources(folder, **how):
    for number in range(PARTS):
        with h5py.File(folder / f"p{number}.h5", "w") as file:
            rows = values()[number * PART : (number + 1) * PART]
            file.create_dataset("g/x", data=rows, **how)


def write_virtual(folder, fill=None, libver="earliest", name="p{}.h5", dataset="g/x"):
    layout = h5py.VirtualLayout((ROWS, WIDTH), "f4")
    for number in range(PARTS):
        source = h5py.VirtualSource(name.format(number), dataset, (PART, WIDTH))
        layout[number * PART : (number + 1) * PART] = source
    with h5py.File(folder / "all.h5", "w", libver=libver) as file:
        file.create_virtual_dataset("x", layout, fillvalue=fill)
        file["y"] = numpy.arange(ROWS)
    return folder / "all.h5"


def read(path, numbers=None, features=("x",)):
    samples = TableSamples(open_table(path), features, dtype=None)
    return samples.read(numpy.arange(len(samples)) if numbers is None else numbers)[0]


STORED = {
    "contiguous": {},
    "chunked": {"chunks": (2, WIDTH)},
    "compressed": {"chunks": (4, 2), "compression": "gzip"},
}


@pytest.mark.parametrize("libver", ["earliest", "latest", "v110", "v112"])
@pytest.mark.parametrize("how", STORED)
def test_rows_are_those_of_the_sources_in_any_order(how, libver, tmp_path):
    write_sources(tmp_path, **STORED[how])
    path = write_virtual(tmp_path, libver=libver)
    order = numpy.random.default_rng(1).permutation(ROWS)
    assert numpy.array_equal(read(path, order), values()[order])
    assert numpy.array_equal(read(path, order, ["x[1:3]"]), values()[order, 1:])
    samples = TableSamples(open_table(path), targets=["y"], dtype=None)
    assert samples.run_length == {"contiguous": 1, "chunked": 2, "compressed": 4}[how]
    assert numpy.array_equal(samples.read(order)[0], values()[order])


@pytest.mark.thorough
def test_more_sources_than_may_be_open_at_once(tmp_path):
    layout = h5py.VirtualLayout((100, 2), "f8")
    for number in range(100):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            file["x"] = numpy.full((1, 2), number, "f8")
        layout[number] = h5py.VirtualSource(f"{number}.h5", "x", (1, 2))
    with h5py.File(tmp_path / "all.h5", "w") as file:
        file.create_virtual_dataset("x", layout)
    before = len(os.listdir("/proc/self/fd"))
    table = open_table(tmp_path / "all.h5")
    samples = TableSamples(table, ["x"])
    order = numpy.random.default_rng(0).permutation(100)
    assert samples.read(order)[0][:, 0].tolist() == order.tolist()
    assert len(os.listdir("/proc/self/fd")) - before < 50


def test_files_that_are_stacked_are_rows_of_their_own(tmp_path):
    write_sources(tmp_path)
    layout = h5py.VirtualLayout((PARTS, PART, WIDTH), "f4")
    for number in range(PARTS):
        layout[number] = h5py.VirtualSource(f"p{number}.h5", "g/x", (PART, WIDTH))
    with h5py.File(tmp_path / "all.h5", "w") as file:
        file.create_virtual_dataset("x", layout)
    found = read(tmp_path / "all.h5", numpy.array([4, 0, 0, 2]))
    assert numpy.array_equal(found, values().reshape(PARTS, PART, WIDTH)[[4, 0, 0, 2]])


def test_parts_of_sources_and_of_the_file_itself_are_read(tmp_path):
    write_sources(tmp_path)
    layout = h5py.VirtualLayout((6, WIDTH), "f4")
    layout[:4] = h5py.VirtualSource("p1.h5", "g/x", (PART, WIDTH))[2:6]
    layout[4:] = h5py.VirtualSource(".", "own", (2, WIDTH))
    with h5py.File(tmp_path / "all.h5", "w") as file:
        file["own"] = numpy.full((2, WIDTH), 5, "f4")
        file.create_virtual_dataset("x", layout)
    found = read(tmp_path / "all.h5")
    assert numpy.array_equal(found[:4], values()[PART + 2 : PART + 6]) and (found[4:] == 5).all()


def short(folder):
    with h5py.File(folder / "p2.h5", "w") as file:
        file["g/x"] = values()[:3]


def long(folder):
    with h5py.File(folder / "p2.h5", "w") as file:
        file["g/x"] = values()[: PART + 1]


def of_dtype(folder):
    with h5py.File(folder / "p2.h5", "w") as file:
        file["g/x"] = values()[:PART].astype("f8")


def narrow(folder):
    with h5py.File(folder / "p2.h5", "w") as file:
        file["g/x"] = values()[:PART, :2]


def unwritten(folder):
    with h5py.File(folder / "p2.h5", "w") as file:
        file.create_dataset("g/x", (PART, WIDTH), "f4", chunks=(1, WIDTH))[:3] = 1


def cut(folder):
    os.truncate(folder / "p2.h5", (folder / "p2.h5").stat().st_size - 5)


def virtual(folder):
    layout = h5py.VirtualLayout((PART, WIDTH), "f4")
    layout[:] = h5py.VirtualSource("p1.h5", "g/x", (PART, WIDTH))
    with h5py.File(folder / "p2.h5", "w") as file:
        file.create_virtual_dataset("g/x", layout)


def without(folder):
    with h5py.File(folder / "p2.h5", "w") as file:
        file["other"] = values()


def external(folder):
    (folder / "raw").write_bytes(values().tobytes())
    with h5py.File(folder / "p2.h5", "w") as file:
        file.create_dataset("g/x", (PART, WIDTH), "f4", external=[("raw", 0, 4 * PART * WIDTH)])


BROKEN = {
    "gone": (lambda folder: (folder / "p2.h5").unlink(), "g/x of .*p2.h5 cannot be read: No such"),
    "a folder": (lambda f: ((f / "p2.h5").unlink(), (f / "p2.h5").mkdir()), "not an ordinary file"),
    "a pipe": (lambda f: ((f / "p2.h5").unlink(), os.mkfifo(f / "p2.h5")), "not an ordinary file"),
    "text": (lambda f: (f / "p2.h5").write_text("text"), "p2.h5 cannot be opened as an HDF5 file"),
    "short": (short, "p2.h5 has 3 rows; wanted 0 to 6"),
    "long": (long, "p2.h5 has 8 rows; wanted 0 to 6"),
    "of another dtype": (of_dtype, "p2.h5 is of float64; wanted float32"),
    "narrow": (narrow, r"p2.h5 has the shape \(7, 2\); wanted rows of \(3,\)"),
    "not all written": (unwritten, "p2.h5 lacks 4 of its 7 chunks"),
    "cut short": (cut, "p2.h5"),
    "virtual itself": (virtual, "p2.h5 is not there, or is no dataset of numbers"),
    "another dataset": (without, "p2.h5 is not there, or is no dataset of numbers"),
    "external": (external, "p2.h5 has its values in other files"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_source_that_is_not_as_it_should_be_is_named(case, tmp_path):
    breaks, words = BROKEN[case]
    write_sources(tmp_path)
    path = write_virtual(tmp_path, fill=0)
    breaks(tmp_path)
    with pytest.raises(InputError, match=words):
        read(path)


def test_a_source_that_changes_is_another_fingerprint(tmp_path):
    write_sources(tmp_path)
    path = write_virtual(tmp_path)

    def fingerprint():
        return TableSamples(open_table(path), ["x"]).fingerprint()

    first = fingerprint()
    assert first == fingerprint()
    with h5py.File(tmp_path / "p3.h5", "r+") as file:
        file["g/x"][PART - 1, 1] = 9
    assert fingerprint() != first


def mapped(shape, *places):
    """A file whose x maps these (where, source file, shape of the source, part)."""

    def write(folder):
        layout = h5py.VirtualLayout(shape, "f4")
        for where, name, size, part in places:
            layout[where] = h5py.VirtualSource(name, "g/x", size)[part]
        with h5py.File(folder / "all.h5", "w") as file:
            file.create_virtual_dataset("x", layout)

    return write


def endless(folder):
    layout = h5py.VirtualLayout((PART, WIDTH), "f4", maxshape=(None, WIDTH))
    source = h5py.VirtualSource("p0.h5", "g/x", (PART, WIDTH), maxshape=(None, WIDTH))
    layout[: h5py.h5s.UNLIMITED] = source[: h5py.h5s.UNLIMITED]
    with h5py.File(folder / "all.h5", "w") as file:
        file.create_virtual_dataset("x", layout)


S, ALL = (PART, WIDTH), slice(None)
WRONG_MAPS = {
    "rows in no source": (mapped((20, 3), (slice(0, 7), "p0.h5", S, ALL)), "7 to 19 are in no"),
    "a gap": (
        mapped((20, 3), (slice(0, 7), "p0.h5", S, ALL), (slice(13, 20), "p1.h5", S, ALL)),
        "7 to 12 are in no source",
    ),
    "rows in two sources": (
        mapped((10, 3), (slice(0, 7), "p0.h5", S, ALL), (slice(3, 10), "p1.h5", S, ALL)),
        "row 3 is in two",
    ),
    "interleaved": (
        mapped((14, 3), (slice(0, 14, 2), "p0.h5", S, ALL), (slice(1, 14, 2), "p1.h5", S, ALL)),
        "interleaved",
    ),
    "columns from two files": (
        mapped(
            (7, 6),
            ((ALL, slice(0, 3)), "p0.h5", S, ALL),
            ((ALL, slice(3, 6)), "p1.h5", S, ALL),
        ),
        "its rows are cut",
    ),
    "another folder": (mapped(S, (ALL, "../p0.h5", S, ALL)), "is not in the folder"),
    "a path from the root": (mapped(S, (ALL, "/etc/p0.h5", S, ALL)), "is not in the folder"),
    "no source": (mapped(S), "all.h5"),
    "no end": (endless, "its sources have no end"),
}


@pytest.mark.parametrize("libver", ["earliest", "latest"])
@pytest.mark.parametrize("case", WRONG_MAPS)
def test_a_mapping_that_is_not_row_by_row_is_refused(case, libver, tmp_path, monkeypatch):
    write, words = WRONG_MAPS[case]
    write_sources(tmp_path)
    whole = h5py.File
    monkeypatch.setattr(
        h5py, "File", lambda *a, **how: whole(*a, **({"libver": libver} | how if "w" in a else how))
    )
    write(tmp_path)
    with pytest.raises(ConfigurationError, match=words) as refused:
        read(tmp_path / "all.h5")
    assert "damaged" not in str(refused.value) and "h5repack" in str(refused.value)


@pytest.mark.parametrize("libver", ["earliest", "latest"])
@pytest.mark.thorough(but=1)
def test_no_damage_to_a_mapping_is_read_as_other_rows(libver, tmp_path):
    """The checksum of the mapping covers names and selections."""
    write_sources(tmp_path)
    path = write_virtual(tmp_path, libver=libver)
    whole = path.read_bytes()
    heap = whole.index(b"GCOL") + 32
    size = int.from_bytes(whole[heap - 8 : heap], "little")
    draw = random.Random(0)
    for _ in range(150):
        content = bytearray(whole)
        content[heap + draw.randrange(size)] ^= 1 << draw.randrange(8)
        path.write_bytes(content)
        with pytest.raises(InputError):
            read(path)


def test_the_checksum_is_that_of_its_author():
    assert lookup3(b"") == 0xDEADBEEF
    assert lookup3(b"Four score and seven years ago") == 0x17770551
