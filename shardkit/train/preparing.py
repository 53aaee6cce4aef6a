"""The data of a run before its model: all ranks look at it, the first writes down what they saw.

    rank 0   survey(0), survey(1)   \\
    rank 1   survey(2), survey(3)    > all, in their order --> rank 0: prepare() --> folder / data
    rank 2   survey(4)              /
"""

from pathlib import Path

from ..comm.alone_at_work import native_work
from ..comm.backend import CommunicationBackend
from ..comm.failure.agreement import collectively
from ..task.task import Task

ALONE_SECONDS = 24 * 3600.0  # that a task may take to prepare its data, while the others wait


def prepare_data(
    task: Task, folder: Path, backend: CommunicationBackend, *, resume: bool = False
) -> None:
    """Let a task look at its data and write into a folder what its open() reads. Collective.

    Errors, on all ranks: those of the task.
    """
    with collectively(backend):
        num = task.num_surveys(folder, resume)
        shares = [num * rank // backend.world_size for rank in range(backend.world_size + 1)]
        found = []
        for number in range(*shares[backend.rank :][:2]):
            backend.work()
            found.append(task.survey(number))
    gathered = backend.gather_object(found, 0)
    with collectively(backend):
        if backend.rank == 0:
            task.surveyed = [each for part in gathered for each in part]
            with native_work(backend, ALONE_SECONDS):
                task.prepare(folder, resume)
