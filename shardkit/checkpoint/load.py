"""Loading: every rank reads the boxes that it needs from whatever boxes were written.

    written by 2 ranks   |------ rank 0 ------|------ rank 1 ------|
    wanted by 3 ranks    |-- rank 0 --|-- rank 1 --|-- rank 2 --|         each reads the intersections, nothing is merged
"""
from pathlib import Path

import numpy

from ..array.backend import is_device_array
from ..comm import CommunicationBackend, collectively
from ..errors import CheckpointError
from .hdf5 import BoxReader
from .manifest import read_manifest, stored_boxes, verify_file


class Checkpoint:
    """One checkpoint folder that is complete. Errors: CheckpointError if it is not."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.manifest = read_manifest(self.folder)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """{tensor path: global shape}."""
        return {tensor: tuple(entry["shape"]) for tensor, entry in self.manifest["tensors"].items()}

    def verify(self, part: int = 0, num_parts: int = 1) -> None:
        """Read this part of the files and compare checksums. Errors: CheckpointError naming the damaged file."""
        for name in sorted(self.manifest["files"])[part::num_parts]:
            verify_file(self.folder, name, self.manifest["files"][name])

    @property
    def is_parameters_only(self) -> bool:
        """True if it was written without optimizer state, for optimizers that start afresh."""
        return self.manifest.get("optimizer", {}) is None

    def check_model(self, shapes: dict[str, tuple[int, ...]], dtype: str) -> None:
        """Errors: CheckpointError unless exactly these tensors are stored, in this dtype; if only parameters are, those."""
        dtypes = {entry["dtype"] for entry in self.manifest["tensors"].values()}
        if self.is_parameters_only:
            shapes = {tensor: shape for tensor, shape in shapes.items() if not tensor.startswith("optimizer/")}
        check_same_tensors(str(self.folder), self.shapes, dtypes, shapes, dtype)

    def read_into(self, owned) -> None:
        """Fill 1-D arrays from the file; owned: (tensor path, Piece, 1-D array) each. No communication.

        Optimizer state that a checkpoint of parameters only does not have becomes zero, as at the first step.
        """
        boxes = {tensor: stored_boxes(tensor, entry) for tensor, entry in self.manifest["tensors"].items()}
        with BoxReader(self.folder) as reader:
            for tensor, piece, array in owned:
                if self.is_parameters_only and tensor.startswith("optimizer/"):
                    array[...] = 0
                    continue
                on_host = numpy.empty(array.shape, array.dtype) if is_device_array(array) else array
                target = on_host.reshape(piece.box.shape)
                for stored in boxes[tensor]:
                    reader.read(stored, piece.box, target)
                if is_device_array(array):
                    array.set(on_host)

    def read_whole(self, tensor: str):
        """One tensor, whole, as a NumPy array. No communication."""
        entry = self.manifest["tensors"][tensor]
        stored = stored_boxes(tensor, entry)
        whole = numpy.empty(tuple(entry["shape"]), entry["dtype"])
        with BoxReader(self.folder) as reader:
            for box in stored:
                reader.read(box, type(box.box)((0,) * whole.ndim, whole.shape), whole)
        return whole


def check_same_tensors(where: str, stored: dict, stored_dtypes: set[str], shapes: dict, dtype: str) -> None:
    """Errors: CheckpointError, by the first tensor that differs, unless names, shapes and dtype are those of the model."""
    for tensor in sorted(shapes.keys() | stored.keys()):
        here, there = shapes.get(tensor), stored.get(tensor)
        if here != there:
            raise CheckpointError(f"{where} is of another model: {tensor} is {_describe(there)} in the checkpoint "
                                  f"and {_describe(here)} in the model")
    if stored_dtypes - {dtype}:
        raise CheckpointError(f"{where} holds {min(stored_dtypes - {dtype})} numbers, the model is {dtype}")


def verify_together(checkpoint: Checkpoint, backend: CommunicationBackend) -> None:
    """Check all checksums, the files shared out over the ranks. Collective. Errors: CheckpointError on all ranks."""
    with collectively(backend):
        checkpoint.verify(backend.rank, backend.world_size)


def _describe(shape) -> str:
    return "missing" if shape is None else f"of shape {list(shape)}"
