"""ShardedModel: the face of an ordinary model on a mesh, whatever the strategy.

    config = ShardingConfiguration(backend, optimizer=AdamW())
    model = FSDPModel(models.GPT(256, 128, width=256, layers=4, heads=4), config)
    loss = model.train(x, y)                     # x, y: this data rank's part of the batch

Each member asks the part that does the work (parts.py):

    learning      steps and gradients               engine       predictions, compiled steps
    measuring     loss and metrics                  weights      whole parameter vectors
    checkpoints   files and images                  state        optimizer state, its rule, counts
    features      which inputs are used

Its members are those of the table in docs/api/models.md; parts_of() is for this package alone.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Self

from ...annotations import Array, FilePath, Tree
from ...checkpoint.background import PendingCheckpoint
from ...checkpoint.choice import NEWEST
from ...checkpoint.saving import Retention
from ...comm.mesh import Mesh
from ...errors import CommunicationError, ShardingError
from ...habits import refuse
from ...layout.part import SamplePart
from ...nn.generation import TOGETHER
from ...nn.looks import look_of
from ...nn.metrics import Metric
from ...nn.module import Module
from ...optim.rules import Rule
from ..settings import ShardingConfiguration
from .generation import generate
from .measuring import Measurement
from .parts import Parts, Strategy, make_parts
from .report import metadata_of, table_of
from .tracing import Trace


class ShardedModel:
    """The contract of all strategies. "Collective": all ranks of the mesh must call it.

    Parameters
    ----------
    wrapped_model
        An nn.Module; its blocks(), or else its modules, are gathered one unit at a time.
    config
        ShardingConfiguration; its backend is initialized here if it is not yet.

    Raises
    ------
    TypeError
        On all ranks, if the model is no Module.
    ShardingError
        On all ranks, on a model without parameters, with all of them frozen or some outside its
        blocks, or if model, configuration or policy differ between ranks.
    ScheduleError
        On all ranks, on an unknown schedule.
    ConfigurationError
        On all ranks, on a setting or a constant of the rule that is wrong on any.
    DeviceError
        On all ranks.
    TypeError
        On this rank alone: without a configuration.

    Notes
    -----
    Making one is collective.
    """

    _strategy: Strategy

    def __init__(self, wrapped_model: Module, config: ShardingConfiguration) -> None:
        self._parts = make_parts(type(self).__name__, wrapped_model, config, self._strategy)

    @property
    def _open(self) -> Parts:
        """Its parts. Errors: CommunicationError if it is closed."""
        if self._parts.is_closed:
            raise CommunicationError(
                "this model is closed; make another one, or close it after its last use"
            )
        return self._parts

    def __repr__(self) -> str:
        head = look_of(self.wrapped_model, {})
        rest = f"{self.parameter_count:,} parameters, {self.mesh!r}, step {self.step_number}"
        return f"{type(self).__name__}({head}, {rest})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if error is None:  # else other ranks may be anywhere
            self.close()

    if not TYPE_CHECKING:

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            raise ShardingError(
                f"a {type(self).__name__} is not called; model.predict(x) returns predictions, "
                "model.train(x, y) takes a step with the gradients of its loss, and "
                "model.compute_gradients(x, y) returns them"
            )

        def __getattr__(self, name: str) -> Any:
            if name == "eval":  # predict() and evaluate() never train
                return lambda: self
            refuse("ShardedModel", self, name)

    # ---- what it is ------------------------------------------------------------------------------

    @property
    def wrapped_model(self) -> Module:
        """The module that was given, of which this rank computes its part."""
        return self._parts.engine.model

    @property
    def sharding_configuration(self) -> ShardingConfiguration:
        """The configuration that was given, with the rule that is used now."""
        return self._parts.configuration

    @property
    def mesh(self) -> Mesh:
        """The ranks, by axes."""
        return self._parts.engine.mesh

    @property
    def rank(self) -> int:
        """This rank in the whole mesh."""
        return self.mesh.rank

    @property
    def world_size(self) -> int:
        """The number of ranks of the whole mesh."""
        return self.mesh.world.world_size

    @property
    def parameter_count(self) -> int:
        """Elements of the whole model, each counted once."""
        return self._parts.weights.count

    @property
    def step_number(self) -> int:
        """Optimization steps taken."""
        return self._parts.state.step_number

    @property
    def local_parameter_shard(self) -> Array:
        """What this rank owns and updates: 1-D, read-only, a snapshot. No communication.

        For DDP the full vector (of this rank's stage), in the canonical order of
        gather_full_parameters. For the others the spans of the units, in the order of the blocks;
        over all ranks their lengths add up to parameter_count.
        """
        return self._parts.weights.local()

    def get_model_metadata(self) -> dict:
        """Return strategy, sizes, bytes on this rank and training history; a fresh dict.

        No communication.
        """
        return metadata_of(self._parts)

    def describe(self) -> str:
        """Return a table of each rank's coordinates, host, stages, and their first and last blocks.

        The same text on all ranks; no communication.
        """
        return table_of(self._parts)

    # ---- training --------------------------------------------------------------------------------

    def train(self, x: Tree, y: Tree, *, only: str | None = None) -> float:
        """Take one optimization step on this data rank's part of the batch. Collective.

        Parameters
        ----------
        x, y
            [samples of this rank, ...], cut into config.micro_batches equal micro-batches; arrays,
            or tuples, lists, dicts or dataclasses of such (docs/trees.md).
        only
            Of several objectives (nn.Objectives), the name of the one that takes its step.

        Returns
        -------
        float
            The mean loss of the global batch before the step, the same on all ranks; the sum over
            objectives.

        Raises
        ------
        ShapeError
            On all ranks, whichever rank has the bad part: if it is empty, does not divide into the
            micro-batches, or is not accepted by the model or its loss.

        Notes
        -----
        With auto_synchronize_gradients=False ranks agree on the batch as ever, but gradients are
        only accumulated, on this rank; synchronize_gradients() and step() complete the step, and
        between them train is a ShardingError. A step whose loss or gradients are NaN or infinite is
        skipped on all ranks, as is one in which no label counts; the loss is NaN then.

        Errors, on all ranks, whichever rank has the bad part: those of a checkpoint that is being
        written, before anything else is done.
        """
        return self._open.learning.train(x, y, only)

    def compute_gradients(self, x: Tree, y: Tree, loss: Any = None) -> Array:
        """Return the mean gradient over the global batch of what this rank owns and trains.

        Collective; parameters are unchanged.

        Parameters
        ----------
        x, y
            As in train.
        loss
            A function (prediction, y) -> mean loss, instead of the configured one.

        Returns
        -------
        Array
            1-D, a copy; the spans of the units in the order of the blocks (for DDP: the whole
            units), without frozen parameters.

        Raises
        ------
        ShapeError
            On all ranks, as train, and if no label counts.
        ShardingError
            If accumulated gradients wait for a step: they would be lost.

        Notes
        -----
        Up to the next step each call draws other dropout masks, the first those of train.
        """
        return self._open.learning.compute_gradients(x, y, loss)

    def apply_gradients(self, gradients: Array, learning_rate: float) -> None:
        """Take a step with given gradients, as compute_gradients returned them. Collective.

        Parameters
        ----------
        gradients
            1-D, the length that compute_gradients returns on this rank.
        learning_rate
            Instead of the rule's own.

        Raises
        ------
        ShapeError
            On all ranks, on another length.
        ConfigurationError
            On all ranks, on a learning rate that is none.
        ShardingError
            On all ranks, on rates that differ, or if accumulated gradients wait for a step.
        """
        self._open.learning.apply_gradients(gradients, learning_rate)

    def synchronize_gradients(self) -> None:
        """Make every owner hold the mean gradient, over all that was accumulated, of what it owns.

        Collective.

        Raises
        ------
        ShardingError
            If nothing was accumulated since the last time.
        """
        self._open.engine.reduce_accumulated()

    def step(self) -> None:
        """Clip if configured, and apply the rule to the synchronized gradients. Collective.

        Raises
        ------
        ShardingError
            If there are none.

        Notes
        -----
        Errors: those of a checkpoint that is being written.
        """
        self._open.learning.step()

    def use_rule(self, rule: Rule) -> None:
        """Go on with another optimizer rule on the optimizer state that is there. Collective.

        Parameters
        ----------
        rule
            The new rule, such as AdamW(lr=1e-4).

        Raises
        ------
        ShardingError
            On all ranks, if the rule keeps other state than the one so far, or differs between
            ranks.
        """
        self._open.state.use_rule(rule)

    def compile(self) -> None:
        """Capture what a step computes on a GPU as CUDA graphs, and replay them: the same bits,
        less time in Python. Collective.

        Of batches of equal shapes, the first trains as without, the next is captured, the next is
        computed both ways and compared bit for bit, which takes the memory of activations twice;
        from then on graphs are replayed. If a step cannot be captured, or the replay differs, a
        warning says why and the model goes on uncompiled: a step with dropout is one, and one that
        sends numbers to the GPU or waits for some. Attributes of modules that are changed later,
        other than parameters and active features, do not change a graph. As with
        torch.nn.Module.compile, the model itself is changed and nothing is returned.

        Raises
        ------
        ShardingError
            On all ranks, if supports_compilation is False, as it is on CPUs, where replaying a step
            gained nothing that was worth its code.
        """
        self._parts.engine.compilation.start()

    @property
    def supports_compilation(self) -> bool:
        """Whether compile() can be called, and has not failed. No communication."""
        return self._parts.engine.compilation.reason is None

    # ---- predictions and figures -----------------------------------------------------------------

    def predict(self, x: Tree) -> Tree:
        """Return the wrapped model's output for x, a NumPy array or a tree of such (docs/trees.md).

        Collective: every data replica passes an x of its own. No samples have an empty prediction.

        Parameters
        ----------
        x
            [samples of this replica, ...]; on domain ranks also a Rows each: the prediction then is
            one too.

        Raises
        ------
        ShapeError
            On all ranks, if the model does not accept the x of some rank.
        """
        return self._open.engine.evaluation.predict(x)

    def generate(
        self,
        prompts: Sequence[Any],
        num_tokens: int,
        temperature: float = 1.0,
        *,
        top_k: int | None = None,
        top_p: float | None = None,
        repetition_penalty: float = 1.0,
        stop: Sequence[int] = (),
        seeds: Sequence[int] | None = None,
        on_token: Callable[[int, int], Any] | None = None,
        together: int = TOGETHER,
    ) -> list:
        """Return what follows each prompt: a list of int64 arrays, the same on all ranks.

        Collective: all ranks pass the same. Of a GPT alone.

        Parameters
        ----------
        prompts
            1-D integer arrays, of any lengths; the data replicas share them.
        num_tokens
            To add to each text, unless it comes to a stop token before.
        temperature, top_k, top_p, repetition_penalty, stop
            See nn.generation.Choice.
        seeds
            One integer for each prompt; None: 0, 1, 2, ...
        on_token
            Function (number of a prompt, token), called on the ranks that write its text.
        together
            Texts that a replica continues at a time; each takes memory for its keys and values. As
            one ends, the next prompt takes its place.

        Raises
        ------
        ShapeError
            On all ranks, on prompts that are no tokens.
        ConfigurationError, ShardingError
            On all ranks, if ranks pass different ones.
        NonFiniteError
            On all ranks, if logits are NaN or infinite.

        Notes
        -----
        A text depends on its prompt and its seed, to the rounding of the logits; on neither its
        neighbors nor the mesh. Keys and values of earlier positions are kept; under sequence
        parallelism each token costs a pass over the text.
        """
        choice = dict(temperature=temperature, top_k=top_k, top_p=top_p, stop=stop)
        choice |= {"repetition_penalty": repetition_penalty}
        return generate(self._open.engine, prompts, num_tokens, choice, seeds, on_token, together)

    def evaluate(self, x: Tree, y: Tree, metrics: dict[str, Metric] | None = None) -> float:
        """Return the mean loss over the parts of all data ranks, the same on all ranks. Collective.

        Nothing is learned. NaN if no label counts. get_model_metadata()["evaluation"] has the loss
        and the metrics then.

        Parameters
        ----------
        x, y
            [samples of this rank, ...], as in train; ranks may have different numbers of them, and
            none.
        metrics
            {name: Metric}; None: the model's own, which are RMSE, MAE and R2 of an MLP for
            regression, accuracy and macro F1 of one for classes.

        Raises
        ------
        ShapeError
            On all ranks, as train.
        """
        return self._open.measuring.mean_loss(x, y, metrics)

    def evaluation(self, metrics: dict[str, Metric] | None = None) -> Measurement:
        """Return what measures many batches, for a `with` block. Collective.

            with model.evaluation() as measured:
                for x, y in batches:
                    measured.add(x, y)
            print(measured.loss, measured.metrics, measured.samples)

        The figures are those of all samples, however they are divided among batches and ranks: to
        the rounding of the predictions, whose bits depend on how many are made at once. Batches may
        be uneven or empty, and ranks may add other numbers of them. The end of the block is
        collective; get_model_metadata()["evaluation"] has loss and metrics then.

        Parameters
        ----------
        metrics
            As in evaluate.

        Raises
        ------
        ConfigurationError
            On all ranks, on what are no metrics.
        ShardingError
            On all ranks, if ranks measure different ones.
        """
        return self._open.measuring.begin(metrics)

    # ---- input features --------------------------------------------------------------------------

    def get_active_feature_indices(self) -> list[int]:
        """Return the numbers of the input features that are used.

        Raises
        ------
        FeatureError
        """
        return self._parts.features.active()

    def set_active_feature_indices(self, indices: Sequence[int]) -> None:
        """Look at these input features only, in training and prediction. Collective.

        Parameters
        ----------
        indices
            Numbers of features, at least one.

        Raises
        ------
        FeatureError
            On all ranks.
        ShardingError
            On all ranks, if ranks name different ones.
        """
        self._parts.features.activate(indices)

    def is_feature_used(self, index: int) -> bool:
        """Return whether the model looks at this input feature.

        Parameters
        ----------
        index
            Number of the feature.

        Raises
        ------
        FeatureError
        """
        return index in self._parts.features.active()

    def get_feature_importance(self, x: Any = None, y: Any = None) -> dict[str, float]:
        """Return {feature: growth of the loss when its values are shuffled}, on all ranks.

        Collective.

        Parameters
        ----------
        x, y
            This data rank's samples; None: the last batch that was trained on. The values are
            shuffled over those of all ranks.

        Raises
        ------
        FeatureError
            On all ranks, if the model has no features, or there are no samples.
        """
        return self._parts.features.importance(x, y)

    # ---- whole parameter vectors, and other models -----------------------------------------------

    def gather_full_parameters(self) -> Array:
        """Return all parameters, 1-D, in the wrapped model's canonical order. Collective."""
        return self._open.gather()

    def get_parameters(self) -> Array:
        """Return what gather_full_parameters() returns. Collective."""
        return self.gather_full_parameters()

    def set_parameters(self, vector: Array) -> None:
        """Replace all parameters by this canonical vector. Collective.

        Parameters
        ----------
        vector
            1-D, what gather_full_parameters() returns; the same on all ranks.

        Raises
        ------
        ValueError
            On all ranks, on another length.
        ShardingError
            On all ranks, if ranks pass different ones.
        """
        self._open.state.set_weights(vector)

    def with_averaged_parameters(self) -> AbstractContextManager[None]:
        """Return a context in which the model has the averages that sk.EMA keeps as its weights.

            with model.with_averaged_parameters():
                loss = model.evaluate(x, y)

        Collective, as its end. predict(), evaluate(), generate() and get_parameters() are for the
        block; training, loading, saving and setting parameters are refused in it. Before the first
        step the averages are the weights.

        Raises
        ------
        ShardingError
            On all ranks, if the rule keeps no averages.
        """
        return self._open.state.averaged()

    def with_parameters(self, vector: Array) -> Self:
        """Return a model of the same type on the same mesh with these parameters. Collective.

        Its optimizer state is fresh. Close it too: the mesh is closed with its last model.

        Parameters
        ----------
        vector
            1-D, what gather_full_parameters() returns; the same on all ranks.
        """
        return self._like_this(self._open.with_parameters(vector))

    def clone(self) -> Self:
        """Return a model that shares parameters, optimizer state and mesh with this one.

        Of the same type; no communication. Close it too: the mesh is closed with its last model.
        """
        return self._like_this(self._open.clone())

    __copy__ = clone

    def deep_copy(self) -> Self:
        """Return a model on the same mesh with parameters and optimizer state of its own.

        Of the same type; collective. Close it too: the mesh is closed with its last model.
        """
        return self._like_this(self._open.copy())

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self.deep_copy()

    def _like_this(self, parts: Parts) -> Self:
        """Return a model of the same type, with all that it has besides, on other parts."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__, _parts=parts)
        return other

    # ---- files and images ------------------------------------------------------------------------

    def save_model(
        self,
        path: FilePath,
        *,
        keep: int | None = None,
        keep_every: int | None = None,
        data_position: dict | None = None,
        validation: dict | None = None,
        files_per_node: int | None = None,
    ) -> str:
        """Write a checkpoint of this step into folder `path` and return its own folder. Collective.

        Parameters
        ----------
        path
            Of the folder of checkpoints, which is made.
        keep
            Number of checkpoints to keep there, the new one counted; None: all are kept.
        keep_every
            Steps that are multiples of this are kept too.
        data_position
            Stored as it is, for the source of the data.
        validation
            {"loss": measured at this step, "best_step": which is not deleted, "patience"}, each a
            number or None, by which load_model(checkpoint="best") finds the best one.
        files_per_node
            So many files hold what the ranks of a node write; None: one for each rank.

        Raises
        ------
        PermissionError, OSError
            On all ranks.
        CheckpointError
            On all ranks, earlier checkpoints stay as they were.
        """
        kept = Retention(keep, keep_every)
        said = data_position, validation
        return self._parts.checkpoints.save(path, kept, files_per_node, *said)

    def save_model_async(
        self,
        path: FilePath,
        *,
        keep: int | None = None,
        keep_every: int | None = None,
        data_position: dict | None = None,
        validation: dict | None = None,
        files_per_node: int | None = None,
    ) -> PendingCheckpoint:
        """Begin to write a checkpoint of this step; return when its values are copied. Collective.

        Training may go on. The copies are in host memory, as large as what this rank owns, and used
        again the next time. The checkpoint is there once all ranks have written and met again: in a
        train() or step() afterwards, or in wait() of what is returned, or in close(). The next save
        waits for it. Arguments as for save_model.

        Parameters
        ----------
        path, keep, keep_every, data_position, validation, files_per_node
            As of save_model.

        Notes
        -----
        Errors, on all ranks: as save_model, also from those later calls; nothing is left of the
        checkpoint then.
        """
        kept = Retention(keep, keep_every)
        said = data_position, validation
        return self._parts.checkpoints.save_async(path, kept, files_per_node, *said)

    def load_model(
        self,
        path: FilePath | tuple[FilePath, ...],
        *,
        only: str | None = None,
        strict: bool = True,
        names: Any = None,
        checkpoint: str | int | None = NEWEST,
    ) -> dict:
        """Go on from the newest valid checkpoint at `path`, of any mesh and policy. Collective.

        Parameters
        ----------
        path
            What save_model() was given, or a run folder; or one checkpoint, which is then taken or
            refused; or a folder of transformers, whose numbers have no checksums: a model at step
            0. Of a tuple of folders of checkpoints, the newest valid one of all is taken.
        only
            "model": take parameters and buffers alone, to predict, or to begin a new training at
            step 0 with fresh optimizer state; "averaged": the same, with the averages that sk.EMA
            kept in the place of the weights.
        strict
            False: take the names that the model and the checkpoint share; with only="model".
        names
            Patterns, such as "encoder.*" or ["*.weight", "head.*"]: take these parameters and
            buffers, and leave the others as they are; with only="model".
        checkpoint
            Of several: "newest"; "best", whose validation had the lowest loss; a step; None: the
            best where the run had a patience, else the newest.

        Returns
        -------
        dict
            What is stored beside the tensors: step, seed, data_position, ...; under "skipped" why
            newer checkpoints were passed over, which is a warning on rank 0 too; under "chosen"
            which of several was taken, in words; under
            "missing_state" and "unused_state" the names of such state; under "missing_names" what
            the model has and the checkpoint lacks, under "unexpected_names" the reverse.

        Raises
        ------
        FileNotFoundError, PermissionError
            On all ranks.
        CheckpointError
            On all ranks, also on a tensor of another shape or dtype.
        ValueError
            On all ranks, on a selection that means nothing; the model is unchanged then.

        Notes
        -----
        Under a rule that keeps other optimizer state than the one that wrote it, state that is
        missing starts at zero, with a bias correction of its own, and state that is not kept is
        left out; a warning on rank 0 names both.
        """
        selection = {"only": only, "strict": strict, "names": names}
        return self._parts.checkpoints.load(path, selection, checkpoint)

    def serialize(self) -> bytes:
        """Return parameters, optimizer state and step as an HDF5 image, the same on all ranks.

        Collective. The files of a tokenizer and the like, which a converted model keeps in its
        checkpoints, are not in it.
        """
        return self._parts.checkpoints.image()

    def deserialize(
        self, data: bytes, *, only: str | None = None, strict: bool = True, names: Any = None
    ) -> dict[str, list[str]]:
        """Go on from an image, made under any mesh and policy.

        Collective: all ranks pass the same bytes.

        Parameters
        ----------
        data
            What serialize() returned.
        only, strict, names
            See load_model.

        Returns
        -------
        dict[str, list[str]]
            missing_state, unused_state, missing_names, unexpected_names: see load_model.

        Raises
        ------
        CheckpointError
            On all ranks, if the bytes are damaged, foreign or of another model, which is unchanged.
        ValueError
            On all ranks, on a selection that means nothing.
        """
        selection = {"only": only, "strict": strict, "names": names}
        return self._parts.checkpoints.load_image(data, selection)

    def save_state(self, file: Any) -> None:
        """Write serialize() to a binary file object of rank 0; others may pass None. Collective.

        Parameters
        ----------
        file
            A binary file object, open for writing, on rank 0.
        """
        self._parts.checkpoints.write_image(file)

    def load_state(
        self, file: Any, *, only: str | None = None, strict: bool = True, names: Any = None
    ) -> dict[str, list[str]]:
        """Read what save_state wrote from a file object of rank 0; others may pass None.

        Collective; as deserialize.

        Parameters
        ----------
        file
            A binary file object, open for reading, on rank 0.
        only, strict, names
            See load_model.
        """
        selection = {"only": only, "strict": strict, "names": names}
        return self._parts.checkpoints.read_image(file, selection)

    # ---- traces, and the end ---------------------------------------------------------------------

    def trace(self, path: str | os.PathLike[str]) -> Trace:
        """Record from now on what each rank does, for a file that Perfetto opens. Collective.

        Actions of the program, verbs with their bytes and groups, and checkpoints, on the clock of
        rank 0. Of a compiled model: the same actions, each as long as the host takes to launch it.

        Parameters
        ----------
        path
            Of the file, which rank 0 writes.

        Returns
        -------
        Trace
            A context manager; its close(), also collective, writes the file.

        Raises
        ------
        OSError
            On all ranks, if the file cannot be written.
        """
        return Trace(self._parts, path)

    def close(self) -> None:
        """Wait for a checkpoint that is being written, and give memory and communicators back.

        Collective. The model cannot train afterwards, its clones and copies can: the last of them
        closes the communicators. A second call does nothing.

        Notes
        -----
        Errors: those of the checkpoint.
        """
        self._parts.close()


def parts_of(model: ShardedModel) -> Parts:
    """Return the parts of a sharded model, for what this package does with them."""
    return model._parts


def domain_part(model: ShardedModel) -> SamplePart | None:
    """Return which part of each sample this rank may read alone, and pass as Rows in place of whole
    x and y (docs/parallel/domain.md); None: no ranks share samples. No communication.

    Parameters
    ----------
    model
        Whose ranks share samples, or do not.
    """
    engine = parts_of(model).engine
    return engine.evaluation.domain_part(engine.config.loss or engine.model.loss)


def strategy_of(kind: type[ShardedModel]) -> Strategy:
    """Return the strategy of a class of sharded models."""
    return kind._strategy
