"""Talking: how ranks exchange arrays, whatever carries them, and what happens when one of them
fails.

backend.py is the contract and the place to begin; memory.py (ranks are threads) and mpi.py carry
it.
"""

from .backend import CommunicationBackend
from .ballot import Ballot
from .failure import abort_on_error, agree, collectively, raise_together
from .memory import InMemoryCommunicationBackend, run_ranks
from .mesh import Mesh
from .mpi import MPICommunicationBackend
from .operations import Handle, ReductionOperation, Traffic
from .ordered import ordered_all_reduce, ordered_reduce_scatter, ordered_sum
from .same import check_same

__all__ = [
    "Ballot",
    "CommunicationBackend",
    "Handle",
    "InMemoryCommunicationBackend",
    "Mesh",
    "MPICommunicationBackend",
    "ReductionOperation",
    "Traffic",
    "abort_on_error",
    "agree",
    "check_same",
    "collectively",
    "ordered_all_reduce",
    "ordered_reduce_scatter",
    "ordered_sum",
    "raise_together",
    "run_ranks",
]
