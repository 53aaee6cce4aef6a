"""What shardkit deletes and writes over: its own files, by name, and never through a link."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from sources import files

import shardkit
from shardkit.testing.files import (
    FILE,
    clear_folder,
    few,
    remove_file,
    remove_folder,
    remove_trial,
    removing,
)

pytestmark = pytest.mark.xdist_group("sources")  # they read the package once

PACKAGE = Path(shardkit.__file__).parent
NAMES = {r"\d+\.part": FILE, "claims-[0-9a-f]": {r"\d+": FILE}}

# ---- the package ---------------------------------------------------------------------------------

DELETES = {
    *("unlink", "rmdir", "rmtree", "removedirs", "renames", "rename", "truncate", "ftruncate"),
    *("write_text", "write_bytes", "touch", "symlink_to", "hardlink_to", "tofile", "chmod"),
}
OF_OS = {"remove", "replace", "link", "symlink", "mkfifo", "chown"}
WRITES = ("O_CREAT", "O_TRUNC", "O_APPEND")
# What is no name in a folder that others see, or is made new there and nowhere else.
ALLOWED = {
    "checkpoint/format/files.py": {"ftruncate", "O_CREAT"},  # O_EXCL, in a new folder
    "checkpoint/format/hdf5.py": {"File w"},  # in memory; for the doctor, in a folder of its own
    "comm/mpi/ending.py": {"open w"},  # /dev/null
    "comm/node/heap.py": {"ftruncate"},  # of memory without a name
    "comm/watch/folder.py": {"O_CREAT"},  # the lock in the private folder of a job, O_NOFOLLOW
    "comm/watch/roll.py": {"O_CREAT"},  # in that folder
    "ensemble/group.py": {"open w"},  # /dev/null
    "data/hdf5.py": {"File w"},  # a name that open_new() has just made
    "data/prepare/assemble.py": {"open r+b"},  # that file
    "data/prepare/parts.py": {"O_CREAT"},  # O_EXCL
    "data/token_file.py": {"open r+b"},  # that file
}


def deeds_of(nodes):
    """Yield (what could delete or overwrite something, line) of the nodes of a syntax tree."""
    for node in nodes:
        if isinstance(node, ast.Attribute) and node.attr in WRITES:
            yield node.attr, node.lineno
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        name = getattr(function, "attr", getattr(function, "id", None))
        of_os = isinstance(getattr(function, "value", None), ast.Name) and function.value.id == "os"
        if name in DELETES or name in OF_OS and of_os:
            yield name, node.lineno
        texts = [each.value for each in node.args if isinstance(each, ast.Constant)]
        texts += [
            each.value.value for each in node.keywords if isinstance(each.value, ast.Constant)
        ]
        modes = [text for text in texts if isinstance(text, str) and set(text) <= set("rwxab+t")]
        writes = [mode for mode in modes if set(mode) & set("wxa+")]
        if name in ("open", "fdopen", "File") and writes:
            yield f"{name} {writes[0]}", node.lineno


def test_nothing_is_deleted_or_written_over_but_through_the_room_of_files():
    found = {}
    for path, module in files():
        name = str(path)
        if not name.startswith("files/"):
            for deed, line in deeds_of(module.nodes):
                found.setdefault(name, {}).setdefault(deed, line)
    wrong = [
        f"{name}:{line} {deed}"
        for name, deeds in found.items()
        for deed, line in deeds.items()
        if deed not in ALLOWED.get(name, ())
    ]
    assert not wrong, "use shardkit/files/: " + ", ".join(wrong)
    unused = [
        (name, deed) for name, deeds in ALLOWED.items() for deed in deeds - {*found.get(name, ())}
    ]
    assert not unused


@pytest.mark.parametrize(
    "line",
    [
        "shutil.rmtree(x)",
        "rmtree(x)",
        "path.unlink(missing_ok=True)",
        "os.remove(x)",
        "os.replace(a, b)",
        "a.rename(b)",
        "open(x, 'w')",
        "open(x, mode='r+b')",
        "path.open('ab')",
        "path.write_text(x)",
        "os.open(x, os.O_WRONLY | os.O_TRUNC)",
        "h5py.File(x, 'w')",
    ],
)
def test_each_way_to_delete_or_to_write_over_is_seen(line):
    assert list(deeds_of(ast.walk(ast.parse(line))))
    harmless = "known.remove(x); text.replace('w', 'r'); open(x, 'rb')"
    assert not list(deeds_of(ast.walk(ast.parse(harmless))))


def test_it_works_without_the_rest_of_the_package_and_without_site_packages(tmp_path):
    (tmp_path / "0001.part").touch()
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import removing\n"
        "print(removing.remove_folder(sys.argv[2], {r'\\d+.part': removing.FILE}))"
    )
    command = [sys.executable, "-I", "-S", "-c", program, PACKAGE / "files", tmp_path]
    assert subprocess.run(command, capture_output=True, text=True).stdout == "[]\n"
    assert not tmp_path.exists()


# ---- removing ------------------------------------------------------------------------------------


@pytest.fixture
def precious(tmp_path):
    """A folder of somebody else's."""
    folder = tmp_path / "precious"
    (folder / "claims-a").mkdir(parents=True)
    for name in ("thesis.txt", "1.part", "claims-a/7"):
        (folder / name).write_text("x")
    yield folder
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    assert files == ["1.part", "claims-a/7", "thesis.txt"]


def made(folder, **more):
    (folder / "claims-a").mkdir(parents=True)
    for name in ("1.part", "claims-a/7"):
        (folder / name).write_text("x")
    return folder


def test_what_shardkit_made_goes_with_its_folder(tmp_path):
    assert remove_folder(made(tmp_path / "own"), NAMES) == [] and not (tmp_path / "own").exists()
    assert remove_folder(tmp_path / "own", NAMES) == []  # it is gone already
    assert remove_folder(tmp_path / "nowhere" / "own", NAMES) == []


def test_links_are_unlinked_and_not_followed(tmp_path, precious):
    own = made(tmp_path / "own")
    for name in ("2.part", "claims-b"):
        (own / name).symlink_to(precious)
    (own / "3.part").symlink_to(precious / "thesis.txt")
    (own / "4.part").symlink_to("nowhere")
    assert remove_folder(own, NAMES) == [] and not own.exists()
    (tmp_path / "link").symlink_to(precious)
    assert remove_folder(tmp_path / "link", NAMES) == [] and not (tmp_path / "link").is_symlink()


def test_what_is_unknown_stays_and_is_said(tmp_path, precious):
    own = made(tmp_path / "own")
    (own / "notes.txt").touch()
    (own / "to").symlink_to(precious)
    (own / "claims-a" / "mine").touch()
    (own / "5.part").mkdir()  # a folder where a file is wanted
    (own / "claims-c").touch()  # and the reverse
    left = remove_folder(own, NAMES)
    unknown = ["5.part", "claims-a/mine", "claims-c", "notes.txt", "to"]
    assert left == [f"own/{name}: not made by shardkit" for name in unknown]
    assert sorted(path.name for path in own.iterdir()) == [
        *("5.part", "claims-a", "claims-c", "notes.txt", "to"),
    ]
    assert few(left) == "; ".join(left[:3]) + ", and 2 more"


def test_of_a_folder_that_is_a_link_only_own_files_go(tmp_path):
    scratch = made(tmp_path / "scratch")
    (scratch / "work.h5").touch()
    (tmp_path / "parts").symlink_to(scratch)
    assert clear_folder(tmp_path / "parts", NAMES) == ["work.h5: not made by shardkit"]
    assert [path.name for path in scratch.iterdir()] == ["work.h5"]
    assert (tmp_path / "parts").is_symlink()


@pytest.mark.skipif(os.getuid() != 0, reason="only root may give files away")
def test_a_folder_of_another_user_is_not_entered(tmp_path):
    own = made(tmp_path / "own")
    os.chown(own / "claims-a", 12345, 12345)
    assert remove_folder(own, NAMES) == ["own/claims-a: a folder of user 12345"]
    assert (own / "claims-a" / "7").exists()
    os.chown(own, 12345, 12345)
    assert clear_folder(own, NAMES) == [".: a folder of user 12345"]


@pytest.mark.parametrize("what", ["own", "claims-a"])
def test_a_folder_that_becomes_a_link_in_the_meantime_is_not_followed(
    tmp_path, monkeypatch, precious, what
):
    """At the last moment: after it was seen to be a folder, before it is opened."""
    own = made(tmp_path / "own")
    place = {"own": own, "claims-a": own / "claims-a"}[what]
    usual = os.open

    def swapped(path, *arguments, **more):
        if path == what and not place.is_symlink():
            place.rename(tmp_path / "aside")
            place.symlink_to(precious)
        return usual(path, *arguments, **more)

    monkeypatch.setattr(removing.os, "open", swapped)
    left = remove_folder(own, NAMES)
    assert len(left) == 1 and "irectory" in left[0] or "symbolic" in left[0]


def test_what_cannot_be_removed_stays_and_is_said(tmp_path, monkeypatch):
    def refuse(*arguments, **more):
        raise PermissionError(13, "no")

    own = made(tmp_path / "own")
    monkeypatch.setattr(removing.os, "unlink", refuse)
    assert remove_folder(own, NAMES) == ["own/1.part: no", "own/claims-a/7: no"]
    with pytest.raises(PermissionError):
        remove_file(own / "1.part")


def test_a_trial_goes_with_all_that_is_in_it_and_nothing_else_is_a_trial(tmp_path, precious):
    trial = made(tmp_path / ".shardkit-doctor-x")
    (trial / "any\nthing").mkdir()
    (trial / "any\nthing" / "link").symlink_to(precious)
    assert remove_trial(trial) == [] and not trial.exists()
    with pytest.raises(AssertionError):
        remove_trial(precious)
