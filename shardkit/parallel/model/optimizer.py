"""ShardedOptimizer: an optimizer rule, and the sharded model that it trains.

    optimizer = FSDPOptimizer(AdamW(lr=1e-3), config, model=models.MLP([20, 64, 1]))
    result = optimizer.optimize(OptimizationInputData(x, y, x_validation, y_validation, epochs=20))

An optimizer owns no arrays: parameters, gradients and optimizer state are those of its model's
engine, sharded as the model's class decides, and its files are the model's. So each implementation
(optimizers.py) names the ShardedModel that it trains with.
"""

from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from ...annotations import FilePath
from ...arguments import is_integer, is_number, require
from ...comm.failure.agreement import agree, collectively
from ...comm.same import alike, check_same, facts_of
from ...errors import ShardingError
from ...layout.axes import AXES, parallel_sizes
from ...nn.module import Module
from ...optim.rules import Rule
from ...refusal import check_usable
from ..settings import ShardingConfiguration
from .callback import Callback, Callbacks
from .optimization import OptimizationInputData, OptimizationResult, check_together
from .optimizing import Optimization
from .patience import Patience
from .replicas import StateDrift, synchronize_replicas
from .sharded_model import ShardedModel, parts_of, strategy_of

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def _of_the_model(
    method: Callable[Concatenate[ShardedModel, Arguments], Result],
) -> Callable[Concatenate["ShardedOptimizer", Arguments], Result]:
    """Return a method of optimizers that is this one of their model."""

    @wraps(method)
    def of_the_model(
        self: "ShardedOptimizer", *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        return getattr(self._attached(), method.__name__)(*args, **kwargs)

    return of_the_model


class ShardedOptimizer:
    """The contract of all implementations.

    "Collective": all ranks of the configuration's backend must call it.

    Parameters
    ----------
    wrapped_optimizer
        A rule such as AdamW(lr=1e-3); config.optimizer does not count.
    config
        ShardingConfiguration; its backend is initialized here if it is not yet.
    model
        An nn.Module, which is sharded here, or a sharded model of the class that this optimizer
        trains with, made with the same configuration; None: optimize() is given one.
    patience
        Epochs without improvement after which optimize() stops; None: it does not.
    minimum_improvement
        Of the fitness, below which an epoch counts as none; in units of the loss.

    Raises
    ------
    TypeError
        On all ranks, without a rule and on a model of another class; on this rank alone, without a
        configuration.
    ConfigurationError
        On all ranks, on a bad patience, setting, or constant of the rule.
    ShardingError
        On all ranks, on a model that keeps other state than the rule or was made with another
        configuration, and those of the model's class.

    Notes
    -----
    Making one is collective.
    """

    _model_class: type[ShardedModel]

    def __init__(
        self,
        wrapped_optimizer: Rule,
        config: ShardingConfiguration,
        *,
        model: Any = None,
        patience: int | None = None,
        minimum_improvement: float = 0.0,
    ) -> None:
        name = type(self).__name__
        if not isinstance(config, ShardingConfiguration):
            raise TypeError(f"{name} needs a ShardingConfiguration, got {type(config).__name__}")
        self.wrapped_optimizer, self.sharding_configuration = wrapped_optimizer, config
        self.patience, self.minimum_improvement = patience, minimum_improvement
        self.model: ShardedModel | None = None
        self.fitness_history: list[float] = []  # of the last optimize(), one per epoch
        if not config.backend.is_initialized:
            config.backend.initialize()
        with collectively(config.backend):
            if isinstance(wrapped_optimizer, type) or not isinstance(wrapped_optimizer, Rule):
                got = repr(wrapped_optimizer)
                raise TypeError(f"{name} needs a rule such as AdamW(lr=1e-3), got {got}")
            check_usable(wrapped_optimizer, config)
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
        patience, minimum = self.patience, self.minimum_improvement
        is_patience = patience is None or is_integer(patience, at_least=1)
        require(is_patience, "patience", patience, "None or an integer >= 1, in epochs")
        is_minimum = is_number(minimum, at_least=0)
        require(is_minimum, "minimum_improvement", minimum, "a finite number >= 0")

    # ---- the model -------------------------------------------------------------------------------

    def _attach(self, model):
        """Train a module, which is sharded, or a sharded model from now on. Collective."""
        backend, is_module = self.sharding_configuration.backend, isinstance(model, Module)
        with collectively(backend):
            if not is_module:
                self._check_sharded(model)
        check_same(backend, {"the model": "a module" if is_module else "a sharded model"})
        if not is_module:
            model.use_rule(self.wrapped_optimizer)
        self.model = self._shard(model) if is_module else model

    def _shard(self, module: Module) -> ShardedModel:
        return self._model_class(module, self._configuration())

    def _configuration(self) -> ShardingConfiguration:
        """Return the model's configuration, whose rule is the wrapped one."""
        return replace(self.sharding_configuration, optimizer=self.wrapped_optimizer)

    def _check_sharded(self, model):
        if not isinstance(model, self._model_class):
            wanted = self._model_class.__name__
            raise TypeError(
                f"{type(self).__name__} trains a {wanted}, but got a {type(model).__name__}; pass "
                f"an nn.Module or a {wanted}, or use the optimizer of that class"
            )
        for field in fields(ShardingConfiguration):
            got = getattr(model.sharding_configuration, field.name)
            wanted = getattr(self.sharding_configuration, field.name)
            if got != wanted and field.name not in ("optimizer", "learning_rate"):
                raise ShardingError(
                    f"the model was made with {field.name} = {got!r}, the optimizer with "
                    f"{wanted!r}; make both with one configuration"
                )

    def _attached(self) -> ShardedModel:
        if self.model is None:
            raise ShardingError(
                f"this {type(self).__name__} has no model yet; make it with model=..., or give "
                "optimize() an initial_solution"
            )
        return self.model

    def close(self) -> None:
        """Close the model, which cannot be trained afterwards. Collective."""
        self._attached().close()

    # ---- steps -----------------------------------------------------------------------------------

    def step(self) -> None:
        """Synchronize accumulated gradients, clip if configured, and apply the rule. Collective.

        Raises
        ------
        ShardingError
            On all ranks, if there are no gradients, or no model.
        """
        model = self._attached()
        if parts_of(model).engine.has_pending_gradients:
            model.synchronize_gradients()
        model.step()

    def zero_gradients(self) -> None:
        """Forget all gradients, accumulated or synchronized. No communication.

        Raises
        ------
        ShardingError
            Without a model.
        """
        parts_of(self._attached()).engine.drop_gradients()

    def synchronize_optimizer_state(self) -> StateDrift:
        """Make all replicas of parameters and optimizer state the bits of their first holder.

        Collective.

        Returns
        -------
        StateDrift
            How far they had drifted, the same on all ranks; 0 unless something wrote to one rank
            alone.

        Raises
        ------
        ShardingError
            Without a model.
        """
        return synchronize_replicas(parts_of(self._attached()).engine)

    def reset(self) -> None:
        """Clear optimizer state, step number and fitness history; parameters stay. Collective."""
        self.fitness_history = []
        if self.model is not None:
            parts = parts_of(self.model)
            parts.engine.drop_gradients()
            parts.state.reset()

    # ---- files and images of the model -----------------------------------------------------------

    save_model = _of_the_model(ShardedModel.save_model)
    save_model_async = _of_the_model(ShardedModel.save_model_async)
    load_model = _of_the_model(ShardedModel.load_model)
    serialize = _of_the_model(ShardedModel.serialize)
    deserialize = _of_the_model(ShardedModel.deserialize)
    save_state = _of_the_model(ShardedModel.save_state)
    load_state = _of_the_model(ShardedModel.load_state)

    # ---- whole runs ------------------------------------------------------------------------------

    def optimize(
        self,
        input_data: OptimizationInputData,
        *,
        folder: FilePath | None = None,
        callbacks: Iterable[Callback] = (),
        stop: Callable[[], bool] | None = None,
    ) -> OptimizationResult:
        """Train for some epochs and keep the parameters of the best.

        Collective; all ranks pass the same whole arrays. Lower fitness is better: the validation
        loss after an epoch or, without validation samples, the mean training loss of the epoch.
        Ends early when `patience` epochs brought no improvement. The model then has the best
        parameters, and the optimizer state and step number of the last step. An initial vector
        starts with fresh optimizer state.

        Parameters
        ----------
        input_data
            What to learn from and to judge by.
        folder
            A checkpoint is written into its checkpoints/ after each epoch, where the newest two and
            that of the best epoch stay, and a run that is here goes on, to the bits of an
            uninterrupted one, or on another mesh to its parameters, while the fitness rounds as the
            mesh cuts the validation set. One that cannot be written is tried again, and training
            goes on. SIGTERM, SIGUSR1, SIGUSR2 and Ctrl-C, on any rank, are then a wish to stop.
        callbacks
            See Callback: at_start (with an object that has model and folder), after_step,
            after_validation ("train_loss", "validation_loss", "fitness"), after_checkpoint, at_end
            (with the result).
        stop
            () -> bool, asked on each rank before each step; one yes stops all ranks. With a folder
            they save a checkpoint and leave the program with exit code 75, as a stopped Training
            does; without, StopVoted is raised. An error of it is raised on all ranks.

        Raises
        ------
        ShapeError, ConfigurationError, TypeError
            On all ranks, on bad input.
        ShardingError
            On all ranks, without a model.
        CheckpointError
            On all ranks, on a folder of another run, on one that nothing can be written into at the
            start, and if the last checkpoint cannot be written.
        """
        backend = self.sharding_configuration.backend
        check_together(input_data, backend)
        with alike(backend) as facts:
            place = None if folder is None else str(Path(folder).resolve())
            ends = {"patience": self.patience, "minimum_improvement": self.minimum_improvement}
            facts |= facts_of({"folder": place, **ends})
        self._begin_at(input_data.initial_solution)
        self.fitness_history = []
        optimization = Optimization(
            self._attached(),
            input_data,
            self.step,
            folder,
            Callbacks(callbacks, self.rank == 0),
            patience=self._patience_after(self.fitness_history),
            history=self.fitness_history,
            stop=stop,
        )
        self.zero_gradients()
        return optimization.run()

    def _begin_at(self, solution):
        if isinstance(solution, (Module, ShardedModel)):
            self._attach(solution)
        elif solution is not None:
            self._attached().set_parameters(solution)
            self.reset()

    def should_early_stop(self, wants_to_stop: bool | None = None) -> bool:
        """Return, on all ranks, whether any rank wants to stop. Collective.

        Parameters
        ----------
        wants_to_stop
            This rank's vote; None: if `patience` epochs of the fitness history brought no
            improvement.
        """
        if wants_to_stop is None:
            wants_to_stop = self._patience_after(self.fitness_history).is_over()
        return agree(self.sharding_configuration.backend, wants_to_stop)

    def _patience_after(self, fitness_history) -> Patience:
        return Patience(self.patience, fitness_history, self.minimum_improvement)

    def get_options(self) -> dict:
        """Return the rule, its hyper-parameters and how the model is sharded: a fresh dict.

        Sizes are None before there is a model.
        """
        config, mesh = self.sharding_configuration, None if self.model is None else self.model.mesh
        return {
            "rule": type(self.wrapped_optimizer).__name__,
            **vars(self.wrapped_optimizer),
            "strategy": strategy_of(self._model_class).label,
            "world_size": self.world_size,
            **parallel_sizes(mesh.shape.sizes if mesh else dict.fromkeys(AXES)),
            "max_gradient_norm": config.max_gradient_norm,
            "micro_batches": config.micro_batches,
            "schedule": config.schedule,
            "patience": self.patience,
            "minimum_improvement": self.minimum_improvement,
        }
