"""ShardedModel: the face of an ordinary model on a mesh, whatever the strategy.

    config = ShardingConfiguration(backend, optimizer=AdamW())
    model = FSDPModel(models.GPT(256, 128, width=256, layers=4, heads=4), config)
    loss = model.train(x, y)                     # x, y: this data rank's part of the batch

Each member checks its arguments and asks the part that does the work:

    engine        trains, evaluates, predicts       engine.weights   whole parameter vectors
    checkpoints   files and images                  engine.state     optimizer state, rule, counts

Five contracts stand beside it: Stored (files and images, stored.py), Copied (whole vectors and
other models, copied.py), Featured (input features, features.py), Evaluated (evaluated.py) and
Traced (tracing.py).
"""

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy

from ...annotations import Array, Tree
from ...arguments import is_number, require
from ...array.backend import to_host
from ...checkpoint.attributes import Attributes
from ...checkpoint.background import Saver
from ...comm.failure.agreement import collectively
from ...comm.mesh import Mesh
from ...comm.same import check_same
from ...errors import CommunicationError, ShardingWarning
from ...layout.policy import Policy
from ...nn.module import Module
from ...optim.rules import Rule
from ...refusal import check_usable
from ..data.partition import describe_large_block
from ..settings import ShardingConfiguration
from ..step.engine import Engine
from ..tensor.plan import close_groups
from .checkpoints import Checkpoints
from .copied import Copied
from .evaluated import Evaluated
from .features import Featured
from .fingerprint import describe
from .generation import generate
from .history import History
from .report import metadata_of, table_of
from .stored import Stored
from .tracing import Traced


class ShardedModel(Stored, Copied, Featured, Evaluated, Traced):
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

    policy: Policy
    checkpoints: Checkpoints
    strategy: str  # as reports name it

    def __init__(self, wrapped_model: Module, config: ShardingConfiguration) -> None:
        if not isinstance(config, ShardingConfiguration):
            raise TypeError(
                f"{type(self).__name__} needs an nn.Module and a ShardingConfiguration; got "
                f"{type(wrapped_model).__name__} and {type(config).__name__}"
            )
        if not config.backend.is_initialized:
            config.backend.initialize()
        with collectively(config.backend):
            check_usable(config)
            self._check_arguments(wrapped_model)
        self._assemble(wrapped_model, config, self._make_mesh(config.backend))
        _warn_of_large_block(self)

    def _check_arguments(self, wrapped_model):
        if not isinstance(wrapped_model, Module):
            raise TypeError(
                f"{type(self).__name__} needs an nn.Module and a ShardingConfiguration; got "
                f"{type(wrapped_model).__name__} for the model"
            )

    def _make_mesh(self, backend) -> Mesh:
        """Make all ranks data replicas."""
        return Mesh(backend)

    def _assemble(self, wrapped_model, config, mesh, *, is_copy=False) -> None:
        self.wrapped_model, self.sharding_configuration = wrapped_model, config
        self.mesh = mesh
        attributes = Attributes(wrapped_model)
        self.engine = Engine(wrapped_model, config, mesh, self.policy, is_copy=is_copy)
        attributes.follow()
        self.history = History()
        saver = Saver(mesh.world, self.engine.device)
        self.checkpoints = Checkpoints(self.engine, self.strategy, self.history, saver, attributes)
        self._is_closed = False

    def _check_open(self) -> None:
        if self._is_closed:
            raise CommunicationError(
                "this model is closed; make another one, or close it after its last use"
            )

    def _begin_update(self):
        """Refuse a closed model, and commit the checkpoint that all ranks have written, if any."""
        self._check_open()
        saver = self.checkpoints.saver
        if saver.pending is not None:
            saver.poll()

    # ---- what it is ------------------------------------------------------------------------------

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
        return self.engine.weights.count

    @property
    def step_number(self) -> int:
        """Optimization steps taken."""
        return self.engine.state.step_number

    @property
    def local_parameter_shard(self) -> Array:
        """What this rank owns and updates: 1-D, read-only, a snapshot. No communication.

        For DDP the full vector (of this rank's stage), in the canonical order of
        gather_full_parameters. For the others the spans of the units, in the order of the blocks;
        over all ranks their lengths add up to parameter_count.
        """
        self.engine.weights.check()
        owned = self.engine.weights.local()
        owned.flags.writeable = False
        return owned

    def get_model_metadata(self) -> dict:
        """Return strategy, sizes, bytes on this rank and training history; a fresh dict.

        No communication.
        """
        return metadata_of(self)

    def describe(self) -> str:
        """Return a table of each rank's coordinates, host, stages, and their first and last blocks.

        The same text on all ranks; no communication.
        """
        return table_of(self)

    # ---- training --------------------------------------------------------------------------------

    def train(self, x: Tree, y: Tree) -> float:
        """Take one optimization step on this data rank's part of the batch. Collective.

        Parameters
        ----------
        x, y
            [samples of this rank, ...], cut into config.micro_batches equal micro-batches; arrays,
            or tuples, lists, dicts or dataclasses of such (docs/trees.md).

        Returns
        -------
        float
            The mean loss of the global batch before the step, the same on all ranks.

        Raises
        ------
        ShapeError
            On all ranks, whichever rank has the bad part: if it is empty, does not divide into the
            micro-batches, or is nothing that the model or its loss takes.

        Notes
        -----
        With auto_synchronize_gradients=False gradients are only accumulated, on this rank;
        synchronize_gradients() and step() complete the step. A step whose loss or gradients are NaN
        or infinite is skipped on all ranks, as is one in which no label counts; the loss is NaN
        then.

        Errors, on all ranks, whichever rank has the bad part: those of a checkpoint that is being
        written, before anything else is done.
        """
        self._begin_update()
        began = time.perf_counter()
        is_whole_step = self.sharding_configuration.auto_synchronize_gradients
        loss = self.engine.train(x, y) if is_whole_step else self.engine.accumulate(x, y)
        history = self.history
        history.last_loss, history.last_batch = loss, (x, y)
        history.train_seconds += time.perf_counter() - began
        return loss

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

        Notes
        -----
        Up to the next step each call draws other dropout masks, the first those of train.
        """
        self._check_open()
        check_same(self.mesh.world, {"loss": describe(loss)})
        self.engine.compute_gradients(x, y, loss)
        gradients = [to_host(unit.gradients.updated) for unit in self.engine.units.trained.own]
        return numpy.concatenate([numpy.empty(0, self.engine.units[0].dtype), *gradients])

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
            On all ranks, on rates that differ.
        """
        self._begin_update()
        wanted = "a finite number, at least 0"
        with collectively(self.mesh.world):
            require(is_number(learning_rate, at_least=0), "learning_rate", learning_rate, wanted)
            self.engine.check_gradients(gradients)
        check_same(self.mesh.world, {"learning_rate": str(learning_rate)})
        self.engine.apply_gradients(gradients, learning_rate)

    def synchronize_gradients(self) -> None:
        """Make every owner hold the mean gradient, over all that was accumulated, of what it owns.

        Collective.

        Raises
        ------
        ShardingError
            If nothing was accumulated since the last time.
        """
        self._check_open()
        self.engine.reduce_accumulated()

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
        self._begin_update()
        self.engine.update()

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
        other than parameters and active features, do not change a graph. As with
        torch.nn.Module.compile, the model itself is changed and nothing is returned.

        Raises
        ------
        ShardingError
            On all ranks, if supports_compilation is False, as it is on CPUs, where replaying a step
            gained nothing that was worth its code.
        """
        self.engine.compilation.start()

    @property
    def supports_compilation(self) -> bool:
        """Whether compile() can be called, and has not failed. No communication."""
        return self.engine.compilation.reason is None

    def predict(self, x: Tree) -> Tree:
        """Return the wrapped model's output for x, a NumPy array or a tree of such (docs/trees.md).

        Collective: every data replica passes an x of its own. No samples have an empty prediction.

        Parameters
        ----------
        x
            [samples of this replica, ...].

        Raises
        ------
        ShapeError
            On all ranks, if any rank's x is nothing that the model takes.
        """
        self._check_open()
        return self.engine.evaluation.predict(x)

    def generate(
        self,
        prompts: Sequence[Any],
        num_tokens: int,
        temperature: float = 1.0,
        *,
        top_k: int | None = None,
        top_p: float | None = None,
        stop: Sequence[int] = (),
        seeds: Sequence[int] | None = None,
        on_token: Callable[[int, int], Any] | None = None,
    ) -> list:
        """Return what follows each prompt: a list of int64 arrays, the same on all ranks.

        Collective: all ranks pass the same. Of a GPT alone.

        Parameters
        ----------
        prompts
            1-D integer arrays, of any lengths; the data replicas share them.
        num_tokens
            To add to each text, unless it comes to a stop token before.
        temperature, top_k, top_p, stop
            See nn.generation.Choice.
        seeds
            One integer for each prompt; None: 0, 1, 2, ...
        on_token
            Function (number of a prompt, token), called on the ranks that write its text.

        Raises
        ------
        ShapeError
            On all ranks, on prompts that are no tokens.
        ConfigurationError, ShardingError
            On all ranks, if ranks pass different ones.

        Notes
        -----
        A text depends on its prompt and its seed, to the rounding of the logits; on neither its
        neighbors nor the mesh. Keys and values of earlier positions are kept; under sequence
        parallelism each token costs a pass over the text.
        """
        self._check_open()
        choice = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "stop": stop}
        return generate(self.engine, prompts, num_tokens, choice, seeds, on_token)

    # ---- the end ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Wait for a checkpoint that is being written, and give memory and communicators back.

        Collective. The model cannot train afterwards, its clones and copies can: the last of them
        closes the communicators. A second call does nothing.

        Notes
        -----
        Errors: those of the checkpoint.
        """
        if self._is_closed:
            return
        self.checkpoints.saver.wait()
        self._is_closed = True
        self.engine.clear_activations()
        if not self.mesh.is_shared:
            close_groups(self.wrapped_model)
        self.mesh.close()


def _warn_of_large_block(model: ShardedModel) -> None:
    """Warn on rank 0 if one block is most of the model and gathered at once."""
    if model.rank > 0 or model.mesh.size("data") == 1:
        return
    if not model.engine.parts.keepers.parameters.is_released_after_use:
        return
    cost = describe_large_block(
        model.wrapped_model,
        model.sharding_configuration.minimum_parameter_group_size,
        model.engine.parts.numerics.compute_dtype.itemsize,
    )
    if cost is not None:
        warnings.warn(cost, ShardingWarning, stacklevel=3)
