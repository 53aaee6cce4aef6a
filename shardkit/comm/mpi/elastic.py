"""Survive the death of ranks with ULFM, the fault tolerance of Open MPI 5 (mpiexec --with-ft ulfm).

    a rank dies    calls that need it raise an error after about 10 ms
    revoke         all other calls on the job's communicators raise too: nobody waits any more
    shrink         make a communicator of the surviving ranks, in their old order
    agree          check that all of them have it; otherwise repeat

ULFM is not part of the MPI standard, so the user requests it (run.elastic) and shardkit checks that
it is there. A rank that dies while communicators are being made may still end the job.
Source: Bland et al., Post-failure recovery of MPI communication capability, 2013.
"""

from ...environment import ranks_may_die
from ...errors import CommunicationError
from ..backend import CommunicationBackend
from ..same import check_same
from ..watch.attendance import attendance
from .backend import MPICommunicationBackend
from .library import import_mpi

IS_ELASTIC = {"run.elastic": "True"}  # which ranks that are not say in their first message


def why_not_elastic() -> str | None:
    """Return why the death of a rank ends the job here and what to do; None if others survive."""
    library = import_mpi().get_vendor()[0]
    if library != "Open MPI":
        return (
            f"{library} ends the job with a rank; Open MPI 5 under mpiexec --with-ft ulfm does not"
        )
    if not ranks_may_die():
        return (
            "this Open MPI was started without fault tolerance; start with its own "
            "mpiexec --with-ft ulfm (srun cannot)"
        )
    return None


class LivingRanks:
    """The surviving ranks of this job. The constructor is collective over all started ranks.

    backend        over all survivors; a new one after each repair()
    why_not        why the job cannot survive a death, so that `backend` guards it; None if it can
    started_rank   of this process among all started ranks
    """

    def __init__(self):
        mpi = self._mpi = import_mpi()
        self.why_not = why_not_elastic()
        self.started_rank = mpi.COMM_WORLD.rank
        self._comm = mpi.COMM_WORLD
        self.backend: CommunicationBackend
        self._make_backend()

    def _make_backend(self):
        self.backend = (
            MPICommunicationBackend()
            if self.why_not
            else MPICommunicationBackend(self._comm, outlives_ranks=True)
        )
        self.backend.initialize()
        check_same(self.backend, IS_ELASTIC)  # nobody revokes what others are still making

    def tells_of_death(self, error: BaseException | None) -> bool:
        """Return True if MPI raised the error because a rank died, or another rank noticed that.

        A wait for several messages only reports that one of them failed; MPI is then asked which
        ranks are dead.
        """
        while error is not None and not isinstance(error, self._mpi.Exception):
            error = error.__cause__ or error.__context__
        if self.why_not or error is None:
            return False
        return (
            error.Get_error_class()
            in (self._mpi.ERR_PROC_FAILED, self._mpi.ERR_PROC_FAILED_PENDING, self._mpi.ERR_REVOKED)
            or self.backend.is_revoked()
            or self._comm.Get_failed().size > 0
        )

    def repair(self) -> list[int]:
        """Make a new `backend` of the survivors, and return which started ranks died since.

        Collective over the survivors: a rank that meets a failure calls this, and its revocation
        makes all others call it.
        Errors: CommunicationError if this MPI cannot.
        """
        if self.why_not:
            raise CommunicationError(
                f"a rank has died, and the others cannot go on: {self.why_not}"
            )
        before = self._comm.group
        with attendance().waiting("the recovery from a rank's death", self.backend.timeout):
            while not self._is_repaired():
                pass
        gone = self._mpi.Group.Difference(before, self._comm.group)
        return list(gone.Translate_ranks(range(gone.size), self._mpi.COMM_WORLD.group))

    def _is_repaired(self) -> bool:
        """Try once, and return False if another rank died meanwhile."""
        try:
            self.backend.revoke()
            self._comm.Revoke()
            comm = self._comm.Shrink()
            comm.Set_errhandler(self._mpi.ERRORS_RETURN)
            comm.Agree(1)
            self._comm = comm
            self._make_backend()
            return True
        except (self._mpi.Exception, CommunicationError) as error:
            if not self.tells_of_death(error):
                raise
            return False
