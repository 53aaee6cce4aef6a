"""What the MPI library and its environment say about GPU memory, before anything is tried."""

import ctypes

from ...comm.mpi.library import import_mpi
from ...environment import mpich_gpu_support

QUERY = "MPIX_Query_cuda_support"  # of Open MPI, MPICH and what is made from it
_CRAY = "CRAY MPICH"


def says_of_cuda() -> bool | None:
    """Return whether the library says that it takes GPU memory; None: it says nothing.

    Source: docs.open-mpi.org, "MPIX_Query_cuda_support"; mpich.org, MPIX_Query_cuda_support.
    """
    try:
        return bool(getattr(ctypes.CDLL(import_mpi().__file__), QUERY)())
    except (AttributeError, OSError):
        return None


def is_switched_off() -> bool:
    """Return True where this is Cray's MPICH, which takes GPU memory only if it is told to."""
    library = import_mpi().Get_library_version().upper()
    return _CRAY in library and mpich_gpu_support() != "1"


def why_it_takes_none() -> str:
    """Return why the library takes no GPU memory, by its own words; "" if it may."""
    if is_switched_off():
        return "MPICH_GPU_SUPPORT_ENABLED is not 1, without which Cray's MPICH takes no GPU memory"
    if says_of_cuda() is False:
        return f"the MPI library says that it takes none ({QUERY} gives 0)"
    return ""
