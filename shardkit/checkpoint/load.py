"""Load: every rank reads the boxes that it needs from whatever boxes were written.

    written by 2 ranks   |------ rank 0 ------|------ rank 1 ------|
    wanted by 3 ranks    |-- rank 0 --|-- rank 1 --|-- rank 2 --|      each reads the intersections

Nothing is merged. What is contiguous both in the file and in memory goes straight there. The rest
(columns of a box that was written by rows) passes through a window of SEGMENT_BYTES per reading
thread, so a load takes that much memory and no more.
"""

from pathlib import Path

import numpy

from ..array.backend import is_device_array
from ..array.copies import Copies
from ..comm.backend import CommunicationBackend
from ..comm.failure.agreement import by_first, collectively
from ..comm.operations import ReductionOperation
from ..errors import CheckpointError
from ..layout.box import Box
from ..layout.piece import Piece
from .fit import Fit, Stored, Wanted
from .format.companions import read_companions
from .format.manifest import checked_shape, read_manifest
from .format.reads import READERS, Check, Reader, read_all, reads_of
from .format.stored import ranges_outside, table_places
from .format.tabled import boxes_of
from .paths import state_names


class Checkpoint:
    """One checkpoint folder that is complete.

    manifest  as read_manifest() returned it on another rank; None: read it
    shapes    {tensor path: global shape}
    Errors: CheckpointError if it is not complete, PermissionError.
    """

    def __init__(self, folder, manifest: dict | None = None):
        self.folder = Path(folder)
        self.manifest = read_manifest(self.folder) if manifest is None else manifest
        tensors = self.manifest["tensors"]
        self._forms = {tensor: checked_shape(tensor, entry) for tensor, entry in tensors.items()}
        self.shapes = {tensor: shape for tensor, (shape, _) in self._forms.items()}
        self._stored = boxes_of(self.folder, self.manifest)

    @classmethod
    def opened_together(cls, folder, backend: CommunicationBackend) -> "Checkpoint":
        """Return the checkpoint that rank 0 reads the manifest of. Collective.

        Errors, on all ranks: CheckpointError, PermissionError.
        """
        return cls(folder, by_first(backend, lambda: read_manifest(Path(folder))))

    def fit(self, wanted: Wanted) -> Fit:
        """Return the fit with a model. Errors: CheckpointError if they do not fit."""
        return wanted.fit(Stored(str(self.folder), self.manifest, self._forms))

    def companions(self) -> dict[str, bytes]:
        """Return {name: content} of its files without tensors, such as those of a tokenizer.

        Errors: CheckpointError, PermissionError.
        """
        return read_companions(self.folder, self.manifest["files"])

    def check_boxes(self) -> None:
        """Look at all boxes. Errors: CheckpointError unless they make every tensor whole."""
        for tensor, shape in self.shapes.items():
            self._stored.of(tensor, Box.whole(shape))

    # ---- checksums -------------------------------------------------------------------------------

    def verify(self, part: int = 0, num_parts: int = 1) -> None:
        """Read this part of the checkpoint and compare checksums.

        Errors: CheckpointError naming what is damaged.
        """
        first, stop = (len(self._stored) * (part + i) // num_parts for i in (0, 1))
        self._verify(range(first, stop), part, num_parts)

    def _verify(self, segments, part: int, num_parts: int) -> None:
        """Compare these segments, and this part of the bytes between the boxes."""
        names = sorted(self.manifest["files"])[part::num_parts]
        checks = [Check(*self._stored[number]) for number in segments]
        num_bytes = sum(check.high - check.low for check in checks)
        read_all(self.folder, [*checks, *map(self._rest_of, names)], num_bytes)

    def _rest_of(self, name: str):
        """Return a task that compares the bytes of this file that belong to no box."""
        record = self.manifest["files"][name]
        inside = [*self._stored.boxes_of(name), *table_places(record)]
        ranges = ranges_outside(inside, record["bytes"])

        def compare(reader: Reader):
            found = reader.crc32(name, ranges)
            if found != record["crc32"]:
                raise CheckpointError(
                    f"{self.folder / name} is damaged: checksum {found}, but the manifest says "
                    f"{record['crc32']}"
                )

        return compare

    # ---- values ----------------------------------------------------------------------------------

    def read_verified(
        self,
        owned,
        backend: CommunicationBackend,
        copies: Copies | None = None,
        *,
        expendable: bool = True,
    ) -> None:
        """Fill 1-D arrays and compare every checksum. Collective.

        expendable   the arrays may hold anything after an error: each byte is read once. A rank
                     verifies the segments that it reads whole; the ranks share out what is left
                     then. False: everything is verified before anything is filled.
        Errors, on all ranks: CheckpointError, PermissionError.
        """
        if not expendable:
            verify_together(self, backend, owned)  # before any rank fills anything
            with collectively(backend):
                self.read_into(owned, copies)
            return
        verified = numpy.zeros(len(self._stored), numpy.uint8)
        with collectively(backend):
            self.read_into(owned, copies, verified)
        backend.all_reduce(verified, ReductionOperation.MAX)
        rank, num_ranks = backend.rank, backend.world_size
        with collectively(backend):
            left_over = numpy.array_split(numpy.flatnonzero(verified == 0), num_ranks)
            self._verify(left_over[rank].tolist(), rank, num_ranks)

    def read_into(self, owned, copies: Copies | None = None, verified=None) -> None:
        """Fill 1-D arrays from the files. No communication.

        owned     (tensor path, Piece, 1-D array) each; optimizer state that is not stored becomes
                  zero, as at the first step
        verified  see reads_of; None: no checksums are compared
        """
        wanted = [(self._boxes_of(*part), *part[1:]) for part in owned]
        reads = (
            read
            for stored, piece, array in wanted
            for read in reads_of(stored, piece.box, array, self._stored, verified)
        )
        num_bytes = sum(array.size * array.dtype.itemsize for _, _, array in wanted)
        on_device = any(is_device_array(array) for _, _, array in wanted)
        num_readers = 1 if on_device else READERS
        copies = copies or Copies()
        try:
            read_all(self.folder, reads, num_bytes, num_readers, copies)
        finally:
            copies.finish()

    def check_wanted(self, owned) -> None:
        """Raise CheckpointError unless boxes hold all that is stored of what is to be read."""
        for tensor, piece, _ in owned:
            if tensor in self._forms:
                self._stored.of(tensor, piece.box)

    def _boxes_of(self, tensor: str, piece: Piece, array) -> list:
        """Return the stored boxes; none, and zeros, for state that only another rule keeps.

        Errors: CheckpointError if there should be some.
        """
        if tensor in self._forms:
            return self._stored.of(tensor, piece.box)
        if not set(state_names([tensor])) - set(state_names(self.shapes)):
            raise CheckpointError(f"{self.folder} holds no {tensor}")
        array[...] = 0
        return []

    def read_whole(self, tensor: str):
        """Return one tensor, whole, as a NumPy array. No communication, no checksums.

        Errors: CheckpointError if it is not stored.
        """
        if tensor not in self.shapes:
            raise CheckpointError(f"{self.folder} holds no {tensor}")
        return self.read_box(tensor, Box.whole(self.shapes[tensor]))

    def read_box(self, tensor: str, box: Box):
        """Return a part of one tensor as a NumPy array; otherwise as read_whole."""
        shape, dtype = self._forms[tensor]
        values = numpy.empty(box.shape, dtype)
        piece = Piece(tensor, box, 0, values.size, shape)
        self.read_into([(tensor, piece, values.reshape(-1))])
        return values


def verify_together(checkpoint: Checkpoint, backend: CommunicationBackend, owned=()) -> None:
    """Check all checksums, shared out over the ranks, and each its boxes of `owned`. Collective.

    Errors, on all ranks: CheckpointError, PermissionError.
    """
    with collectively(backend):
        checkpoint.verify(backend.rank, backend.world_size)
        checkpoint.check_wanted(owned)
