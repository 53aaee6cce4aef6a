"""Desk: notes between the ranks of a coupling, in the order in which each rank has sent them.

    desk.tell(rank, "ends", puts=40)          JSON, and bytes with it
    desk.listen(ends=function)                function (source, facts, body uint8)
    desk.hear()                               calls it for what has come; never waits

| length of the facts int64 | facts as JSON, with "kind" | body |
"""

import json
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import numpy

from ..comm.mpi.post import Post, Posted
from ..errors import CommunicationError, ShardingError

NOTE_TAG, RECORD_TAG = 11, 12
_LENGTH_BYTES = 8
EMPTY = numpy.empty(0, numpy.uint8)

Listener = Callable[[int, dict[str, Any], numpy.ndarray], None]


class NoteDesk:
    """One rank's end.

    closed         ranks that will not send any more
    asks_no_more   True once this one has told "close"
    """

    def __init__(self, post: Post):
        self.post = post
        self._on: dict[str, Listener] = {"close": self._note_close, "over": self._note_over}
        self._on |= {"failed": self._note_failed}
        self._closing: set[int] = set()  # these ask for nothing more, and answer yet
        self.closed: set[int] = set()
        self.asks_no_more = self._has_told_over = False
        self._failed: dict[int, str] = {}  # rank -> what it has raised
        self._sent: list[Posted] = []
        self._coming: deque[Posted] = deque()

    def listen(self, **listeners: Listener) -> None:
        """Call these for notes of their kinds from now on."""
        self._on |= listeners

    def check_open(self) -> None:
        """Errors: ShardingError once the coupling is closed."""
        if self.post.is_closed:
            raise ShardingError("the coupling is closed; wanted this call before close()")

    def tell(self, to: int, kind: str, body=EMPTY, **facts: Any) -> None:
        """Send a note; one to this rank is heard at once."""
        self.asks_no_more |= kind == "close"
        if to == self.post.rank:
            self._on[kind](to, facts, body)
            return
        self.check_open()
        text = json.dumps({"kind": kind, **facts}).encode()
        parts = (numpy.frombuffer(text, numpy.uint8), body)
        length = numpy.array([len(text)], numpy.int64).view(numpy.uint8)
        note = numpy.concatenate([length, *parts])
        self._sent.append(self.post.send(note, to, NOTE_TAG))

    def hear(self) -> bool:
        """Listen to what has come; return True if there was something."""
        if self._sent:
            self._sent = [posted for posted in self._sent if not posted.is_done()]
        while (posted := self.post.arrival(NOTE_TAG)) is not None:
            self._coming.append(posted)
        heard = False
        while self._coming and self._coming[0].is_done():
            posted, heard = self._coming.popleft(), True
            if not posted.has_failed:
                self._listen(posted.source, posted.array)
        return heard

    def _listen(self, source: int, note) -> None:
        length = int(note[:_LENGTH_BYTES].view(numpy.int64)[0])
        end = _LENGTH_BYTES + length
        facts = json.loads(note[_LENGTH_BYTES:end].tobytes())
        listener = self._on.get(facts.pop("kind"))
        if listener is not None:  # this side has no use for some: a model that comes too late
            listener(source, facts, note[end:])

    def _note_close(self, source, facts, body):
        self._closing.add(source)

    def _note_over(self, source, facts, body):
        self.closed.add(source)

    def _note_failed(self, source, facts, body):
        self._failed[source] = f"rank {source} has left the coupling by {facts['why']}"

    @property
    def has_news(self) -> bool:
        """True if lost() may find some."""
        return bool(self._failed) or self.post.peers.has_news

    def lost(self, needed: Iterable[int]) -> str | None:
        """Return which of these ranks are lost or have failed, in words; None: none of them."""
        others = set(needed) - self.closed - {self.post.rank}
        failed = [self._failed[rank] for rank in sorted(others & self._failed.keys())]
        return "; ".join(failed) or self.post.peers.missing(sorted(others))

    def check(self, needed: Iterable[int], doing: str) -> None:
        """Raise CommunicationError if one of these ranks is lost."""
        lost = self.lost(needed)
        if lost is not None:
            raise CommunicationError(f"{doing}: {lost}")

    @property
    def others(self) -> list[int]:
        """All ranks but this one."""
        return [rank for rank in range(self.post.size) if rank != self.post.rank]

    def is_over(self) -> bool:
        """Return True if nobody answers any more, and nothing of this rank is under way.

        A rank that has told "close" asks no more. It tells "over" when all others have: there is
        nothing left to answer, so a model that was asked for is never behind the last note.
        """
        if not self._has_told_over and self._closing.issuperset(self.others):
            self._has_told_over = True
            for rank in self.others:
                self.tell(rank, "over")
        return self.closed.issuperset(self.others) and not self._sent
