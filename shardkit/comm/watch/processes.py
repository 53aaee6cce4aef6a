"""Processes as the kernel sees them: their states, and how one has ended."""

import fcntl
import os
import struct
from contextlib import suppress

_INFO = struct.Struct("<Q8x44xi")  # struct pidfd_info: mask ... exit_code
_GET_INFO = 3 << 30 | _INFO.size << 16 | 0xFF << 8 | 11  # _IOWR(PIDFS_IOCTL_MAGIC, 11, ...)
_HAS_EXIT_CODE = 8


def state_of(process: int) -> str | None:
    """Return the kernel's letter for the process ("R", "S", "T" if stopped); None if it is gone."""
    try:
        letter = _stat_of(process)[0]
    except FileNotFoundError:
        return None if os.path.exists("/proc/self/stat") else "R"  # a system without /proc
    except (OSError, IndexError):
        return None
    return None if letter in ("Z", "X") else letter


def is_stopped(process: int) -> bool:
    """Return True if a signal ("T") or a debugger ("t") has stopped the process."""
    return state_of(process) in ("T", "t")


def catches(process: int, number: int) -> bool:
    """Return True if the process has a handler of its own for the signal: it survives it."""
    with suppress(OSError), open(f"/proc/{process}/status") as file:
        for line in file:
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def _stat_of(process: int) -> list[str]:
    """Return what follows the name of the process in its line of /proc."""
    with open(f"/proc/{process}/stat") as file:
        return file.read().rpartition(")")[2].split()


class EndOfProcess:
    """How a process ends, for one that is not its parent.

    The kernel tells until the parent has asked, and from Linux 6.15 on afterwards too.
    """

    def __init__(self, process: int):
        self._process = process
        self._handle: int | None = None
        with suppress(OSError, AttributeError):
            self._handle = os.pidfd_open(process)

    def status(self) -> int | None:
        """Return what waitpid() gives, of a process that has ended; None if that is not known."""
        with suppress(OSError, ValueError, IndexError):
            return int(_stat_of(self._process)[-1])
        if self._handle is not None:
            with suppress(OSError):
                info = bytearray(_INFO.pack(_HAS_EXIT_CODE, 0))
                fcntl.ioctl(self._handle, _GET_INFO, info)
                mask, code = _INFO.unpack(info)
                return code if mask & _HAS_EXIT_CODE else None
        return None
