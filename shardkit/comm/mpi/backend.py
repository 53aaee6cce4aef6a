"""MPICommunicationBackend: a communicator's life, from initialize() to shutdown(); mpi_verbs.py has
the verbs.

    backend = MPICommunicationBackend()            # imports mpi4py, which calls MPI_Init; importing
                                                   shardkit does not
    backend.initialize()                           # collective: makes communicators of its own

The verbs talk on a duplicate of the user's communicator; what ranks say to each other about leaving
and failing goes through another one (see guard.py).
"""

import atexit
import faulthandler
import os
import sys
import threading
import time
from contextlib import nullcontext
from math import inf
from pathlib import Path

from ...environment import checked_mode
from ...errors import CommunicationError
from ..checked import check_collectives
from ..checks import check_timeout
from ..failure.guard import SILENT_SECONDS, JobGuard
from ..node import open_node
from ..node.levels import Levels, ranks_per_node
from ..node.verbs import NodeVerbs
from ..watch.attendance import NEXT_TO_WATCHDOG_SECONDS, attendance
from ..watch.watchdog import Watchdog
from .exits import exits
from .launch import check_launch, check_library, own_cores, settle_threads
from .start import join_roll, start_limit

FORWARDING_SECONDS = 0.1  # MPICH's launcher drops what it has not forwarded when the job is aborted
LAUNCHER_SECONDS = 1.5
LATER_THAN_WARDEN_SECONDS = 1.0  # whose words come first
TIMEOUT_SECONDS = 600.0


def import_mpi(timeout: float = inf):
    """mpi4py's MPI module, initialized.

    timeout   seconds that MPI_Init may take, if SHARDKIT_START_SECONDS is not less
    Errors: CommunicationError that says what to install; LaunchError if mpiexec belongs to another
    MPI. A process that stays in MPI_Init is ended (start.py).
    """
    try:
        import mpi4py

        mpi4py.rc.initialize = (
            False  # but below, once the library is known to fit, and with a time limit
        )
        from mpi4py import MPI
    except (
        ImportError,
        RuntimeError,
    ) as error:  # RuntimeError: mpi4py is there, but no MPI library
        raise CommunicationError(
            f'MPI is not available ({error}); on a laptop install "shardkit[mpich]", on a cluster load '
            "the site's MPI module and install mpi4py; for threads in one process use run_ranks"
        ) from None
    if not MPI.Is_initialized():
        library = MPI.get_vendor()[0]
        check_library(library)
        level = (
            getattr(MPI, f"THREAD_{mpi4py.rc.thread_level.upper()}")
            if mpi4py.rc.threads
            else MPI.THREAD_SINGLE
        )
        with start_limit(library, timeout):
            MPI.Init_thread(level)
        atexit.register(_finalize, MPI)  # mpi4py finalizes only what it has initialized itself
    elif not attendance().is_open:  # the program has initialized MPI itself
        join_roll(MPI.get_vendor()[0])
        atexit.register(attendance().leave_mpi)
    return MPI


def _finalize(mpi):
    try:
        _finalize_mpi(mpi)
    except BaseException:  # of a signal handler: the others wait all the same
        _finalize_mpi(mpi)
        raise
    finally:
        attendance().close()


def _finalize_mpi(mpi):
    if not mpi.Is_finalized():
        needed_by = attendance().leave_mpi()
        if needed_by is not None:
            _say_that_one_left(mpi, needed_by)
        exit_within(attendance().limit() + LATER_THAN_WARDEN_SECONDS)
        mpi.Finalize()
    faulthandler.cancel_dump_traceback_later()


def _say_that_one_left(mpi, needed_by: str) -> None:
    """End the job: this rank is at its end, but others wait for it before there is a guard, or when
    there is none any more.
    """
    if attendance().may_speak():
        sys.stderr.write(
            f"shardkit: rank {attendance().rank} left the program (sys.exit, or the end of its script) while "
            f"{needed_by}; the job is ended\n"
        )
        sys.stderr.flush()
        time.sleep(FORWARDING_SECONDS)
    attendance().end_job()
    exit_within(LAUNCHER_SECONDS)
    mpi.COMM_WORLD.Abort(1)


def exit_within(seconds: float) -> None:
    """End this process after that time with exit code 1, even if MPI never returns and holds the
    interpreter's lock.
    """
    if seconds < threading.TIMEOUT_MAX:
        faulthandler.dump_traceback_later(seconds, exit=True, file=open(os.devnull, "w"))


class MPICommunicationBackend(NodeVerbs):
    """One MPI rank's end of a communicator.

    comm      an mpi4py communicator, for example of a running simulation; None: all ranks that
              mpiexec or srun started, whose job this backend then guards: no rank waits for a dead
              one, or for ever
    timeout   seconds that one call may take, and the slowest rank may come late, before the job is
              ended with a report; also at the start (MPI_Init, initialize()) and at the end
              (shutdown(), MPI_Finalize). May be set at any time
    outlives_ranks   the ranks that live go on when others die (elastic.py): all calls go through
                     MPI, which tells of deaths
    Errors: CommunicationError if mpi4py is missing, or if the launcher started more ranks than MPI
    sees.
    """

    def __init__(
        self, comm=None, *, timeout: float = TIMEOUT_SECONDS, outlives_ranks: bool = False
    ):
        mpi = import_mpi(check_timeout(timeout))
        self._parent = mpi.COMM_WORLD if comm is None else comm
        if comm is None:
            check_launch(self._parent.size, mpi.get_vendor()[0])
        super().__init__(mpi, self._parent.rank, self._parent.size)
        self.timeout = timeout
        self._owns_job, self._outlives_ranks = comm is None, outlives_ranks
        self._is_world = True  # False for what split() makes
        self._guard = None
        self._node = None  # of this rank, if it sees its neighbors' memory
        self._homes: tuple[
            int | None, ...
        ] = ()  # of all ranks of the world: the first rank of its node, if it does
        self._watchdog = None
        self._family: list = []  # communicators of this backend and of all groups split from it
        if comm is None or outlives_ranks:
            attendance().limit = lambda: self.timeout
        if comm is None:
            exits().add(self)
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
            with self._attending("initialize()", self.timeout):
                self._initialize()

    def _initialize(self):
        comm = self._parent.Dup()
        comm.Set_errhandler(self._mpi.ERRORS_RETURN)  # as exceptions, also on a user's communicator
        self._comm = comm
        self._find_node()
        channel = self._parent.Dup()
        self._family += [self._comm, channel]
        self._guard = JobGuard(self, self._mpi, channel, is_active=self._owns_job)
        self._guard.start()
        if self._owns_job:
            self.keep_ledger(self._own_folder())

    def _attending(self, doing: str, seconds: float):
        """Around what all ranks of the job come to, outside of the verbs: wardens watch. Groups of
        some ranks have none.
        """
        is_of_all = self._is_world and (self._owns_job or self._outlives_ranks)
        return attendance().waiting(doing, seconds) if is_of_all else nullcontext()

    def _own_folder(self) -> Path:
        """A temporary folder for the ledgers of all ranks, as far as nodes share one.
        Collective.
        """
        path = self.broadcast_object(attendance().folder)
        if path is None:
            raise CommunicationError(
                "rank 0 can make no temporary folder for the ledgers; set TMPDIR"
            )
        attendance().share(path)
        return path

    def _find_node(self):
        """Learn this rank's place on its node, and share the node's cores and memory.
        Collective.
        """
        node = self._parent.Split_type(self._mpi.COMM_TYPE_SHARED)
        self.local_rank = node.rank
        if self._owns_job:
            settle_threads(node)
        self._node = None if self._outlives_ranks else open_node(node, self.rank)
        cores = node.allgather(own_cores())
        home = None if self._node is None else self._node.members[0]
        self._homes, crowded = zip(
            *self._parent.allgather((home, len(set().union(*cores)) < len(cores)))
        )
        self.shares_cores = any(crowded)
        self._take_roads()
        node.Free()

    def _take_roads(self):
        """A lane for this group, if all its ranks are on one node and there are several; or levels.
        Collective over it.
        """
        homes = [self._homes[rank] for rank in self.world_ranks]
        if self.world_size > 1 and len(set(homes)) == 1 and homes[0] is not None:
            self._lane = self._node.lane(self._comm, self.world_ranks, self._probe, self._address)
        here = ranks_per_node(homes)
        if here is not None:
            levels = Levels(
                self._group_of(self._comm.Split(self.rank // here, self.rank)),
                self._group_of(self._comm.Split(self.rank % here, self.rank)),
            )
            if all(self._comm.allgather(levels.near._lane is not None)):
                self._levels = levels
            else:
                levels.close()

    def memory(self):
        return None if self._lane is None and self._levels is None else self._node.heap

    def common(self, size: int, dtype):
        if self._lane is None:
            return None
        with self._verb("common"):
            return self._node.common(self._comm, self.world_ranks, size, dtype)

    def shutdown(self) -> None:
        if self._comm is None:
            return
        with self._attending("shutdown()", self.timeout + NEXT_TO_WATCHDOG_SECONDS):
            with self._verb(
                "shutdown" if self._is_world else "close"
            ):  # noted and watched: a rank may never come here
                self._close()
            self._comm = None
            if self._is_world:
                self._close_watchdog()
        if self._owns_job and self._is_world:
            exits().remove(self)

    def _close(self):
        """Free all that ranks have made together. Collective; watched until nothing is left to wait
        for.
        """
        if self._is_world:
            self._guard.meet()  # nobody is in another verb any more
        self.close_road()
        for road in (self._lane, self._levels):
            if road is not None:
                road.close()
        self._lane = self._levels = None
        if self._is_world:
            self._guard.stop()
        self._family.remove(self._comm)
        self._comm.Free()

    def revoke(self) -> None:
        """Let every call on this backend and its groups fail, on all ranks, so that nobody waits;
        MPI must have ULFM.

        No communication to wait for, and no use of the backend after it but keep_ledger's end.
        """
        self._close_watchdog()
        for comm in self._family:
            if not comm.Is_revoked():
                comm.Revoke()

    def is_revoked(self) -> bool:
        """True once a rank has called revoke() on this backend, as far as this one has heard of
        it.
        """
        return any(comm.Is_revoked() for comm in self._family)

    def keep_ledger(self, folder) -> None:
        """From now on note every call in a file there, and watch over how long calls take. No
        communication.

        folder   one that all ranks see, if there is one: then reports, and `shardkit inspect hang
                 FOLDER`, tell of all ranks
        Errors: OSError.
        """
        self._check_alive("keep_ledger")
        before = self._watchdog
        self._watchdog = Watchdog(
            self.progress,
            folder,
            self.rank,
            self.world_size,
            seconds=lambda: self.timeout,
            abort=self.abort,
            seconds_left=lambda: self.seconds_left(),
        )
        if before is not None:
            before.close()

    def _close_watchdog(self):
        if self._watchdog is not None:
            self._watchdog.close()
            self._watchdog = None

    def abort(self, message: str, code: int = 1) -> None:
        if self._may_speak():
            self.say(message)
            time.sleep(FORWARDING_SECONDS)
        attendance().end_job()  # whoever is stopped, or does not hear of the abort, is killed
        exit_within(
            LAUNCHER_SECONDS
        )  # MPI_Abort may return before the launcher has killed the rank, or never
        self._mpi.COMM_WORLD.Abort(code)
        time.sleep(LAUNCHER_SECONDS)
        os._exit(code)

    def _may_speak(self) -> bool:
        """True for one rank of the node; the others leave it the time to."""
        is_first = attendance().may_speak()
        if is_first is None:
            return self._guard is None or self._guard.may_speak()
        if not is_first:
            time.sleep(SILENT_SECONDS)
        return is_first

    def exchange_within(self, note, seconds: float | None) -> list | None:
        if self._guard is None or self._guard.has_stopped:
            return attendance().exchange_within(note, seconds)
        return self._guard.exchange_within(note, seconds)

    def _split(self, color, key):
        comm = self._comm.Split(self._mpi.UNDEFINED if color is None else color, key)
        return None if comm == self._mpi.COMM_NULL else self._group_of(comm)

    def _group_of(self, comm):
        """Some ranks of this group, as a backend. Collective over comm."""
        group = MPICommunicationBackend(comm)
        self._family.append(comm)
        group._family = self._family
        group._comm, group._guard, group._is_world, group.count_limit = (
            comm,
            self._guard,
            False,
            self.count_limit,
        )
        group.small_bytes, group.shares_cores = self.small_bytes, self.shares_cores
        places = comm.group.Translate_ranks(range(comm.size), self._comm.group)
        group.world_ranks = tuple(self.world_ranks[place] for place in places)
        group._node, group._homes = self._node, self._homes
        group._take_roads()
        return group
