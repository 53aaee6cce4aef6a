"""What the threads of each rank do, in files of the folder of ledgers, made when a job hangs.

    stacks/rank-00001.stacks     the folder is made by the rank that reports; the others see it

A rank writes its own, from a thread that holds the interpreter's lock: all other threads keep their
frames meanwhile. One whose lock native code keeps cannot; a signal asks it, and its handler writes
into memory, which the rank that reports reads. Where the interpreter runs, such a handler may find
frames that another thread is changing, and crash (one of 300 to 1,200 did, with two busy threads):
so only those are asked that have not written.
"""

import faulthandler
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from ...files.removing import remove_folder
from ...files.writing import write_whole
from .cores import FairClock
from .folder import LEDGER_NAMES, STACKS_FOLDER, STACKS_NAME
from .ledgers import Ledgers
from .processes import catches
from .pulse import beat_seconds

STACKS_SIGNAL = signal.SIGRTMIN + 7
HANDLER_SECONDS = 0.7  # for a handler to write
_LOOK_SECONDS = 0.02
_MEMORY = "shardkit-stacks"
_LINK = f"/memfd:{_MEMORY} (deleted)"  # to such memory, in /proc


class Stacks:
    """The stacks of one rank: to be written by itself, or by a handler.

    folder   of the ledgers; None: of no rank
    """

    def __init__(self, folder: Path | None, rank: int):
        self._folder = Path(folder or os.devnull, STACKS_FOLDER)  # one that nobody can make
        self._rank = rank
        self._memory = os.memfd_create(_MEMORY)
        remove_folder(self._folder, LEDGER_NAMES[STACKS_FOLDER])  # left by an earlier run

    def listen(self) -> None:
        """Let a handler of STACKS_SIGNAL write them, in place of one that listens already."""
        faulthandler.register(STACKS_SIGNAL, self._memory, all_threads=True)

    def close(self, is_last: bool) -> None:
        """Forget them; is_last: nobody else in this process listens."""
        if is_last:
            faulthandler.unregister(STACKS_SIGNAL)
        os.close(self._memory)

    def may_ask(self) -> bool:
        """Return True for the first rank that asks; for all where no folder can be made."""
        try:
            self._folder.mkdir()
        except FileExistsError:
            return False
        except OSError:
            return True
        return True

    def write_if_asked(self) -> None:
        """Write the stacks of this rank, if another rank has asked and they are not there."""
        if self._folder.exists() and not self._path(self._rank).exists():
            self._write()

    def gather(self, found: Ledgers, seconds: float) -> None:
        """Write those of this rank, and wait until the others of this node have.

        seconds   that a call may take
        """
        self._write()
        here = found.processes_on(os.uname().nodename)
        listening = {rank: process for rank, process in here.items() if _is_listening(process)}
        late = self._wait_for(listening, beat_seconds(seconds) + HANDLER_SECONDS)
        for process in late.values():
            with suppress(OSError):  # it has died just now, or belongs to another user
                os.kill(process, STACKS_SIGNAL)
        if late:
            time.sleep(HANDLER_SECONDS)
        for rank, process in late.items():
            self._keep(rank, handed_over(process))

    def _wait_for(self, processes: dict[int, int], seconds: float) -> dict[int, int]:
        """Return the {rank: process} that have not written in this time, of those given."""
        clock = FairClock(time.monotonic())
        while processes and clock.count(list(processes.values())) < seconds:
            time.sleep(_LOOK_SECONDS)
            written = {rank for rank in processes if self._path(rank).exists()}
            processes = {rank: processes[rank] for rank in processes.keys() - written}
        return processes

    def _write(self):
        memory = os.memfd_create(_MEMORY)
        try:
            faulthandler.dump_traceback(memory, all_threads=True)
            self._keep(self._rank, os.pread(memory, os.fstat(memory).st_size, 0))
        finally:
            os.close(memory)

    def _keep(self, rank: int, content: bytes):
        with suppress(OSError):  # no room: the report lacks them
            if content:
                write_whole(self._path(rank), content)

    def _path(self, rank: int) -> Path:
        return self._folder / STACKS_NAME.format(rank)


def _is_listening(process: int) -> bool:
    """Return False for one that the signal would end.

    One that has closed its watchdog, or another program that has its id by now.
    """
    with suppress(OSError):
        return catches(process, STACKS_SIGNAL)
    return False


def handed_over(process: int) -> bytes:
    """Return what the handler of a process of this node has written."""
    with suppress(OSError):
        for path in Path(f"/proc/{process}/fd").iterdir():
            if os.readlink(path) == _LINK and (content := path.read_bytes()):
                return content
    return b""
