"""The parts of a sharded model: what it holds, and how they are made, shared and closed.

    model    --clone()-->       another history and checkpoints    on the same engine
             --deep_copy()-->   another engine, in the same state  on the same mesh

The last model of a mesh closes its communicators.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace

from ...checkpoint.attributes import Attributes
from ...checkpoint.background import Saver
from ...comm.backend import CommunicationBackend
from ...comm.failure.agreement import collectively
from ...comm.mesh import Mesh
from ...comm.same import check_same
from ...errors import ShardingWarning
from ...habits import named_here
from ...layout.axes import COPIES, Held, apart
from ...layout.policy import SHARD, policy_named
from ...nn.module import Module
from ...refusal import check_usable
from ..data.partition import describe_large_block
from ..settings import ShardingConfiguration
from ..step.engine import Engine
from ..tensor.plan import close_groups
from .checkpoints import Checkpoints
from .features import Features
from .learning import History, Learning
from .measuring import Measuring


@dataclass(frozen=True)
class Strategy:
    """How models of one class use the ranks.

    label       as reports name it
    policy      on the data axis, a name of layout.policy.POLICIES
    make_mesh   of all ranks; all are data replicas by default
    """

    label: str
    policy: str
    make_mesh: Callable[[CommunicationBackend], Mesh] = Mesh


class Parts:
    """The parts of one sharded model.

    strategy      of its class; policy: of the data axis
    engine        trains, predicts and evaluates; clones share it
    weights       of the engine, as whole vectors; state: optimizer state, its rule, and counts
    history       of its training
    checkpoints   its files and images
    learning      its steps; measuring: its loss and metrics; features: which inputs it uses
    is_closed     its memory and communicators are given back
    """

    def __init__(
        self, strategy: Strategy, engine: Engine, history: History, checkpoints: Checkpoints
    ):
        self.strategy, self.policy = strategy, policy_named(strategy.policy)
        self.engine, self.weights, self.state = engine, engine.weights, engine.state
        self.history, self.checkpoints = history, checkpoints
        self.learning = Learning(engine, history, checkpoints.saver)
        self.measuring = Measuring(engine, history)
        self.features = Features(engine, history)
        self.is_closed = False

    @classmethod
    def assembled(
        cls,
        module: Module,
        config: ShardingConfiguration,
        mesh: Mesh,
        strategy: Strategy,
        history: History,
        *,
        is_copy: bool = False,
    ) -> "Parts":
        """Return the parts of a model around a module. Collective over the mesh."""
        attributes = Attributes(module)
        engine = Engine(module, config, mesh, policy_named(strategy.policy), is_copy=is_copy)
        attributes.follow()
        saver = Saver(mesh.world, engine.device)
        checkpoints = Checkpoints(engine, strategy.label, history, saver, attributes)
        return cls(strategy, engine, history, checkpoints)

    @property
    def configuration(self) -> ShardingConfiguration:
        """The configuration that was given, with the rule that is used now."""
        config, rule = self.engine.config, self.state.other_rule
        return config if rule is None else replace(config, optimizer=rule)

    def gather(self):
        """Return all parameters as one vector. Collective."""
        mesh = self.engine.mesh
        is_cut = any(mesh.size(axis) > 1 for axis in apart(Held.PARAMETERS))
        if is_cut or self.policy.parameters is SHARD:  # else each rank has them all
            check_same(mesh.world, {}, call="gather_full_parameters")
        return self.weights.gather()

    # ---- other models on the same mesh -----------------------------------------------------------

    def clone(self) -> "Parts":
        """Return parts on the same engine, whose history goes on separately. No communication."""
        history = replace(self.history)
        checkpoints = self.checkpoints.for_clone(history)
        self.engine.mesh.share()
        return Parts(self.strategy, self.engine, history, checkpoints)

    def copy(self) -> "Parts":
        """Return parts with parameters and optimizer state of their own, in this state.

        Collective.
        """
        check_same(self.engine.mesh.world, {}, call="deep_copy")
        other = self._anew(replace(self.history, last_batch=None))
        other.state.copy_from(self.state)
        self.engine.mesh.share()
        return other

    def with_parameters(self, vector) -> "Parts":
        """Return parts with these parameters and fresh optimizer state. Collective."""
        check_same(self.engine.mesh.world, {}, call="with_parameters")
        other = self._anew(History())
        other.state.set_weights(vector)
        self.engine.mesh.share()
        return other

    def _anew(self, history: History) -> "Parts":
        module, mesh = self.weights.fresh_module(), self.engine.mesh
        other = Parts.assembled(
            module, self.configuration, mesh, self.strategy, history, is_copy=True
        )
        other.checkpoints.succeed(self.checkpoints)
        if self.engine.compilation.is_on:
            other.engine.compilation.start()
        return other

    # ---- the end ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Wait for a checkpoint that is being written, and give memory and communicators back.

        Collective; a second call does nothing.
        """
        if self.is_closed:
            return
        self.checkpoints.saver.wait()
        self.is_closed = True
        self.engine.clear_activations()
        if not self.engine.mesh.is_shared:
            close_groups(self.engine.model)
        self.engine.mesh.close()


def make_parts(name: str, module: Module, config: ShardingConfiguration, strategy: Strategy):
    """Return the Parts of a new model. Collective.

    name   of its class
    Errors: as ShardedModel.
    """
    wanted = f"{name} needs an nn.Module and a ShardingConfiguration; got {type(module).__name__}"
    if not isinstance(config, ShardingConfiguration):
        raise TypeError(f"{wanted} and {type(config).__name__}")
    backend = config.backend
    if not backend.is_initialized:
        backend.initialize()
    with collectively(backend):
        check_usable(config)
        if not isinstance(module, Module):
            raise TypeError(f"{wanted} for the model{named_here(module)}")
        policy_named(strategy.policy)
    parts = Parts.assembled(module, config, strategy.make_mesh(backend), strategy, History())
    _warn_of_large_block(parts.engine)
    return parts


def _warn_of_large_block(engine: Engine) -> None:
    """Warn on rank 0 if one block is most of the model and gathered at once."""
    if engine.mesh.rank > 0 or engine.mesh.size(COPIES) == 1:
        return
    if not engine.plan.keepers.parameters.is_released_after_use:
        return
    cost = describe_large_block(
        engine.model,
        engine.config.minimum_parameter_group_size,
        engine.plan.numerics.compute_dtype.itemsize,
    )
    if cost is not None:
        warnings.warn(cost, ShardingWarning, stacklevel=4)
