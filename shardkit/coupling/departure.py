"""Departure: all ranks of a coupling meet, or one leaves that has failed."""

from contextlib import suppress
from typing import Any

from ..errors import CommunicationError
from ..files.notes import tell
from .attendant import Attendant
from .desk import NoteDesk
from .receiving import Receiver
from .sides import Sides


class Departure:
    """One rank's part. receiver   of a trainer; None: this rank only solves"""

    def __init__(self, desk: NoteDesk, sides: Sides, receiver: Receiver | None):
        self._desk, self._sides = desk, sides
        self._receiver = receiver
        self._attendant = Attendant(desk, desk.hear) if receiver is None else receiver.attendant

    def close(self, backend: Any, part: Any) -> None:
        """Free what the ranks have made together; not with a rank that is lost, which a line says.

        backend, part   of this side
        """
        try:
            self._meet_all()
        except CommunicationError as error:
            tell(f"a coupling ends: {error}")
            sides = self._sides
            if not self._desk.lost(sides.trainers if sides.is_trainer else sides.solvers):
                with suppress(CommunicationError):  # one was lost in the meantime
                    backend.shutdown()
        else:
            backend.shutdown()
            part.Free()

    def _meet_all(self):
        """Answer the others until they close too."""
        desk, attendant = self._desk, self._attendant
        receiver = self._receiver
        try:
            if receiver is not None:
                attendant.wait(lambda: receiver.is_complete, lambda: receiver.unended, "close()")
            self._tell_others("close")
            attendant.wait(desk.is_over, lambda: desk.others, "close()")
        finally:
            attendant.stop()
        desk.post.close()

    def fail(self, why: str) -> None:
        """Tell the others, who wait for this rank no more; it meets nobody."""
        self._tell_others("failed", why=why)
        self._attendant.stop()

    def _tell_others(self, kind: str, **facts: Any) -> None:
        with self._attendant.lock:
            self._desk.tell_others(kind, **facts)
