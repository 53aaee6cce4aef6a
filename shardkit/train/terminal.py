"""Where the lines of a run end up: on a terminal, which can show a bar, or anywhere else.

    shardkit train                  standard output is the terminal
    mpiexec -n 4 shardkit train     it is a pipe; the terminal is the standard output of mpiexec
    ... > log, SLURM, NO_COLOR      neither: line by line

The launcher is found among the parents of this process, on its node (proc(5)).
"""

import os
import stat
from pathlib import Path

from ..environment import is_terminal_plain, progress_wanted
from ..files.tables import rich_console

_LAUNCHERS = ("mpiexec", "mpirun", "orterun", "prterun", "hydra")  # their names begin so
# options that put words before lines, or lines into files
_LABELS = ("-l", "-prepend-rank", "-prepend-pattern", "-outfile-pattern", "-output", "-tag-output")
_TERMINALS = ("/dev/pts/", "/dev/tty")
_PROC = Path("/proc")


class Lines:
    """What stands in the place of a console where there is no terminal: rich is not imported."""

    is_terminal = False

    def __init__(self, stream):
        self._stream = stream

    def print(self, text: str, *, markup: bool = False) -> None:
        """Write a line, of which nothing is markup."""
        self._stream.write(text + "\n")
        self._stream.flush()


def console_of(stream) -> "rich_console.Console | Lines":
    """Return a console on this stream; its is_terminal says whether a bar can be shown on it.

    SHARDKIT_PROGRESS=bar or lines decides; auto, the default, asks for a terminal, of the launcher
    if there is one: Open MPI gives ranks a terminal of its own, whatever it writes to itself.
    Errors: ConfigurationError on another value.
    """
    wanted = progress_wanted()
    how: dict = {"highlight": False, "soft_wrap": True}
    if wanted == "lines" or wanted == "auto" and (is_terminal_plain() or _is_file(stream)):
        return Lines(stream)
    output = output_of_launcher()
    if output is None and stream.isatty():
        return rich_console.Console(file=stream, force_terminal=True, **how)
    columns = _columns(output)
    if wanted != "bar" and columns is None:
        return Lines(stream)
    return rich_console.Console(file=stream, force_terminal=True, width=columns, **how)


def _is_file(stream) -> bool:
    try:
        return stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    except (OSError, ValueError, AttributeError):
        return False


def output_of_launcher(proc: Path = _PROC, pid: int | None = None) -> str | None:
    """Return the path that the launcher of this process writes to.

    "" if it puts words of its own before the lines of ranks; None if there is no launcher here.
    proc   where processes are described
    """
    pid = os.getpid() if pid is None else pid
    try:
        while pid > 1:
            pid = _parent(proc / str(pid))
            words = (proc / str(pid) / "cmdline").read_text("utf-8", "replace").split("\0")
            if _is_launcher(words):
                is_changed = any(map(_is_label, words))
                return "" if is_changed else os.readlink(proc / str(pid) / "fd" / "1")
    except (OSError, ValueError, IndexError):
        pass  # no such file system, or a process of another user
    return None


def _parent(process: Path) -> int:
    return int((process / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()[1])


def _is_launcher(words: list[str]) -> bool:
    """Return whether these are the words of mpiexec: of the program, or of a script."""
    names = [os.path.basename(word) for word in words[:2]]
    return any(name.startswith(_LAUNCHERS) and "proxy" not in name for name in names)


def _is_label(word: str) -> bool:
    return word == _LABELS[0] or word.replace("--", "-").startswith(_LABELS[1:])


def _columns(path: str | None) -> int | None:
    """Return the width of the terminal of this path; None if it is none, or cannot be asked."""
    if path is None or not path.startswith(_TERMINALS):
        return None
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        return os.get_terminal_size(descriptor).columns or 80
    except OSError:
        return None
    finally:
        os.close(descriptor)
