"""Read boxes of safetensors files into arrays of ours, a window at a time.

    their tensor, bfloat16 [in, out]          ours, float32 [out, in]
    rows through a window --converted, transposed--> columns of the target

What has our dtype and order in the file is read straight to where it belongs, as from a checkpoint
(format/reads.py).
"""

from dataclasses import dataclass

import numpy

from ...errors import CheckpointError
from ...layout.box import Box
from ..format.reads import (
    GAP_BYTES,
    Reader,
    extent_of,
    first_element,
    parts_of,
    reads_of,
    strides_of,
)
from ..format.stored import SEGMENT_BYTES, SegmentTable, StoredBox
from .safetensors import NUMPY_TYPES, StoredTensor, as_floats

_SAME = {"F64": "float64", "F32": "float32"}


def reads_of_tensor(stored: StoredTensor, wanted: Box, array, *, is_transposed: bool):
    """Yield tasks of a Reader that together fill a 1-D array with a box of a tensor.

    wanted          in the tensor
    array           [wanted.size] on the host, in our order; its dtype is what numbers become
    is_transposed   our order is that of the transposed box
    """
    whole = Box.whole(stored.shape)
    if _SAME.get(stored.dtype) == array.dtype and not is_transposed:
        box = StoredBox(
            stored.name, str(stored.path), "", whole, stored.shape, str(array.dtype), stored.start
        )
        yield from reads_of([box], wanted, array, SegmentTable([box]))
        return
    shape = wanted.shape[::-1] if is_transposed else wanted.shape
    target = array.reshape(shape).T if is_transposed else array.reshape(shape)
    item = numpy.dtype(NUMPY_TYPES[stored.dtype]).itemsize
    for part in parts_of(wanted, whole, SEGMENT_BYTES // item, GAP_BYTES // item):
        yield ConvertedRead(stored, part, target[part.relative_to(wanted).slices()])


@dataclass(frozen=True, slots=True)
class ConvertedRead:
    """Read the box `part` of a tensor through the window, and convert it into the target."""

    stored: StoredTensor
    part: Box
    target: numpy.ndarray

    def __call__(self, reader: Reader) -> None:
        dtype = numpy.dtype(NUMPY_TYPES[self.stored.dtype])
        strides = strides_of(self.stored.shape)
        num_bytes = extent_of(self.part.shape, strides) * dtype.itemsize
        first = first_element(self.part, Box.whole(self.stored.shape)) * dtype.itemsize
        view = reader.window[:num_bytes]
        reader.read(str(self.stored.path), self.stored.start + first, view)
        in_bytes = [stride * dtype.itemsize for stride in strides]
        values = as_floats(numpy.ndarray(self.part.shape, dtype, view, strides=in_bytes))
        try:
            with numpy.errstate(over="raise"):
                self.target[...] = values
        except FloatingPointError:
            raise CheckpointError(
                f"{self.stored.path}: {self.stored.name} has numbers beyond "
                f"{self.target.dtype}, the dtype of the model; convert it to a float64 one"
            ) from None
