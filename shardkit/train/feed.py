"""The batches of a run, and how long its steps wait for them."""

from ..data.samples import TRAINING, Samples
from ..data.stream import Stream
from ..parallel.model.sharded_model import ShardedModel, domain_part
from ..task.given import as_samples
from ..task.task import Task


def training_stream(task: Task, model: ShardedModel, samples: Samples) -> Stream:
    """Return the batches of this data rank, in the order of the run's seed."""
    settings = task.settings
    number, parts = model.mesh.sample_part
    count = settings.batch.sequences // parts
    return Stream(
        samples,
        settings.run.seed,
        TRAINING,
        global_batch=settings.batch.sequences,
        first=number * count,
        count=count,
        sample_part=domain_part(model),
    )


def reading_line(model: ShardedModel, samples: Samples) -> str:
    """Return what to say where ranks share samples and read them whole nevertheless; else ""."""
    if domain_part(model) is None or samples.reads_parts:
        return ""
    return (
        "each domain rank reads whole samples and keeps its part: this source reads no parts "
        "(docs/parallel/domain.md, Reading)"
    )


def waiting_seconds(task: Task, model: ShardedModel, steps: int) -> float:
    """Train so many steps on the data of the run; return what a step waits for it on this rank.

    Collective. The first batch, for which nothing was read ahead, is not counted.
    """
    with training_stream(task, model, as_samples(task.samples(TRAINING))) as stream:
        stream.batch(0)
        began = stream.waited_seconds
        for step in range(1, 1 + steps):
            model.train(*stream.batch(step))
        return (stream.waited_seconds - began) / steps
