"""Files are written whole, and never through a link."""

import errno
import os
import stat
import threading

import pytest

from shardkit.testing.files import (
    check_can_write,
    fresh_file,
    give_name,
    move_file,
    open_new,
    open_to_append,
    whole_file,
    write_whole,
    writing,
)


@pytest.fixture
def outside(tmp_path):
    """A file that links point to, and that must stay as it is."""
    path = tmp_path / "outside.txt"
    path.write_text("precious")
    yield path
    assert path.read_text() == "precious" and not path.is_symlink()


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "folder"
    path.mkdir()
    return path


def by_open_new(path):
    with open_new(path) as file:
        file.write(b"new")


def by_hand(path):
    temporary = fresh_file(path)
    temporary.write_bytes(b"new")
    give_name(temporary, path)


WAYS = {
    "write_whole": lambda path: write_whole(path, b"new"),
    "durable": lambda path: write_whole(path, b"new", durable=True),
    "open_new": by_open_new,
    "by hand": by_hand,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("before", ["nothing", "file", "link", "dangling", "hard link", "FIFO"])
def test_a_file_takes_the_place_of_what_has_its_name(folder, outside, way, before):
    path = folder / "report.html"
    make = {
        "nothing": lambda: None,
        "file": lambda: path.write_text("old"),
        "link": lambda: path.symlink_to(outside),
        "dangling": lambda: path.symlink_to(folder / "nowhere"),
        "hard link": lambda: path.hardlink_to(outside),
        "FIFO": lambda: os.mkfifo(path),
    }
    make[before]()
    WAYS[way](path)
    assert path.read_bytes() == b"new" and not path.is_symlink()
    assert [each.name for each in folder.iterdir()] == ["report.html"]


def test_the_mode_is_that_of_the_umask(folder):
    before = os.umask(0o027)
    try:
        write_whole(folder / "a", b"")
        write_whole(folder / "b", b"", mode=0o777)
        open_new(folder / "c").close()
    finally:
        os.umask(before)
    modes = [stat.S_IMODE((folder / name).stat().st_mode) for name in "abc"]
    assert modes == [0o640, 0o750, 0o640]


def test_nobody_finds_half_of_a_file_and_an_error_leaves_the_old_one(folder):
    (folder / "a").write_text("old")
    with pytest.raises(RuntimeError), whole_file(folder / "a") as file:
        file.write(b"half of the new o")
        file.flush()
        assert (folder / "a").read_text() == "old"
        raise RuntimeError
    assert [path.name for path in folder.iterdir()] == ["a"]
    assert (folder / "a").read_text() == "old"


def test_an_error_names_the_file_and_not_its_temporary_name(folder, monkeypatch):
    for deed in (lambda path: write_whole(path, b""), check_can_write, open_new, open_to_append):
        with pytest.raises(FileNotFoundError) as raised:
            deed(folder / "nowhere" / "a")
        assert raised.value.filename == str(folder / "nowhere" / "a")
    (folder / "taken").mkdir()
    with pytest.raises(OSError) as raised:
        write_whole(folder / "taken", b"")
    assert raised.value.filename == str(folder / "taken") and raised.value.filename2 is None

    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(writing.os, "fsync", full)
    with pytest.raises(OSError) as raised:
        write_whole(folder / "b", b"x", durable=True)
    assert raised.value.filename == str(folder / "b")
    assert [path.name for path in folder.iterdir()] == ["taken"]


def test_a_name_that_is_taken_is_not_used(folder, outside, monkeypatch):
    names = iter([bytes.fromhex("0" * 16), bytes.fromhex("1" * 16)])
    (folder / f".shardkit-{'0' * 16}.tmp").symlink_to(outside)
    monkeypatch.setattr(writing.os, "urandom", lambda size: next(names))
    write_whole(folder / "a", b"new")
    assert (folder / "a").read_bytes() == b"new"


def test_many_writers_of_one_name_leave_one_whole_file(folder):
    def write(letter):
        for _ in range(50):
            write_whole(folder / "a", letter * 10000)

    threads = [threading.Thread(target=write, args=(letter,)) for letter in (b"x", b"y", b"z")]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        if (folder / "a").exists():
            content = (folder / "a").read_bytes()
            assert len(content) == 10000 and len(set(content)) == 1
    assert [path.name for path in folder.iterdir()] == ["a"]


def test_devices_are_written_to_and_never_replaced(folder):
    write_whole("/dev/null", b"x")
    check_can_write("/dev/null")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    reading, writing_end = os.pipe()
    write_whole(f"/dev/fd/{writing_end}", b"for a reader")
    assert os.read(reading, 100) == b"for a reader"
    os.close(reading)
    os.close(writing_end)


def test_checking_leaves_what_is_there(folder, outside):
    (folder / "a").symlink_to(outside)
    check_can_write(folder / "a")
    assert (folder / "a").is_symlink() and len(list(folder.iterdir())) == 1


def test_a_file_from_another_disk_is_copied_whole(folder, monkeypatch):
    usual = os.rename

    def other_disk(old, new):
        if os.path.basename(old) == "made":
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        usual(old, new)

    (folder / "made").write_bytes(b"x" * 3_000_000)
    monkeypatch.setattr(writing.os, "rename", other_disk)
    move_file(folder / "made", folder / "named")
    assert [path.name for path in folder.iterdir()] == ["named"]
    assert (folder / "named").stat().st_size == 3_000_000


def test_lines_are_added_to_ordinary_files_alone(folder, outside):
    for text in ("one\n", "two \ud800\n"):
        with open_to_append(folder / "log") as file:
            file.write(text)
            assert (folder / "log").read_text().endswith("\n")
    assert (folder / "log").read_text() == "one\ntwo \\ud800\n"
    (folder / "link").symlink_to(outside)
    (folder / "dangling").symlink_to(folder / "nowhere")
    os.mkfifo(folder / "fifo")
    reader = os.open(folder / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    for name in ("link", "dangling", "fifo"):
        with pytest.raises(OSError, match="no ordinary file.*move it away") as raised:
            open_to_append(folder / name)
        assert raised.value.filename == str(folder / name)
    os.close(reader)
    with pytest.raises(OSError, match="no ordinary file"):  # nobody reads it
        open_to_append(folder / "fifo")
    assert not (folder / "nowhere").exists()
