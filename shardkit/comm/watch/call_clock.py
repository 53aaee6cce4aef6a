"""How long a call has waited for ranks that are to blame for it.

the others of a call                     their time
do something else, hang, are stopped     counts
load or compile code                     counts when they are done, from the start
wait for a core that others have         counts as far as the machine is shared fairly (cores.py)
"""

import socket
import time
from math import inf

from .cores import FairClock
from .hang import read_ledgers
from .ledger import RecordedRank
from .progress import Call

LATE_PART = 0.25  # of the limit: from then on it is asked why the others do not come


class CallClock:
    """Counts the seconds of one call after the other.

    folder   of the ledgers of all ranks
    """

    def __init__(self, folder):
        self._folder = folder
        self._clock = FairClock(0.0)

    def seconds(self, call: Call, began: float, limit: float) -> float:
        """Return for how long the call has waited; to be asked again and again.

        began   time.monotonic()
        """
        if time.monotonic() - began < LATE_PART * limit:
            return time.monotonic() - began
        if self._clock.began != began:
            self._clock = FairClock(began)
        needed = ranks_needed(self._folder, call)
        prepared = max((inf if rank.code else rank.since for rank in needed), default=0.0)
        return self._clock.count(
            [rank.pid for rank in needed if rank.host == socket.gethostname()],
            until_fair=prepared - time.time() + time.monotonic(),
        )


def ranks_needed(folder, call: Call) -> list[RecordedRank]:
    """Return those of the call's ranks that have not come to it; all of them if all have.

    As far as their ledgers are in the folder.
    """
    ranks = [rank for rank in read_ledgers(folder) if rank.rank in call.ranks]
    return [rank for rank in ranks if not _has_come(rank, call)] or ranks


def _has_come(rank: RecordedRank, call: Call) -> bool:
    return call.number is not None and any(
        other.group == call.group
        and (other.number_on_group or 0) >= call.number
        and not other.has_failed
        for other in rank.calls
    )
