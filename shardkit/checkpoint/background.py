"""Save beside the training: copy what is owned, and write it in a thread of each rank.

    start      copy owned arrays to host memory, from a GPU beside the computation     collective
    thread     write; in turns, where several write one file (rank_file.py)
    poll       at the next step: have all ranks written?                               collective
    thread     rank 0: index, publish
    poll       at a later step: is it published?                                       collective

The thread communicates with nobody. The ranks vote on whether all have written where all of them
are anyway: at a step.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy

from ..array.copies import Done
from ..array.device import Device
from ..comm.backend import CommunicationBackend
from ..comm.failure.agreement import collectively
from ..comm.operations import ReductionOperation
from .format.files import Cancelled
from .saving import Retention, Saving


class Snapshot:
    """Copies of arrays, in host memory that is allocated once and used again."""

    def __init__(self, device: Device):
        self._device = device
        self._memory: Any = None

    def take(self, owned) -> tuple[list, Done]:
        """Return (tensor path, Piece, copy) of each owned array, and when the copies can be read.

        The copies are valid until the next call. What is computed from now on waits for them, so it
        may change the arrays.
        """
        sizes = [-(-array.size * array.dtype.itemsize // 64) * 64 for _, _, array in owned]
        if self._memory is None or self._memory.size < sum(sizes):
            self._memory = None  # before the larger one is allocated
            self._memory = self._device.pinned(sum(sizes), "uint8", purpose="checkpoint snapshot")
        copies = []
        at = 0
        done = Done()
        for (tensor, piece, array), size in zip(owned, sizes):
            copy = self._memory[at : at + array.size * array.dtype.itemsize].view(array.dtype)
            done = self._device.copies.to_host(array, copy, done)
            copies.append((tensor, piece, copy))
            at += size
        self._device.copies.hold_back(done)
        return copies, done


class _Task:
    """Work in a thread, on this device, whose error is kept until finish()."""

    def __init__(self, work, device):
        self._work = work
        self._device = device
        self.error = None
        self._thread = threading.Thread(target=self._run, name="shardkit checkpoint", daemon=True)
        self._thread.start()

    def _run(self):
        try:
            self._device.select()
            self._work()
        except BaseException as error:
            self.error = error

    @property
    def is_done(self) -> bool:
        return not self._thread.is_alive()

    def join(self) -> None:
        """Wait for the end, and raise nothing."""
        self._thread.join()

    def finish(self) -> None:
        """Wait for the end, and raise the error of the work.

        No error if it gave up because of another rank, which raises its own.
        """
        self.join()
        if self.error is not None and not isinstance(self.error, Cancelled):
            raise self.error


class PendingCheckpoint:
    """A checkpoint that a thread of each rank is writing, from a snapshot.

    began           time.perf_counter() when it began to be written
    pause_seconds   for how long the training stood still for it
    folder          where it will be
    is_committed    True once it is there
    is_over         True once nothing is written any more, whether it is there or not
    write_seconds   how long that took
    is_forgiving    an OSError that ends it is not raised where the ranks notice it; may be set
    error           that OSError; None: there is none so far
    """

    def __init__(self, saving: Saving, copies: list, copied: Done, device: Device):
        self.folder = str(saving.folder)
        self.pause_seconds = 0.0
        self.write_seconds = 0.0
        self.is_committed = False
        self.is_over = False
        self.is_forgiving = False
        self.error: OSError | None = None
        self._saving = saving
        self._copies = copies
        self._copied = copied
        self._device = device
        self._cancelled = threading.Event()
        self.began = time.perf_counter()
        self._stages = self._plan()
        self._task = _Task(self._stages[0][0], self._device)

    def _plan(self) -> list[tuple[Callable, Callable | None]]:
        """Return what the thread does, and how all ranks meet after each."""
        saving, file = self._saving, self._saving.file
        last = self._publish, None
        if not file.is_shared:
            return [(self._write_alone, saving.gather), last]
        together = [(file.lay_out, file.share), (self._write, file.collect)]
        return [*together, (file.add_table, saving.gather), last]

    def _write_alone(self):
        file = self._saving.file
        file.lay_out()
        file.share()
        self._write()
        file.collect()
        file.add_table()

    def _write(self):
        self._copied.wait()
        self._saving.file.write(self._copies, self._cancelled)

    def _publish(self):
        self._saving.write_index()
        self._saving.publish()

    def poll(self) -> bool:
        """Go on if all ranks have done their part; return True if it is committed.

        Collective: a small all-reduce until then.
        Errors, on all ranks: what went wrong on one of them; nothing is left of this checkpoint
        then.
        """
        if not self.is_over:
            vote = numpy.array([not self._task.is_done, self._task.error is not None], numpy.uint8)
            self._saving.backend.all_reduce(vote, ReductionOperation.MAX)
            is_working, has_failed = vote.tolist()
            if has_failed:
                self._cancelled.set()
            if has_failed or not is_working:
                self._go_on()
        return self.is_committed

    def wait(self) -> str:
        """Return its folder when it is committed. Collective. Errors: as poll()."""
        while not self.is_over:
            self._go_on()
        return self.folder

    def abandon(self) -> None:
        """Stop this rank's part of it, or let it end. No communication."""
        self.is_over = True
        self._cancelled.set()
        self._task.join()
        self._saving.release()

    def _go_on(self):
        """End the current stage on all ranks, and begin the next one. Collective."""
        try:
            self._end_stage()
        except OSError as error:
            self.error = error
            if not self.is_forgiving:
                raise

    def _end_stage(self):
        saving = self._saving
        self.is_over = True
        with saving.removed_on_error():
            with collectively(saving.backend):
                self._task.finish()
            assert self._task.error is None, "given up, but no rank has an error"
            _, meet = self._stages.pop(0)
            if meet is not None:
                meet()
                self._task = _Task(self._stages[0][0], self._device)
                self.is_over = False
                return
        self.is_committed = True
        self.write_seconds = time.perf_counter() - self.began


class Saver:
    """The saves of one model in the background: at most one at a time.

    pending   what is being written; None: nothing
    """

    def __init__(self, backend: CommunicationBackend, device: Device):
        self._backend = backend
        self._device = device
        self._snapshot = Snapshot(device)
        self.pending: PendingCheckpoint | None = None

    def start(self, store, owned, description: dict, retention: Retention) -> PendingCheckpoint:
        """Copy what is owned and return while a thread writes it. Collective.

        Errors: as Saving, and of the save before.
        """
        began = time.perf_counter()
        self.wait()
        saving = Saving(store, self._backend, owned, description, retention)
        with saving.removed_on_error(), collectively(self._backend):
            copies, copied = self._snapshot.take(owned)
        self.pending = PendingCheckpoint(saving, copies, copied, self._device)
        self.pending.pause_seconds = time.perf_counter() - began
        return self.pending

    def poll(self) -> None:
        """Commit what all ranks have written, at the end of a step.

        Collective, and free if nothing is being written.
        """
        if self.pending is not None:
            self._end(self.pending.poll)

    def wait(self) -> None:
        """Wait until nothing is being written any more. Collective."""
        if self.pending is not None:
            self._end(self.pending.wait)

    def abandon(self) -> None:
        """Wait until this rank writes nothing any more. No communication: ranks may be gone."""
        if self.pending is not None:
            self.pending.abandon()
            self.pending = None

    def _end(self, how) -> None:
        try:
            how()
        finally:
            if self.pending.is_over:
                self.pending = None
