# Written by packaging/stubs.py, from the table in __init__.py.
from .backend import CommunicationBackend as CommunicationBackend
from .collectives.ordered import (
    ordered_all_reduce as ordered_all_reduce,
    ordered_reduce_scatter as ordered_reduce_scatter,
    ordered_sum as ordered_sum,
)
from .failure.agreement import (
    agree as agree,
    by_first as by_first,
    collectively as collectively,
    raise_together as raise_together,
)
from .failure.ballot import Ballot as Ballot
from .failure.program import abort_on_error as abort_on_error
from .mesh import Mesh as Mesh
from .mpi.backend import MPICommunicationBackend as MPICommunicationBackend
from .operations import (
    Handle as Handle,
    ReductionOperation as ReductionOperation,
    Traffic as Traffic,
)
from .same import check_same as check_same
from .threads.backend import (
    InMemoryCommunicationBackend as InMemoryCommunicationBackend,
    run_ranks as run_ranks,
)
