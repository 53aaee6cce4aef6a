"""`shardkit compile` keeps what common runs need where it is told, once."""

import re

import pytest

from shardkit.testing.array import building, common_loops, compiled
from shardkit.testing.cli import main

LINES = [f"array.cpu.flat.{loop}(int16[1], int16[1])" for loop in ("_copy", "_block_squares")]
LINES[1] = LINES[1].replace("int16[1], int16[1]", "int16[2], float64[1]")


@pytest.fixture
def table(tmp_path, monkeypatch):
    """A table of two loops that no common run asks for, and the environment as it was."""
    path = tmp_path / "common.txt"
    path.write_text("#\n" + "\n".join(LINES) + "\n")
    monkeypatch.setattr(common_loops, "TABLE", path)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "unused"))
    forget = compiled.candidate_folders.cache_clear
    forget()
    yield path
    forget()


def test_it_compiles_what_is_missing_into_the_folder_and_says_so(table, tmp_path, capsys):
    folder = tmp_path / "kernels"
    words = ["compile", f"--folder={folder}", "--processes=2"]
    assert main(words) == 0
    first = capsys.readouterr().out
    assert re.match(r"2 kernels for \S+: 0 were there, 2 new in [\d.]+ s, kept in ", first)
    names = sorted(path.name.partition("-")[0] for path in (folder / "shardkit").iterdir())
    assert names == ["flat._block_squares", "flat._copy"]
    assert main(words) == 0
    assert re.match(r"2 kernels for \S+: 2 were there$", capsys.readouterr().out)
    assert not (tmp_path / "unused").exists()


def test_what_another_folder_has_is_copied_to_the_one_that_is_named(table, tmp_path, monkeypatch):
    first, second = tmp_path / "first", tmp_path / "second"
    monkeypatch.setattr(compiled, "candidate_folders", lambda: (first,))
    assert building.keep(LINES[0]) == first
    monkeypatch.setattr(compiled, "candidate_folders", lambda: (second, first))
    assert [building.keep(LINES[0], places) for places in (None, 1, 1)] == [None, second, None]


def test_a_folder_that_is_named_and_cannot_keep_them_is_refused(table, capsys, monkeypatch):
    def compile_it(*given):
        pytest.fail("compiled before the folder was looked at")

    monkeypatch.setattr(compiled.Loop, "found_or_made", compile_it)
    assert main(["compile", f"--folder={table}"]) == 1
    assert f"none of {table / 'shardkit'}" in capsys.readouterr().err


def test_where_nothing_can_be_kept_it_fails(table, monkeypatch):
    monkeypatch.setattr(compiled, "candidate_folders", lambda: (table,))
    with pytest.raises(compiled.FileError, match="choose a folder that you can write to"):
        building.keep(LINES[0])
