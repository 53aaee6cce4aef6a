"""How long a call has waited for ranks that are to blame for it.

the others of a call                     their time
do something else, hang, are stopped     counts
note that they get on with their work    counts from their last note, of all of them
load or compile code                     counts when they are done, from the start; and if they do
                                           not want a core for it (cores.py)
wait for a core that others have         counts as far as the machine is shared fairly (cores.py)
"""

import os
import time
from math import inf

from .cores import FairClock
from .ledgers import read_ledgers
from .places import LedgerPlaces
from .progress import Call
from .recorded import RecordedRank
from .turn import Turn

REST = 10  # times as long as it took to read the ledgers, until the next time
LATE_PART = 0.25  # of the limit: from then on it is asked why the others do not come


class CallClock:
    """Counts the seconds of one call after the other.

    folder   of the ledgers of all ranks; None: there are none
    rank     that waits
    places   of all ranks
    """

    def __init__(self, folder, rank: int = 0, places: LedgerPlaces | None = None):
        self._folder = folder
        self._places = LedgerPlaces() if places is None else places
        self._turn = Turn(folder, rank)
        self._clock = FairClock(0.0)
        self._since = (0.0, -inf)  # that the clock counts from
        self._rests = (0.0, 0.0)  # for a call that began then, until then

    def seconds(self, call: Call, began: float, limit: float) -> float:
        """Return for how long the call has waited; to be asked again and again.

        began   time.monotonic()
        Of a large group, one rank reads the ledgers, for most of the time not; for the others, the
        call does not wait for long.
        """
        now = time.monotonic()
        if now - began < LATE_PART * limit or self._folder is None:
            return now - began
        if not self._turn.is_mine(call.group, len(call.ranks), limit):
            return LATE_PART * limit
        if self._rests[0] == began and now < self._rests[1]:
            return self._clock.seconds
        seconds = self._counted(call, began)
        self._rests = began, time.monotonic() + REST * (time.monotonic() - now)
        return seconds

    def _counted(self, call: Call, began: float) -> float:
        try:
            needed, worked = ranks_needed(self._folder, call, self._places)
        except OSError:  # a folder that was emptied
            return time.monotonic() - began
        ahead = time.monotonic() - time.time()
        if self._since != (began, worked):
            self._since = began, worked
            self._clock = FairClock(max(began, worked + ahead))
        host = os.uname().nodename
        here = {rank.pid: rank for rank in needed if rank.host == host}
        is_unknown = any(rank.code and rank.host != host for rank in needed)
        prepared = max((rank.since for rank in needed if not rank.code), default=0.0)
        return self._clock.count(
            here,
            preparing=[process for process, rank in here.items() if rank.code],
            until_fair=inf if is_unknown else prepared + ahead,
        )


def ranks_needed(folder, call: Call, places: LedgerPlaces) -> tuple[list[RecordedRank], float]:
    """Return those of the call's ranks that have not come to it, all of them if all have, as far as
    their ledgers are in the folder; and when the last of them to do so got on with work of its own.

    The time is in seconds since the epoch; -inf if one of them never said that it does such work.
    Errors: FileNotFoundError if there are no ledgers.
    """
    found = read_ledgers(folder, call.ranks, places)
    late = found.late(call)
    rows = found.rows_of(late if late.size else call.ranks)
    needed = [found.rank(row) for row in rows[rows >= 0].tolist()]
    if len(needed) < late.size:
        return needed, -inf
    return needed, min((rank.worked or -inf for rank in needed), default=-inf)
