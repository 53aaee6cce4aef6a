"""JobGuard: no rank of an MPI job waits for a dead one.

    how a rank ends                   who notices                        what happens
    uncaught exception                its own excepthook (exits.py)      message, traceback, abort
    sys.exit, or the program's end    it sends "left" to all ranks; a    that rank names it, aborts
      without shutdown()                rank that needs it in a verb
                                        receives that
    never: it stays in its own code   ranks that wait at their end       the first names it, aborts
    os._exit, SIGKILL, crash          its neighbor on the node, which    that rank names it, aborts
                                        waits on its lifeline
    all ranks fail or leave           exchange_within                    one message, no abort

The guard watches from initialize() to shutdown(). Before and after that, and if the process is
stopped, a warden watches (watch/attendance.py). The guard is two threads that sleep: it costs
nothing while all is well. It needs the thread level MULTIPLE, which mpi4py requests by default;
with less, a rank that leaves early aborts the job itself after `LONELY_EXIT_SECONDS`.
"""

import pickle
import threading
import time
from functools import partial
from math import inf

import numpy

from ..failure.agreement import describe_error
from ..ranks import ranks_text
from ..watch.attendance import attendance
from ..watch.closing import closing
from ..watch.cores import FairClock
from ..watch.lifeline import Lifelines
from ..watch.warden import NEXT_TO_WATCHDOG_SECONDS
from .ending import ending
from .requests import LONGEST_NAP, SHORT_NAP, MPIErrors

LEFT_TAG = 1
POLL_SECONDS = 0.25  # between two looks at who has left
TURN_SECONDS = 0.5  # a stuck rank waits this long per lower rank that may speak first
MAX_TURNS = 8
SILENT_SECONDS = 0.5  # a silent rank gives the one that reports this time before it aborts too
HEARING_SECONDS = 2.0  # for messages on their way when all ranks are at their end
LONELY_EXIT_SECONDS = 30.0
CLOSING_SECONDS = 1.0  # in shutdown(), until this rank says so to those that may need it elsewhere


class JobGuard:
    """Watch over the ranks of one world on a communicator of its own.

    backend     the backend whose `progress` and `abort` are used
    comm        a duplicate of the world's communicator; freed by stop()
    peers       who is lost of its ranks, as far as they see it themselves
    is_active   False: a failure does not end the job; only exchange_within and meet work
    """

    def __init__(self, backend, mpi, comm, peers, *, is_active: bool):
        self._backend = backend
        self._mpi = mpi
        self._comm = comm
        self._peers = peers
        self._is_active = is_active
        self._is_watching = is_active and mpi.Query_thread() >= mpi.THREAD_MULTIPLE
        self._stopped = threading.Event()
        # {rank: its collective calls per group when it left}
        self._left: dict[int, dict[str, int]] = {}
        self._told: list = []  # requests whose messages must live until the end
        self.has_stopped = False
        self._has_parted = False  # all ranks have exchanged their last notes
        self._lifelines: Lifelines | None = None
        self._threads: list[threading.Thread] = []

    # ---- life ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start watching. Collective."""
        if not self._is_active:
            return
        ending().add(self._at_exit)
        if self._is_watching:
            self._lifelines = Lifelines.open(self._mpi, self._comm)
            self._start_threads()

    def _start_threads(self):
        holds = threading.Event()
        self._run(self._watch, holds)
        holds.wait()
        self._comm.Barrier()  # every rank holds its lifeline
        if self._lifelines is not None and self._lifelines.neighbor_rank != self._comm.rank:
            self._run(self._wait_for_neighbor)

    def _run(self, target, *arguments):
        def run():
            try:
                target(*arguments)
            except Exception as error:  # without this thread, nobody would watch any more
                if not self._stopped.is_set():
                    self._backend.abort(
                        f"rank {self._comm.rank}: the thread that watches over the job failed: "
                        f"{describe_error(error)}; the job is ended"
                    )

        thread = threading.Thread(target=run, daemon=True, name=f"shardkit guard {target.__name__}")
        self._threads.append(thread)
        thread.start()

    def meet(self) -> None:
        """Wait until all ranks have called this. Collective.

        Where a failure does not end the job, nobody ends a rank that waits for one that never
        comes: it is told so here. How long the others work is the program's business.

        Errors: CommunicationError if a rank has died, left the program without calling this, or
        waits for this one in another call.
        """
        if self._is_active:
            self._is_complete(self._comm.Ibarrier(), None)  # asleep: the others may need the core
            return
        look = partial(self._peers.look, doing="shutdown()")
        with MPIErrors(self._mpi, self._backend.progress, look):
            self._meet_looking(look)

    def _meet_looking(self, look):
        request = self._comm.Ibarrier()
        if self._is_complete(request, CLOSING_SECONDS):
            return
        tell_at = time.monotonic() + self._backend.timeout
        with closing(self._peers.number):
            while not self._is_complete(request, POLL_SECONDS):
                look()
                if time.monotonic() > tell_at:
                    tell_at = inf
                    self._tell_of_wait()

    def _tell_of_wait(self):
        self._backend.say(
            f"warning: rank {self._comm.rank} of {self._comm.size} has waited "
            f"{self._backend.timeout:g} s in shutdown(), which not all ranks of the backend's "
            "communicator have called; it goes on waiting, for the job is another program's"
        )

    def forsake(self) -> None:
        """Leave what others have part in as it is: some are lost. No communication."""
        self.has_stopped = True

    def stop(self) -> None:
        """End the threads and free the communicator. Collective."""
        self._stopped.set()
        self.has_stopped = True
        for thread in self._threads:
            thread.join()
        if self._told:
            self._hear_all()
        if self._is_active:
            ending().remove(self._at_exit)
        if self._lifelines is not None:
            lifelines, self._lifelines = self._lifelines, None
            lifelines.close()
        self._comm.Free()

    # ---- a rank that announces its end -----------------------------------------------------------

    def exchange_within(self, note, seconds: float | None) -> list | None:
        """Return the notes of all ranks, or None if some do not call this within the time."""
        if not self._is_complete(self._comm.Ibarrier(), seconds):
            return None
        own = numpy.frombuffer(pickle.dumps(note), numpy.uint8)
        sizes = numpy.empty(self._comm.size, numpy.int64)
        if not self._is_complete(self._comm.Iallgather(numpy.array([own.size]), sizes), seconds):
            return None
        notes = numpy.empty(sizes.sum(), numpy.uint8)
        if not self._is_complete(self._comm.Iallgatherv(own, [notes, sizes]), seconds):
            return None
        self._has_parted = True
        return [pickle.loads(part) for part in numpy.split(notes, sizes.cumsum()[:-1])]

    def _is_complete(self, request, seconds) -> bool:
        """Wait for a request, and return whether it completed in time; if not, the job ends."""
        limit = inf if seconds is None else seconds
        clock, next_look = FairClock(time.monotonic()), 0.0
        nap = SHORT_NAP
        while not request.Test():
            if time.monotonic() >= next_look:
                others = attendance().others_here().values()
                if clock.count([other.process for other in others]) > limit:
                    return False
                next_look = time.monotonic() + min(POLL_SECONDS, limit / 8)
            time.sleep(nap)
            nap = min(1.1 * nap, LONGEST_NAP)  # a tenth of the wait
        return True

    def may_speak(self) -> bool:
        """Return True for the first rank of the node that asks: it alone reports."""
        if self._lifelines is None or self._lifelines.speaker.try_take():
            return True
        time.sleep(SILENT_SECONDS)
        return False

    def _tell_others(self, note, tag):
        others = (rank for rank in range(self._comm.size) if rank != self._comm.rank)
        self._told += [self._comm.isend(note, rank, tag) for rank in others]

    def _at_exit(self):
        """Leave a program that did not call shutdown(): fine if all ranks do, else announced."""
        if self._mpi.Is_finalized():
            return
        attendance().leave(
            "the end of its program", self._backend.timeout + NEXT_TO_WATCHDOG_SECONDS
        )
        try:
            self._part()
        except BaseException as error:  # Python would only print it
            self._backend.abort(
                f"rank {self._comm.rank} failed at the end of its program: "
                f"{describe_error(error)}; the job is ended"
            )

    def _part(self):
        if self._is_watching:
            self._tell_others(self._backend.progress.calls_made(), LEFT_TAG)
        seconds = self._backend.timeout
        if not self._is_watching:
            seconds = min(seconds, LONELY_EXIT_SECONDS)
        if not self._has_parted and self.exchange_within(None, seconds) is None:
            self._backend.abort(
                f"rank {self._comm.rank} has waited {seconds:g} s at the end of its program: "
                f"{self._who_is_missing()}; the job is ended. Call shutdown() on all ranks, end "
                "together, or set the backend's timeout"
            )
        self.stop()

    def _who_is_missing(self) -> str:
        """Return which ranks have not reached the end of their program, as far as is known."""
        missing = [
            rank
            for rank in range(self._comm.size)
            if rank != self._comm.rank and rank not in self._left
        ]
        if not self._is_watching:
            return "others have not come to theirs"
        if not missing:
            return self._backend.suspects()
        one = len(missing) == 1
        return (
            f"rank{'' if one else 's'} {ranks_text(missing)} {'is' if one else 'are'} missing, "
            f"which {'has' if one else 'have'} not come to the end"
        )

    # ---- the threads -----------------------------------------------------------------------------

    def _watch(self, holds):
        """Hold this rank's lifeline, and check whether it waits for a rank that has left."""
        if self._lifelines is not None:
            self._lifelines.own.take()
        holds.set()
        while not self._stopped.wait(POLL_SECONDS):
            self._hear_who_left()
            self._abort_if_stuck()
        if self._lifelines is not None:
            self._lifelines.own.release()

    def _wait_for_neighbor(self):
        """Sleep until the neighbor's process dies, or releases its lifeline at the end."""
        has_died = self._lifelines.neighbor.take()
        if has_died:
            self._backend.abort(
                f"rank {self._lifelines.neighbor_rank} died: its process ended without a word "
                "(killed, out of memory, a crash in native code, or os._exit); the job is ended"
            )
        self._lifelines.neighbor.release()

    def _hear_who_left(self):
        status = self._mpi.Status()
        while self._comm.iprobe(self._mpi.ANY_SOURCE, LEFT_TAG, status):
            self._left[status.source] = self._comm.recv(None, status.source, LEFT_TAG)

    def _hear_all(self):
        """Receive what all others have sent: MPICH frees no communicator with messages in it."""
        deadline = time.monotonic() + HEARING_SECONDS
        while len(self._left) < self._comm.size - 1 and time.monotonic() < deadline:
            self._hear_who_left()
            time.sleep(0.002)

    def _abort_if_stuck(self):
        """Abort if the current verb needs a rank that has left; the lowest such rank reports."""
        call = self._backend.progress.current
        gone = [rank for rank in call.ranks if self._is_missing(rank, call)] if call else []
        if not gone:
            return
        num_before = sum(rank not in self._left for rank in range(self._comm.rank))
        stopped = self._stopped.wait(TURN_SECONDS * (1 + min(num_before, MAX_TURNS)))
        if not stopped and self._backend.progress.current is call:
            self._backend.abort(
                f"rank {gone[0]} left the program (sys.exit, or the end of its script) while rank "
                f"{self._comm.rank} waits for it in {call}; the job is ended"
            )

    def _is_missing(self, rank, call):
        """Return True if the rank left without making this call."""
        return rank in self._left and (
            call.number is None or self._left[rank].get(call.group, 0) < call.number
        )
