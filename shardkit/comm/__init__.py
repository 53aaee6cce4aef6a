"""Communication: how ranks exchange arrays, and what happens when one of them fails.

Read verbs.py first (the verbs, whatever carries them), then channel.py (what carries them).
"""

from typing import TYPE_CHECKING

from ..public import public_names

if TYPE_CHECKING:
    from .backend import (
        CommunicationBackend as CommunicationBackend,
    )
    from .collectives.ordered import (
        ordered_all_reduce as ordered_all_reduce,
        ordered_reduce_scatter as ordered_reduce_scatter,
        ordered_sum as ordered_sum,
    )
    from .failure.agreement import (
        agree as agree,
        collectively as collectively,
        raise_together as raise_together,
    )
    from .failure.ballot import (
        Ballot as Ballot,
    )
    from .failure.program import (
        abort_on_error as abort_on_error,
    )
    from .mesh import (
        Mesh as Mesh,
    )
    from .mpi.backend import (
        MPICommunicationBackend as MPICommunicationBackend,
    )
    from .operations import (
        Handle as Handle,
        ReductionOperation as ReductionOperation,
        Traffic as Traffic,
    )
    from .same import (
        check_same as check_same,
    )
    from .threads.backend import (
        InMemoryCommunicationBackend as InMemoryCommunicationBackend,
        run_ranks as run_ranks,
    )
else:
    __getattr__, __dir__, __all__ = public_names(
        __name__,
        {
            "backend": "CommunicationBackend",
            "collectives.ordered": "ordered_all_reduce ordered_reduce_scatter ordered_sum",
            "failure.agreement": "agree collectively raise_together",
            "failure.ballot": "Ballot",
            "failure.program": "abort_on_error",
            "mesh": "Mesh",
            "mpi.backend": "MPICommunicationBackend",
            "operations": "Handle ReductionOperation Traffic",
            "same": "check_same",
            "threads.backend": "InMemoryCommunicationBackend run_ranks",
        },
    )
