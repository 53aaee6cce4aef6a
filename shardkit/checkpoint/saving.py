"""Saving: from what the ranks own to a folder that is whole, checked and on disk; at once, or
beside the training.

    begin      rank 0 makes step-00000100.tmp/                                     collective
    snapshot   owned arrays are copied to host memory, from a GPU beside the work  only if the training goes on meanwhile
    lay out, write    each rank its file, on disk, read back and compared          in a thread, if there is a snapshot
    gather     rank 0 learns what all have written                                 collective
    publish    rank 0: coverage, manifest; rename; pointer; old ones go            in a thread, if there is a snapshot

The index needs to know only what all have laid out. So if there is no snapshot, and the ranks talk
in between anyway, the last rank writes it, before its values and while the disk is busy with those
of others; otherwise rank 0 does before it publishes.

The thread talks to nobody. Whether all ranks have written is voted on where all of them are anyway:
at the next step.
"""

import errno
import json
import shutil
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from numbers import Integral
from pathlib import Path

import numpy

from ..array.backend import to_host
from ..array.copies import Done
from ..array.device import Device
from ..comm import CommunicationBackend, ReductionOperation, collectively
from ..errors import CheckpointError
from ..layout.piece import Piece
from .companions import write_companions
from .format.files import Cancelled, Reader, file_bytes, sync, write_arrays
from .format.hdf5 import (
    INDEX_NAME,
    lay_out,
    rank_file_name,
    write_index,
)
from .format.manifest import FORMAT, VERSION, check_description, check_storable, write_manifest
from .format.stored import StoredBox, ranges_outside
from .load import Checkpoint


@dataclass(frozen=True)
class Retention:
    """Which older checkpoints stay when a new one is there.

    keep        the newest ones, the new one counted; None: all
    every       and those whose step it divides; None: none besides
    """

    keep: int | None = None
    every: int | None = None

    def check(self) -> None:
        """Errors: CheckpointError on what is no integer or below 1, and on `every` alone, which
        would do nothing.
        """
        for name, number in (("keep", self.keep), ("keep_every", self.every)):
            is_count = isinstance(number, Integral) and not isinstance(number, bool) and number >= 1
            if number is not None and not is_count:
                raise CheckpointError(
                    f"{name} = {number!r}; wanted None or an integer of at least 1"
                )
        if self.every is not None and self.keep is None:
            raise CheckpointError(
                f"keep_every = {self.every} without keep: nothing is deleted then; set keep too, to 1 or more"
            )


class Saving:
    """One checkpoint on its way to disk. Making it is collective over `backend`: the temporary
    folder is there then.

    Errors, on all ranks: CheckpointError, OSError; nothing has changed then.
    """

    def __init__(
        self, store, backend: CommunicationBackend, description: dict, retention: Retention
    ):
        self.backend, self._store, self._description, self._retention = (
            backend,
            store,
            description,
            retention,
        )
        with collectively(backend):
            check_description(description)
            check_storable(description)
            retention.check()
        self.folder = store.folder_of(description["step"])
        self._temporary = self.folder.with_name(self.folder.name + ".tmp")
        with collectively(backend):
            if backend.rank == 0:
                store.begin(self._temporary)
        self._path = self._temporary / rank_file_name(backend.rank)
        self._copies = store.copies
        self._boxes: list[StoredBox] = []  # of this rank
        self._records: dict[str, dict] = {}  # what the manifest says about files
        self._scalars: dict[str, float] = {}  # values of tensors of shape ()
        self._everyones: list | None = None  # on one rank: boxes, records and scalars of all ranks

    @contextmanager
    def removed_on_error(self):
        """Around what follows: if it raises, nothing of this checkpoint is left."""
        try:
            yield
        except BaseException as error:
            if self.backend.rank == 0:
                shutil.rmtree(self._temporary, ignore_errors=True)
            if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
                error = self._in_other_words(error)
            raise error

    def _in_other_words(self, error: OSError) -> OSError:
        """The same error of a full disk, which says what to do."""
        other = OSError(
            error.errno,
            f"{error.strerror}; {self.folder} was given up, and those before it are untouched; make "
            "room, or keep fewer checkpoints; no room for",
            error.filename,
        )
        other.__cause__ = error.__cause__
        return other.with_traceback(error.__traceback__)

    def save(self, owned) -> str:
        """From here to the end; returns the folder. Collective.

        owned  (tensor path, Piece, 1-D array) each; gone through several times, so that arrays may
               be made in their turn
        """
        with self.removed_on_error():
            with collectively(self.backend):
                self.lay_out(owned)
            self.gather(self.backend.world_size - 1)
            with collectively(self.backend):
                self.write_index()
                self.write(owned)
            self.gather()
            with collectively(self.backend):
                self.publish()
        return str(self.folder)

    def lay_out(self, owned) -> None:
        """Make this rank's file, with room for the values. No communication."""
        self._boxes = lay_out(self._path, (self._form(*part) for part in owned))
        self._records = {self._path.name: _record(self._path, self._boxes)}

    def _form(self, tensor: str, piece: Piece, array) -> tuple:
        """(tensor path, Piece, dtype); the value of a scalar is noted on the way."""
        if piece.global_shape == ():
            self._scalars[tensor] = float(to_host(array)[0])
        return tensor, piece, str(array.dtype)

    def write(self, owned, cancelled: threading.Event | None = None) -> None:
        """Write the values that lay_out() made room for; they are on disk when this returns. No
        communication.
        """
        sums = write_arrays(
            self._path,
            ((box.at, array) for box, (_, _, array) in zip(self._boxes, owned)),
            cancelled,
            self._copies,
        )
        self._boxes = [replace(box, checksums=own) for box, own in zip(self._boxes, sums)]

    def gather(self, root: int = 0) -> None:
        """Tell this rank what was laid out or written. Collective."""
        self._everyones = self.backend.gather_object(
            (self._boxes, self._records, self._scalars), root
        )

    def write_index(self) -> None:
        """On the rank that was told, what all ranks laid out is shown whole. No communication."""
        if self._everyones is not None:
            index = self._temporary / INDEX_NAME
            scalars = {
                tensor: value for *_, part in self._everyones for tensor, value in part.items()
            }
            write_index(
                index,
                [box for part, *_ in self._everyones for box in part],
                scalars,
                {"format": FORMAT, "version": VERSION},
                {"step": self._description["step"], "mesh": json.dumps(self._description["mesh"])},
            )
            sync(index)
            self._records[INDEX_NAME] = _record(index, [])

    def publish(self) -> None:
        """On rank 0, once all have written: check that it is whole, and make it what the next load
        finds. No communication.

        Errors: CheckpointError if the boxes do not tile every tensor, or rank 0 does not see the
        files of all.
        """
        if self._everyones is not None:
            records = {
                name: record for _, part, _ in self._everyones for name, record in part.items()
            } | self._records
            records |= write_companions(self._temporary, self._store.companions)
            write_manifest(
                self._temporary,
                self._description,
                records,
                [box for part, *_ in self._everyones for box in part],
            )
            sync(self._temporary)
            self._store.check_replaced(self._look_again(), self.folder)
            self._store.publish(self._temporary, self.folder)
            self._store.delete_old(self.folder, self._retention)

    def _look_again(self) -> Checkpoint:
        """As a loader would, before anybody trusts it."""
        try:
            return Checkpoint(self._temporary)
        except CheckpointError as error:
            raise CheckpointError(
                f"what was written cannot be read back: {error}; is {self._store.folder} on a file system "
                "that all ranks share?"
            ) from None


def _record(path: Path, boxes: list[StoredBox]) -> dict:
    """What the manifest says about a file: its size, and the checksum of what is in none of its
    boxes.
    """
    num_bytes = file_bytes(path)
    outside = ranges_outside(sorted(boxes, key=lambda box: box.at), num_bytes)
    with Reader(path.parent) as reader:
        return {"bytes": num_bytes, "crc32": reader.crc32(path.name, outside)}


# ---- beside the training -------------------------------------------------------------------------


class Snapshot:
    """Copies of arrays, in host memory that is taken once and used again."""

    def __init__(self, device: Device):
        self._device, self._memory = device, None

    def take(self, owned) -> tuple[list, Done]:
        """The same (tensor path, Piece, 1-D array), with copies of the arrays, and when these can
        be read.

        They are lent until the next call. What is computed from now on waits for the copies, so it
        may change the arrays.
        """
        sizes = [-(-array.size * array.dtype.itemsize // 64) * 64 for _, _, array in owned]
        if self._memory is None or self._memory.size < sum(sizes):
            self._memory = None  # before the larger one is taken
            self._memory = self._device.pinned(sum(sizes), "uint8", purpose="checkpoint snapshot")
        copies, at, done = [], 0, Done()
        for (tensor, piece, array), size in zip(owned, sizes):
            copy = self._memory[at : at + array.size * array.dtype.itemsize].view(array.dtype)
            done = self._device.copies.to_host(array, copy, done)
            copies.append((tensor, piece, copy))
            at += size
        self._device.copies.hold_back(done)
        return copies, done


class _Task:
    """Work in a thread, whose error waits for somebody to ask."""

    def __init__(self, work):
        self._work, self.error = work, None
        self._thread = threading.Thread(target=self._run, name="shardkit checkpoint", daemon=True)
        self._thread.start()

    def _run(self):
        try:
            self._work()
        except BaseException as error:
            self.error = error

    @property
    def is_done(self) -> bool:
        return not self._thread.is_alive()

    def join(self) -> None:
        """Wait for the end, whatever it is."""
        self._thread.join()

    def finish(self) -> None:
        """Wait for the end. Errors: those of the work; none if it gave up because of another rank,
        which tells its own.
        """
        self.join()
        if self.error is not None and not isinstance(self.error, Cancelled):
            raise self.error


class PendingCheckpoint:
    """A checkpoint that a thread of each rank is writing, from a snapshot.

    pause_seconds   for how long the training stood still for it
    folder          where it will be
    is_committed    True once it is there
    write_seconds   how long that took
    """

    def __init__(self, saving: Saving, copies: list, copied: Done):
        self.folder, self.pause_seconds, self.write_seconds = str(saving.folder), 0.0, 0.0
        self.is_committed = self.is_over = False
        self._saving, self._copies, self._copied = saving, copies, copied
        self._cancelled, self._began = threading.Event(), time.perf_counter()
        self._stages = [self._write, self._publish]  # all ranks meet after each
        self._task = _Task(self._stages.pop(0))

    def _write(self):
        self._copied.wait()
        self._saving.lay_out(self._copies)
        self._saving.write(self._copies, self._cancelled)

    def _publish(self):
        self._saving.write_index()
        self._saving.publish()

    def poll(self) -> bool:
        """Go on if all ranks have done their part; True if it is committed. Collective: a small
        all-reduce until then.

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

    def _go_on(self):
        """End what is being done, on all ranks, and begin what comes next. Collective."""
        saving, self.is_over = self._saving, True
        with saving.removed_on_error():
            with collectively(saving.backend):
                self._task.finish()
            assert self._task.error is None, "given up, but no rank has an error"
            if self._stages:
                saving.gather()
                self._task, self.is_over = _Task(self._stages.pop(0)), False
                return
        self.is_committed, self.write_seconds = True, time.perf_counter() - self._began


class Saver:
    """The saves of one model: at most one at a time."""

    def __init__(self, backend: CommunicationBackend, device: Device):
        self._backend, self._snapshot = backend, Snapshot(device)
        self._pending: PendingCheckpoint | None = None

    def start(self, store, owned, description: dict, retention: Retention) -> PendingCheckpoint:
        """Copy what is owned and return while a thread writes it. Collective. Errors: as Saving,
        and of the save before.
        """
        began = time.perf_counter()
        self.wait()
        saving = Saving(store, self._backend, description, retention)
        with saving.removed_on_error(), collectively(self._backend):
            copies, copied = self._snapshot.take(owned)
        self._pending = PendingCheckpoint(saving, copies, copied)
        self._pending.pause_seconds = time.perf_counter() - began
        return self._pending

    def poll(self) -> None:
        """At a step boundary: commit what all ranks have written. Collective, and free if nothing
        is being written.
        """
        if self._pending is not None:
            self._end(self._pending.poll)

    def wait(self) -> None:
        """Return when nothing is being written any more. Collective."""
        if self._pending is not None:
            self._end(self._pending.wait)

    def abandon(self) -> None:
        """Return when this rank writes nothing any more. No communication: the other ranks may be
        gone.
        """
        if self._pending is not None:
            self._pending.abandon()
            self._pending = None

    def _end(self, how) -> None:
        try:
            how()
        finally:
            if self._pending.is_over:
                self._pending = None
