"""What the MPI library says about itself, and whether it takes arrays in GPU memory."""
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version

from ..config import environment_without_launcher
from .mpi import import_mpi

_PROBE_SECONDS = 60.0
_PROBE = """
import cupy
from mpi4py import MPI
sent = cupy.arange(100000, dtype="float32")
summed, received = cupy.zeros_like(sent), cupy.zeros_like(sent)
cupy.cuda.get_current_stream().synchronize()
MPI.COMM_WORLD.Allreduce(sent, summed)
MPI.COMM_WORLD.Sendrecv(sent, 0, 0, received, 0, 0)
assert bool((summed == sent).all()) and bool((received == sent).all())
"""


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
    """Those of this process. Errors: CommunicationError if there is no MPI."""
    mpi = import_mpi()
    levels = {getattr(mpi, f"THREAD_{name}"): name for name in ("SINGLE", "FUNNELED", "SERIALIZED", "MULTIPLE")}
    library = " ".join(mpi.Get_library_version().replace("\0", "").splitlines()[0].split(",")[0].split())
    return MPIFacts(mpi.get_vendor()[0], library, ".".join(map(str, mpi.Get_version())), levels[mpi.Query_thread()],
                    version("mpi4py"))


def takes_gpu_arrays() -> bool:
    """True if MPI calls work on CuPy arrays. In a process of its own, since a library that cannot do it may crash."""
    try:
        return subprocess.run([sys.executable, "-c", _PROBE], env=environment_without_launcher(), stdin=subprocess.DEVNULL,
                              capture_output=True, timeout=_PROBE_SECONDS).returncode == 0
    except subprocess.TimeoutExpired:
        return False
