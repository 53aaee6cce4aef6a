"""Images: a model and its optimizer state as bytes, in HDF5, whole, so that they load under any mesh and policy.

For models that fit into the memory of one rank twice; larger ones are saved as a checkpoint folder (store.py).
"""
import numpy

from ..array.backend import is_device_array, to_host
from ..comm import CommunicationBackend, collectively
from .hdf5 import read_image, write_image
from .load import check_same_tensors


def make_image(owned, shapes: dict[str, tuple[int, ...]], backend: CommunicationBackend, description: dict) -> bytes:
    """The same bytes on all ranks. Collective over `backend`.

    owned    (tensor path, Piece, 1-D array) each: over all ranks these tile every tensor exactly once
    shapes   {tensor path: global shape}
    """
    everyones = backend.gather_object([(tensor, piece.box, to_host(array).copy()) for tensor, piece, array in owned], 0)
    image = None
    with collectively(backend):
        if everyones is not None:
            image = write_image(_assemble(everyones, shapes), description)
    return backend.broadcast_object(image, 0)


def _assemble(everyones, shapes) -> dict:
    boxes = [box for part in everyones for box in part]
    tensors = {tensor: numpy.empty(shapes[tensor], array.dtype) for tensor, _, array in boxes}
    for tensor, box, array in boxes:
        tensors[tensor][box.slices()] = array.reshape(box.shape)
    return {tensor: tensors[tensor] for tensor in sorted(tensors)}


def load_image(data: bytes, owned, shapes: dict[str, tuple[int, ...]], dtype: str, backend: CommunicationBackend) -> dict:
    """Fill the owned arrays from an image and return its description. Collective over `backend`.

    Errors, on all ranks: CheckpointError if the bytes are damaged or of another model; nothing is written then.
    """
    with collectively(backend):
        tensors, description = read_image(data)
        stored = {tensor: array.shape for tensor, array in tensors.items()}
        check_same_tensors("the image", stored, {str(array.dtype) for array in tensors.values()}, shapes, dtype)
    for tensor, piece, array in owned:
        values = tensors[tensor][piece.box.slices()].reshape(-1)
        if is_device_array(array):
            array.set(numpy.ascontiguousarray(values))
        else:
            array[...] = values
    return description
