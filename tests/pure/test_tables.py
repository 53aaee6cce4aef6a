"""Tables: rows of numbers in files of many kinds, read in place, in any order."""

import os
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import h5py
import numpy
import pytest
from table_rows import rows_in

from shardkit import ConfigurationError
from shardkit.testing.data import EpochOrder, Stream, open_table

ROWS, WIDTH = 137, 5
NAMES = [f"c{column}" for column in range(WIDTH)]


def numbers_of(rows=ROWS):
    generator = numpy.random.default_rng(7)
    return generator.normal(size=(rows, WIDTH)).astype("float32"), generator.normal(size=rows)


def write_npz(path, x, y):
    with path.open("wb") as file:  # numpy would add a suffix
        numpy.savez(file, x=x, y=y)


def write_hdf5(path, x, y, **how):
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=x, **how)
        file.create_dataset("group/y", data=y)


def write_records(path, x, y):
    kind = [*((name, "f4") for name in NAMES), ("y", "f8")]
    with h5py.File(path, "w") as file:
        rows = numpy.array([(*a, b) for a, b in zip(x, y)], kind)
        file.create_dataset("t", data=rows, chunks=(10,))


def write_csv(path, x, y, delimiter=",", end="\n", head=True, mark=""):
    rows = [delimiter.join(map(repr, map(float, (*a, b)))) for a, b in zip(x, y)]
    first = [delimiter.join([*NAMES, "y"])] if head else []
    path.write_bytes((mark + end.join([*first, *rows]) + end).encode())


def write_parquet(path, x, y):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    columns = {name: x[:, index] for index, name in enumerate(NAMES)}
    parquet.write_table(pyarrow.table({**columns, "y": y}), path, row_group_size=30)


COLUMNS = ["c0:c4"], ["y"]
FILES = {
    "npz": ("t.npz", write_npz, (["x"], ["y"])),
    "npz in capitals": ("T.NPZ", write_npz, (["x"], ["y"])),
    "contiguous HDF5": ("t.h5", write_hdf5, (["x"], ["group/y"])),
    "chunked HDF5": (
        "t.h5",
        lambda *data: write_hdf5(*data, chunks=(16, WIDTH)),
        (["x"], ["group/y"]),
    ),
    "compressed HDF5": (
        "t.h5",
        lambda *data: write_hdf5(*data, chunks=(16, WIDTH), compression="gzip"),
        (["x"], ["group/y"]),
    ),
    "HDF5 chunked over columns": (
        "t.h5",
        lambda *data: write_hdf5(*data, chunks=(16, 2)),
        (["x"], ["group/y"]),
    ),
    "big-endian HDF5": (
        "t.h5",
        lambda path, x, y: write_hdf5(path, x.astype(">f4"), y, chunks=(16, WIDTH)),
        (["x"], ["group/y"]),
    ),
    "HDF5 records": ("t.h5", write_records, (["t.c0:t.c4"], ["t.y"])),
    "CSV": ("t.csv", write_csv, COLUMNS),
    "CSV of Windows with semicolons": (
        "t.csv",
        lambda *data: write_csv(*data, ";", "\r\n", mark="\ufeff"),
        COLUMNS,
    ),
    "CSV without names": (
        "t.csv",
        lambda *data: write_csv(*data, head=False),
        (["0:4"], ["5"]),
    ),
    "tabs": ("t.tsv", lambda *data: write_csv(*data, "\t"), COLUMNS),
    "Parquet": ("t.parquet", write_parquet, COLUMNS),
}


@pytest.mark.parametrize("case", FILES)
def test_rows_are_those_of_the_file_in_any_order_and_number(case, tmp_path):
    name, write, (features, targets) = FILES[case]
    x, y = numbers_of()
    write(tmp_path / name, x, y)
    samples = rows_in(tmp_path / name, features, targets, dtype=None)
    assert len(samples) == ROWS
    orders = [
        numpy.random.default_rng(1).permutation(ROWS),
        numpy.array([5, 5, 136, 0]),
        numpy.array([], int),
    ]
    for order in orders:
        got_x, got_y = samples.read(order)
        assert numpy.array_equal(got_x, x[order])
        assert numpy.array_equal(got_y.reshape(-1), y[order].astype(got_y.dtype))


def test_runs_are_chunks_and_row_groups(tmp_path):
    x, y = numbers_of()
    write_hdf5(tmp_path / "t.h5", x, y, chunks=(16, WIDTH))
    write_parquet(tmp_path / "t.parquet", x, y)
    write_csv(tmp_path / "t.csv", x, y)
    assert rows_in(tmp_path / "t.h5", ["x"], ["group/y"]).run_length == 16
    assert rows_in(tmp_path / "t.parquet", targets=["y"]).run_length == 30
    assert rows_in(tmp_path / "t.csv", targets=["y"]).run_length == 1


def test_columns_are_chosen_by_name_range_and_what_is_left(tmp_path):
    x, y = numbers_of()
    write_hdf5(tmp_path / "t.h5", x, y)
    table = open_table(tmp_path / "t.h5")
    every = numpy.arange(ROWS)

    def chosen(features, targets):
        samples = rows_in(table, features, targets, dtype=None)
        return samples.feature_names, samples.read(every)[0]

    names, values = chosen(["x[1]", "x[3:]"], ["x[0]"])
    assert names == ("x[1]", "x[3]", "x[4]") and numpy.array_equal(values, x[:, [1, 3, 4]])
    names, values = chosen([], ["group/y"])
    assert names == tuple(f"x[{column}]" for column in range(WIDTH))
    assert numpy.array_equal(values, x)


def written_chunks(path, rows, length, width=8):
    x = numpy.arange(rows * width, dtype="float32").reshape(rows, width)
    write_hdf5(path, x, x[:, 0], chunks=(length, width))
    return x, rows_in(path, ["x"], ["group/y"], dtype=None)


@pytest.mark.parametrize("ranks", [1, 2, 7])
def test_two_epochs_of_runs_are_right_however_few_rows_of_a_run_are_wanted(ranks, tmp_path):
    """With seven ranks a rank wants too few rows of a run to read it whole."""
    x, samples = written_chunks(tmp_path / "t.h5", 5003, 50)
    order = EpochOrder(len(samples), 1, "batch", samples.run_length)
    for first in range(0, 2 * 5003, 20 * ranks):
        numbers = order.numbers(first, 20)
        found, y = samples.read(numbers)
        assert numpy.array_equal(found, x[numbers]) and numpy.array_equal(y[:, 0], found[:, 0])


@pytest.mark.parametrize("suffix", [".h5", ".parquet"])
@pytest.mark.thorough(but=1)
def test_two_threads_that_read_one_table_each_get_their_own_rows(suffix, tmp_path):
    """As training does, a batch ahead, and validation: what one needs, the other gives up."""
    if suffix == ".h5":
        x, samples = written_chunks(tmp_path / "t.h5", 40_000, 256)
    else:
        x = numpy.arange(2000 * WIDTH, dtype="float64").reshape(-1, WIDTH)
        write_parquet(tmp_path / "t.parquet", x, x[:, 0])
        samples = rows_in(tmp_path / "t.parquet", targets=["y"], dtype=None)

    def read(seed):
        order = EpochOrder(len(samples), seed, "batch", samples.run_length)
        for first in range(0, 4 * len(samples), 500):
            numbers = order.numbers(first, 500)
            if not numpy.array_equal(samples.read(numbers)[0], x[numbers]):
                return f"seed {seed}: wrong rows at {first}"

    with ThreadPoolExecutor(4) as threads:
        assert [*threads.map(read, range(4))] == [None] * 4


def test_an_epoch_in_memory_is_two_windows_and_two_batches(tmp_path):
    written_chunks(tmp_path / "t.h5", 40_000, 256, 32)
    EpochOrder(40_000, 0, "batch", 256).numbers(0, 1)  # the kernel is loaded
    row_bytes, batch, window = 4 * 33, 1000, 4 * 256
    tracemalloc.start()
    samples = rows_in(tmp_path / "t.h5", ["x"], ["group/y"], dtype=None)
    with Stream(samples, 0, "batch", global_batch=batch, first=0, count=batch) as stream:
        for step in range(45):
            stream.batch(step)
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most_bytes < 1.5 * row_bytes * (2 * batch + 2 * window)


def test_a_file_that_becomes_shorter_is_an_error_and_no_row_of_it_is_kept(tmp_path):
    x, samples = written_chunks(tmp_path / "t.h5", 400, 50)
    content = (tmp_path / "t.h5").read_bytes()
    os.truncate(tmp_path / "t.h5", 3000)
    for _ in range(2):
        with pytest.raises(OSError, match="has become shorter while it was read"):
            samples.read(numpy.arange(300, 400))
    (tmp_path / "t.h5").write_bytes(content)
    assert numpy.array_equal(samples.read(numpy.arange(300, 400))[0], x[300:])


def test_chunks_that_were_never_written_read_as_the_fill_value(tmp_path):
    with h5py.File(tmp_path / "t.h5", "w") as file:
        made = file.create_dataset("x", (100, 3), "f4", chunks=(10, 3), fillvalue=2.5)
        made[20:30] = 1.0
    samples = rows_in(tmp_path / "t.h5", ["x"])
    x, y = samples.read(numpy.array([25, 5, 99]))
    assert x[:, 0].tolist() == [1.0, 2.5, 2.5] and y.shape == (3, 0)


def test_rows_of_several_dimensions_stay_whole(tmp_path):
    images = numpy.arange(6 * 2 * 3).reshape(6, 2, 3)
    numpy.save(tmp_path / "t.npy", images)
    x, _ = rows_in(tmp_path / "t.npy", ["array"]).read(numpy.array([4, 1]))
    assert x.dtype == "float32" and numpy.array_equal(x, images[[4, 1]])


def test_weights_stand_behind_the_targets_and_classes_are_numbers(tmp_path):
    numpy.savez(tmp_path / "t.npz", x=numpy.ones((4, 2)), k=[2, 0, 1, 1], w=[1.0, 2.0, 0.5, 0.0])
    table = open_table(tmp_path / "t.npz")
    _, y = rows_in(table, ["x"], ["k"], classes=True).read(numpy.array([0, 2]))
    assert y.dtype == numpy.int64 and y.tolist() == [2, 1]
    _, y = rows_in(table, ["x"], ["k"], weights="w", classes=True).read(numpy.array([0, 2]))
    assert y.tolist() == [[2, 1.0], [1, 0.5]]


def test_the_fingerprint_is_of_the_content_and_the_columns(tmp_path):
    x, y = numbers_of()
    for name, change in (("a.npz", 0), ("b.npz", 0), ("c.npz", 1)):
        numpy.savez(tmp_path / name, x=x + change, y=y)
    a, b, c = (rows_in(tmp_path / f"{name}.npz", ["x"], ["y"]).fingerprint() for name in "abc")
    assert a == b != c
    assert rows_in(tmp_path / "a.npz", ["x[1:]"], ["y"]).fingerprint() != a


def text(content, name="t.csv"):
    return name, lambda path: path.write_text(content)


def arrays(**members):
    return "t.npz", lambda path: numpy.savez(path, **members)


def hdf5(**members):
    def write(path):
        with h5py.File(path, "w") as file:
            for name, values in members.items():
                file[name] = values

    return "t.h5", write


ONES = numpy.ones((4, 2))
WITH_NAN = numpy.array([1.0, 2.0, numpy.nan, 4.0])
X_Y = {"features": ["x"], "targets": ["y"]}
WRONG = {
    "a missing file": (("t.csv", lambda path: None), {}, "No such file"),
    "an empty file": (text(""), {}, "is empty"),
    "an unknown kind": (text("a", "t.doc"), {}, "no kind that is known"),
    "a missing column": (text("price,size\n1,2\n"), {"targets": ["prise"]}, "did you mean price"),
    "a ragged line": (text("a,b\n1,2\n3\n"), {}, "line 3: 1 cells, but 2 columns"),
    "a ragged line with quotes": (text('a,b\n"1",2\n"3,4"\n'), {}, "line 3: 1 cells"),
    "text among numbers": (text("a,b\n1,2\n3,x\n"), {}, "line 3, column b: 'x'; wanted a number"),
    "no target": (text("a,b\n1,2\n3,\n"), {"targets": ["b"]}, "line 3, column b: nothing"),
    "an empty line": (text("a,b\n1,2\n\n3,4\n"), {}, "line 3 is empty"),
    "infinity in a CSV": (text("a,b\n1,2\ninf,4\n"), {}, "line 3, column a: inf; wanted a finite"),
    "a mark of what is missing": (text("a,b\n1,2\n-1e300,4\n"), {}, "column a: -1e+300; wanted"),
    "such a mark in an array": (arrays(x=ONES, y=[1, 2, 3, 1e300]), X_Y, "row 3, column y: 1e+300"),
    "two columns of one name": (text("a,a\n1,2\n"), {}, "two columns named 'a'"),
    "NaN in an array": (arrays(x=ONES, y=WITH_NAN), X_Y, "row 2, column y: nan"),
    **{
        f"{value} in an array of {dtype}": (
            arrays(x=ONES, y=numpy.array([1, 2, value, 4], dtype)),
            X_Y,
            f"row 2, column y: {value}; wanted a finite number",
        )
        for dtype in ("float16", "float32", "float64")
        for value in (numpy.nan, numpy.inf, -numpy.inf)
    },
    "a class that is no integer": (
        arrays(x=ONES, y=[0, 1, 1.5, 2]),
        {**X_Y, "classes": True},
        "row 2, column y: 1.5; wanted a class number",
    ),
    "a negative class": (
        arrays(x=ONES, y=[0, 1, -1, 2]),
        {**X_Y, "classes": True},
        "row 2, column y: -1",
    ),
    "two columns of classes": (
        arrays(x=ONES, y=ONES),
        {**X_Y, "classes": True},
        "classes in 2 columns",
    ),
    "x and y of different lengths": (arrays(x=ONES, y=[1, 2]), X_Y, "x has 4 rows, but y has 2"),
    "a target that is a feature": (
        arrays(x=ONES),
        {"features": ["x"], "targets": ["x[1]"]},
        "column x[1] is a feature and a target",
    ),
    "a column beyond the last": (
        arrays(x=ONES, y=ONES),
        {"features": ["x[7]"], "targets": ["y"]},
        "columns 0 to 1",
    ),
    "text in an array": (
        arrays(x=numpy.array(["a", "b"])),
        {"features": ["x"]},
        "holds records or lists",
    ),
    "a compressed archive": (
        ("t.npz", lambda path: numpy.savez_compressed(path, x=ONES)),
        {},
        "numpy.savez instead",
    ),
    "a dataset that is not there": (
        hdf5(**{"train/inputs": ONES, "train/labels": ONES}),
        {"features": ["train/input"]},
        "did you mean train/inputs",
    ),
    "a file that is no HDF5": (text("hello", "t.h5"), {}, "cannot be opened as an HDF5 file"),
    "an old netCDF file": (text("CDF\x01", "t.nc"), {}, "nccopy -k nc4 makes one of HDF5"),
    "a file that is no Parquet": (text("hello", "t.parquet"), {}, "cannot be read as Parquet"),
    "an array of another format": (text("hello", "t.npy"), {}, "no array in NumPy's format"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_table_is_refused_in_one_sentence(case, tmp_path):
    (name, write), how, words = WRONG[case]
    if "parquet" in name:
        pytest.importorskip("pyarrow")
    write(tmp_path / name)
    with pytest.raises(ConfigurationError) as error:
        samples = rows_in(tmp_path / name, **how)
        samples.read(numpy.arange(len(samples)))
    message = str(error.value)
    assert words in message and "t." in message and "\n" not in message, message


def test_a_batch_of_a_damaged_file_is_refused_when_it_is_opened(tmp_path):
    numpy.save(tmp_path / "t.npy", numpy.ones((1000, 8)))
    whole = (tmp_path / "t.npy").read_bytes()
    (tmp_path / "t.npy").write_bytes(whole[:-100])
    with pytest.raises(ConfigurationError, match="is cut short: shape .1000, 8. of float64"):
        open_table(tmp_path / "t.npy")


# ---- the first line of a CSV ---------------------------------------------------------------------

FLOATS = [(0.5, 0.25, 0.75), (1e-3, 2.5, -1.5), (0.1, 0.2, 0.3)]
WHOLE = [(1, 2, 3), (4, 5, 6), (0, 0, 0)]
LABELS = [(0.5, 0.25, 1), (0.5, 0.125, 0), (0.75, 0.5, 2)]
NAMES_OR_ROW = {  # first line: (rows, what it is)
    ("a", "b", "c"): [(FLOATS, "names"), (WHOLE, "names")],
    ("a", "1", "2"): [(FLOATS, "names"), (WHOLE, "names")],
    ("0", "1", "2"): [(FLOATS, "names"), (LABELS, "names"), (WHOLE, "either"), ([], "either")],
    ("1", "2", "3"): [(FLOATS, "either"), (WHOLE, "either"), (LABELS, "either")],
    ("1990", "1991", "1992"): [(FLOATS, "either"), (WHOLE, "either")],
    ("7", "3", "5"): [(FLOATS, "either"), (WHOLE, "row"), (LABELS, "row"), ([], "row")],
    ("0", "0", "1"): [(FLOATS, "either"), (WHOLE, "row"), (LABELS, "row")],
    ("0.0", "1.0", "2.0"): [(FLOATS, "row"), (WHOLE, "row")],
    ("1e0", "2e0", "nan"): [(FLOATS, "row")],
}


def csv_of(head, rows, delimiter=",", mark="", end="\n", last="\n", quote=""):
    lines = [head, *(map(str, row) for row in rows)]
    return mark + end.join(delimiter.join(f"{quote}{c}{quote}" for c in r) for r in lines) + last


HOW = {
    "plain": {},
    "semicolons": {"delimiter": ";"},
    "tabs": {"delimiter": "\t"},
    "Windows": {"mark": "\ufeff", "end": "\r\n", "last": "\r\n"},
    "no last line end": {"last": ""},
    "quotes": {"quote": '"'},
}


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("head", NAMES_OR_ROW, ids=",".join)
def test_the_first_line_is_names_or_a_row_or_refused(head, how, tmp_path):
    for rows, what in NAMES_OR_ROW[head]:
        (tmp_path / "t.csv").write_bytes(csv_of(head, rows, **HOW[how]).encode())
        if what == "either":
            with pytest.raises(ConfigurationError, match="t.csv: its first line, .*may be names"):
                open_table(tmp_path / "t.csv")
            continue
        table = open_table(tmp_path / "t.csv")
        names = [*head] if what == "names" else ["0", "1", "2"]
        assert [*table.fields] == names
        assert table.fields[names[0]].rows == len(rows) + (what == "row")
        if rows and "nan" not in head:
            number = numpy.array([table.fields[names[0]].rows - 1])
            (last,) = rows_in(table, dtype=None).read(number)[0]
            assert last.tolist() == [*map(numpy.float32, rows[-1])]


def text_of(content):
    return lambda path: path.write_text(content)


INDEXES = {  # what is written: (file, its index, a feature, the target, how)
    "to_csv": ("t.csv", "", "a", "y", text_of(",a,y\n0,1.5,2\n1,2.5,3\n")),
    "to_csv of a bare array": ("t.csv", "", "0", "1", text_of(",0,1\n0,1.5,2\n1,2.5,3\n")),
    "to_csv by dates": ("t.csv", "", "a", "y", text_of(",a,y\n2026-01-01,1.5,2\n")),
    "to_csv, read and written again": (
        "t.csv",
        "Unnamed: 0",
        "a",
        "y",
        text_of("Unnamed: 0,a,y\n0,1.5,2\n1,2.5,3\n"),
    ),
    "write.csv of R": ("t.tsv", "", "a", "y", text_of('""\t"a"\t"y"\n"1"\t1.5\t2\n')),
    "to_parquet": ("t.parquet", "__index_level_0__", "a", "y", lambda path: write_groups(path)),
}


def write_groups(path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    columns = {"a": [1.5, 2.5], "y": [2.0, 3.0], "__index_level_0__": [7, 3]}
    parquet.write_table(pyarrow.table(columns), path)


@pytest.mark.parametrize("case", INDEXES)
def test_an_index_is_a_feature_only_if_it_is_named(case, tmp_path):
    name, index, feature, target, make = INDEXES[case]
    make(tmp_path / name)
    table = open_table(tmp_path / name)
    with pytest.raises(ConfigurationError, match=f"{name}: column '{index}' seems to be the index"):
        rows_in(table, targets=[target])
    samples = rows_in(table, [feature], [target], dtype=None)
    assert samples.feature_names[0].startswith(feature)
    assert samples.read(numpy.array([0]))[0].item() == 1.5
    if index:
        named = rows_in(table, [feature, index], [target])
        assert named.feature_names[-1] == index


def test_class_numbers_are_bounded(tmp_path):
    numpy.savez(tmp_path / "t.npz", x=numpy.ones((4, 2)), k=[0, 1, (1 << 20) - 1, 1 << 20])
    samples = rows_in(tmp_path / "t.npz", ["x"], ["k"], classes=True)
    assert samples.read(numpy.array([2]))[1] == [(1 << 20) - 1]
    with pytest.raises(ConfigurationError, match="row 3, column k: 1048576; wanted a class number"):
        samples.read(numpy.arange(4))
