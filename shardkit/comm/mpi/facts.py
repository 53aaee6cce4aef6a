"""Facts about the MPI library, from itself."""

from dataclasses import dataclass

from .library import import_mpi


@dataclass(frozen=True)
class MPIFacts:
    """The MPI that mpi4py loads.

    name          "MPICH", "Open MPI", ...; library: its own first line, with the version
    standard      of MPI, "4.1"
    thread_level  "SINGLE", "FUNNELED", "SERIALIZED" or "MULTIPLE"
    """

    name: str
    library: str
    standard: str
    thread_level: str
    mpi4py: str


def mpi_facts() -> MPIFacts:
    """Return the facts of this process. Errors: CommunicationError if there is no MPI."""
    from importlib.metadata import version

    mpi = import_mpi()
    levels = {
        getattr(mpi, f"THREAD_{name}"): name
        for name in ("SINGLE", "FUNNELED", "SERIALIZED", "MULTIPLE")
    }
    library = " ".join(
        mpi.Get_library_version().replace("\0", "").splitlines()[0].split(",")[0].split()
    )
    return MPIFacts(
        mpi.get_vendor()[0],
        library,
        ".".join(map(str, mpi.Get_version())),
        levels[mpi.Query_thread()],
        version("mpi4py"),
    )
