"""What all ranks of a run must have in common, compared before its first step.

    loop.agreed()    settings, folder, versions, start or resume     before anything is written
    TrainingRun      samples, and what is measured on them           before the model is made
    step/assembly    model, initial values, rule                     before it is cut

Each is one short message, in which errors are told too; a difference is refused on all ranks with
the ranks and both values. Samples are compared by length and fingerprint, so their files may have
other paths on each node. What belongs to one rank is not compared: its log, its callbacks that run
on rank 0 alone, the batches that a script hands to ShardedModel.train().
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path

from ..comm.backend import CommunicationBackend
from ..comm.same import alike, facts_of, versions
from ..data.samples import Samples, taken_by
from ..parallel.fingerprint import describe, describe_loss
from ..parallel.model.callback import Callback
from ..task.task import Task
from .settings import RunConfiguration

FOLDER = "run.folder"
SAME_SETTINGS = "start all ranks with the same settings, and the same software"
SAME_DATA = (
    "all ranks need the same data: give shuffles and splits a seed, and let all nodes see the same "
    "files"
)


def facts_of_place(folder: str | Path) -> dict[str, str]:
    """Return {name: text} of where the folder of a run is, in the first message of all ranks.

    Those of an elastic run say so in theirs (comm/mpi/elastic.py).
    """
    return {"run.elastic": "False", FOLDER: repr(str(Path(folder).resolve()))}


def agreed_folder(folder: str | Path, backend: CommunicationBackend, **others) -> None:
    """Compare where the ranks look for a run, before they look, and others of its arguments.
    Collective.

    Errors, on all ranks: ShardingError with what differs.
    """
    with alike(backend, SAME_SETTINGS) as facts:
        facts |= facts_of_place(folder) | facts_of(others)


def facts_of_start(settings: RunConfiguration, resume: bool) -> dict[str, str]:
    """Return {name: text} of settled settings, the software, and whether a run goes on."""
    values = {name: repr(settings.value(name)) for name in settings.keys()}
    return {
        **facts_of_place(settings.run.folder),
        **{name: text for name, text in values.items() if name != FOLDER},
        "whether the run goes on": str(resume),
        **versions(),
    }


def facts_of_samples(samples: Samples, what: str) -> dict[str, str]:
    """Return {name: text} that is equal only for the same samples."""
    return {
        f"the number of {what} samples": f"{len(samples):,}",
        f"the fingerprint of the {what} samples": samples.fingerprint(),
        f"run_length of the {what} samples": str(samples.run_length),
        f"what read() of the {what} samples takes": ", ".join(sorted(taken_by(samples.read))),
    }


def samples_alike(samples: Samples, what: str, backend: CommunicationBackend) -> None:
    """Compare samples that each rank has opened for itself. Collective.

    Errors, on all ranks: those of the samples; ShardingError with what differs.
    """
    with alike(backend, SAME_DATA) as facts:
        facts |= facts_of_samples(samples, what)


def facts_of_task(task: Task, callbacks: Iterable[Callback]) -> dict[str, str]:
    """Return {name: text} of what a task measures, and of what is called on all ranks."""
    metrics = {name: describe(metric) for name, metric in task.metrics.items()}
    called = [type(each).__qualname__ for each in callbacks if each.on_all_ranks]
    return {
        "the task": type(task).__qualname__,
        "its loss": describe_loss(task.loss),
        "its metrics": describe(metrics),
        **{f"its {name}": _digest(content) for name, content in task.companions().items()},
        "callbacks on all ranks": describe(called),
    }


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()
