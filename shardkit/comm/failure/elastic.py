"""Living on when ranks die, by ULFM, the fault tolerance of Open MPI 5 (mpiexec --with-ft ulfm).

    a rank dies    calls that need it raise on those who make them, after some 10 ms
    revoke         so do all others on the communicators of the job: nobody waits any more
    shrink         a communicator of those who live, in their old order
    agree          all of them have it; else once more

ULFM is no part of the MPI standard, so it is asked for (run.elastic) and looked for. A rank that
dies while communicators are being made may still end the job.
Source: Bland et al., Post-failure recovery of MPI communication capability, 2013.
"""

from ...environment import ranks_may_die
from ...errors import CommunicationError
from ..backend import CommunicationBackend
from ..mpi.backend import MPICommunicationBackend
from ..mpi.library import import_mpi
from ..watch.attendance import attendance


def why_not_elastic() -> str | None:
    """Why the death of a rank ends the job here, and what to do about it; None if the others can go
    on.
    """
    library = import_mpi().get_vendor()[0]
    if library != "Open MPI":
        return (
            f"{library} ends the job with a rank; Open MPI 5 under mpiexec --with-ft ulfm does not"
        )
    if not ranks_may_die():
        return "this Open MPI was started without fault tolerance; start with its own mpiexec --with-ft ulfm (srun cannot)"
    return None


class LivingRanks:
    """The ranks of this job that live. Making it is collective over all that were started.

    backend        of all the living; a new one after each repair()
    why_not        why they cannot outlive a rank; None if they can. Without, `backend` guards the
                   job as usual
    started_rank   of this process among all that were started
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
        self.backend.barrier()  # nobody revokes what others are still making

    def tells_of_death(self, error: BaseException | None) -> bool:
        """True if the error comes from MPI because a rank has died, or because others have noticed
        that.

        A wait for several messages only says that something is wrong with one of them: then it is
        asked who is known to be dead.
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
        """Make `backend` anew, of those who still live, and return who died since, as they were
        numbered at the start.

        Collective over the living: whoever meets a rank failure comes here, and thereby brings all
        others here.
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
        """One attempt; False if another rank died meanwhile."""
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
