"""Where the lines of a run end up: on a terminal, which can show a bar, or anywhere else.

    shardkit train                  standard output is the terminal
    mpiexec -n 4 shardkit train     it is a pipe; the terminal is the standard output of mpiexec
    ... > log, SLURM, NO_COLOR      neither: line by line

The launcher is found among the parents of this process, on its node (proc(5)).
"""

import os
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from ..environment import is_terminal_plain, progress_wanted

_LAUNCHERS = ("mpiexec", "mpirun", "orterun", "prterun", "hydra")  # their names begin so
# options that put words before lines, or lines into files
_LABELS = ("-l", "-prepend-rank", "-prepend-pattern", "-outfile-pattern", "-output", "-tag-output")
_TERMINALS = ("/dev/pts/", "/dev/tty")
_PROC = Path("/proc")


@dataclass(frozen=True)
class Terminal:
    """A terminal that a process of the job writes to; columns: its width."""

    path: str
    columns: int


def console_of(stream) -> Console:
    """Return a console on this stream; its is_terminal says whether a bar can be shown on it.

    SHARDKIT_PROGRESS=bar or lines decides; auto, the default, asks for a terminal, of the stream or
    of the launcher. Errors: ConfigurationError on another value.
    """
    wanted = progress_wanted()
    how: dict = {"highlight": False, "soft_wrap": True}
    if wanted == "lines" or wanted == "auto" and is_terminal_plain():
        return Console(file=stream, force_terminal=False, **how)
    if stream.isatty():
        return Console(file=stream, **how)
    terminal = terminal_of_launcher()
    if wanted == "bar" or terminal is not None:
        columns = 80 if terminal is None else terminal.columns
        return Console(file=stream, force_terminal=True, width=columns, **how)
    return Console(file=stream, force_terminal=False, **how)


def terminal_of_launcher(proc: Path = _PROC, pid: int | None = None) -> Terminal | None:
    """Return the terminal that the launcher of this process writes to, unchanged; None: none.

    proc   where processes are described
    """
    pid = os.getpid() if pid is None else pid
    try:
        while pid > 1:
            pid = _parent(proc / str(pid))
            if _is_launcher(proc / str(pid)):
                return _terminal(os.readlink(proc / str(pid) / "fd" / "1"))
    except (OSError, ValueError, IndexError):
        pass  # no such file system, or a process of another user
    return None


def _parent(process: Path) -> int:
    return int((process / "stat").read_text().rpartition(")")[2].split()[1])


def _is_launcher(process: Path) -> bool:
    """Return whether it is mpiexec. Errors: ValueError if it is, and changes what ranks write."""
    words = (process / "cmdline").read_text().split("\0")
    names = [os.path.basename(word) for word in words[:2]]  # of the program, or of a script
    if not any(name.startswith(_LAUNCHERS) and "proxy" not in name for name in names):
        return False
    if any(word.replace("--", "-").startswith(_LABELS[1:]) or word == _LABELS[0] for word in words):
        raise ValueError("the launcher changes lines")
    return True


def _terminal(path: str) -> Terminal | None:
    if not path.startswith(_TERMINALS):
        return None
    descriptor = os.open(path, os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK)
    try:
        return Terminal(path, os.get_terminal_size(descriptor).columns or 80)
    finally:
        os.close(descriptor)
