"""A rank reads its part of each sample: the rows of whole samples, and no more of the file."""

from dataclasses import dataclass

import h5py
import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from table_rows import rows_in

from shardkit import Rows, SamplePart, Samples, ShapeError
from shardkit.testing.data import (
    Draw,
    FileMap,
    Mixture,
    PackedTokens,
    Selected,
    TableSamples,
    TokenWindows,
    content_of_array,
    contents,
    open_table,
    reader_of,
    split_rows,
)
from shardkit.testing.layout import even_span
from shardkit.testing.task import ArraySamples

ROWS, SHAPE = 6, (2, 11, 3)
NUMBERS = numpy.array([4, 0, 5, 4])


def values(dtype="f4"):
    return numpy.random.default_rng(0).normal(size=(ROWS, *SHAPE)).astype(dtype)


def write(path, **how):
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=values(), **how)
        file["y"] = values()[:, :1]
    return path


def stacked(folder):
    """Write a virtual dataset: each row is all of a file of its own."""
    layout = h5py.VirtualLayout((ROWS, *SHAPE), "f4")
    for number, row in enumerate(values()):
        with h5py.File(folder / f"r{number}.h5", "w") as file:
            file["x"] = row
        layout[number] = h5py.VirtualSource(f"r{number}.h5", "x", SHAPE)
    with h5py.File(folder / "all.h5", "w") as file:
        file.create_virtual_dataset("x", layout)
        file["y"] = values()[:, :1]
    return folder / "all.h5"


def joined(folder):
    """Write a virtual dataset: its rows are those of two files."""
    layout = h5py.VirtualLayout((ROWS, *SHAPE), "f4")
    for number in range(2):
        with h5py.File(folder / f"h{number}.h5", "w") as file:
            file["x"] = values()[3 * number : 3 * number + 3]
        layout[3 * number : 3 * number + 3] = h5py.VirtualSource(f"h{number}.h5", "x", (3, *SHAPE))
    with h5py.File(folder / "both.h5", "w") as file:
        file.create_virtual_dataset("x", layout)
        file["y"] = values()[:, :1]
    return folder / "both.h5"


def npz(folder):
    numpy.savez(folder / "arrays.npz", x=values(), y=values()[:, :1])
    return folder / "arrays.npz"


def big_endian(folder):
    numpy.savez(folder / "big.npz", x=values(">f4"), y=values(">f4")[:, :1])
    return folder / "big.npz"


FILES = {
    "contiguous": lambda folder: write(folder / "a.h5"),
    "chunks of rows": lambda folder: write(folder / "a.h5", chunks=(2, *SHAPE)),
    "compressed": lambda folder: write(folder / "a.h5", chunks=(4, 1, 5, 2), compression="gzip"),
    "a file for each row": stacked,
    "files of rows": joined,
    "npz": npz,
    "big endian": big_endian,
}
PARTS = [(dim, count, number) for dim in (1, 2, 3) for count in (2, 3) for number in (0, count - 1)]


@pytest.mark.parametrize("kind", FILES)
def test_a_table_reads_the_rows_of_whole_samples(kind, tmp_path):
    samples = TableSamples(open_table(FILES[kind](tmp_path)), ["x"], ["y"], dtype=None)
    assert samples.reads_parts
    for dim, count, number in PARTS:
        part = SamplePart(number, count, dim, 2)
        if SHAPE[dim - 1] < count:
            continue
        found, wanted = samples.read(NUMBERS, part), part.cut(*samples.read(NUMBERS))
        for ours, theirs in zip(found, wanted):
            assert (ours.dim, ours.start, ours.length) == (theirs.dim, theirs.start, theirs.length)
            assert ours.dtype == "f4" and ours.shape == theirs.shape
            assert numpy.array_equal(ours.array, theirs.array)
        assert samples.read(NUMBERS[:0], part)[0].array.shape == found[0][:0].array.shape


# (number, count) along two dims from x_dim on, or three
BOXES = [(1, ((1, 2), (1, 3))), (1, ((0, 2), (2, 4), (1, 2))), (2, ((2, 3), (0, 2)))]


def box(dim, places):
    """Return the part at these places along the dims from this one on, of x and of y."""
    (number, count), *beside = places
    return SamplePart(number, count, dim, dim, beside=tuple(beside))


@pytest.mark.parametrize("dim, places", BOXES)
@pytest.mark.parametrize("kind", FILES)
def test_a_table_reads_the_box_of_whole_samples(kind, dim, places, tmp_path):
    samples = TableSamples(open_table(FILES[kind](tmp_path)), ["x"], ["y"], dtype=None)
    part, whole = box(dim, places), values()[NUMBERS]
    spans = [even_span(whole.shape[at], *place[::-1]) for at, place in enumerate(places, dim)]
    inside = (slice(None),) * dim + tuple([slice(*span) for span in spans])
    for slab in (samples.read(NUMBERS, part)[0], *part.cut(whole, whole)):
        assert [(cut.start, cut.stop) for cut in slab.cuts] == spans
        assert (slab.dim, slab.shape) == (dim, whole.shape)
        assert numpy.array_equal(slab.array, whole[inside])
    assert " and ".join(f"{a}:{b} along dim {at}" for at, (a, b) in enumerate(spans, dim)) in repr(
        slab
    )


@pytest.mark.parametrize("part", [SamplePart(1, 3, 2, 2), box(2, ((1, 3), (0, 2)))], ids=str)
@pytest.mark.parametrize("kind", ["contiguous", "chunks of rows", "npz"])
def test_no_more_of_a_file_is_read_than_the_part(kind, part, tmp_path, monkeypatch):
    read, read_into = [], FileMap.read_into

    def counted(file, buffer, start):
        read.append(memoryview(buffer).nbytes)
        read_into(file, buffer, start)

    monkeypatch.setattr(FileMap, "read_into", counted)
    samples = TableSamples(open_table(FILES[kind](tmp_path)), ["x"], ["y"], dtype=None)
    monkeypatch.setattr(FileMap, "_map", None)  # which nothing can be taken from
    read.clear()
    x, y = samples.read(NUMBERS, part)
    assert sum(read) == x.array.nbytes + y.array.nbytes


def test_a_value_that_is_no_number_is_named_by_its_place_in_the_whole_row(tmp_path):
    wrong = values()
    wrong[5, 1, 9, 2] = numpy.nan
    numpy.savez(tmp_path / "a.npz", x=wrong, y=wrong[:, :1])
    samples = TableSamples(open_table(tmp_path / "a.npz"), ["x"], ["y"])
    for part in (SamplePart(2, 3, 2, 2), box(2, ((2, 3), (1, 2)))):
        with pytest.raises(ValueError, match=r"row 5, column x\[1,9,2\]: nan"):
            samples.read(NUMBERS, part)


def test_a_text_file_is_read_whole_and_cut(tmp_path):
    (tmp_path / "a.csv").write_text("a,b,c\n" + "1,2,3\n" * 8)
    samples = rows_in(tmp_path / "a.csv", ["a", "b"], ["c"])
    assert not samples.reads_parts
    x, y = reader_of(samples)(NUMBERS, None, SamplePart(1, 2, 1, None))
    assert x.array.tolist() == [[2]] * 4 and y.shape == (4, 1)


@dataclass
class Lazy:
    """What is indexed like an array, and told by how much; it has no length, as one of Zarr."""

    dtype = numpy.dtype("f4")
    shape = (ROWS, *SHAPE)
    largest = 0

    def __array__(self, dtype=None, copy=None):
        raise AssertionError("it was read whole")

    def __getitem__(self, index):
        found = values()[index]
        Lazy.largest = max(Lazy.largest, found.size // max(len(found), 1))
        return found


def test_what_is_indexed_like_an_array_is_asked_for_the_part_alone():
    Lazy.largest = 0
    x, y = ArraySamples(Lazy(), numpy.arange(ROWS)).read(NUMBERS, SamplePart(2, 3, 2, None))
    assert numpy.array_equal(x.array, values()[NUMBERS, :, 8:]) and y.tolist() == NUMBERS.tolist()
    assert Lazy.largest == 2 * 3 * 3


def test_what_is_indexed_like_an_array_is_asked_for_the_box_alone():
    Lazy.largest = 0
    x, y = ArraySamples(Lazy(), Lazy()).read(NUMBERS, box(2, ((2, 3), (1, 2))))
    for slab in (x, y):
        assert numpy.array_equal(slab.array, values()[NUMBERS, :, 8:, 2:])
    assert Lazy.largest == 2 * 3 * 1


def test_values_that_are_missing_are_refused():
    found = numpy.ma.masked_greater(values(), 1)
    masked = type("Variable", (Lazy,), {"__getitem__": lambda self, index: found[index]})()
    with pytest.raises(ShapeError, match="are masked"):
        ArraySamples(masked, numpy.arange(ROWS)).read(NUMBERS, SamplePart(0, 3, 2))


class Whole(Samples):
    """A source that knows of no parts."""

    def __len__(self):
        return ROWS

    def read(self, numbers):
        return values()[numbers], numbers

    def fingerprint(self):
        return "00"


class Told(Whole):
    """One that does, and is given a draw too."""

    def read(self, numbers, draw=None, part=None):
        x = values()[numbers]
        if part is None:
            return x, numbers
        start, stop = part.span(SHAPE[1])
        return part.x(x[:, :, start:stop], SHAPE[1]), part.y(numbers, 0)


@pytest.mark.parametrize("kind", [Whole, Told])
def test_sources_in_sources_are_told_the_part(kind):
    chosen = Selected(Mixture([kind(), kind()], [1, 2]), split_rows(18, 50)[0])
    assert chosen.reads_parts == (kind is Told)
    part, numbers = SamplePart(1, 3, 2), numpy.arange(len(chosen))
    x, y = reader_of(chosen)(numbers, Draw(0, numbers), part)
    whole, wanted_y = chosen.read(numbers)
    assert numpy.array_equal(x.array, whole[:, :, 4:8]) and numpy.array_equal(y, wanted_y)
    assert (x.start, x.stop, x.length, x.shape) == (4, 8, 11, whole.shape)
    part = SamplePart(1, 3, 2, beside=((1, 2),))
    x, y = reader_of(chosen)(numbers, Draw(0, numbers), part)
    assert numpy.array_equal(x.array, whole[:, :, 4:8, 2:]) and numpy.array_equal(y, wanted_y)
    assert [*x.cuts] == [(2, 4, 8, 11), (3, 2, 3, 3)]


def test_a_source_may_say_that_it_read_a_box():
    part, whole = box(2, ((1, 3), (0, 2))), values()
    rows, columns = part.span(SHAPE[1]), part.span(SHAPE[2], 1)
    inside = whole[:, :, slice(*rows), slice(*columns)]
    for of_box, of_slab in (
        (part.x, part.cut(whole, whole)[0]),
        (part.y, part.y(whole[:, :, slice(*rows)], 11)),
    ):
        slab = of_box(inside, *SHAPE[1:])
        assert slab.cuts == of_slab.cuts == ((2, 4, 8, 11), (3, 0, 2, 3))
        assert numpy.array_equal(slab.array, of_slab.array)
    assert slab.map(numpy.negative)[:2].cuts == slab.cuts and slab[:2].shape == (2, *SHAPE)


@given(st.integers(1, 30), st.data())
@settings(deadline=None)
def test_parts_of_a_window_are_its_tokens_one_after_the_other(length, data):
    count = data.draw(st.integers(1, min(length, 5)))
    tokens = numpy.arange(100) % 17
    windows = TokenWindows(packed(tokens), length, 17)
    numbers = numpy.arange(len(windows))
    parts = [windows.read(numbers, SamplePart(n, count, 1, 1)) for n in range(count)]
    for found, wanted in zip(zip(*parts), windows.read(numbers)):
        assert numpy.array_equal(numpy.concatenate([each.array for each in found], 1), wanted)


def packed(tokens):
    """Return tokens that lie in memory, as one part of a file would."""
    made = PackedTokens.__new__(PackedTokens)
    made.segments, made.is_text = [type("S", (), {"answers": None, "largest": 16})()], False
    made._stops = numpy.array([len(tokens)])
    made.gather = lambda starts, length: numpy.stack([tokens[at : at + length] for at in starts])
    return made


def test_a_slab_is_no_array():
    slab = Rows(numpy.zeros((2, 3)), 1, 4, 9)
    with pytest.raises(ShapeError, match=r"rows 4:7 along dim 1 of \(2, 9\) is a part of samples"):
        numpy.asarray(slab)


def test_a_large_row_is_hashed_piece_by_piece(monkeypatch):
    whole = values()
    monkeypatch.setattr(contents, "_BLOCK_BYTES", 64)
    Lazy.largest = 0
    assert content_of_array(Lazy()) == content_of_array(whole)
    assert 4 * Lazy.largest <= 64
    changed = whole.copy()
    changed[3, 1, 10, 2] += 1
    assert content_of_array(changed) != content_of_array(whole)
