"""What shardkit.h asks of Python, without MPI: arrays where they lie, refusals, compiler flags."""

import re
import sysconfig
from pathlib import Path

import numpy
import pytest

from shardkit import ConfigurationError, ShapeError
from shardkit.testing.cli import main
from shardkit.testing.coupling import NATIVE, EmbeddedCoupling, array_at, compiler_flags

X = numpy.arange(24, dtype="float32").reshape(2, 3, 4)


def place_of(array, dtype=None, num_dims=None, strides=None):
    """An sk_array as C passes it, with 8 dims; strides None: C order"""
    padded = lambda numbers: numpy.resize([*numbers, *[0] * 8], 8).astype("i8").tobytes()  # noqa: E731
    num_dims = array.ndim if num_dims is None else num_dims
    name = dtype or array.dtype.name
    return array.ctypes.data, name, num_dims, padded(array.shape), padded(strides or ())


@pytest.mark.parametrize("array", [X, X[:, ::2, ::-1], X.T, X[1, 2, 3:4].reshape(())])
def test_an_array_is_read_where_it_lies(array):
    seen = array_at(place_of(array, strides=array.strides))
    assert numpy.array_equal(seen, array) and numpy.shares_memory(seen, array)
    assert numpy.array_equal(array_at(place_of(X)), X)


@pytest.mark.parametrize(
    "place, sentence",
    [
        (None, "address 0"),
        ((0, *place_of(X)[1:]), "address 0"),
        (place_of(X, "color"), "dtype 'color'"),
        (place_of(X, "object"), "object of 3 dims"),
        (place_of(X, "S4"), "S4 of 3 dims"),
        (place_of(X, num_dims=9), "of 9 dims"),
        (place_of(X, num_dims=-1), "of -1 dims"),
    ],
)
def test_what_is_no_array_of_numbers_is_refused(place, sentence):
    with pytest.raises(ShapeError, match=sentence):
        array_at(place)


@pytest.mark.parametrize("error, code", [(SystemExit(3), 6), (ValueError("what"), 2)])
def test_nothing_that_is_raised_leaves_for_c(monkeypatch, error, code):
    embedding = EmbeddedCoupling()

    def raising():
        raise error

    monkeypatch.setattr(embedding, "_open", raising)
    assert embedding.finish() == (code, str(error), 0.0)


def test_a_field_that_no_put_takes_is_refused_at_once(monkeypatch):
    embedding = EmbeddedCoupling()
    monkeypatch.setattr(embedding, "_open", lambda: None)
    code, sentence, _ = embedding.field("time", place_of(X))
    assert code == 2 and "of another name than time and weight" in sentence
    assert embedding.field("self", place_of(X))[0] == 0


def test_header_module_and_page_have_the_same_ten_functions():
    page = Path(__file__).resolve().parents[2] / "docs/coupled.md"
    header = set(re.findall(r"^\S.*?(sk_\w+)\(.*;$", (NATIVE / "shardkit.h").read_text(), re.M))
    header |= set(re.findall(r"^int (sk_\w+)\(", (NATIVE / "shardkit.h").read_text(), re.M))
    module = set(
        re.findall(r"(?:function|subroutine) (sk_\w+)", (NATIVE / "shardkit.f90").read_text())
    )
    told = set(re.findall(r"^\| `(sk_\w+)\(", page.read_text(), re.M))
    assert header == module == told and len(header) == 10


def test_flags_name_files_that_are_there_and_the_python_that_printed_them(capsys):
    if not Path(sysconfig.get_paths()["include"], "Python.h").exists():
        pytest.skip("no headers of this Python")
    assert main(["flags", "--fortran", "--sources"]) == 0
    sources = [Path(word) for word in capsys.readouterr().out.split()]
    assert [path.name for path in sources] == ["shardkit.c", "shardkit_fortran.c", "shardkit.f90"]
    assert all(path.exists() for path in sources)
    assert main(["flags"]) == 0
    words = capsys.readouterr().out.split()
    assert words == [word for part in compiler_flags().values() for word in part]


def test_a_python_without_its_shared_library_is_refused(monkeypatch, tmp_path, capsys):
    values = {"LIBDIR": str(tmp_path), "LDVERSION": "3.11"}
    monkeypatch.setattr(sysconfig, "get_config_var", values.get)
    with pytest.raises(ConfigurationError, match="a program cannot embed"):
        compiler_flags()
    assert main(["flags"]) == ConfigurationError.exit_code
