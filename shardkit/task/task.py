"""Task: what a run trains; the contract between the training loop and everything else.

    settings --> Task --> make_model()          --> sharded over the ranks
                      --> samples("training")   --> batches --> steps --> checkpoints, reports
                      --> samples("validation") --> loss, metrics
                      --> finish(model)         --> a sample of text, ...

The loop, stopping, resuming, elastic runs, bench and reports call nothing but this. A task of
one's own is a class like this one, in a file that `shardkit train --task file.py:Surrogate` names:

    class Surrogate(sk.Task):
        class Settings:
            path: str = "table.h5"
            width: int = 64

        def make_model(self):
            return sk.models.MLP([8, self.settings.task.width, 1], seed=self.settings.run.seed)

        def samples(self, part):
            return my_samples(self.settings.task.path, part)
"""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

import numpy

from ..annotations import FilePath
from ..data.samples import TRAINING, VALIDATION, Samples
from ..errors import ConfigurationError
from ..nn.module import Module
from ..nn.on_parts import partwise
from ..settings import as_section
from ..tree import named_leaves

OWN_SECTION = "task"  # of the settings that a task declares as Settings


class Task(ABC):
    """What a run trains. Made on every rank from the whole configuration.

    Parameters
    ----------
    settings
        settings.run.seed, settings.batch.micro_batch, settings.task.width, ...; frozen.

    Attributes
    ----------
    Settings
        Class of annotated fields with defaults, or a dataclass: the section [task].
    sections
        {name: dataclass}, where one section is not enough.
    defaults
        {"section.key": value}, in place of those of the common sections.
    sample
        What one sample is called, in the plural: "rows".
    unit
        What speed is counted in, where that is no sample: "tokens".
    loss
        A Loss or a function (prediction, y) -> mean loss; None: the model's own.
    loss_unit
        Of the loss, for people: "nats per byte".
    initial
        The setting that names weights to begin with, if there is one: "model.start".
    metrics
        {name: Metric}, measured with the loss on the held-out samples.
    instead_of_predict
        The command to use where `shardkit predict` makes no sense; "": it does.
    surveyed
        What survey() returned for each number, where prepare() is called.

    Notes
    -----
    A subclass may set:

    A run calls num_surveys() on every rank, survey() for each number on some rank, prepare() on
    rank 0, open() on every rank after it, then the others in any order. What a method raises on one
    rank is raised on all.
    """

    Settings: ClassVar[type]
    sections: ClassVar[dict[str, type]] = {}
    defaults: ClassVar[dict[str, Any]] = {}
    sample: str = "samples"
    unit: str | None = None
    loss: Any = None
    loss_unit: str = ""
    initial: ClassVar[str | None] = None
    metrics: dict[str, Any] = {}
    surveyed: list = []
    instead_of_predict: ClassVar[str] = ""

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        own = cls.__dict__.get("Settings")
        if own is not None:
            cls.Settings = as_section(own)
            cls.sections = {**cls.sections, OWN_SECTION: cls.Settings}

    def __init__(self, settings: Any) -> None:
        self.settings = settings

    # ---- before the model ------------------------------------------------------------------------

    @classmethod
    def implied(cls, settings: Any, given: dict[str, Any]) -> dict[str, Any]:
        """Return {"section.key": value} that follow from the others when a run starts.

        Parameters
        ----------
        settings
            The defaults with what was given; given: {"section.key": value} alone.
        given
            {"section.key": value} of what was given alone.

        Raises
        ------
        ConfigurationError
            Where a given setting contradicts one that follows.
        """
        return {}

    @classmethod
    def begin_with(cls, path: FilePath) -> str:
        """Return how another run begins, with the weights at this path where that is possible.

        Parameters
        ----------
        path
            Of a checkpoint, a run or a folder of transformers.
        """
        return f" with its weights: --{cls.initial}={path}" if cls.initial else ":"

    def num_surveys(self, folder: Path, resume: bool) -> int:
        """Return in how many parts the data must be looked at before prepare(); ranks share them.

        The same on all ranks; nothing is written.

        Parameters
        ----------
        folder
            Of the run.
        resume
            The run goes on.

        Raises
        ------
        Exception
            As prepare().
        """
        return 0

    def survey(self, number: int) -> Any:
        """Return what one part of the data shows, as a small object that can be pickled.

        Parameters
        ----------
        number
            Of the part, from 0.
        """
        raise NotImplementedError

    def prepare(self, folder: Path, resume: bool) -> None:
        """Check the data, on rank 0 alone, and write what all ranks share into folder / "data".

        An index, never the data. resume: the run goes on, on the data that it was started with.

        Parameters
        ----------
        folder
            Of the run.
        resume
            The run goes on, on the data that it was started with.

        Raises
        ------
        CorpusError, ConfigurationError, OSError
        """

    def open(self, folder: Path) -> None:
        """Open on this rank what prepare() wrote, before anything else is asked for.

        Parameters
        ----------
        folder
            Of the run.
        """

    # ---- the model -------------------------------------------------------------------------------

    @abstractmethod
    def make_model(self) -> Module:
        """Return the unsharded model, with weights that follow from the settings alone."""

    def begin(self, model: Any) -> str:
        """Bring a new ShardedModel to weights other than its own; return a line about them.

        Collective. "" where there are none. It stays at step 0.

        Parameters
        ----------
        model
            A ShardedModel at step 0.
        """
        return ""

    def companions(self) -> dict[str, bytes]:
        """Return {name: content} of files that travel in every checkpoint: a tokenizer, scaling.

        The names are those of checkpoint/format/companions.py.
        """
        return {}

    # ---- data ------------------------------------------------------------------------------------

    @abstractmethod
    def samples(self, part: str) -> Samples:
        """Return the samples of "training" or "validation"; the two have none in common.

        Parameters
        ----------
        part
            "training" or "validation".
        """

    @property
    def units_per_sample(self) -> int:
        """How many of `unit` a sample has."""
        return 1

    def describe_data(self) -> str:
        """Return the data in a few words, for the first line of a run."""
        training, held_out = (len(self.samples(part)) for part in (TRAINING, VALIDATION))
        return f"{training:,} {self.sample} + {held_out:,} held out"

    def example(self, count: int, seed: int = 0) -> tuple[numpy.ndarray, numpy.ndarray]:
        """Return x, y of `count` samples to measure the speed of a step with.

        Parameters
        ----------
        count
            Samples.
        seed
            Which of them.
        """
        samples = self.samples(TRAINING)
        return samples.read((numpy.arange(count) + seed * count) % len(samples))

    def samples_of(self, path: str, *, has_targets: bool = True) -> Samples:
        """Return the samples of another source, for `shardkit evaluate` and `shardkit predict`.

        Parameters
        ----------
        path
            As --data names it.
        has_targets
            False: only x is wanted, and y may be empty.

        Raises
        ------
        ConfigurationError, OSError
        """
        raise ConfigurationError(
            f"{type(self).__name__} reads no other data than its own; leave --data out for its "
            "held-out samples, or give it a method samples_of(path, has_targets)"
        )

    @partwise
    def outputs(self, prediction: Any) -> dict[str, numpy.ndarray]:
        """Return {dataset: [n, ...]} that `shardkit predict` writes of the model's [n, ...].

        Parameters
        ----------
        prediction
            An array, or a tree of arrays: {"mean": a} is written as prediction.mean.

        Notes
        -----
        Sample by sample; the same names, dtypes and shapes for any samples. Where ranks share
        samples, a method that is decorated with nn.partwise gets the rows of its rank, and must
        keep the dim along which they lie; any other gets whole predictions.
        """
        return dict(named_leaves(prediction, "prediction"))

    # ---- reports ---------------------------------------------------------------------------------

    def describe_loss(self, loss: float) -> str:
        """Return a loss of the held-out samples in words.

        Parameters
        ----------
        loss
            The mean over the held-out samples.
        """
        return f"{loss:.4f} {self.loss_unit}".rstrip()

    def loss_record(self, loss: float) -> dict[str, float]:
        """Return what the curve records beside a loss of the held-out samples.

        Parameters
        ----------
        loss
            The mean over the held-out samples.
        """
        return {}

    def num_flops_per_sample(self, model: Module) -> float:
        """Return the operations of forward and backward for a sample; 6 for each parameter.

        Parameters
        ----------
        model
            The unsharded one.
        """
        return 6.0 * sum(parameter.size for parameter in model.named_parameters().values())

    def smallest(self) -> dict[str, Any] | None:
        """Return settings of a model of the same blocks with next to nothing to compute.

        What a step of it costs is Python. None: there are none, and bench does not tell Python
        apart.
        """
        return None

    # ---- the end ---------------------------------------------------------------------------------

    def finish(self, model: Any) -> str:
        """Return what a finished run shows of its ShardedModel; "" for nothing. Collective.

        Parameters
        ----------
        model
            The trained ShardedModel.
        """
        return ""
