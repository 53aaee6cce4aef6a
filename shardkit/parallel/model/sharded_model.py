"""Sharded models: an ordinary model on a mesh, trained by one engine whatever the strategy.

    model = FSDPModel(models.GPT(256, 128, width=256, layers=4, heads=4),
    ShardingConfiguration(backend, optimizer=AdamW()))
    loss = model.train(x, y)                     # x, y: this data rank's part of the batch

DDPModel, ZeRO1Model, ZeRO2Model and FSDPModel are names for the four rows of policy.POLICIES.
"""

import time
import warnings
from dataclasses import replace
from math import isfinite

import numpy

from ...arguments import is_number, require
from ...array.backend import to_host
from ...checkpoint import (
    CheckpointStore,
    PendingCheckpoint,
    Retention,
    Saver,
    load_image,
    make_image,
)
from ...checkpoint.find import warn_of_skipped
from ...checkpoint.fit import Fit, Wanted, check_only, state_since
from ...comm import Mesh, check_same, collectively
from ...config import ShardingConfiguration
from ...errors import CheckpointError, CommunicationError, FeatureError, ShapeError, ShardingWarning
from ...layout.mesh_shape import AXES
from ...layout.policy import POLICIES, Policy, policy_named
from ...nn.features import input_features
from ...nn.module import Module, blocks_of, configuration_of
from ...optim.description import describe_rule
from ...optim.late import RatedRule
from ..data.partition import describe_one_unit
from ..step.engine import Engine
from ..tensor.plan import close_groups
from .features import features_of, permutation_importance


class ShardedModel:
    """The contract of all strategies. "Collective": all ranks of the mesh must call it.

    wrapped_model   an nn.Module; its blocks() are gathered one unit at a time
    config          ShardingConfiguration; its backend is initialized here if it is not yet
    Making one is collective. Errors, on all ranks: TypeError if the model is no Module,
    ShardingError on a model without parameters, with frozen ones or with some outside its blocks,
    or if model, configuration or policy differ between ranks, ScheduleError on an unknown schedule,
    DeviceError. On this rank alone: TypeError without a configuration.
    """

    policy: Policy
    strategy: str  # as reports call it

    def __init__(self, wrapped_model: Module, config: ShardingConfiguration):
        if not isinstance(config, ShardingConfiguration):
            raise TypeError(
                f"{type(self).__name__} needs an nn.Module and a ShardingConfiguration; got "
                f"{type(wrapped_model).__name__} and {type(config).__name__}"
            )
        if not config.backend.is_initialized:
            config.backend.initialize()
        with collectively(config.backend):
            self._check_arguments(wrapped_model)
        self.companions: dict[
            str, bytes
        ] = {}  # files beside the tensors, of the checkpoint that this model went on from
        self._assemble(wrapped_model, config, self._make_mesh(config.backend))
        self._tell_of_one_unit()

    def _check_arguments(self, wrapped_model):
        if not isinstance(wrapped_model, Module):
            raise TypeError(
                f"{type(self).__name__} needs an nn.Module and a ShardingConfiguration; got "
                f"{type(wrapped_model).__name__} for the model"
            )

    def _assemble(self, wrapped_model, config, mesh):
        self.wrapped_model, self.sharding_configuration, self.mesh = wrapped_model, config, mesh
        self.engine = Engine(wrapped_model, config, mesh, self.policy)
        self._saver = Saver(mesh.world, self.engine.device)
        self._last_loss: float | None = None
        self._last_batch: tuple | None = None
        self._evaluation: dict | None = None
        self._train_seconds = 0.0
        self._is_closed = False

    def _check_open(self):
        if self._is_closed:
            raise CommunicationError(
                "this model is closed; make another one, or close it after its last use"
            )

    def _tell_of_one_unit(self):
        """Warn on rank 0 if units of the model would save memory, but it has none."""
        if (
            self.rank == 0
            and self.engine.units[0].is_released_after_use
            and self.mesh.size("data") > 1
        ):
            told = describe_one_unit(
                self.wrapped_model,
                self.sharding_configuration.minimum_parameter_group_size,
                self.engine.numerics.compute_dtype.itemsize,
            )
            if told is not None:
                warnings.warn(told, ShardingWarning, stacklevel=3)

    def _make_mesh(self, backend) -> Mesh:
        """All ranks are data replicas."""
        return Mesh(backend)

    @property
    def rank(self) -> int:
        """This rank in the whole mesh."""
        return self.mesh.rank

    @property
    def world_size(self) -> int:
        """Ranks of the whole mesh."""
        return self.mesh.world.world_size

    @property
    def parameter_count(self) -> int:
        """Elements of the whole model, each counted once."""
        return self.engine.weights.count

    @property
    def step_number(self) -> int:
        """Optimization steps taken."""
        return self.engine.state.step_number

    @property
    def local_parameter_shard(self):
        """What this rank owns and updates: 1-D, read-only, a snapshot. No communication.

        For DDP the full vector (of this rank's stage), in the canonical order of
        gather_full_parameters. For the others the spans of the units, in the order of the blocks;
        over all ranks their lengths add up to parameter_count.
        """
        self.engine.weights.check()
        owned = self.engine.weights.local()
        owned.flags.writeable = False
        return owned

    # ---- training --------------------------------------------------------------------------------

    def train(self, x, y) -> float:
        """Take one optimization step on this data rank's part of the batch. Collective.

        x, y     [samples of this rank, ...], cut into config.micro_batches equal micro-batches
        returns  the mean loss of the global batch before the step, the same on all ranks
        With auto_synchronize_gradients=False gradients are only accumulated, on this rank;
        synchronize_gradients() and step() complete the step. A step whose loss or gradients are NaN
        or infinite is skipped on all ranks, as is one in which no label counts; the loss is NaN
        then. Errors, on all ranks, whichever rank has the bad part: ShapeError if it is empty, does
        not divide into the micro-batches, or is nothing that the model or its loss takes; those of
        a checkpoint that is being written, before anything else is done.
        """
        self._check_open()
        self._saver.poll()
        began = time.perf_counter()
        is_whole_step = self.sharding_configuration.auto_synchronize_gradients
        self._last_loss = self.engine.train(x, y) if is_whole_step else self.engine.accumulate(x, y)
        self._last_batch = (x, y)
        self._train_seconds += time.perf_counter() - began
        return self._last_loss

    def compute_gradients(self, x, y, loss=None):
        """The mean gradient over the global batch of what this rank owns and updates. Collective;
        parameters are unchanged.

        loss     a function (prediction, y) -> mean loss, instead of the configured one
        returns  1-D, a copy; the spans of the units in the order of the blocks (for DDP: the whole
                 units)
        Errors, on all ranks: ShapeError as train, and if no label counts.
        """
        self._check_open()
        self.engine.compute_gradients(x, y, loss)
        return numpy.concatenate(
            [to_host(unit.gradients.updated) for unit in self.engine.own_units]
        )

    def apply_gradients(self, gradients, learning_rate: float):
        """Take a step with these gradients of what this rank updates, as compute_gradients returned
        them. Collective.

        gradients      1-D, the length that compute_gradients returns on this rank
        learning_rate  instead of the rule's own
        Errors, on all ranks: ShapeError on another length, ConfigurationError on a learning rate
        that is none, ShardingError on rates that differ.
        """
        self._check_open()
        self._saver.poll()
        with collectively(self.mesh.world):
            require(
                is_number(learning_rate, at_least=0),
                "learning_rate",
                learning_rate,
                "a finite number, at least 0",
            )
            self.engine.check_gradients(gradients)
        check_same(self.mesh.world, {"learning_rate": str(learning_rate)})
        self.engine.apply_gradients(gradients, learning_rate)

    def synchronize_gradients(self):
        """Make every owner hold the mean gradient, over all that was accumulated, of what it owns.
        Collective.

        Errors: ShardingError if nothing was accumulated since the last time.
        """
        self._check_open()
        self.engine.reduce_accumulated()

    def step(self):
        """Clip if configured, and apply the rule to the synchronized gradients. Collective.

        Errors: ShardingError if there are none; those of a checkpoint that is being written.
        """
        self._check_open()
        self._saver.poll()
        self.engine.update()

    def use_rule(self, rule):
        """Go on with another optimizer rule on the optimizer state that is there. Collective.

        Errors, on all ranks: ShardingError if the rule keeps other state than the one so far, or
        differs between ranks.
        """
        self._check_open()
        self.engine.state.use_rule(rule)
        self.engine.config = replace(self.engine.config, optimizer=rule)  # clones share the engine
        self.sharding_configuration = self.engine.config

    def compile(self) -> None:
        """Capture what a step computes on a GPU as CUDA graphs, and replay them: the same bits,
        less time in Python. Collective.

        Of batches of equal shapes, the first trains as without, the next is captured, the next is
        computed both ways and compared bit for bit, which takes the memory of activations twice;
        from then on graphs are replayed. If a step cannot be captured, or the replay differs, a
        warning says why and the model goes on uncompiled: a step with dropout is one, and one that
        sends numbers to the GPU or waits for some. Attributes of modules that are changed later,
        other than parameters and active features, do not change a graph. These graphs have been
        launched on a stand-in for CuPy only, not yet on a GPU. As with torch.nn.Module.compile, the
        model itself is changed and nothing is returned.
        Errors, on all ranks: ShardingError if supports_compilation is False, as it is on CPUs,
        where replaying a step gained nothing that was worth its code.
        """
        self.engine.compile()

    @property
    def supports_compilation(self) -> bool:
        """Whether compile() can be called, and has not failed. No communication."""
        return self.engine.supports_compilation

    def predict(self, x):
        """The wrapped model's output for x, a NumPy array. Collective: every data replica passes an
        x of its own.

        No samples have an empty prediction. Errors, on all ranks: ShapeError if any rank's x is
        nothing that the model takes.
        """
        self._check_open()
        return self.engine.predict(x)

    def evaluate(self, x, y) -> float:
        """The mean loss over the parts of all data ranks, the same on all ranks; nothing is
        learned. Collective.

        NaN if no label counts. Errors, on all ranks: ShapeError as train.
        """
        self._check_open()
        loss = self.engine.evaluate(x, y)
        self._evaluation = {"loss": loss, "step": self.step_number}
        return loss

    # ---- whole vectors, files --------------------------------------------------------------------

    def gather_full_parameters(self):
        """A new 1-D array of all parameters in the wrapped model's canonical order. Collective."""
        self._check_open()
        return self.engine.weights.gather()

    def get_parameters(self):
        """The same as gather_full_parameters(). Collective."""
        return self.gather_full_parameters()

    def set_parameters(self, vector):
        """Replace all parameters by this canonical vector. Collective.

        Errors, on all ranks: ValueError on another length, ShardingError if ranks pass different
        ones.
        """
        self._check_open()
        self.engine.weights.set(vector)

    def with_parameters(self, vector) -> "ShardedModel":
        """A new model of the same type on the same mesh with these parameters, and fresh optimizer
        state. Collective.

        Close it too: the mesh is closed with the last model that uses it.
        """
        other = self._with_own_parameters()
        other.set_parameters(vector)
        self.mesh.share()
        return other

    def clone(self) -> "ShardedModel":
        """A model of the same type that shares parameters, optimizer state and mesh with this one.
        No communication.

        Close it too: the mesh is closed with the last model that uses it.
        """
        self._check_open()
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        self.mesh.share()
        return other

    __copy__ = clone

    def deep_copy(self) -> "ShardedModel":
        """A model of the same type on the same mesh with parameters and optimizer state of its own.
        Collective.

        Close it too: the mesh is closed with the last model that uses it.
        """
        other = self._with_own_parameters()
        other.engine.state.copy_from(self.engine.state)
        other._last_loss, other._train_seconds = self._last_loss, self._train_seconds
        self.mesh.share()
        return other

    def __deepcopy__(self, memo):
        return self.deep_copy()

    def _with_own_parameters(self) -> "ShardedModel":
        self._check_open()
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._assemble(self.engine.weights.fresh_module(), self.engine.config, self.mesh)
        if self.engine.is_compiled:
            other.compile()
        return other

    def serialize(self) -> bytes:
        """Parameters, optimizer state and step as an HDF5 image, the same bytes on all ranks.
        Collective.

        The files of a tokenizer and the like, which a converted model keeps in its checkpoints, are
        not in it.
        """
        return make_image(
            self.engine.state.counted_boxes(),
            self.engine.state.shapes(),
            self.mesh.world,
            self.describe_state(),
        )

    def deserialize(self, data: bytes, *, only: str | None = None):
        """Go on from an image, made under any mesh and policy. Collective: all ranks pass the same
        bytes.

        only   "model": take the parameters alone, as load_model does
        Errors, on all ranks: CheckpointError if the bytes are damaged, foreign or of another model,
        which is unchanged; ValueError if `only` is another word.
        """
        wanted = self._wanted(only)
        self._adopt(load_image(data, self.engine.state.owned_boxes(), wanted, self.mesh.world))

    def save_state(self, file):
        """Write serialize() to a binary file object, which only rank 0 needs to have (others may
        pass None). Collective.
        """
        image = self.serialize()
        with collectively(self.mesh.world):
            if self.rank == 0:
                file.write(image)

    def load_state(self, file, *, only: str | None = None):
        """Read what save_state wrote from a binary file object of rank 0 (others may pass None).
        Collective; as deserialize.
        """
        with collectively(self.mesh.world):
            check_only(only)
            data = file.read() if self.rank == 0 else None
        self.deserialize(self.mesh.world.broadcast_object(data, 0), only=only)

    def save_model(
        self,
        path,
        *,
        keep: int | None = None,
        keep_every: int | None = None,
        data_position: dict | None = None,
    ) -> str:
        """Write a checkpoint of this step into folder `path` and return its own folder. Collective.

        keep           delete older checkpoints there but this many, the new one counted; None:
                       delete nothing
        keep_every     and but those of steps that this divides
        data_position  stored as it is, for whoever feeds the data
        Errors, on all ranks: PermissionError, OSError, CheckpointError; earlier checkpoints stay as
        they were.
        """
        self._saver.wait()
        return self._store(path).save(
            self.engine.state.counted_boxes(),
            self.mesh.world,
            self.describe_state(data_position),
            keep=keep,
            keep_every=keep_every,
        )

    def _store(self, path) -> CheckpointStore:
        return CheckpointStore(path, copies=self.engine.device.copies, companions=self.companions)

    def save_model_async(
        self,
        path,
        *,
        keep: int | None = None,
        keep_every: int | None = None,
        data_position: dict | None = None,
    ) -> PendingCheckpoint:
        """Begin to write a checkpoint of this step and return when its numbers are copied; training
        may go on. Collective.

        The copies are in host memory, as large as what this rank owns, and used again the next
        time. The checkpoint is there once all ranks have written and met again: in a train() or
        step() afterwards, or in wait() of what is returned, or in close(). One at a time: the next
        save waits for it. Arguments as for save_model. Errors, on all ranks: as save_model, also
        from those later calls; nothing is left of the checkpoint then.
        """
        return self._saver.start(
            self._store(path),
            self.engine.state.counted_boxes(),
            self.describe_state(data_position),
            Retention(keep, keep_every),
        )

    def abandon_saving(self):
        """Write no more of a checkpoint that is being written; what there is of it stays behind. No
        communication.

        For ranks that have lost others; else close() and the next save wait for it.
        """
        self._saver.abandon()

    def describe_state(self, data_position: dict | None = None) -> dict:
        """What a checkpoint says beside the tensors. No communication."""
        loss = self._last_loss
        return {
            "step": self.engine.state.step_number,
            "samples_seen": self.engine.state.samples_seen,
            "skipped_steps": self.engine.state.skips.total,
            "loss_scale": self.engine.loss_scale.state(),
            "compute_dtype": str(self.engine.numerics.compute_dtype),
            "last_loss": loss if loss is None or isfinite(loss) else None,  # JSON has no NaN
            "seed": self.sharding_configuration.seed,
            "mesh": {axis: self.mesh.size(axis) for axis in AXES},
            "strategy": self.strategy,
            "active_features": None
            if input_features(self.wrapped_model) is None
            else self.get_active_feature_indices(),
            "model": self._describe_model(),
            "optimizer": {
                **describe_rule(self.engine.state.rule),
                "state_since": self.engine.state.state_since,
            },
            "data_position": data_position or {},
        }

    def go_on_from(self, description: dict):
        """After the owned boxes were filled from elsewhere: be at the step that describe_state()
        told of. Collective.
        """
        self.engine.drop_gradients()
        self.engine.state.restore(
            description["step"],
            description["samples_seen"],
            description.get("skipped_steps", 0),
            description.get("loss_scale"),
            state_since(description),
        )
        self.engine.weights.awaits_values = False
        self._last_loss = description["last_loss"]
        features = input_features(self.wrapped_model)
        if features is not None and description["active_features"] is not None:
            features.activate(description["active_features"])

    def load_model(self, path, *, only: str | None = None) -> dict:
        """Go on from the newest valid checkpoint at `path`, written under any mesh and policy.
        Collective.

        path     what save_model() was given, or a run folder; or one checkpoint, which is then
                 taken or refused
        Under a rule that keeps other optimizer state than the one that wrote it, state that is
        missing starts at zero, with a bias correction of its own, and state that is not kept is
        left out; a warning on rank 0 says so.
        only     "model": take the parameters alone, to predict, or to begin a new training at step
                 0 with fresh optimizer state
        returns  what is stored beside the tensors: step, seed, data_position, ...; under "skipped"
                 why newer checkpoints were passed over, which is a warning on rank 0 too; under
                 "missing_state" and "unused_state" such names
        Errors, on all ranks: FileNotFoundError, PermissionError, CheckpointError; ValueError if
        `only` is another word; the model is unchanged then.
        """
        self._saver.wait()
        engine = self.engine
        wanted = self._wanted(only)
        store = CheckpointStore.found(path, self.mesh.world, engine.device.copies)
        try:
            checkpoint = store.load_newest(
                wanted.taken(engine.state.owned_boxes()),
                self.mesh.world,
                lambda checkpoint: checkpoint.fit(wanted),
                expendable=engine.weights.is_initial,
            )
        except (CheckpointError, PermissionError):  # on all ranks
            if engine.weights.is_initial:  # then arrays may be half filled, and are made again
                engine.weights.start_over()
            raise
        fit = checkpoint.fit(wanted)
        self._adopt(fit)
        self._take_companions(checkpoint)
        if self.rank == 0:
            warn_of_skipped(checkpoint, store.skipped)
        return {
            **checkpoint.manifest,
            "skipped": store.skipped,
            "missing_state": fit.missing_state,
            "unused_state": fit.unused_state,
        }

    def _take_companions(self, checkpoint):
        """All ranks keep them, so that any may die. Collective."""
        with collectively(self.mesh.world):
            companions = checkpoint.companions() if self.rank == 0 else None
        self.companions = self.mesh.world.broadcast_object(companions, 0)

    def _wanted(self, only: str | None) -> Wanted:
        """What this model takes from a checkpoint. Collective. Errors, on all ranks: ValueError on
        an unknown word.
        """
        with collectively(self.mesh.world):
            check_only(only)
        engine, features = self.engine, input_features(self.wrapped_model)
        return Wanted(
            engine.state.shapes(),
            engine.units[0].dtype,
            self._describe_model(),
            None if features is None else len(features.names),
            describe_rule(engine.state.rule),
            isinstance(engine.state.rule, RatedRule),
            only,
        )

    def _describe_model(self) -> dict:
        return {
            "class": type(self.wrapped_model).__name__,
            "configuration": configuration_of(self.wrapped_model),
        }

    def _adopt(self, fit: Fit):
        """After the arrays that are taken were filled: go on from there, and say what was not.
        Collective.
        """
        if fit.only is not None:
            self.engine.state.clear()
        self.go_on_from(fit.goes_on_from())
        if self.rank == 0:
            fit.warn()

    # ---- input features --------------------------------------------------------------------------

    def get_active_feature_indices(self) -> list[int]:
        """Numbers of the input features that the model looks at. Errors: FeatureError if it has no
        features.
        """
        return list(features_of(self.wrapped_model).active)

    def set_active_feature_indices(self, indices):
        """Look at these input features only, in training and prediction. Collective.

        Errors, on all ranks: FeatureError; ShardingError if ranks name different ones.
        """
        with collectively(self.mesh.world):
            numbers = features_of(self.wrapped_model).checked(indices)
        check_same(self.mesh.world, {"active features": str(list(numbers))})
        features_of(self.wrapped_model).activate(numbers)

    def is_feature_used(self, index: int) -> bool:
        """True if the model looks at this input feature. Errors: FeatureError if it has no
        features.
        """
        return index in features_of(self.wrapped_model).active

    def get_feature_importance(self, x=None, y=None) -> dict[str, float]:
        """{feature: growth of the loss when its values are shuffled}, the same on all ranks.
        Collective.

        x, y    this data rank's samples; None: the last batch that was trained on
        Errors, on all ranks: FeatureError if the model has no features, or there are no samples.
        """
        with collectively(self.mesh.world):
            features_of(self.wrapped_model)
            if x is None and self._last_batch is None:
                raise FeatureError(
                    "importance is measured on samples; pass x and y, or train first"
                )
        return permutation_importance(self, *(self._last_batch if x is None else (x, y)))

    # ---- what it is ------------------------------------------------------------------------------

    def get_model_metadata(self) -> dict:
        """Strategy, sizes, bytes on this rank and training history; a fresh dict. No
        communication.
        """
        live = self.engine.device.bytes_in_use
        return {
            "strategy": self.strategy,
            "is_distributed": self.world_size > 1,
            "world_size": self.world_size,
            "rank": self.rank,
            **{f"{axis}_parallel_size": self.mesh.size(axis) for axis in AXES},
            **{f"{axis}_parallel_rank": getattr(self.mesh.coordinates, axis) for axis in AXES},
            "parameter_count": self.parameter_count,
            "shard_size": self.engine.weights.local().size,
            "num_units": len(self.engine.units),
            "compiled": self.engine.is_compiled,
            "compute_dtype": str(self.engine.numerics.compute_dtype),
            "matmul_precision": self.engine.numerics.precision,
            "blas": self.engine.numerics.blas.name
            if self.engine.numerics.blas
            else self.sharding_configuration.blas,
            "loss_scale": self.engine.loss_scale.value,
            "parameter_bytes": live("parameters", "gathered parameters"),
            "gradient_bytes": live("gradients", "gradients in flight"),
            "optimizer_bytes": live("optimizer state"),
            "activation_bytes": live("activations"),
            "peak_bytes": self.engine.device.accounts.peak_bytes(),
            "schedule": self.sharding_configuration.schedule,
            "bubble_fraction": self.engine.bubble_fraction,
            "overlap": str(self.engine.overlap),
            "exposed_communication_seconds": dict(self.engine.exposure.of_step),
            "micro_batches": self.sharding_configuration.micro_batches,
            "history": {
                "steps": self.step_number,
                "samples_seen": self.engine.state.samples_seen,
                "last_loss": self._last_loss,
                "skipped_steps": self.engine.state.skips.total,
                "wall_seconds": self._train_seconds,
            },
            "evaluation": dict(self._evaluation) if self._evaluation else None,
        }

    def describe(self) -> str:
        """A table of who is where: each rank's coordinates, host, pipeline stages, and the first
        and last block of each.

        The same text on all ranks, no communication.
        """
        names = {
            id(block): name or type(block).__name__ for name, block in blocks_of(self.wrapped_model)
        }
        runs = [self.engine.stages.blocks_of(rank) for rank in range(self.mesh.size("pipeline"))]
        of_ranks = [
            runs[self.mesh.shape.coordinates(rank).pipeline] for rank in range(self.world_size)
        ]
        table = self.mesh.describe(
            stages=[", ".join(map(str, run)) for run in of_ranks],
            blocks=[", ".join(_ends(names, blocks) for blocks in run.values()) for run in of_ranks],
        )
        config = self.sharding_configuration
        return (
            f"{self.strategy}: policy {self.policy.name}, schedule {config.schedule}, {config.micro_batches} micro-batches "
            f"per data rank\n{table}"
        )

    def close(self):
        """Wait for a checkpoint that is being written, and give memory of activations and
        communicators back. Collective.

        The model cannot train afterwards, its clones and copies can: the last of them closes the
        communicators. A second call does nothing. Errors: those of the checkpoint.
        """
        if self._is_closed:
            return
        self._saver.wait()
        self._is_closed = True
        self.engine.clear_activations()
        if not self.mesh.is_shared:
            close_groups(self.wrapped_model)
        self.mesh.close()


class DDPModel(ShardedModel):
    """Everything replicated; gradients are summed over all ranks (arXiv 2006.15704)."""

    policy, strategy = POLICIES["ddp"], "DDP"


class ZeRO1Model(ShardedModel):
    """Optimizer state sharded over the ranks (arXiv 1910.02054, stage 1)."""

    policy, strategy = POLICIES["zero1"], "ZeRO-1"


class ZeRO2Model(ShardedModel):
    """Optimizer state and gradients sharded (arXiv 1910.02054, stage 2)."""

    policy, strategy = POLICIES["zero2"], "ZeRO-2"


class FSDPModel(ShardedModel):
    """Parameters, gradients and optimizer state sharded; each unit is gathered just in time (ZeRO
    stage 3).
    """

    policy, strategy = POLICIES["fsdp"], "FSDP"


ZeRO3Model = FSDPModel


class PipelineParallelModel(ShardedModel):
    """Each rank holds one stage of the model: its own layers, on activations that it receives
    (arXiv 1811.06965).

    All ranks pass the same x and y to train, and get the same predictions. config.schedule names
    the order of the micro-batches. Errors, on all ranks: StagesError if the model has fewer units
    than the schedule has stages.
    """

    policy, strategy = POLICIES["ddp"], "PipelineParallel"

    def _make_mesh(self, backend):
        return Mesh(backend, pipeline=backend.world_size)


class TensorParallelModel(ShardedModel):
    """Every layer cut over all ranks: each computes its heads, hidden units and vocabulary rows
    (arXiv 1909.08053).

    All ranks pass the same x and y to train, and get the same predictions. The model is a GPT or
    MLP, or the configuration has a tensor_plan. Errors, on all ranks: ShardingError and
    ConfigurationError, with the arithmetic, if it cannot be cut.
    """

    policy, strategy = POLICIES["ddp"], "TensorParallel"

    def _make_mesh(self, backend):
        return Mesh(backend, tensor=backend.world_size)


class HybridShardedModel(ShardedModel):
    """Pipeline stages x data replicas x tensor ranks, all at once, under any policy on the data
    axis.

    data_parallel_size   -1: the ranks that are left over
    policy               "ddp", "zero1", "zero2" or "fsdp"
    order                axes from the slowest to the one that varies fastest with the rank
    Errors, on all ranks: ValueError on a size < 1 (data: and not -1), MeshError with the arithmetic
    if the sizes do not multiply to the number of ranks, ConfigurationError on another policy, and
    those of the strategies it combines.
    """

    strategy = "3D-Parallelism (Hybrid)"

    def __init__(
        self,
        wrapped_model: Module,
        config: ShardingConfiguration,
        pipeline_parallel_size: int = 1,
        tensor_parallel_size: int = 1,
        data_parallel_size: int = -1,
        policy: str = "fsdp",
        order=AXES,
    ):
        self._policy_name = policy
        self._sizes = {
            "pipeline": pipeline_parallel_size,
            "tensor": tensor_parallel_size,
            "data": data_parallel_size,
            "order": order,
        }
        super().__init__(wrapped_model, config)

    def _check_arguments(self, wrapped_model):
        super()._check_arguments(wrapped_model)
        self.policy = policy_named(self._policy_name)

    def _make_mesh(self, backend):
        return Mesh(backend, **self._sizes)


def split_batch(mesh: Mesh, *arrays):
    """This data rank's slice of each array of a global batch, along dim 0, in rank order. No
    communication.

    Uneven batches give the first ranks one more. Errors, the same on all ranks that pass the same
    arrays: ShapeError if there are fewer samples than data ranks, or arrays of different lengths.
    """
    if any(numpy.ndim(array) == 0 for array in arrays):
        raise ShapeError("split_batch of a single number; wanted arrays [samples, ...]")
    lengths = sorted({len(array) for array in arrays})
    if len(lengths) > 1:
        raise ShapeError(
            f"split_batch of arrays of {' and '.join(map(str, lengths[::-1]))} samples; wanted the same number"
        )
    if arrays and lengths[0] < mesh.size("data"):
        raise ShapeError(
            f"a batch of {lengths[0]} samples cannot be split over {mesh.size('data')} data ranks; wanted one for "
            "each, or more"
        )
    return tuple(own_part(mesh, array) for array in arrays)


def own_part(mesh: Mesh, array):
    """The same slice of one array, empty where there are fewer samples than data ranks."""
    return numpy.array_split(array, mesh.size("data"))[mesh.coordinates.data]


def _ends(names, blocks) -> str:
    """The name of the only block, or of the first and the last."""
    return " .. ".join(dict.fromkeys(names[id(block)] for block in (blocks[0], blocks[-1])))
