"""A model in which one rank goes wrong at one place of one step: NaN, an infinite gradient, or
memory that runs out.
"""

import threading

import numpy

from shardkit.nn import Tensor, record
from shardkit.testing.array import Device

WAYS = (
    "nan",
    "infinite gradient",
    "memory in forward",
    "memory in backward",
    "memory in weight gradient",
)


def threads_without_room(monkeypatch) -> set[int]:
    """Return the numbers of threads for whose arrays their device has no room; none so far."""
    found, from_host = set(), Device.from_host

    def refused(device, array):
        if threading.get_ident() in found:
            raise MemoryError("Out of memory allocating 512 bytes")
        return from_host(device, array)

    monkeypatch.setattr(Device, "from_host", refused)
    return found


def no_memory():
    """Return the error of NumPy. numpy.empty(2**60) would raise it on most machines, but some
    overcommit.
    """
    raise MemoryError(
        "Unable to allocate 8.00 EiB for an array with shape (1152921504606846976,) and data type "
        "float64"
    )


def sabotage(model, block_number, how, is_due):
    """Make this block of an nn.Module do `how` in every forward where is_due() is true."""
    block = model.blocks()[block_number][1]
    forward = block.forward

    def spoilt(x, *arguments):
        if not is_due():
            return forward(x, *arguments)
        if how == "memory in forward":
            no_memory()
        return _spoilt(forward(x, *arguments), how, block.parameters()[0])

    block.forward = spoilt


def _spoilt(out: Tensor, how, parameter) -> Tensor:
    """Return the output of the block, or an array that looks like it."""
    if how == "nan":
        return out * numpy.float32("nan")

    def backward(gradient, wanted):
        if (
            how == "memory in backward"
            and wanted[0]
            or how == "memory in weight gradient"
            and wanted[1]
        ):
            no_memory()
        if how == "infinite gradient":
            gradient = numpy.full_like(gradient, numpy.inf)
        return gradient, numpy.zeros_like(parameter.array) if wanted[1] else None

    return record(out.array.copy(), (out, parameter), backward)
