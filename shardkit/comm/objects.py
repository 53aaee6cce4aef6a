"""Verbs for small Python objects, written once on top of the array verbs. They pickle: the name
says so.

An object that cannot be pickled on one rank is an error on all ranks, found before the payload is
sent.
"""

import pickle

import numpy

from ..errors import PeerError
from .checks import check_rank, starts_of

_UNPICKLABLE = -1


class ObjectVerbs:
    """broadcast_object, gather_object, all_gather_object for a CommunicationBackend."""

    def broadcast_object(self, value=None, root: int = 0):
        """The root's object, on every rank; `value` of other ranks is ignored.

        Collective over the backend. Errors: ValueError on a bad root; PeerError if the root cannot
        pickle its object.
        """
        with self._verb("broadcast_object"):
            root = check_rank("root", root, self.world_size)
            payload, error = (
                _pickled(value) if self.rank == root else (numpy.empty(0, numpy.uint8), None)
            )
            size = numpy.array([_UNPICKLABLE if error else payload.size], numpy.int64)
            self._broadcast(size, root)
            _raise_unpicklable(
                error, size.tolist() if self.rank != root else [0], what=f"rank {root}"
            )
            payload = payload if self.rank == root else numpy.empty(size[0], numpy.uint8)
            self._broadcast(payload, root)
            self._count_if(
                "broadcast_object", self.rank == root, (self.world_size - 1) * payload.nbytes
            )
            return pickle.loads(payload)

    def gather_object(self, value, root: int = 0) -> list | None:
        """The objects of all ranks in rank order on the root, None elsewhere.

        Collective over the backend. Errors: ValueError on a bad root; PeerError if a rank cannot
        pickle its object.
        """
        with self._verb("gather_object"):
            root = check_rank("root", root, self.world_size)
            payload, counts = self._payload_and_counts(value)
            everything = numpy.empty(sum(counts), numpy.uint8) if self.rank == root else None
            self._gather(payload, everything, root, counts)
            self._count_if("gather_object", self.rank != root, payload.nbytes)
            return _unpickled(everything, counts) if self.rank == root else None

    def all_gather_object(self, value) -> list:
        """The objects of all ranks in rank order, on every rank.

        Collective over the backend. Errors: PeerError if a rank cannot pickle its object.
        """
        with self._verb("all_gather_object"):
            payload, counts = self._payload_and_counts(value)
            everything = numpy.empty(sum(counts), numpy.uint8)
            self._all_gather(payload, everything, counts)
            self._count_if("all_gather_object", True, (self.world_size - 1) * payload.nbytes)
            return _unpickled(everything, counts)

    def _payload_and_counts(self, value):
        """This rank's pickled object and the sizes of all of them."""
        payload, error = _pickled(value)
        sizes = numpy.empty(self.world_size, numpy.int64)
        own = numpy.array([_UNPICKLABLE if error else payload.size], numpy.int64)
        self._all_gather(own, sizes, [1] * self.world_size)
        _raise_unpicklable(error, sizes.tolist())
        return payload, sizes.tolist()


def _pickled(value):
    """(bytes as uint8 array, None), or (empty, the error)."""
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
