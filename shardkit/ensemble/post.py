"""Messages between the leaders of groups and the desk, which never wait for one another.

    leader of group k    report -->  desk, the leader of group 0, which looks between its own steps
                         <-- order   as soon as there is one

A message is two: the number of its bytes, and its bytes. Who waits looks again and again, so no
call lasts longer than it takes, and no limit of time ends a long wait.
"""

import pickle
import time
from collections.abc import Iterator
from typing import Any

import numpy

from ..comm.backend import CommunicationBackend
from ..comm.operations import Handle

_SIZE, _CONTENT = 1, 2  # tags
_PAUSE_SECONDS = 0.001


class Line:
    """One end of the line between this leader and another."""

    def __init__(self, leaders: CommunicationBackend, other: int):
        self._leaders, self._other = leaders, other
        self._size = numpy.zeros(1, numpy.int64)
        self._coming: Handle | None = None
        self._sent: list[tuple[Handle, numpy.ndarray]] = []

    def send(self, message: Any) -> None:
        """Begin to send a message."""
        content = numpy.frombuffer(pickle.dumps(message), numpy.uint8)
        size = numpy.array([content.size], numpy.int64)
        for array, tag in ((size, _SIZE), (content, _CONTENT)):
            self._sent.append((self._leaders.isend(array, self._other, tag), array))

    def look(self) -> Iterator[Any]:
        """Yield the next message, if it is here."""
        self._sent = [(handle, array) for handle, array in self._sent if not handle.test()]
        if self._coming is None:
            self._coming = self._leaders.irecv(self._size, self._other, _SIZE)
        if self._coming.test():
            self._coming = None
            content = numpy.empty(int(self._size[0]), numpy.uint8)
            self._leaders.receive(content, self._other, _CONTENT)
            yield pickle.loads(content.tobytes())

    def part(self) -> None:
        """Wait for the last message of the other end, to which nothing is sent any more."""
        while not any(True for _ in self.look()):
            time.sleep(_PAUSE_SECONDS)
        self.close()

    def close(self) -> None:
        """Wait until what was sent has arrived."""
        for handle, _ in self._sent:
            handle.wait()
        self._sent = []
