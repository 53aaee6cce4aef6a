"""Communication: how ranks exchange arrays, and what happens when one of them fails.

Read verbs.py first (the verbs, whatever carries them), then channel.py (what carries them).
"""

from .backend import CommunicationBackend
from .collectives.ordered import ordered_all_reduce, ordered_reduce_scatter, ordered_sum
from .failure.agreement import agree, collectively, raise_together
from .failure.ballot import Ballot
from .failure.program import abort_on_error
from .mesh import Mesh
from .mpi.backend import MPICommunicationBackend
from .operations import Handle, ReductionOperation, Traffic
from .same import check_same
from .threads.backend import InMemoryCommunicationBackend, run_ranks

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
