"""Notes that a place does not take: they wait, one warning names the place, and nothing raises."""

import errno
import io
import os
import signal
import subprocess
import sys
import time

import pytest

from shardkit.testing.files import MOST_BYTES, Notes, Screen, read_note
from shardkit.testing.files import notes as notes_module

FAILURES = [
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EIO,
    errno.EROFS,
    errno.EACCES,
    errno.ESTALE,
    errno.EFBIG,
]


@pytest.fixture(autouse=True)
def without_delay(monkeypatch):
    monkeypatch.setattr(notes_module, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(notes_module, "READER_SECONDS", 0.05)


class Disk:
    """Stands before the door through which notes are written, and fails while it is told to."""

    def __init__(self, monkeypatch):
        self.failure = None
        for name in ("open_to_append", "write_whole"):
            real = getattr(notes_module, name)
            monkeypatch.setattr(notes_module, name, self._checked(real))

    def _checked(self, real):
        def door(path, *arguments):
            if self.failure is not None:
                raise OSError(self.failure, os.strerror(self.failure), str(path))
            return real(path, *arguments)

        return door


@pytest.fixture
def disk(monkeypatch):
    return Disk(monkeypatch)


@pytest.mark.parametrize("failure", FAILURES, ids=errno.errorcode.get)
@pytest.mark.parametrize("fails", [range(0, 3), range(2, 5), range(3, 6)])
def test_lines_that_wait_are_written_in_their_order(tmp_path, disk, capsys, failure, fails):
    path, notes = tmp_path / "logs" / "log", Notes()
    for number in range(6):
        disk.failure = failure if number in fails else None
        notes.add(path, f"line {number}")
    disk.failure = None
    notes.close()
    assert path.read_text() == "".join(f"line {number}\n" for number in range(6))
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2 and str(path) in said[0] and os.strerror(failure) in said[0]
    assert "3 entries came late" in said[1] or "written again" in said[1]


@pytest.mark.parametrize("failure", FAILURES, ids=errno.errorcode.get)
def test_what_is_never_written_is_said_at_the_end(tmp_path, disk, capsys, failure):
    disk.failure, notes = failure, Notes()
    notes.add(tmp_path / "log", "one")
    notes.write(tmp_path / "whole", "two")
    notes.close()
    said = capsys.readouterr().err
    assert said.count("cannot be written") == 2 and said.count("never written") == 2
    assert not list(tmp_path.iterdir())


def test_no_more_than_a_mebibyte_waits_and_the_newest_is_kept(tmp_path, disk, capsys):
    disk.failure, notes = errno.ENOSPC, Notes()
    line = "x" * 9_999
    for number in range(300):
        notes.add(tmp_path / "log", f"{number:05d}{line}")
    disk.failure = None
    notes.close()
    written = (tmp_path / "log").read_text().splitlines()
    assert sum(map(len, written)) <= MOST_BYTES and written[-1].startswith("00299")
    lost = 300 - len(written)
    assert f"{lost:,} are lost" in capsys.readouterr().err


def test_a_file_that_is_begun_anew_keeps_what_is_added_after_it(tmp_path, disk):
    path, notes = tmp_path / "metrics.jsonl", Notes()
    path.write_text("old\n")
    disk.failure = errno.ENOSPC
    notes.write(path, "new\n")
    for number in range(3):
        notes.add(path, str(number))
    assert path.read_text() == "old\n"
    disk.failure = None
    notes.close()
    assert path.read_text() == "new\n0\n1\n2\n"


def test_half_a_line_is_taken_back_where_the_disk_fills_up_inside_of_it(tmp_path, monkeypatch):
    path, real, room = tmp_path / "log", os.write, [15]

    def write(descriptor, content):
        if room[0] == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        num = real(descriptor, content[: room[0]])
        room[0] -= num
        return num

    monkeypatch.setattr(notes_module.os, "write", write)
    notes = Notes()
    notes.add(path, "123456789")
    notes.add(path, "abcdefghi")
    assert path.read_text() == "123456789\n"
    room[0] = 1000
    notes.close()
    assert path.read_text() == "123456789\nabcdefghi\n"


OBSTACLES = {
    "a FIFO that nobody reads": os.mkfifo,
    "a folder": os.mkdir,
    "a link": lambda path: path.symlink_to("/dev/full"),
}


@pytest.mark.parametrize("kind", OBSTACLES)
def test_what_is_no_file_is_neither_opened_nor_waited_for(tmp_path, capsys, kind):
    path, began = tmp_path / "log", time.monotonic()
    OBSTACLES[kind](path)
    notes = Notes()
    notes.add(path, "line")
    notes.close()
    assert time.monotonic() - began < 400
    assert capsys.readouterr().err.count(f"{path} cannot be written") == 1
    if kind != "a link":
        assert read_note(path) == "" and str(path) in capsys.readouterr().err


# ---- streams -------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_characters_that_a_stream_lacks_are_replaced(tmp_path, encoding):
    path = tmp_path / "out"
    with open(path, "w", encoding=encoding) as stream:
        screen = Screen(stream)
        screen.write("é∂\udc80 done\n")
        screen.close()
    assert path.read_text(encoding).endswith(" done\n")


def test_a_stream_of_a_notebook_gets_the_text():
    stream = io.StringIO()
    Screen(stream).write("text")
    assert stream.getvalue() == "text"


def test_a_pipe_that_nobody_reads_holds_nothing_up_and_gets_all_later(tmp_path, capsys):
    reader, writer = os.pipe()
    lines = [f"{number:07d}" * 100 + "\n" for number in range(400)]  # four times what it holds
    began = time.monotonic()
    with open(writer, "w") as stream:
        screen = Screen(stream)
        for line in lines:
            screen.write(line)
        assert time.monotonic() - began < 400
        with open(tmp_path / "read", "wb") as read:
            child = subprocess.Popen(["cat"], stdin=reader, stdout=read)
        while screen._backlog._waiting:
            screen.close()
    os.close(reader)
    assert child.wait(500) == 0 and (tmp_path / "read").read_text() == "".join(lines)
    assert capsys.readouterr().err.count("nobody reads it; the work goes on") == 1


ENDS = {
    "a full disk": "exec {python} {program} >/dev/full",
    "a reader that leaves": "{python} {program} | head -c 1 >/dev/null; exit ${{PIPESTATUS[0]}}",
    "no output": "exec {python} {program} >&-",
    "all full": "exec {python} {program} >/dev/full 2>/dev/full",
}
PROGRAM = """
import sys
from shardkit.testing.files import Screen, settle_output, tell
screen = Screen(sys.stdout)
for number in range(10_000):
    screen.write(f"line {number}\\n")
tell("at the end")
screen.close()
settle_output()
"""


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.thorough
def test_a_process_ends_well_wherever_its_output_goes(tmp_path, how):
    (tmp_path / "program.py").write_text(PROGRAM)
    command = ENDS[how].format(python=sys.executable, program=tmp_path / "program.py")
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0 and "Traceback" not in done.stderr
    if how in ("a full disk", "a reader that leaves"):
        assert done.stderr.count("standard output") == 2  # that it fails, and what is lost


def test_a_limit_on_file_sizes_is_one_more_full_disk(tmp_path):
    program = f"""
import resource
from pathlib import Path
from shardkit.testing.files import Notes
resource.setrlimit(resource.RLIMIT_FSIZE, (25, 25))
notes = Notes()
for number in range(5):
    notes.add(Path({str(tmp_path / "log")!r}), f"line {{number}}")
notes.close()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=500
    )
    assert done.returncode not in (-signal.SIGXFSZ, 1), done.stderr
    assert (tmp_path / "log").read_text() == "line 0\nline 1\nline 2\n"
    assert "2 entries were never written: File too large" in done.stderr
