"""Small Python objects over the array verbs of a channel. They pickle.

An object that cannot be pickled on one rank is an error on all ranks, found before the payload is
sent. Every function returns (what came, bytes of this rank's own payload).
"""

import pickle

import numpy

from ..errors import PeerError
from .checks import starts_of

_UNPICKLABLE = -1


def broadcast(channel, value, root: int):
    """Return the root's object. Collective."""
    is_root = channel.rank == root
    payload, error = _pickled(value) if is_root else (numpy.empty(0, numpy.uint8), None)
    size = numpy.array([_UNPICKLABLE if error else payload.size], numpy.int64)
    channel.run("broadcast", size, root)
    _raise_unpicklable(error, [0] if is_root else size.tolist(), what=f"rank {root}")
    payload = payload if is_root else numpy.empty(size[0], numpy.uint8)
    channel.run("broadcast", payload, root)
    return pickle.loads(payload), payload.nbytes


def gather(channel, value, root: int):
    """Return the objects of all ranks in rank order on the root, None elsewhere. Collective."""
    payload, counts = _payload_and_counts(channel, value)
    if channel.rank != root:
        channel.run("gather", payload, None, root, counts)
        return None, payload.nbytes
    everything = numpy.empty(sum(counts), numpy.uint8)
    channel.run("gather", payload, everything, root, counts)
    return _unpickled(everything, counts), payload.nbytes


def all_gather(channel, value):
    """Return the objects of all ranks in rank order. Collective."""
    payload, counts = _payload_and_counts(channel, value)
    everything = numpy.empty(sum(counts), numpy.uint8)
    channel.run("all_gather", payload, everything, counts)
    return _unpickled(everything, counts), payload.nbytes


def _payload_and_counts(channel, value):
    """Return this rank's pickled object and the sizes of all of them."""
    payload, error = _pickled(value)
    sizes = numpy.empty(channel.size, numpy.int64)
    own = numpy.array([_UNPICKLABLE if error else payload.size], numpy.int64)
    channel.run("all_gather", own, sizes, [1] * channel.size)
    _raise_unpicklable(error, sizes.tolist())
    return payload, sizes.tolist()


def _pickled(value):
    """Return (bytes as uint8 array, None), or (empty, the error)."""
    try:
        return numpy.frombuffer(pickle.dumps(value, pickle.HIGHEST_PROTOCOL), numpy.uint8), None
    except (pickle.PicklingError, TypeError, AttributeError, RecursionError) as error:
        return numpy.empty(0, numpy.uint8), error


def _unpickled(everything, counts):
    return [
        pickle.loads(everything[start : start + count])
        for start, count in zip(starts_of(counts), counts)
    ]


def _raise_unpicklable(error, sizes, what=None):
    if error is not None:
        raise error
    if _UNPICKLABLE in sizes:
        raise PeerError(
            f"{what or f'rank {sizes.index(_UNPICKLABLE)}'} could not pickle its object; "
            "its own error says which part"
        )
