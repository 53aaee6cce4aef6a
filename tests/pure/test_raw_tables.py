"""Tables as people have them: texts, gaps, dates and dialects, read and made into numbers."""

import bz2
import gzip
import json
import lzma

import numpy
import pytest

from shardkit import ConfigurationError
from shardkit.testing.data import (
    Categories,
    Classes,
    ColumnEncoder,
    ColumnFindings,
    Fitting,
    Numbers,
    Scaling,
    Times,
    as_names,
    classes,
    csv,
    from_json,
    has_open_quote,
    open_table,
    row_ends,
    time_parts,
    to_json,
)

pyarrow = pytest.importorskip("pyarrow")

NAN = numpy.nan
DAY = 86400.0
# what each column holds, in the order of the rows; times as seconds since 1970
COLUMNS = {
    "number": [1.5, NAN, -1234567.25],
    "whole": [1, 2, 3],
    "flag": [1, 0, NAN],
    "word": ["a", None, "b, c"],
    "lines": ["x\ny", 'say "z"', None],
    "day": [0.0, NAN, 19723 * DAY],
}
TEXTS = {
    "plain": (
        "number,whole,flag,word,lines,day\n"
        '1.5,1,true,a,"x\ny",1970-01-01\n'
        ',2,false,,"say ""z""",\n'
        '-1234567.25,3,,"b, c",,2024-01-01\n'
    ),
    "German": (
        "number;whole;flag;word;lines;day\n"
        '1,5;1;true;a;"x\ny";01.01.1970\n'
        ';2;false;;"say ""z""";\n'
        "-1.234.567,25;3;;b, c;;01.01.2024\n"
    ),
    "Windows": (
        "\ufeffnumber\twhole\tflag\tword\tlines\tday\r\n"
        '1.5\t1\tTrue\ta\t"x\ny"\t1970-01-01\r\n'
        'NA\t2\tFalse\tNULL\t"say ""z"""\t\r\n'
        '"-1,234,567.25"\t3\t\tb, c\t\t2024-01-01 00:00:00\r\n\r\n'
    ),
}
TEXTS["Excel"] = "sep=;\n" + TEXTS["German"]
TEXTS["Excel with a mark"] = "\ufeffsep=\t\r\n" + TEXTS["Windows"].lstrip("\ufeff")
TEXTS["Excel, a circumflex"] = "sep=^\n" + TEXTS["German"].replace(";", "^")
PACKED = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, "": bytes}


def plain(column):
    """A column as a list, with None where nothing stands."""
    if isinstance(column, numpy.ndarray):
        return [None if value != value else value for value in column.tolist()]
    return [None if code < 0 else column.values[code] for code in column.codes.tolist()]


def columns_in(table):
    names = list(table.fields)
    groups = [table.group(number, names) for number in range(len(table.begins) - 1)]
    return {name: [v for group in groups for v in plain(group[name])] for name in names}


EXPECTED = {name: [None if v != v else v for v in values] for name, values in COLUMNS.items()}


@pytest.mark.parametrize("suffix", PACKED)
@pytest.mark.parametrize("dialect", TEXTS)
def test_a_csv_of_any_dialect_holds_the_same_columns(dialect, suffix, tmp_path):
    path = tmp_path / f"t.csv{suffix}"
    path.write_bytes(PACKED[suffix](TEXTS[dialect].encode()))
    assert columns_in(open_table(path)) == EXPECTED


def test_rows_without_names_follow_a_line_that_tells_the_delimiter(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("sep=|\n1|2\n3|4\n")
    assert columns_in(open_table(path)) == {"0": [1.0, 3.0], "1": [2.0, 4.0]}


def arrow_table():
    kinds = {
        "number": pyarrow.float32(),
        "whole": pyarrow.uint8(),
        "flag": pyarrow.bool_(),
        "word": pyarrow.large_string(),
        "lines": pyarrow.dictionary(pyarrow.int8(), pyarrow.string()),
        "day": pyarrow.date32(),
    }
    lists = {name: values for name, values in EXPECTED.items()}
    lists["day"] = [None if v is None else int(v / DAY) for v in lists["day"]]
    arrays = {n: pyarrow.array(v, pyarrow.int32()) if n == "day" else v for n, v in lists.items()}
    return pyarrow.table({name: pyarrow.array(v).cast(kinds[name]) for name, v in arrays.items()})


def write(table, path):
    from pyarrow import ipc, parquet

    if path.suffix == ".arrow":
        with ipc.new_file(path, table.schema) as file:
            file.write_table(table, 2)
    else:
        parquet.write_table(table, path, row_group_size=2)


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_columns_of_arrow_are_those_of_a_csv(suffix, tmp_path):
    write(arrow_table(), tmp_path / f"t{suffix}")
    table = open_table(tmp_path / f"t{suffix}")
    assert [*table.begins] == [0, 2, 3] and columns_in(table) == EXPECTED


def test_frames_in_memory_are_tables():
    assert columns_in(open_table(arrow_table())) == EXPECTED
    series = type("Series", (), {"to_arrow": lambda self: pyarrow.array([1])})
    for unknown in (type("Unknown", (), {"iloc": 1}), series):
        with pytest.raises(ConfigurationError, match=f"type {unknown.__name__} is no table"):
            open_table(unknown())


def frame_of_pandas():
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame(
        {
            "i": pandas.array([1, None, 3], "Int64"),
            "c": pandas.Categorical(["x", None, "y"]),
            "b": pandas.array([True, None, False], "boolean"),
            "t": pandas.to_datetime(["1970-01-02", None, "1970-01-01"]).tz_localize("UTC"),
        }
    )


def frame_of_polars():
    polars = pytest.importorskip("polars")
    times = polars.Series([86400000000, None, 0]).cast(polars.Datetime("us"))
    columns = {"i": [1, None, 3], "c": ["x", None, "y"], "b": [True, None, False]}
    frame = polars.DataFrame({**columns, "t": times})
    return frame.with_columns(polars.col("c").cast(polars.Categorical))


def frame_of_xarray():
    xarray = pytest.importorskip("xarray")
    columns = {name: ("row", column.astype(object)) for name, column in frame_of_pandas().items()}
    return xarray.Dataset(columns).drop_vars("row", errors="ignore")


@pytest.mark.parametrize("frame", [frame_of_pandas, frame_of_polars, frame_of_xarray])
def test_frames_of_libraries_hold_the_same_columns(frame):
    found = columns_in(open_table(frame()))
    found.pop("row", None)
    expected = {"i": [1, None, 3], "c": ["x", None, "y"], "b": [1, None, 0], "t": [DAY, None, 0]}
    assert found == expected


FRAMES = {  # how they are written, columns
    "fixed": ({"format": "fixed"}, "ibtd\u00f6"),
    "compressed": ({"format": "fixed", "complevel": 5, "complib": "zlib"}, "ibt"),
    "table": ({"format": "table"}, "ibtckd\u00f6n"),
    "table of columns": ({"format": "table", "data_columns": True}, "ibtckn"),
    "its own text for nothing": ({"format": "table", "data_columns": True, "nan_rep": "-"}, "ic"),
    "two frames": ({"format": "table"}, "it"),
    "objects": ({"format": "fixed"}, "ic"),
}


@pytest.mark.parametrize("case", FRAMES)
def test_a_frame_that_pandas_wrote_into_hdf5_holds_the_same_columns(case, tmp_path):
    pandas, (how, names) = pytest.importorskip("pandas"), FRAMES[case]
    pytest.importorskip("tables")
    expected = {
        "i": [1.5, None, 3.5],
        "b": [1, 0, 1],
        "t": [DAY, None, 0.5],
        "c": ["x", None, "\u00e9"],
        "k": ["u", "v", None],
        "n": [7.0, None, 9.0],
        "d": [3600.0, None, 1.5],
        "\u00f6": [1.0, 2.0, 3.0],
    }
    columns = {name: pandas.Series(expected[name]) for name in "icn\u00f6"}
    columns["b"] = pandas.Series([True, False, True])
    columns["t"] = pandas.to_datetime(pandas.Series([DAY, None, 0.5]), unit="s")
    columns["d"] = pandas.to_timedelta(pandas.Series(expected["d"]), unit="s")
    columns |= {name: pandas.Categorical(expected[name]) for name in "kn"}
    frame, path = pandas.DataFrame({name: columns[name] for name in names}), tmp_path / "t.h5"
    frame.to_hdf(path, key="deep/frame", mode="w", **how)
    if case == "two frames":
        frame.to_hdf(path, key="other", **how)
    refused = {
        "two frames": "the frames deep/frame, other; wanted one",
        "objects": "format='table'",
    }
    if case in refused:
        with pytest.raises(ConfigurationError, match=refused[case]):
            open_table(path)
        return
    table = open_table(path)
    assert columns_in(table) == {name: expected[name] for name in names}
    assert table.files() == (path,) and open_table(path).fingerprint() == table.fingerprint()
    frame.iloc[:2].to_hdf(path, key="deep/frame", mode="w", **how)
    assert open_table(path).fingerprint() != table.fingerprint()


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"format": "fixed"}, "series of pandas.*to_frame"),
        ({"format": "fixed"}, "has no rows"),
        ({"format": "fixed"}, "MultiIndex"),
        ({"format": "table"}, "MultiIndex"),
    ],
)
def test_what_is_no_frame_of_plain_columns_is_refused_by_name(how, words, tmp_path):
    pandas, path = pytest.importorskip("pandas"), tmp_path / "t.h5"
    pytest.importorskip("tables")
    frame = pandas.DataFrame({"a": [1.5, 2.5], "b": [1.0, 2.0]})
    if words == "MultiIndex":
        frame.columns = pandas.MultiIndex.from_tuples([("a", "x"), ("b", "y")])
    made = {"MultiIndex": frame, "has no rows": frame.iloc[:0]}.get(words, frame["a"])
    made.to_hdf(path, key="x", **how)
    with pytest.raises(ConfigurationError, match=words):
        open_table(path)


@pytest.mark.parametrize("how", ["fixed", "table"])
def test_a_time_that_pandas_has_as_index_is_a_column(how, tmp_path):
    pandas, path = pytest.importorskip("pandas"), tmp_path / "t.h5"
    pytest.importorskip("tables")
    index = pandas.to_datetime([DAY, 2 * DAY], unit="s")
    pandas.DataFrame({"a": [1.5, 2.5]}, index).to_hdf(path, key="x", format=how)
    assert columns_in(open_table(path)) == {"index": [DAY, 2 * DAY], "a": [1.5, 2.5]}


def test_a_table_of_pytables_has_its_members_as_columns(tmp_path):
    tables, path = pytest.importorskip("tables"), tmp_path / "t.h5"
    kinds = [("word", "S4"), ("x", "f8"), ("flag", "?"), ("v", "i2", (2,))]
    rows = numpy.array([(b"a", 1.5, True, (1, 2)), (b"", NAN, False, (3, 4))], kinds)
    with tables.open_file(path, "w") as file:
        made = file.create_table("/deep", "rows", rows, createparents=True)
        made.cols.x.create_index()
    assert columns_in(open_table(path)) == {
        "word": ["a", None],
        "x": [1.5, None],
        "flag": [1, 0],
        "v[0]": [1, 3],
        "v[1]": [2, 4],
    }


def test_nested_columns_are_taken_apart_and_others_passed_over(tmp_path):
    rows = {
        "who": [{"name": "a", "born": {"year": 1}}, None, {"name": "c", "born": None}],
        "two": pyarrow.array([[1, 2], [3, 4], [None, 6]], pyarrow.list_(pyarrow.int8(), 2)),
        "many": [[1], [2, 3], []],
        "price": pyarrow.array(["1.25", "2.50", None]).cast(pyarrow.decimal128(10, 2)),
        "time": pyarrow.array([1, None, 2], pyarrow.time32("s")),
    }
    write(pyarrow.table(rows), tmp_path / "t.parquet")
    table = open_table(tmp_path / "t.parquet")
    kinds = {name: field.dtype and field.dtype.kind for name, field in table.fields.items()}
    assert kinds.pop("many") is None
    table.fields.pop("many")
    assert columns_in(table) == {
        "who.name": ["a", None, "c"],
        "who.born.year": [1, None, None],
        "two[0]": [1, 3, None],
        "two[1]": [2, 4, 6],
        "price": [1.25, 2.5, None],
        "time": [1, None, 2],
    }


def test_a_folder_of_files_has_the_columns_that_its_folders_say(tmp_path):
    for year, city in ((2024, "Rome"), (2025, "Bari")):
        folder = tmp_path / f"year={year}" / f"city={city}"
        folder.mkdir(parents=True)
        write(pyarrow.table({"a": [year * 1.5, 2.0, 3.0]}), folder / "part.parquet")
    (tmp_path / "_SUCCESS.parquet").write_bytes(b"no table")
    table = open_table(tmp_path)
    assert columns_in(table) == {
        "a": [3036.0, 2.0, 3.0, 3037.5, 2.0, 3.0],
        "year": [2024.0] * 3 + [2025.0] * 3,
        "city": ["Rome"] * 3 + ["Bari"] * 3,
    }
    assert table.row_text(4) == "part.parquet, row 1"
    write(pyarrow.table({"a": ["text"]}), tmp_path / "other.parquet")
    with pytest.raises(
        ConfigurationError, match="column 'a' is numbers in part.parquet, and texts"
    ):
        open_table(tmp_path)


GAPS = {  # what two files have, and both together
    "texts": ("Rome", "", ["Rome", None]),
    "times": ("2024-01-01", "", [19723 * DAY, None]),
    "nothing at first": ("", "Rome", [None, "Rome"]),
    "nothing at all": ("", "", [None, None]),
}


@pytest.mark.parametrize("case", GAPS)
def test_a_column_that_is_empty_in_one_file_is_what_it_is_in_the_others(case, tmp_path):
    *cells, expected = GAPS[case]
    for name, cell in zip("ab", cells):
        (tmp_path / f"{name}.csv").write_text(f"c,x\n{cell},1\n")
    (tmp_path / "names.csv").write_text("c,x\n")
    assert columns_in(open_table(tmp_path)) == {"c": expected, "x": [1.0, 1.0]}


@pytest.mark.parametrize("values", [["Rome"], [None]])
def test_a_column_of_nulls_is_what_it_is_in_the_other_files(values, tmp_path):
    for name, cells in zip("ab", ([None], values)):
        write(pyarrow.table({"c": pyarrow.array(cells)}), tmp_path / f"{name}.parquet")
    assert columns_in(open_table(tmp_path)) == {"c": [None, *values]}


@pytest.mark.parametrize("names", [("a", "a,n"), ("a,n", "a"), ("a,n", "a,m")])
def test_files_of_other_columns_are_refused_by_name(names, tmp_path):
    for file, head in zip("fg", names):
        write(
            pyarrow.table({name: [1.0] for name in head.split(",")}), tmp_path / f"{file}.parquet"
        )
    with pytest.raises(ConfigurationError, match="[fg].parquet has a column '[mn]', and .* none"):
        open_table(tmp_path)


def test_folders_may_say_nothing_and_have_names_of_addresses(tmp_path):
    for folder in ("at=New%20York", "at=__HIVE_DEFAULT_PARTITION__"):
        (tmp_path / folder).mkdir()
        write(pyarrow.table({"a": [1.0]}), tmp_path / folder / "part.parquet")
    assert columns_in(open_table(tmp_path)) == {"a": [1.0, 1.0], "at": ["New York", None]}


WRONG_FOLDERS = {
    "other keys": (["k=1", "l=1"], r"say \['k'\], but also \['l'\]"),
    "a file outside": (["k=1", "."], "wanted the same name=value above all files"),
    "a key that is a column": (["a=1", "a=2"], "'a' is a folder and a column"),
}


@pytest.mark.parametrize("case", WRONG_FOLDERS)
def test_folders_that_disagree_are_refused(case, tmp_path):
    folders, words = WRONG_FOLDERS[case]
    for folder in folders:
        (tmp_path / folder).mkdir(exist_ok=True)
        write(pyarrow.table({"a": [1.0]}), tmp_path / folder / "part.parquet")
    with pytest.raises(ConfigurationError, match=words):
        open_table(tmp_path)


def test_names_of_columns_may_have_brackets_but_no_twin(tmp_path):
    pairs = pyarrow.array([[1, 2], [3, 4]], pyarrow.list_(pyarrow.int8(), 2))
    columns = {"t [C]": [1.5, 2.5], "p [m]": pairs, "a.b": [1, 2]}
    write(pyarrow.table(columns), tmp_path / "t.parquet")
    expected = {"t [C]": [1.5, 2.5], "p [m][0]": [1, 3], "p [m][1]": [2, 4], "a.b": [1, 2]}
    assert columns_in(open_table(tmp_path / "t.parquet")) == expected
    table = pyarrow.table({**columns, "a": [{"b": 1}, {"b": 2}]})
    write(table, tmp_path / "t.parquet")
    for source in (table, tmp_path / "t.parquet"):
        with pytest.raises(ConfigurationError, match="two columns are named 'a.b'"):
            open_table(source)


@pytest.mark.parametrize("block", [40, 64, 1 << 22])
def test_blocks_of_a_csv_are_joined_whatever_their_size(block, tmp_path, monkeypatch):
    monkeypatch.setattr(csv, "_BLOCK_BYTES", block)
    lines = [f'{i},"{"x" * (i % 7)}\n{i % 3}",{i / 4 if i > 60 else i}' for i in range(99)]
    (tmp_path / "t.csv").write_text("a,b,c\n" + "\n".join(lines) + "\n")
    table = open_table(tmp_path / "t.csv")
    assert (len(table.begins) > 9) == (block < 100)
    found = columns_in(table)
    assert found["a"] == [*range(99)] and found["c"] == [i / 4 if i > 60 else i for i in range(99)]
    assert found["b"] == [f"{'x' * (i % 7)}\n{i % 3}" for i in range(99)]
    assert [table.row_text(row) for row in (0, 50, 98)] == ["line 2", "line 102", "line 198"]


WRONG = {
    "a sign that may be either": ("a;b\n1,234;2\n", {}, "'1,234' may be .* data.decimal"),
    "infinity": ("a,b\n1,2\ninf,2\n", {}, None),
    "Latin 1": ("a,b\n1,\xe9\n".encode("latin1"), {}, "no text in UTF-8"),
    "binary": (b"a,b\n1,\0\n", {}, "has bytes of zeros"),
    "a sign that is another further below": (
        "a;b\n" + "5;1\n" * 20000 + "1,5;2\n2,5;2\n",
        {},
        "column a: its numbers have another decimal sign than '.'; give data.decimal",
    ),
    "points and commas": ("a;b\n1,5;1.25\n", {}, "'1,5' may be .* data.decimal"),
    "Latin 1 further below": (
        b"a,b\n" + b"x,1\n" * 20000 + b"\xfc,1\n",
        {},
        "line 20002, is no text in UTF-8",
    ),
    "a quote that is open": ('a,b\n1,x\n2,"y\n3,z\n', {}, "line 3: a quote that nothing closes"),
    "lines of old": ("a,b\r1,2\r", {}, r"lines end in \\r alone"),
    "years of two digits": ("a,b\n31.12.24,1\n", {}, "column a: dates of years below 100"),
    "a ragged line behind a text of two": ('a,b\n"x\ny",2\n3\n', {}, "line 4: 1 cells, but 2"),
    "an open quote behind an inch": (
        'a,b\n5" pipe,x\n1,"y\n2,z\n',
        {},
        "line 3: a quote that nothing closes",
    ),
    "lines that were written twice for Windows": (
        b"a,b\r\r\n1,2\r\r\n",
        {},
        r"lines end in \\r\\r\\n, .* newline=''",
    ),
    "an empty line behind a \\r": (b"a,b\n1,2\n3,4\r\r\n5,6\n", {}, "line 3 is empty"),
    "commas that may be either, far below": (
        "a;b\n" + "5;1\n" * 20000 + "1,250;2\n2,500;2\n",
        {},
        "column a: its numbers have another decimal sign than '.'; give data.decimal",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_no_csv_is_refused_with_its_line(case, tmp_path):
    content, how, words = WRONG[case]
    (tmp_path / "t.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    if words is None:
        assert columns_in(open_table(tmp_path / "t.csv", **how))["a"] == [1.0, numpy.inf]
        return
    with pytest.raises(ConfigurationError, match=words):
        open_table(tmp_path / "t.csv", **how)


NUMBERS = {
    "thousands without decimals": (["1.234", "2,5"], [1234.0, 2.5]),
    "thousands with decimals": (["1.234,50", "12.345.678,25"], [1234.5, 12345678.25]),
    "spaces": (["1\u00a0234,5", "2\u202f000"], [1234.5, 2000.0]),
    "exponents": (["1,5e3", "2"], [1500.0, 2.0]),
    "points": (["1,234.5", "1,234"], [1234.5, 1234.0]),
    "three decimals": (["1.234", "5.125"], [1.234, 5.125]),
    "a short year": (["31.12.24", "01.01.25"], [1735603200.0, 1735689600.0]),
}


@pytest.mark.parametrize("case", NUMBERS)
def test_numbers_are_what_the_rows_together_say(case, tmp_path):
    cells, values = NUMBERS[case]
    (tmp_path / "t.csv").write_text("\n".join(["a;b", *(f"{cell};x" for cell in cells)]) + "\n")
    assert columns_in(open_table(tmp_path / "t.csv", dates="%d.%m.%y"))["a"] == values


def test_a_line_of_names_may_be_long_and_a_text_have_an_inch_or_a_line_of_unicode(tmp_path):
    names = [f"column{i}" for i in range(20000)]
    cells = ['5" pipe', "x\u2028y", *["1"] * 19998]
    (tmp_path / "t.csv").write_text(f"{','.join(names)}\n{','.join(cells)}\n")
    table = open_table(tmp_path / "t.csv")
    assert [*table.fields] == names and table.begins[-1] == 1
    assert [plain(table.group(0, names[:2])[name])[0] for name in names[:2]] == cells[:2]


@pytest.mark.parametrize("head", ['size 5",b', 'size,"b ""x"""', '5","6"'])
def test_an_inch_among_the_names_takes_no_rows(head, tmp_path):
    (tmp_path / "t.csv").write_text(f'{head}\n1,a\n2,7" x\n3,c\n4,"d\ne"\n')
    table = open_table(tmp_path / "t.csv")
    first, second = columns_in(table).values()
    assert first == [1, 2, 3, 4] and second == ["a", '7" x', "c", "d\ne"]
    assert [table.row_text(row) for row in range(4)] == [f"line {line}" for line in range(2, 6)]


def plain_rows(content):
    """The ends of rows, and whether a quote is open, a character after the other."""
    ends, state, place = [], "begin", 0
    while place < len(content):
        character, after = content[place : place + 1], content[place + 1 : place + 2]
        if state == "quoted":
            is_twin = character == after == b'"'
            state = "cell" if character == b'"' and not is_twin else state
            place += is_twin
        elif character == b'"' and state == "begin":
            state = "quoted"
        elif character == b"\n" or character == b"\r" and after not in (b"\n", b""):
            ends.append(place + 1)
            state = "begin"
        elif character != b"\r":
            state = "begin" if character == b"," else "cell"
        place += 1
    return ends, state == "quoted"


def test_rows_end_where_a_reader_of_single_characters_finds_them():
    random = numpy.random.default_rng(0)
    letters = numpy.frombuffer(b'""",,\n\rab', numpy.uint8)
    for length in random.integers(0, 14, 2000):
        content = random.choice(letters, length).tobytes()
        found = row_ends(content, ",").tolist(), has_open_quote(content, ",")
        assert found == plain_rows(content), content


def test_what_is_said_of_a_dialect_is_taken(tmp_path):
    (tmp_path / "t.csv").write_text("a;b;zip\n1,234;31/12/2025;007\n-;01/02/2026;8\n")
    how = {"decimal": ",", "missing": ["-"], "dates": "%d/%m/%Y", "texts": ["zip"]}
    found = columns_in(open_table(tmp_path / "t.csv", **how))
    days = numpy.array(["2025-12-31", "2026-02-01"], "M8[s]").astype(float).tolist()
    assert found == {"a": [1.234, None], "b": days, "zip": ["007", "8"]}


# ---- encodings -----------------------------------------------------------------------------------


def found_in(values, dtype="float64"):
    """What one group of these rows shows, all of them in the sample."""
    table = open_table(pyarrow.table({"x": values}))
    column, everything = table.group(0, ["x"])["x"], numpy.ones(len(values), bool)
    return ColumnFindings.of(column, table.fields["x"].dtype, "x", everything, str), table, column


def fitted(values, **changes):
    found, table, column = found_in(values)
    fitting = Fitting(
        **{"rare": 2, "scaling": "auto", "target_scaling": "auto", "where": "t"} | changes
    )
    encoding = fitting.feature("x", table.fields["x"].dtype, found)
    return encoding, column


def test_numbers_are_of_mean_0_with_flags_where_none_stands():
    encoding, column = fitted([1.0, None, 3.0, 5.0])
    assert encoding == Numbers("x", 3.0, (8 / 3) ** 0.5, has_flag=True, bound=3.0)
    assert encoding.names == ("x", "x is missing")
    x = encoding.apply(column, str)
    assert numpy.allclose(x, [[-1.2247449, 0], [0, 1], [0, 0], [1.2247449, 0]])
    assert numpy.allclose(encoding.invert(x[:, 0]), [1, 3, 3, 5])


def test_features_far_out_are_bent_in_their_order_and_targets_are_not():
    values = numpy.random.default_rng(0).normal(0, 1, 400)
    encoding, _ = fitted(values)
    deviations = numpy.array([-1e30, -6, -2, -0.1, 0, 0.1, 2, 2.5, 7, NAN])
    x = encoding.apply(encoding.center + encoding.scale * deviations, str)[:, 0]
    assert numpy.allclose(x[2:7], deviations[2:7]) and (x[0], x[-1]) == (-3, 0)
    assert numpy.allclose(x[[1, 7, 8]], [numpy.exp(-4) - 3, 3 - numpy.exp(-0.5), 3 - numpy.exp(-5)])
    assert (numpy.diff(x[:-1]) > 0).all() and str(encoding).endswith("; none beyond 3 deviations")
    assert fitted(values, scaling="standard")[0].bound is None
    target = Fitting(2, "auto", "auto", "t").target("x", found_in(values)[0])
    assert target.bound is None and numpy.allclose(target.invert(target.known(values, str)), values)


def test_skewed_numbers_are_scaled_by_ranks_and_come_back():
    values = numpy.exp(numpy.random.default_rng(0).normal(0, 2, 2000))
    encoding, column = fitted(values, scaling="ranks")
    scaled = encoding.apply(column, str)[:, 0]
    assert encoding.knots and abs(scaled.mean()) < 0.01 and 0.97 < scaled.std() < 1.01
    assert (numpy.diff(scaled[numpy.argsort(values)]) >= 0).all()
    inside = (values > numpy.quantile(values, 0.01)) & (values < numpy.quantile(values, 0.99))
    assert numpy.allclose(encoding.invert(scaled)[inside], values[inside], rtol=1e-9)
    assert fitted(values, scaling="standard")[0].log_from is None
    both_sides = fitted(numpy.concatenate([-values[:40], values]))[0]
    assert both_sides.knots and fitted(values)[0].log_from == 0.0
    assert fitted(values)[0].scaled(numpy.array([-1.0, 0.0])).tolist() == [-10.0, -10.0]


@pytest.mark.parametrize("value", [1e60, -1e140])
def test_a_number_that_would_be_infinite_is_refused_with_its_place(value):
    column = numpy.array([1.0, NAN, value])
    encoder = ColumnEncoder((Numbers("a", has_flag=True),), (Numbers("b"),))
    with pytest.raises(ConfigurationError, match="row 2, column a: a number so far"):
        encoder.x({"a": column}, lambda row: f"row {row}")
    with pytest.raises(ConfigurationError, match="row 0, column b: a number so far"):
        encoder.y({"b": column[2:]}, lambda row: f"row {row}")
    with pytest.raises(ConfigurationError, match="is so far from the values in training"):
        Scaling.none(1).scaled(column[:, None])


def test_skewed_targets_are_scaled_by_logarithms():
    values = numpy.exp(numpy.random.default_rng(0).normal(5, 1, 2000))
    found, *_ = found_in(values)
    how = {"rare": 1, "scaling": "auto", "where": "t"}
    target = Fitting(target_scaling="auto", **how).target("x", found)
    assert target.log_from == 0.0
    assert numpy.allclose(target.scaled(values), (numpy.log(values) - target.center) / target.scale)
    assert numpy.allclose(target.invert(target.scaled(values)), values, rtol=1e-12)
    assert Fitting(target_scaling="standard", **how).target("x", found).log_from is None
    with pytest.raises(ConfigurationError, match="has no logarithm"):
        Fitting(target_scaling="logarithm", **how).target("x", found_in([-1.0, 2.0])[0])


def test_categories_that_are_rare_or_unseen_share_one_and_gaps_have_theirs():
    encoding, column = fitted(["b", "a", "b", "rare", None, "a", None, "b"])
    assert encoding == Categories("x", ("b", "a"), has_flag=True)
    assert encoding.names == ("x = b", "x = a", "x is missing", "x is another")
    assert encoding.apply(column, str).argmax(1).tolist() == [0, 1, 0, 3, 2, 1, 2, 0]
    _, _, unseen = found_in(["new", "a", None])
    assert encoding.apply(unseen, str).tolist() == [[0, 0, 0, 1], [0, 1, 0, 0], [0, 0, 1, 0]]


def test_many_categories_are_looked_up():
    words = [f"w{i}" for i in range(40) for _ in range(2)]
    encoding, column = fitted(words)
    assert encoding.embedding == (41, 13) and encoding.names == ("x",)
    assert sorted(set(encoding.apply(column, str)[:, 0])) == [*range(40)]
    whole = ColumnEncoder((encoding, Numbers("n")), ())
    assert whole.names == ("n", "x") and whole.embeddings == ((41, 13),)


def test_numbers_that_are_categories_have_no_point():
    encoding = Categories("x", ("7", "1.5"))
    assert encoding.numbers(numpy.array([7.0, 1.5, NAN, 8.0])).tolist() == [0, 1, 2, 2]


def test_categories_of_numbers_are_as_they_are_written():
    column = open_table(pyarrow.table({"x": [0.1, 7.0]})).group(0, ["x"])["x"]
    assert Categories("x", ("7", "0.1")).numbers(column).tolist() == [1, 0]
    _, _, texts = found_in(["7.0", "007", "7", "0.10"])
    assert Categories("x", ("7", "007")).numbers(texts).tolist() == [0, 1, 0, 2]
    assert Categories("x", ("0.1",)).numbers(texts).tolist() == [1, 1, 1, 0]
    with pytest.raises(ConfigurationError, match="5, column x: 9007199254740992; wanted names"):
        as_names(numpy.array([0.0] * 5 + [2.0**53]), "x", str)


def test_times_become_the_parts_that_differ():
    days = numpy.arange(400).astype("M8[D]")
    encoding, column = fitted(days)
    assert not [part for part in encoding.parts if part.startswith("day")]
    assert {"years", "year sin 1", "Thu", "Wed"} <= {*encoding.parts}
    x = encoding.apply(column, str)
    assert numpy.allclose(x.mean(0), 0, atol=1e-9) and numpy.allclose(x.std(0), 1)
    names, parts = time_parts(
        numpy.array([numpy.datetime64("2026-11-27T06:00", "s").astype(float)])
    )
    of = dict(zip(names, parts[0]))
    assert of["Fri"] == 1 and of["Thu"] == 0 and abs(of["day sin 1"] - 1) < 1e-9


LEFT_OUT = {
    "empty": ([None, None], "it is empty"),
    "one text": (["a", "a", "a"], "it has one text"),
    "ids": (["a", "b", "c"], "each of its 3 texts is rare"),
}


@pytest.mark.parametrize("case", LEFT_OUT)
def test_columns_that_say_nothing_are_left_out_with_a_reason(case):
    values, words = LEFT_OUT[case]
    assert fitted(pyarrow.array(values, pyarrow.string()))[0] == words


def test_a_slip_among_numbers_is_refused():
    with pytest.raises(ConfigurationError, match="column x: 'l'; wanted a number as in most"):
        fitted(["1", "2", "l", "4"])
    assert isinstance(fitted(["1", "1", "A1", "A1", "B", "B"])[0], Categories)


def test_digits_with_a_line_between_them_are_no_number():
    with pytest.raises(ConfigurationError, match="column x: '1_000'; wanted a number as in most"):
        fitted(["1", "2", "1_000", "4"])
    with pytest.raises(ConfigurationError, match="row 1, column x: '1_000'; wanted a number"):
        Numbers("x").apply(found_in(["1.5", "1_000"])[2], "row {}".format)


def test_classes_are_named_in_the_order_of_numbers_and_unseen_ones_are_refused():
    found = [found_in(values)[0] for values in (["10", "9", "1"], ["b", "a", "c"])]
    assert [classes("x", each, 9).values for each in found] == [("1", "9", "10"), ("a", "b", "c")]
    some = Classes("x", ("1", "2"))
    assert some.known(numpy.array([2.0, 1.0]), str).tolist() == [1, 0]
    with pytest.raises(ConfigurationError, match="1, column x: '3'; wanted one of the 2 classes"):
        some.known(numpy.array([2.0, 3.0]), str)


ENCODINGS = [
    Numbers("a", 1.0, 2.0, (1.0, 2.0, 4.0), None, True),
    Numbers("a", log_from=1.0),
    Numbers("a", bound=3.0),
    Times("t", ("years", "Mon"), (1.0, 2.0), (3.0, 4.0), True),
    Categories("c", ("x", "y"), True),
    Classes("k", ("no", "yes")),
]


@pytest.mark.parametrize("encoding", ENCODINGS, ids=lambda each: each.kind)
def test_encodings_are_stored_whole(encoding):
    assert from_json(json.loads(json.dumps(to_json(encoding))), "t.json") == encoding


DAMAGED = [
    {"kind": "unknown", "name": "a"},
    {"kind": "numbers", "name": 5},
    {"kind": "numbers", "name": "a", "knots": ["x"]},
    {"kind": "numbers", "name": "a", "knots": [1.0]},
    {"kind": "numbers", "name": "a", "bound": 0.5},
    {"kind": "numbers", "name": "a", "bound": "3"},
    {"kind": "times", "name": "a", "parts": ["years"], "centers": [], "scales": [1.0]},
    {"kind": "times", "name": "a", "parts": ["eons"], "centers": [0.0], "scales": [1.0]},
    {"kind": "categories", "name": "a", "values": "text"},
]


@pytest.mark.parametrize("values", DAMAGED, ids=str)
def test_encodings_that_are_damaged_are_refused(values):
    with pytest.raises(ConfigurationError, match="t.json"):
        from_json(values, "t.json")


def test_findings_are_the_same_however_rows_are_cut_into_groups():
    values = numpy.random.default_rng(1).normal(1e6, 1, 1000)
    parts = [found_in(part)[0] for part in numpy.array_split(values, 7)]
    whole, (first, *others) = found_in(values)[0], parts
    for each in others:
        first.merge(each)
    assert (first.rows, first.sample) == (whole.rows, whole.sample)
    assert numpy.allclose(first.moments.scaling().scale, values.std(), rtol=1e-9)
