"""MPICommunicationBackend: the verbs on MPI, through mpi4py's buffer calls.

    backend = MPICommunicationBackend()            # imports mpi4py, which calls MPI_Init; importing shardkit does not
    backend.initialize()                           # collective: makes communicators of its own

Three channels, so that nothing can be mixed up: the verbs talk on a duplicate of the user's communicator; pieces of
all_to_all and of large scatters use a tag of their own on it; what ranks say to each other about leaving and failing goes
through a third communicator (see guard.py).

Counts beyond `count_limit` elements, which one MPI call cannot take, go in several calls ("large road"). The decision
depends on what all ranks of the call know, so they take the same road.
"""
import atexit
import os
import shutil
import tempfile
import time
from pathlib import Path

from ..config import checked_mode
from ..errors import CommunicationError
from .backend import CommunicationBackend
from .checked import check_collectives
from .checks import MAX_TAG, starts_of
from .guard import JobGuard
from .launch import check_launch, check_library, is_from_open_mpi, settle_threads
from .operations import Handle, ReductionOperation
from .watchdog import Watchdog

PIECE_TAG = MAX_TAG + 1
INT_MAX = 2**31 - 1
FORWARDING_SECONDS = 0.1         # MPICH's launcher drops what it has not forwarded when the job is aborted
LAUNCHER_SECONDS = 5.0
TIMEOUT_SECONDS = 600.0


def import_mpi():
    """mpi4py's MPI module, initialised.

    Errors: CommunicationError that says what to install; LaunchError if mpiexec belongs to another MPI.
    """
    try:
        import mpi4py
        if is_from_open_mpi():
            mpi4py.rc.initialize = False                 # once the library is known to fit
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:         # RuntimeError: mpi4py is there, but no MPI library
        raise CommunicationError(f'MPI is not available ({error}); on a laptop install "shardkit[mpich]", on a cluster load '
                                 "the site's MPI module and install mpi4py; for threads in one process use run_ranks") from None
    if not MPI.Is_initialized():
        check_library(MPI.get_vendor()[0])
        MPI.Init_thread(getattr(MPI, f"THREAD_{mpi4py.rc.thread_level.upper()}") if mpi4py.rc.threads else MPI.THREAD_SINGLE)
        atexit.register(_finalize, MPI)                  # mpi4py finalizes only what it has initialised itself
    return MPI


def _finalize(mpi):
    if not mpi.Is_finalized():
        mpi.Finalize()


class MPICommunicationBackend(CommunicationBackend):
    """One MPI rank's end of a communicator.

    comm      an mpi4py communicator, for example of a running simulation; None: all ranks that mpiexec or srun started,
              whose job this backend then guards: no rank waits for a dead one, or for ever
    timeout   seconds that one call may take, and the slowest rank may come late, before the job is ended with a report
    Errors: CommunicationError if mpi4py is missing, or if the launcher started more ranks than MPI sees.
    """

    count_limit = INT_MAX

    def __init__(self, comm=None, *, timeout: float = TIMEOUT_SECONDS):
        if not timeout > 0:
            raise ValueError(f"timeout = {timeout!r}; wanted seconds > 0, or math.inf for none")
        self.timeout = timeout
        self._mpi = import_mpi()
        self._parent = self._mpi.COMM_WORLD if comm is None else comm
        if comm is None:
            check_launch(self._parent.size, self._mpi.get_vendor()[0])
        super().__init__(self._parent.rank, self._parent.size)
        self._owns_job = comm is None
        self._is_world = True                            # False for what split() makes
        self._comm = None
        self._guard = None
        self._watchdog = None
        self._own_ledger: Path | None = None             # a temporary folder for the ledger, until keep_ledger() names one
        self._ops = {
            ReductionOperation.SUM: self._mpi.SUM, ReductionOperation.PRODUCT: self._mpi.PROD,
            ReductionOperation.MIN: self._mpi.MIN, ReductionOperation.MAX: self._mpi.MAX,
        }
        if checked_mode():
            check_collectives(self, lambda text: self._comm.allgather(text))

    @property
    def is_initialized(self) -> bool:
        return self._comm is not None

    @property
    def communicator(self):
        return self._comm

    def initialize(self) -> None:
        if self._comm is None:
            self._comm = self._parent.Dup()
            self._comm.Set_errhandler(self._mpi.ERRORS_RETURN)         # as exceptions, also on a user's communicator
            self._find_node()
            self._guard = JobGuard(self, self._mpi, self._parent.Dup(), is_active=self._owns_job)
            self._guard.start()
            if self._owns_job:
                self._own_ledger = Path(self.broadcast_object(tempfile.mkdtemp(prefix="shardkit-") if self.rank == 0 else None))
                self.keep_ledger(self._own_ledger)

    def _find_node(self):
        """Learn this rank's place on its node, and share the node's cores. Collective."""
        node = self._parent.Split_type(self._mpi.COMM_TYPE_SHARED)
        self.local_rank = node.rank
        if self._owns_job:
            settle_threads(node)
        node.Free()

    def shutdown(self) -> None:
        if self._comm is None:
            return
        if self._is_world:
            self._guard.stop()
        self._close_watchdog()
        self._comm.Free()
        self._comm = None

    def keep_ledger(self, folder) -> None:
        """From now on note every call in a file there, and watch over how long calls take. No communication.

        folder   one that all ranks see, if there is one: then reports, and `shardkit inspect hang FOLDER`, tell of all ranks
        Errors: OSError.
        """
        self._check_alive("keep_ledger")
        self._close_watchdog(is_kept=Path(folder) == self._own_ledger)
        self._watchdog = Watchdog(self.progress, folder, self.rank, self.world_size, seconds=self.timeout, abort=self.abort)

    def _close_watchdog(self, is_kept: bool = False):
        """A temporary folder goes with it; every rank of a node tries, since nobody knows which is the last."""
        if self._watchdog is not None:
            self._watchdog.close()
            self._watchdog = None
        if self._own_ledger is not None and not is_kept:
            shutil.rmtree(self._own_ledger, ignore_errors=True)
            self._own_ledger = None

    def abort(self, message: str, code: int = 1) -> None:
        if self._guard.may_speak():
            self.say(message)
            time.sleep(FORWARDING_SECONDS)
        self._mpi.COMM_WORLD.Abort(code)
        time.sleep(LAUNCHER_SECONDS)                     # MPICH's Abort may return before the launcher has killed the rank
        os._exit(code)

    def exchange_within(self, note, seconds: float | None) -> list | None:
        return self._guard.exchange_within(note, seconds)

    def _split(self, color, key):
        comm = self._comm.Split(self._mpi.UNDEFINED if color is None else color, key)
        if comm == self._mpi.COMM_NULL:
            return None
        group = MPICommunicationBackend(comm)
        group._comm, group._guard, group._is_world, group.count_limit = comm, self._guard, False, self.count_limit
        places = comm.group.Translate_ranks(range(comm.size), self._comm.group)
        group.world_ranks = tuple(self.world_ranks[place] for place in places)
        return group

    # ---- collectives ----------------------------------------------------------------------------------------------

    def _barrier(self):
        with self._errors():
            self._comm.Barrier()

    def _all_reduce(self, array, op):
        with self._errors():
            for span in self._spans(array):
                self._comm.Allreduce(self._mpi.IN_PLACE, span, self._ops[op])

    def _broadcast(self, array, root):
        with self._errors():
            for span in self._spans(array):
                self._comm.Bcast(span, root)

    def _all_gather(self, send, receive, counts):
        own = self._put_own(send, receive, counts)
        with self._errors():
            if sum(counts) > self.count_limit:           # large road: every owner broadcasts its slice
                for owner, piece in enumerate(own):
                    self._broadcast(piece, owner)
            elif _are_equal(counts):
                self._comm.Allgather(self._mpi.IN_PLACE, receive)
            else:
                self._comm.Allgatherv(self._mpi.IN_PLACE, [receive, counts])

    def _reduce_scatter(self, send, receive, counts, op):
        with self._errors():
            if sum(counts) <= self.count_limit:
                return self._comm.Reduce_scatter(send, receive, counts, self._ops[op])
            for owner, piece in enumerate(_pieces(send, counts)):      # large road: reduce every slice to its owner
                for span, into in zip(self._spans(piece), self._spans(receive if owner == self.rank else piece)):
                    self._comm.Reduce(span, into if owner == self.rank else None, self._ops[op], owner)

    def _scatter(self, send, receive, root, counts):
        with self._errors():
            if self.rank != root:
                return self._transfer([], [(root, receive)])
            pieces = _pieces(send, counts)
            _copy_unless_same(pieces[root], receive)
            self._transfer([(rank, piece) for rank, piece in enumerate(pieces) if rank != root], [])

    def _gather(self, send, receive, root, counts):
        with self._errors():
            if self.rank != root:
                return self._transfer([(root, send)], [])
            pieces = _pieces(receive, counts)
            _copy_unless_same(send, pieces[root])
            self._transfer([], [(rank, piece) for rank, piece in enumerate(pieces) if rank != root])

    def _all_to_all(self, send, receive, send_counts, receive_counts, send_starts, receive_starts):
        outgoing, incoming = _pieces(send, send_counts, send_starts), _pieces(receive, receive_counts, receive_starts)
        incoming[self.rank][...] = outgoing[self.rank]
        others = [(self.rank + step) % self.world_size for step in range(1, self.world_size)]
        with self._errors():
            self._transfer([(rank, outgoing[rank]) for rank in others], [(rank, incoming[rank]) for rank in reversed(others)])

    def _transfer(self, outgoing, incoming):
        """Lists of (rank, array): post every receive, begin every send, wait for all. Empty arrays are no messages."""
        requests = [self._comm.Irecv(span, rank, PIECE_TAG) for rank, array in incoming for span in self._messages(array)]
        requests += [self._comm.Isend(span, rank, PIECE_TAG) for rank, array in outgoing for span in self._messages(array)]
        self._mpi.Request.Waitall(requests)

    # ---- between two ranks ----------------------------------------------------------------------------------------

    def _send(self, array, destination, tag):
        with self._errors():
            for span in self._spans(array):
                self._comm.Send(span, destination, tag)

    def _receive(self, array, source, tag):
        self._irecv(array, source, tag).wait()

    def _isend(self, array, destination, tag):
        with self._errors():
            return _RequestsHandle(self, [self._comm.Isend(span, destination, tag) for span in self._spans(array)], [])

    def _irecv(self, array, source, tag):
        with self._errors():
            spans = list(self._spans(array))
            return _RequestsHandle(self, [self._comm.Irecv(span, source, tag) for span in spans], spans)

    # ---- non-blocking collectives ---------------------------------------------------------------------------------

    def _iall_reduce(self, array, op):
        with self._errors():
            return _RequestsHandle(self, [self._comm.Iallreduce(self._mpi.IN_PLACE, span, self._ops[op])
                                          for span in self._spans(array)], [])

    def _iall_gather(self, send, receive, counts):
        own = self._put_own(send, receive, counts)
        with self._errors():
            if sum(counts) <= self.count_limit:
                return _RequestsHandle(self, [self._comm.Iallgatherv(self._mpi.IN_PLACE, [receive, counts])], [])
            return _RequestsHandle(self, [self._comm.Ibcast(span, owner) for owner, piece in enumerate(own)
                                          for span in self._spans(piece)], [])

    def _ireduce_scatter(self, send, receive, counts, op):
        with self._errors():
            if sum(counts) <= self.count_limit:
                return _RequestsHandle(self, [self._comm.Ireduce_scatter(send, receive, counts, self._ops[op])], [])
            requests = []
            for owner, piece in enumerate(_pieces(send, counts)):
                for span, into in zip(self._spans(piece), self._spans(receive if owner == self.rank else piece)):
                    requests.append(self._comm.Ireduce(span, into if owner == self.rank else None, self._ops[op], owner))
            return _RequestsHandle(self, requests, [])

    # ---- pieces and errors ----------------------------------------------------------------------------------------

    def _spans(self, array):
        """Views of at most count_limit elements that cover the array; one empty view if it is empty."""
        for start in range(0, max(array.size, 1), self.count_limit):
            yield array[start:start + self.count_limit]

    def _messages(self, array):
        return self._spans(array) if array.size else ()

    def _put_own(self, send, receive, counts):
        """The slices of `receive`, with this rank's own in its place."""
        pieces = _pieces(receive, counts)
        _copy_unless_same(send, pieces[self.rank])
        return pieces

    def _errors(self):
        return _MPIErrors(self._mpi.Exception, self.progress)


class _MPIErrors:
    """Context manager: an error of the MPI library as a CommunicationError that names the verb."""

    def __init__(self, kind, progress):
        self._kind, self._progress = kind, progress

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        if isinstance(error, self._kind):
            raise CommunicationError(f"{self._progress.current}: MPI says: {error}; if a message was truncated, the two "
                                     "ranks disagree about its size") from error


class _RequestsHandle(Handle):
    """Requests that complete together; `expected` are the arrays that each of the first requests must fill exactly."""

    def __init__(self, backend, requests, expected):
        self._backend, self._requests, self._expected = backend, requests, expected
        self._statuses = [backend._mpi.Status() for _ in requests]

    def wait(self):
        with self._backend._errors():
            self._backend._mpi.Request.Waitall(self._requests, self._statuses)
        self._check_sizes()

    def test(self):
        with self._backend._errors():
            is_complete = self._backend._mpi.Request.Testall(self._requests, self._statuses)
        if is_complete:
            self._check_sizes()
        return is_complete

    def _check_sizes(self):
        for array, status in zip(self._expected, self._statuses):
            got = status.Get_count(self._backend._mpi.BYTE)
            if got != array.nbytes:
                raise CommunicationError(f"a message of {got} bytes arrived for an array of {array.nbytes} bytes; the two "
                                         "ranks disagree about its size")


def _pieces(array, counts, starts=None):
    return [array[start:start + count] for start, count in zip(starts_of(counts) if starts is None else starts, counts)]


def _copy_unless_same(source, target):
    if source.size and source.ctypes.data != target.ctypes.data:
        target[...] = source


def _are_equal(counts):
    return len(set(counts)) == 1
