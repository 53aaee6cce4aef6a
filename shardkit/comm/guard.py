"""JobGuard: no rank of an MPI job waits for a dead one.

    how a rank goes                        who notices                             what happens
    an exception nobody catches            its own excepthook                      message and traceback, abort
    sys.exit or the end of the program     says "left" to all; a rank that is      that rank names it and aborts
      without shutdown()                     stuck in a verb with it hears that
    os._exit, SIGKILL, a crash             its right neighbour on the node, which  the neighbour names it and aborts
                                             waits on its lifeline
    all ranks fail or leave alike          exchange_within                         one message, no abort

The watching is two threads that sleep; it costs nothing while all is well. It needs thread level MULTIPLE (mpi4py asks for
it by default); with less, a rank that leaves early aborts the job itself after `LONELY_EXIT_SECONDS`.
"""
import atexit
import sys
import threading
import time

from .failure import report_failure
from .lifeline import Lifelines

LEFT_TAG = 1
POLL_SECONDS = 0.25              # between two looks at who has left
TURN_SECONDS = 0.5               # a stuck rank waits this long per lower rank that may speak first
MAX_TURNS = 8
SILENT_SECONDS = 0.5             # who may not speak gives the speaker this time before it aborts too
LONELY_EXIT_SECONDS = 30.0


class JobGuard:
    """Watches over the ranks of one world on a communicator of its own.

    backend     whose `progress` and `abort` are used
    comm        a duplicate of the world's communicator; freed by stop()
    is_active   False: only exchange_within works; the job belongs to somebody else's program
    """

    def __init__(self, backend, mpi, comm, *, is_active: bool):
        self._backend, self._mpi, self._comm = backend, mpi, comm
        self._is_active = is_active
        self._is_watching = is_active and mpi.Query_thread() >= mpi.THREAD_MULTIPLE
        self._stopped = threading.Event()
        self._left: dict[int, dict[str, int]] = {}       # rank -> its collective calls per group, when it left
        self._told: list = []                            # requests whose messages must live until the end
        self._previous_hook = None
        self._lifelines: Lifelines | None = None
        self._threads: list[threading.Thread] = []

    # ---- life -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Install the hooks and begin to watch. Collective."""
        if not self._is_active:
            return
        self._previous_hook, sys.excepthook = sys.excepthook, self._excepthook
        atexit.register(self._at_exit)
        if self._is_watching:
            self._lifelines = Lifelines.open(self._mpi, self._comm)
            self._start_threads()

    def _start_threads(self):
        holds = threading.Event()
        self._run(self._watch, holds)
        holds.wait()
        self._comm.Barrier()                             # every rank holds its lifeline
        if self._lifelines is not None and self._lifelines.neighbour_rank != self._comm.rank:
            self._run(self._wait_for_neighbour)

    def _run(self, target, *arguments):
        thread = threading.Thread(target=target, args=arguments, daemon=True, name=f"shardkit guard {target.__name__}")
        self._threads.append(thread)
        thread.start()

    def stop(self) -> None:
        """Remove the hooks, end the threads, free the communicator. Collective."""
        self._comm.Barrier()                             # nobody is stuck any more
        self._stopped.set()
        for thread in self._threads:
            thread.join()
        if self._is_active:
            atexit.unregister(self._at_exit)
            sys.excepthook = self._previous_hook
        if self._lifelines is not None:
            self._lifelines.close()
        self._comm.Free()

    # ---- a rank that says that it goes ------------------------------------------------------------------------------

    def exchange_within(self, note, seconds: float | None) -> list | None:
        """The notes of all ranks, or None if not all of them call this within the time."""
        arrival = self._comm.Ibarrier()
        deadline = time.monotonic() + (float("inf") if seconds is None else seconds)
        while not arrival.Test():
            if time.monotonic() > deadline:
                return None
            time.sleep(0.002)
        return self._comm.allgather(note)

    def may_speak(self) -> bool:
        """True for the first rank of the node that asks; the others should leave the word to it."""
        if self._lifelines is None or self._lifelines.speaker.try_take():
            return True
        time.sleep(SILENT_SECONDS)
        return False

    def _tell_others(self, note, tag):
        others = (rank for rank in range(self._comm.size) if rank != self._comm.rank)
        self._told += [self._comm.isend(note, rank, tag) for rank in others]

    def _excepthook(self, kind, error, traceback):
        """An exception that nobody caught; the interpreter ends after it."""
        report_failure(self._backend, error)

    def _at_exit(self):
        """The program ends and shutdown() was not called. Fine if all ranks do that; else whoever needs this rank hears."""
        if self._mpi.Is_finalized():
            return
        if self._is_watching:
            self._tell_others(dict(self._backend.progress.num_calls), LEFT_TAG)
        if self.exchange_within(None, None if self._is_watching else LONELY_EXIT_SECONDS) is None:
            self._backend.abort(f"rank {self._comm.rank} reached the end of its program, but others did not within "
                                f"{LONELY_EXIT_SECONDS:g} s; call shutdown() on all ranks, or end together")
        self.stop()

    # ---- the threads ------------------------------------------------------------------------------------------------

    def _watch(self, holds):
        """Hold this rank's lifeline, and look now and then whether the rank waits for one that has left."""
        if self._lifelines is not None:
            self._lifelines.own.take()
        holds.set()
        while not self._stopped.wait(POLL_SECONDS):
            self._hear_who_left()
            self._abort_if_stuck()
        if self._lifelines is not None:
            self._lifelines.own.release()

    def _wait_for_neighbour(self):
        """Sleeps until the neighbour's process ends, or releases its lifeline because all is done."""
        has_died = self._lifelines.neighbour.take()
        if has_died:
            self._backend.abort(f"rank {self._lifelines.neighbour_rank} died: its process ended without a word (killed, out "
                                "of memory, a crash in native code, or os._exit); the job is ended")
        self._lifelines.neighbour.release()

    def _hear_who_left(self):
        status = self._mpi.Status()
        while self._comm.iprobe(self._mpi.ANY_SOURCE, LEFT_TAG, status):
            self._left[status.source] = self._comm.recv(None, status.source, LEFT_TAG)

    def _abort_if_stuck(self):
        """Abort if the verb under way needs a rank that left before it. The lowest stuck rank speaks first."""
        call = self._backend.progress.current
        gone = [rank for rank in call.ranks if self._is_missing(rank, call)] if call else []
        if not gone:
            return
        num_before = sum(rank not in self._left for rank in range(self._comm.rank))
        stopped = self._stopped.wait(TURN_SECONDS * (1 + min(num_before, MAX_TURNS)))
        if not stopped and self._backend.progress.current is call:
            self._backend.abort(f"rank {gone[0]} left the program (sys.exit, or the end of its script) while rank "
                                f"{self._comm.rank} waits for it in {call}; the job is ended")

    def _is_missing(self, rank, call):
        """True if the rank left without making this call."""
        return rank in self._left and (call.number is None or self._left[rank].get(call.group, 0) < call.number)
