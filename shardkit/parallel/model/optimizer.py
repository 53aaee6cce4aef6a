"""Sharded optimizers: a rule, and the sharded model that it trains.

    optimizer = FSDPOptimizer(AdamW(lr=1e-3), config, model=models.MLP([20, 64, 1]))
    result = optimizer.optimize(OptimizationInputData(x, y, x_validation, y_validation, epochs=20))

An optimizer owns no arrays: parameters, gradients and optimizer state are those of its model's
engine, sharded as the model's class says. So each implementation is a name for the ShardedModel
that it trains with.
"""

from dataclasses import fields, replace

from ...arguments import is_integer, is_number, require
from ...comm import agree, check_same, collectively
from ...config import ShardingConfiguration
from ...errors import MeshError, ShardingError
from ...layout.mesh_shape import AXES, MeshShape
from ...layout.policy import policy_named
from ...nn.features import input_features
from ...nn.module import Module
from ...optim import Rule
from ..data.batches import split_batch
from .copies import StateDrift, synchronize_copies
from .optimization import (
    SETS,
    BestEpoch,
    OptimizationInputData,
    OptimizationResult,
    check_together,
    epochs_since_improvement,
    evaluate_set,
)
from .sharded_model import ShardedModel
from .strategies import (
    DDPModel,
    FSDPModel,
    HybridShardedModel,
    PipelineParallelModel,
    TensorParallelModel,
    ZeRO1Model,
    ZeRO2Model,
)


class ShardedOptimizer:
    """The contract of all implementations. "Collective": all ranks of the configuration's backend
    must call it.

    wrapped_optimizer    a rule such as AdamW(lr=1e-3); config.optimizer does not count
    config               ShardingConfiguration; its backend is initialized here if it is not yet
    model                an nn.Module, which is sharded here, or a sharded model of the class that
                         this optimizer trains with, made with the same configuration; None:
                         optimize() is given one
    patience             epochs without improvement after which optimize() stops; None: it does not
    minimum_improvement  of the fitness, below which an epoch counts as none; in units of the loss
    Making one is collective. Errors, on all ranks: TypeError without a rule or a configuration and
    on a model of another class, ConfigurationError on a bad patience, ShardingError on a model that
    keeps other state than the rule or was made with another configuration, and those of the model's
    class.
    """

    model_class: type[ShardedModel]

    def __init__(
        self,
        wrapped_optimizer: Rule,
        config: ShardingConfiguration,
        *,
        model=None,
        patience: int | None = None,
        minimum_improvement: float = 0.0,
    ):
        _check_kinds(type(self).__name__, wrapped_optimizer, config)
        self.wrapped_optimizer, self.sharding_configuration = wrapped_optimizer, config
        self.patience, self.minimum_improvement = patience, minimum_improvement
        self.model: ShardedModel | None = None
        self.fitness_history: list[float] = []  # of the last optimize(), one per epoch
        if not config.backend.is_initialized:
            config.backend.initialize()
        with collectively(config.backend):
            self._check_settings()
        if model is not None:
            self._attach(model)

    @property
    def rank(self) -> int:
        """This rank among all."""
        return self.sharding_configuration.backend.rank

    @property
    def world_size(self) -> int:
        """The number of all ranks."""
        return self.sharding_configuration.backend.world_size

    def _check_settings(self):
        require(
            self.patience is None or is_integer(self.patience, at_least=1),
            "patience",
            self.patience,
            "None or an integer >= 1, in epochs",
        )
        require(
            is_number(self.minimum_improvement, at_least=0),
            "minimum_improvement",
            self.minimum_improvement,
            "a finite number >= 0",
        )

    # ---- the model -------------------------------------------------------------------------------

    def _attach(self, model):
        """Train this one from now on: a module is sharded, a sharded model gets the rule.
        Collective.
        """
        with collectively(self.sharding_configuration.backend):
            is_module = isinstance(model, Module)
            if not is_module:
                self._check_sharded(model)
        check_same(
            self.sharding_configuration.backend,
            {"the model": "a module" if is_module else "a sharded model"},
        )
        if not is_module:
            model.use_rule(self.wrapped_optimizer)
        self.model = self._shard(model) if is_module else model

    def _shard(self, module: Module) -> ShardedModel:
        return self.model_class(module, self._configuration())

    def _configuration(self) -> ShardingConfiguration:
        """That of the model: the rule is the wrapped one."""
        return replace(self.sharding_configuration, optimizer=self.wrapped_optimizer)

    def _check_sharded(self, model):
        if not isinstance(model, self.model_class):
            raise TypeError(
                f"{type(self).__name__} trains a {self.model_class.__name__}, but got a {type(model).__name__}; pass "
                f"an nn.Module or a {self.model_class.__name__}, or use the optimizer of that class"
            )
        for field in fields(ShardingConfiguration):
            got, wanted = (
                getattr(config, field.name)
                for config in (model.sharding_configuration, self._configuration())
            )
            if got != wanted and field.name not in ("optimizer", "learning_rate"):
                raise ShardingError(
                    f"the model was made with {field.name} = {got!r}, the optimizer with {wanted!r}; make both "
                    "with one configuration"
                )

    def _attached(self) -> ShardedModel:
        if self.model is None:
            raise ShardingError(
                f"this {type(self).__name__} has no model yet; make it with model=..., or give optimize() an "
                "initial_solution"
            )
        return self.model

    def close(self):
        """Give the communicators of the model's mesh back; it cannot be trained afterwards.
        Collective.
        """
        self._attached().close()

    # ---- steps -----------------------------------------------------------------------------------

    def step(self):
        """Synchronize gradients that are only accumulated so far, clip if configured, and apply the
        rule. Collective.

        Errors, on all ranks: ShardingError if there are no gradients, or no model.
        """
        model = self._attached()
        if model.engine.has_pending_gradients:
            model.synchronize_gradients()
        model.step()

    def zero_gradients(self):
        """Forget all gradients, accumulated or synchronized. No communication. Errors:
        ShardingError without a model.
        """
        self._attached().engine.drop_gradients()

    def synchronize_optimizer_state(self) -> StateDrift:
        """Make all copies of parameters and optimizer state the bits of their first holder.
        Collective.

        returns  how far they had drifted, the same on all ranks; 0 unless something wrote to one
                 rank alone
        Errors: ShardingError without a model.
        """
        return synchronize_copies(self._attached().engine)

    def reset(self):
        """Optimizer state zero, step number 0, no fitness history; the parameters stay.
        Collective.
        """
        self.fitness_history = []
        if self.model is not None:
            self.model.engine.drop_gradients()
            self.model.engine.state.reset()

    # ---- whole runs ------------------------------------------------------------------------------

    def optimize(self, input_data: OptimizationInputData) -> OptimizationResult:
        """Train for some epochs and keep the parameters of the best. Collective; all ranks pass the
        same whole arrays.

        Lower fitness is better: the validation loss after an epoch or, without validation samples,
        the mean training loss of the epoch. Ends early when `patience` epochs brought no
        improvement. The model then has the best parameters, and the optimizer state and step number
        of the last step. An initial vector starts with fresh optimizer state. Errors, on all ranks:
        ShapeError, ConfigurationError and TypeError on bad input, ShardingError without a model.
        """
        check_together(input_data, self.sharding_configuration.backend)
        self._begin_at(input_data.initial_solution)
        model, first_step = self._attached(), self._attached().step_number
        with collectively(model.mesh.world):
            input_data.check_batches(self._parts_per_batch())
            input_data.check_samples(model.engine)
        self.zero_gradients()
        self.fitness_history, best = [], BestEpoch()
        for epoch in range(input_data.epochs):
            self.fitness_history.append(self._fitness_after(epoch, input_data))
            best.offer(self.fitness_history[-1], model)
            if self.should_early_stop():
                break
        best.put_back(model)
        return self._result(input_data, best.fitness, model.step_number - first_step)

    def _begin_at(self, solution):
        if isinstance(solution, (Module, ShardedModel)):
            self._attach(solution)
        elif solution is not None:
            self._attached().set_parameters(solution)
            self.reset()

    def _parts_per_batch(self) -> int:
        """Equal parts that a global batch is cut into, over all data ranks."""
        return self.model.mesh.size("data") * self.sharding_configuration.micro_batches

    def _fitness_after(self, epoch: int, given: OptimizationInputData) -> float:
        training_loss = self._train_epoch(epoch, given)
        validation = evaluate_set(self.model, given.samples("validation"), given.batch_size)
        return training_loss if validation is None else validation.loss

    def _train_epoch(self, epoch: int, given: OptimizationInputData) -> float:
        """One step for each batch; the mean loss of their samples, each before its step."""
        (x, y), total, count = given.samples("train"), 0.0, 0
        for batch in given.batches(epoch, self._parts_per_batch()):
            (mine,) = split_batch(self.model.mesh, batch)
            total, count = (
                total + len(batch) * self.model.train(x[mine], y[mine]),
                count + len(batch),
            )
            if not self.sharding_configuration.auto_synchronize_gradients:
                self.step()
        return total / count

    def _result(self, given, fitness, iterations) -> OptimizationResult:
        features = input_features(self.model.wrapped_model)
        return OptimizationResult(
            self.model,
            fitness,
            iterations,
            tuple(self.fitness_history),
            *(evaluate_set(self.model, given.samples(name), given.batch_size) for name in SETS),
            selected_features=None if features is None else tuple(features.active),
        )

    def should_early_stop(self, wants_to_stop: bool | None = None) -> bool:
        """True on all ranks if any rank wants to stop. Collective.

        wants_to_stop   this rank's vote; None: if `patience` epochs of the fitness history brought
                        no improvement
        """
        if wants_to_stop is None:
            waited = epochs_since_improvement(self.fitness_history, self.minimum_improvement)
            wants_to_stop = self.patience is not None and waited >= self.patience
        return agree(self.sharding_configuration.backend, wants_to_stop)

    # ---- files -----------------------------------------------------------------------------------

    def serialize(self) -> bytes:
        """Model and optimizer state as ShardedModel.serialize writes them. Collective. Errors:
        ShardingError, no model.
        """
        return self._attached().serialize()

    def deserialize(self, data: bytes, *, only: str | None = None):
        """Go on from an image, as ShardedModel.deserialize. Collective. Errors: CheckpointError;
        ShardingError, no model.
        """
        self._attached().deserialize(data, only=only)

    def save_model(self, path, *, keep: int | None = None) -> str:
        """Write a checkpoint of model and optimizer state into folder `path`. Collective; as
        ShardedModel.save_model.
        """
        return self._attached().save_model(path, keep=keep)

    def load_model(self, path, *, only: str | None = None) -> dict:
        """Go on from the newest valid checkpoint, of any mesh and policy. Collective; as
        ShardedModel.load_model.
        """
        return self._attached().load_model(path, only=only)

    def get_options(self) -> dict:
        """The rule, its hyper-parameters and how the model is sharded; sizes are None before there
        is one. A fresh dict.
        """
        config, mesh = self.sharding_configuration, None if self.model is None else self.model.mesh
        return {
            "rule": type(self.wrapped_optimizer).__name__,
            **vars(self.wrapped_optimizer),
            "strategy": self.model_class.strategy,
            "world_size": self.world_size,
            **{f"{axis}_parallel_size": None if mesh is None else mesh.size(axis) for axis in AXES},
            "max_gradient_norm": config.max_gradient_norm,
            "micro_batches": config.micro_batches,
            "schedule": config.schedule,
            "patience": self.patience,
            "minimum_improvement": self.minimum_improvement,
        }


def _check_kinds(name, rule, config):
    """Errors: TypeError unless these are a rule and a configuration."""
    if isinstance(rule, type) or not isinstance(rule, Rule):
        raise TypeError(f"{name} needs a rule such as AdamW(lr=1e-3), got {rule!r}")
    if not isinstance(config, ShardingConfiguration):
        raise TypeError(f"{name} needs a ShardingConfiguration, got {type(config).__name__}")


class DDPOptimizer(ShardedOptimizer):
    """Every rank keeps all of the optimizer state, and takes the same step."""

    model_class = DDPModel


class ZeRO1Optimizer(ShardedOptimizer):
    """Each rank keeps the optimizer state of its span, and updates that (arXiv 1910.02054, stage
    1).
    """

    model_class = ZeRO1Model


class ZeRO2Optimizer(ShardedOptimizer):
    """The same, and each rank keeps the gradients of its span only."""

    model_class = ZeRO2Model


class FSDPOptimizer(ShardedOptimizer):
    """The same, and each rank keeps the parameters of its span only."""

    model_class = FSDPModel


class PipelineParallelOptimizer(ShardedOptimizer):
    """Each rank updates the layers of its stage; tied weights take the same step on all stages that
    use them.
    """

    model_class = PipelineParallelModel


class TensorParallelOptimizer(ShardedOptimizer):
    """Each rank updates its slice of what is cut; what is replicated takes the same step everywhere
    (arXiv 1909.08053).

    Norms and biases of row layers get one agreed gradient, the global gradient norm counts every
    element once, and optimizer state is saved as boxes of whole tensors, so it opens under another
    tensor size.
    """

    model_class = TensorParallelModel


class HybridShardedOptimizer(ShardedOptimizer):
    """Pipeline stages x data replicas x tensor ranks, under any policy on the data axis.

    Sizes, policy and order are those of HybridShardedModel; a sharded model that is passed must
    have the same. Errors, on all ranks: also MeshError and ConfigurationError, as
    HybridShardedModel.
    """

    model_class = HybridShardedModel

    def __init__(
        self,
        wrapped_optimizer: Rule,
        config: ShardingConfiguration,
        *,
        pipeline_parallel_size: int = 1,
        tensor_parallel_size: int = 1,
        data_parallel_size: int = -1,
        policy: str = "fsdp",
        order=AXES,
        **settings,
    ):
        self._sizes = {
            "pipeline": pipeline_parallel_size,
            "tensor": tensor_parallel_size,
            "data": data_parallel_size,
        }
        self._policy, self._order = policy, order
        super().__init__(wrapped_optimizer, config, **settings)

    def _shape(self) -> MeshShape:
        return MeshShape.infer(self.world_size, **self._sizes, order=self._order)

    def _check_settings(self):
        super()._check_settings()
        policy_named(self._policy)
        self._shape()

    def _shard(self, module):
        sizes = {f"{axis}_parallel_size": size for axis, size in self._sizes.items()}
        return self.model_class(
            module, self._configuration(), **sizes, policy=self._policy, order=self._order
        )

    def _check_sharded(self, model):
        super()._check_sharded(model)
        if model.mesh.shape != self._shape():
            raise MeshError(
                f"the model is on a mesh of {model.mesh.shape}, the optimizer was made for {self._shape()}; give "
                "both the same sizes and order"
            )
        if model.policy != policy_named(self._policy):
            raise ShardingError(
                f"the model is sharded as {model.policy.name}, the optimizer was made with policy = "
                f"{self._policy!r}; give both the same"
            )

    def get_options(self):
        return {**super().get_options(), "policy": self._policy, "order": tuple(self._order)}
