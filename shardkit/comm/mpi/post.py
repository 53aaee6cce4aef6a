"""Post: messages between ranks that are taken when the receiver likes, from whoever has sent one.

    post.send(array, to, tag)       begun; complete when the receiver has begun to take it
    post.arrival(tag, source)       one that is there to be taken, or None; it never waits

For programs that run beside each other on one communicator (shardkit/coupling): no collective, no
call that both sides make, and a rank that is lost is asked for (peers), not raised.
"""

from contextlib import suppress
from typing import Any

import numpy

from .library import import_mpi, parent_of
from .peers import Peers


class Posted:
    """A message that is under way; its array must not change before is_done().

    has_failed   True if the other rank was lost before it was all there
    """

    def __init__(self, mpi, request, array, source: int):
        self._mpi, self._request = mpi, request
        self.array, self.source = array, source
        self.has_failed = False

    def is_done(self) -> bool:
        """Return True if it has been taken, or cannot be any more. No wait."""
        try:
            return self._request.Test()
        except self._mpi.Exception:  # the other rank is lost: missing() says so
            self.has_failed = True
            return True


class Post:
    """One rank's end. The constructor is collective over the communicator, and so is close().

    comm    an mpi4py communicator; None: all ranks that were started
    parent  the communicator
    peers   who of its ranks is lost
    """

    def __init__(self, comm: Any):
        self._mpi = import_mpi()
        parent = self.parent = parent_of(self._mpi, comm)
        self.rank, self.size = parent.rank, parent.size
        self._comm = parent.Dup()
        self._comm.Set_errhandler(self._mpi.ERRORS_RETURN)  # as exceptions
        self.peers = Peers(self._mpi, parent)
        self.peers.speak_on(self._comm)

    @property
    def takes_threads(self) -> bool:
        """True if several threads may communicate at a time."""
        return self._mpi.Query_thread() == self._mpi.THREAD_MULTIPLE

    @property
    def is_closed(self) -> bool:
        """True after close(): nothing comes, and nothing can be sent."""
        return not self._comm

    def send(self, array: numpy.ndarray, to: int, tag: int) -> Posted:
        """Begin to send these bytes, [n] uint8."""
        request = self._comm.Issend([array, self._mpi.BYTE], to, tag)
        return Posted(self._mpi, request, array, to)

    def sender(self, tag: int, source: int | None = None) -> int | None:
        """Return who has sent the next message with this tag; None: none is there to be taken."""
        status = self._mpi.Status()
        with suppress(self._mpi.Exception):  # as in arrival()
            if self._comm.Iprobe(self._mpi.ANY_SOURCE if source is None else source, tag, status):
                return status.Get_source()
        return None

    def arrival(
        self, tag: int, source: int | None = None, place: numpy.ndarray | None = None
    ) -> Posted | None:
        """Begin to take the next message with this tag; None if none is there.

        source   of it; None: anyone
        place    [n] uint8, where it is written; None: a fresh array
        """
        if not self._comm:
            return None
        origin = self._mpi.ANY_SOURCE if source is None else source
        status = self._mpi.Status()
        try:
            message = self._comm.Improbe(origin, tag, status)
        except self._mpi.Exception:  # an MPI that goes on hears nobody when one is dead
            return None
        if message is None:
            return None
        if place is None:
            place = numpy.empty(status.Get_count(self._mpi.BYTE), numpy.uint8)
        return Posted(self._mpi, message.Irecv([place, self._mpi.BYTE]), place, status.Get_source())

    def close(self) -> None:
        """Free what the ranks have made together. Collective."""
        self._comm.Free()
