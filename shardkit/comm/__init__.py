"""Communication: how ranks exchange arrays, and what happens when one of them fails.

Read verbs.py first (the verbs, whatever carries them), then channel.py (what carries them).
"""

from ..public import public_names

__getattr__, __dir__, __all__ = public_names(
    __name__,
    {
        "backend": "CommunicationBackend",
        "collectives.ordered": "ordered_all_reduce ordered_reduce_scatter ordered_sum",
        "failure.agreement": "agree by_first collectively raise_together",
        "failure.ballot": "Ballot",
        "failure.program": "abort_on_error",
        "mesh": "Mesh",
        "mpi.backend": "MPICommunicationBackend",
        "operations": "Handle ReductionOperation Traffic",
        "same": "check_same",
        "threads.backend": "InMemoryCommunicationBackend run_ranks",
    },
)
