"""Images: a model and its optimizer state as bytes, whole, for any mesh and policy to load.

    {"crc32": "9ae0daaf", "format": "shardkit-image", "version": 2, "bytes": 41984,
     "description": {...}, "tensors":
       {"model/head.norm.weight": {"shape": [128], "dtype": "float32", "at": 3072}, ...}}
    zeros, then an HDF5 file

HDF5 programs skip the beginning and see one dataset per tensor. We read the beginning alone: its
checksum is over all bytes, taken with zeros for these eight digits, and it says where each tensor
is, so HDF5 never parses what somebody sent us.

For models that fit into the memory of one rank twice; larger ones are saved as a checkpoint folder
(store.py).
"""

import json
import re
from math import prod

import numpy

from ..array.backend import is_device_array, to_host
from ..comm.backend import CommunicationBackend
from ..comm.failure.agreement import collectively
from ..errors import CheckpointError
from .fit import Fit, Stored, Wanted
from .format.description import check_description, storable
from .format.files import as_text, crc32
from .format.hdf5 import write_image
from .format.manifest import UNSEALED, check_seal, checked_shape, parse_object
from .format.stored import ITEM_BYTES

FORMAT, VERSION = "shardkit-image", 2
_ROOM_BYTES = 512  # the smallest user block of HDF5; others are this times a power of two
_TEXT = re.compile(rb"[^\0]*")
_LARGEST = 10**20  # stands for a number that is not known yet


def make_image(owned, backend: CommunicationBackend, description: dict) -> bytes:
    """Return the image, the same bytes on all ranks. Collective over `backend`.

    owned    (tensor path, Piece, 1-D array) each: over all ranks these tile every tensor exactly
             once
    Errors, on all ranks: CheckpointError if JSON cannot hold the description.
    """
    own = [(tensor, piece, to_host(array).copy()) for tensor, piece, array in owned]
    gathered = backend.gather_object(own, 0)
    image = None
    with collectively(backend):
        description = storable(description)
        if gathered is not None:
            image = image_of(_assemble(gathered), description)
    return backend.broadcast_object(image, 0)


def _assemble(gathered) -> dict:
    parts = [part for own in gathered for part in own]
    tensors = {
        tensor: numpy.empty(piece.global_shape, array.dtype) for tensor, piece, array in parts
    }
    for tensor, piece, array in parts:
        tensors[tensor][piece.box.slices()] = array.reshape(piece.box.shape)
    return {tensor: tensors[tensor] for tensor in sorted(tensors)}


def image_of(tensors: dict, description: dict) -> bytes:
    """Return the image of {tensor path: NumPy array}, each whole."""
    longest = _beginning(tensors, description, dict.fromkeys(tensors, _LARGEST), _LARGEST)
    room = _ROOM_BYTES
    while room <= len(longest):
        room *= 2
    image, places = write_image(tensors, description, room)
    beginning = _beginning(tensors, description, places, len(image))
    image[: len(beginning)] = beginning
    seal = as_text(crc32(image)).encode()
    at = UNSEALED.index("0")
    image[at : at + len(seal)] = seal
    return bytes(image)


def _beginning(tensors, description, places, num_bytes) -> bytes:
    table = {
        tensor: {"shape": list(array.shape), "dtype": str(array.dtype), "at": places[tensor]}
        for tensor, array in tensors.items()
    }
    head = {"format": FORMAT, "version": VERSION, "bytes": num_bytes}
    rest = json.dumps({**head, "description": description, "tensors": table})
    return (UNSEALED + rest[1:]).encode()


def read_image(data) -> tuple[dict, dict]:
    """Return (tensors, description) of an image; the tensors are read-only views of the bytes.

    Those without elements, which older releases wrote, are left out: models have none to fill.
    Errors: CheckpointError if the bytes are damaged or something else.
    """
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise CheckpointError(f"an image of a sharded model is bytes; got {type(data).__name__}")
    content = memoryview(data).toreadonly().cast("B")
    try:
        check_seal(content)
        table = parse_object(bytes(content[: _TEXT.match(content).end()]))
        found = table.get("format"), table.get("version"), table.get("bytes")
        if found != (FORMAT, VERSION, len(content)):
            raise CheckpointError(f"it says {found[0]!r:.40} version {found[1]!r:.40}")
        check_description(table["description"])
        views = {
            tensor: _view(content, tensor, entry) for tensor, entry in table["tensors"].items()
        }
        tensors = {tensor: view for tensor, view in views.items() if view.size}
        return tensors, table["description"]
    except (CheckpointError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"these {len(content)} bytes are no whole image of a sharded model: {error}"
        ) from None


def _view(content: memoryview, tensor: str, entry: dict):
    shape, dtype = checked_shape(tensor, entry)
    at, num_bytes = entry["at"], prod(shape) * ITEM_BYTES[dtype]
    if type(at) is not int or not 0 <= at <= len(content) - num_bytes:
        raise CheckpointError(f"{tensor} at byte {at!r:.40} is not inside")
    return numpy.frombuffer(content[at : at + num_bytes], dtype).reshape(shape)


def load_image(data: bytes, owned, wanted: Wanted, backend: CommunicationBackend) -> Fit:
    """Fill the owned arrays from an image and return the fit with the model. Collective.

    Optimizer state that it does not hold becomes zero, as at the first step.
    Errors, on all ranks: CheckpointError if the bytes are damaged or of another model; nothing is
    written then.
    """
    with collectively(backend):
        tensors, description = read_image(data)
        forms = {tensor: (array.shape, str(array.dtype)) for tensor, array in tensors.items()}
        fit = wanted.fit(Stored("the image", description, forms))
    for tensor, piece, array in fit.taken(owned):
        if tensor in tensors:
            _fill(array, tensors[tensor][piece.box.slices()].reshape(-1))
        else:
            array[...] = 0
    return fit


def _fill(array, values) -> None:
    if is_device_array(array):
        array.set(numpy.ascontiguousarray(values))
    else:
        array[...] = values
