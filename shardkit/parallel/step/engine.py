"""The engine: a model's units on a mesh, the programs of its step, and the batch on its way through
them.

    x, y of this data rank --checked, counted--> micro-batches --Runtime.run(program)--> mean loss
    of the global batch

Which policy, which schedule, how many ranks: decided here once, when units and programs are built.
Every strategy in sharded_model.py is a face on this one engine. What goes in and out of it besides
batches is in state.py.
"""

import time
from functools import cached_property
from math import isfinite, nan

import numpy

from ...array.backend import host_array, to_host
from ...array.device import Device
from ...array.halves import widened
from ...comm import Ballot, Mesh, agree, check_same, collectively, raise_together
from ...comm.collectives.ordered import ordered_sum
from ...config import ShardingConfiguration
from ...errors import ShapeError, ShardingError
from ...layout.policy import Policy
from ...nn.autograd import Tensor, no_grad
from ...nn.context import ForwardContext
from ...nn.features import input_features
from ...nn.loss import as_loss
from ...nn.module import Module
from ...optim import SGD
from ...schedule import Action, Kind, order_named, unit_timeline
from ..data.keepers import Keepers
from ..data.movement import Movement
from ..data.overlap import Exposure, Overlap
from ..data.partition import check_trained, plan_units
from ..data.site import Pools
from ..data.unit import Unit
from ..model.fingerprint import facts_of
from ..model.state import State
from ..model.weights import Weights
from ..pipeline.balance import stage_ranges
from ..pipeline.programs import Programs
from ..pipeline.stages import Stages
from ..pipeline.transfer import Transfers
from ..tensor.vocabulary import whole_outputs
from ..tensor.plan import apply_plan, check_plan, default_plan
from .batch import Batch, agree_on_batch, check_peers, checked_input, checked_samples
from .cuda_graphs import CudaGraphs
from .numerics import LossScale, Numerics
from .runtime import Runtime, Step
from .votes import NOTHING_COUNTS, describe_skip, is_agreed_good, tell_failure

_REDUCTION = (Kind.BEGIN_REDUCE, Kind.REDUCE, Kind.TIE)
_UPDATE = (Kind.CLIP, Kind.STEP)


class Engine:
    """Trains a wrapped model on `mesh` under `policy`. Making one, and every method here, is
    collective over the mesh.
    """

    def __init__(self, model: Module, config: ShardingConfiguration, mesh: Mesh, policy: Policy):
        self.model, self.config, self.mesh = model, config, mesh
        self.data, self.pipeline, self.tensor = (
            mesh.group("data"),
            mesh.group("pipeline"),
            mesh.group("tensor"),
        )
        with collectively(mesh.world):
            check_trained(model)  # before anything is cut
            facts = facts_of(model, config, policy)
        check_same(
            mesh.world, facts, "build the same model, with the same configuration, on all ranks"
        )
        awaits_values = any(parameter.awaits_values for parameter in model.parameters())
        with collectively(mesh.world):
            self.device = Device(config.device, ordinal=mesh.world.local_rank)
            self.device.drawing_on(self.data.memory() or self.tensor.memory())
            rule = (
                config.optimizer if config.optimizer is not None else SGD(lr=config.learning_rate)
            )
            model.finish(config.seed)
            self._cut_layers()
            is_initial = all(parameter.is_fresh for parameter in model.parameters())
            order = order_named(config.schedule)(
                mesh.size("pipeline"), config.micro_batches, config.virtual_stages
            )
            units = plan_units(model, config.minimum_parameter_group_size)
            self.numerics = Numerics.of(config, model.parameters()[0].dtype, self.device.xp)
            keepers = Keepers.of(policy, self.data.world_size, rounds=self.numerics.is_mixed)
            self.loss_scale = LossScale.of(config, self.numerics)
            num_stages = len({action.stage for actions in order.values() for action in actions})
            ranges = stage_ranges(units, num_stages, config.stage_balance, config.blocks_per_stage)
            self.stages = Stages.of(units, ranges, order)
            self._programs = Programs.of(
                order,
                self.stages,
                self.pipeline.rank,
                clip=config.max_gradient_norm is not None,
                begins_gathers=keepers.parameters.is_released_after_use,
                begins_reductions=config.deterministic and not config.gradient_compression,
            )
        if config.device == "cuda":
            mesh.open_gpu_transport(config.gpu_transport, deterministic=config.deterministic)
        self._make_units(keepers, rule)
        self.weights = Weights(
            model,
            mesh,
            self.stages,
            self.runtime.units,
            self.device,
            is_initial=is_initial,
            awaits_values=awaits_values,
        )
        self.state = State(model, mesh.world, self.weights, rule, self.loss_scale)
        is_possible = (
            self.device.kind == "cpu"
            and self.data.world_size > 1
            and self._programs.ahead != self._programs.plain
        )
        self.overlap = Overlap(config.overlap, mesh, is_possible=is_possible)
        self.exposure = Exposure(mesh)
        self.ballot: Ballot | None = None  # whether to stop, voted on before each step of train()
        self.gradient_norm: float | None = (
            None  # of the last step, before clipping; None if nothing clips
        )
        self._items_pending = 0.0  # whose gradients are accumulated but not reduced
        self._items_reduced: float | None = None  # whose gradients are reduced; None: given by hand
        self._micro_batches_pending = 0
        self.weights.settle()

    def _cut_layers(self):
        """With several tensor ranks: each layer of the model becomes this rank's part of it, as the
        plan says.
        """
        is_cut = any(parameter.claim is not None for parameter in self.model.parameters())
        if self.tensor.world_size > 1 and not is_cut:
            plan = self.config.tensor_plan or default_plan(self.model)
            apply_plan(self.model, plan, self.tensor, sequence=self.config.sequence_parallel)
        elif self.config.tensor_plan is not None and not is_cut:
            check_plan(
                self.model, self.config.tensor_plan
            )  # a wrong one is wrong on one tensor rank, too

    def _make_units(self, keepers, rule):
        config, numerics = self.config, self.numerics
        self.memory = Pools(self.device, numerics.dtype, numerics.compute_dtype)
        movement = Movement(
            self.data,
            self.memory.whole_gradients,
            deterministic=config.deterministic,
            wire_dtype=config.gradient_compression,
        )
        units = {
            place: Unit(self.stages.plans[place], movement, keepers, rule, self.memory)
            for place in self.stages.of_rank(self.pipeline.rank)
        }
        for plan in self.stages.plans.values():
            for parameter in plan.parameters.values():
                # of other stages too: nobody may read initial values for trained ones
                parameter.release()
        transfers = Transfers(
            self.pipeline, self.stages.rank_of, self.device, numerics.compute_dtype
        )
        self.runtime = Runtime(
            units,
            self.stages,
            self.mesh,
            transfers,
            movement,
            self.memory.arena,
            numerics=numerics,
            max_gradient_norm=config.max_gradient_norm,
            keep_activations=not config.activation_checkpointing,
        )
        self.units = list(units.values())

    def clear_activations(self):
        """Give memory of activations back to the operating system. No communication."""
        self.memory.arena.clear()
        if self.runtime.graphs is not None:
            self.runtime.graphs.forget()

    @property
    def own_units(self) -> list[Unit]:
        """The units of this rank that are not copies of another pipeline rank's."""
        return [unit for unit in self.units if not unit.plan.is_copy]

    @property
    def program(self) -> tuple[Action, ...]:
        """Of the next step, on this pipeline rank."""
        return self._programs.ahead if self.overlap.is_on else self._programs.plain

    # ---- compiling -------------------------------------------------------------------------------

    def compile(self):
        """Capture steps that are alike as CUDA graphs, and replay them from then on.

        Errors, on all ranks: ShardingError if supports_compilation is False.
        """
        if not self.supports_compilation:
            raise ShardingError(
                f"this model cannot be compiled: {self.why_uncompiled}; train it without compile()"
            )
        if self.runtime.graphs is None:
            self.runtime.graphs = CudaGraphs(self.runtime.plain_work, self.memory, self.mesh.world)

    @property
    def is_compiled(self) -> bool:
        """True if steps are captured and replayed."""
        return self.runtime.graphs is not None and self.supports_compilation

    @property
    def supports_compilation(self) -> bool:
        """False on CPUs and with tensor parallelism, and once a step could not be captured, or not be
        replayed to the bit.
        """
        return self.why_uncompiled is None

    @property
    def why_uncompiled(self) -> str | None:
        """What is in the way of compiling; None: nothing so far."""
        if self.device.kind == "cpu":
            return 'it is on device "cpu", and compile() captures CUDA graphs, so it wants device = "cuda"'
        if self.mesh.size("tensor") > 1:
            return (
                f"it has {self.mesh.size('tensor')} tensor ranks, and CUDA graphs cannot hold the "
                "messages of tensor parallelism, so they want tensor = 1"
            )
        return None if self.runtime.graphs is None else self.runtime.graphs.reason

    # ---- training --------------------------------------------------------------------------------

    def train(self, x, y) -> float:
        """One whole step; returns the mean loss of the global batch before it."""
        began = time.perf_counter()
        self.exposure.begin_step()
        batch, step = self._prepare(x, y, None, self.ballot)
        loss = self._run(self._without(_UPDATE), batch, step)
        self._take_step(step, loss)
        self.state.samples_seen += batch.samples
        self.exposure.end_step()
        self.overlap.count(time.perf_counter() - began)
        return loss

    def compute_gradients(self, x, y, loss=None) -> float:
        """Everything up to the reduction: afterwards units hold the mean gradient of what this rank
        owns.
        """
        batch, step = self._prepare(x, y, loss)
        if not batch.items:
            raise ShapeError(f"{NOTHING_COUNTS}; there is no mean gradient of nothing")
        mean_loss = self._run(self._without(_UPDATE), batch, step)
        self._check_failures(step)
        return mean_loss

    def accumulate(self, x, y) -> float:
        """Forward and backward only; the local gradients are added to those of earlier calls."""
        batch, step = self._prepare(x, y)
        step.first_gradient = self._micro_batches_pending
        self.runtime.run(self._without((*_REDUCTION, *_UPDATE)), step)
        self._check_failures(step)
        self._micro_batches_pending += self.config.micro_batches
        self._items_pending += batch.items
        self.state.samples_seen += batch.samples
        return self._mean_loss(step, batch.items)

    def reduce_accumulated(self):
        """Reduce what accumulate() left: the mean over all its calls. Errors: ShardingError if
        there is nothing.
        """
        if not self._micro_batches_pending:
            raise ShardingError(
                "no gradients are pending: call train() with auto_synchronize_gradients=False first"
            )
        self._items_reduced = self._items_pending
        self.runtime.run(
            self._only(_REDUCTION),
            Step(x=[], gradient_scale=self._gradient_scale(self._items_pending)),
        )
        self._items_pending, self._micro_batches_pending = 0.0, 0

    def update(self, learning_rate: float | None = None):
        """Clip and apply the rule to the reduced gradients. Errors: ShardingError if there are
        none.
        """
        for unit in self.units:
            unit.gradients.updated  # raises before anything has changed
        self._take_step(Step(x=[], number=self.state.next_update, learning_rate=learning_rate))

    def _take_step(self, step: Step, loss: float | None = None):
        """Clip and apply the rule; or do nothing, if loss or gradients of any rank are NaN or
        infinite, or means of nothing.

        With clipping the gradient norm is the vote, without it one small message is.
        Errors, on all ranks: OutOfMemoryError if a rank had to go on without memory, what a block
        of a rank raised; nothing has changed then.
        """
        step.is_good = step.is_good and (loss is None or isfinite(loss))
        self.runtime.run(self._only((Kind.CLIP,)), step)
        self.gradient_norm = step.gradient_norm
        is_taken = is_agreed_good(self.mesh.world, step, self.units)
        if is_taken:
            self.runtime.run(self._only((Kind.STEP,)), step)
        else:
            self.drop_gradients()
            tell_failure(self.mesh.world, step.failure)
        is_empty = self._items_reduced == 0
        self.state.skips.count(
            None
            if is_taken
            else describe_skip(self.mesh.world, step, self.state.step_number + 1, loss, is_empty)
        )
        if not is_empty:
            self.loss_scale.count(is_taken)
        self._finish_step()

    def _check_failures(self, step):
        """Errors, on all ranks: what stopped one that had to go on with zeros. The gradients are of
        no use then.
        """
        if agree(self.mesh.world, step.failure is not None):
            self.drop_gradients()
            raise_together(self.mesh.world, step.failure)

    def check_gradients(self, gradients):
        """Errors: ShapeError unless there is one number for each element that this rank updates."""
        gradients = host_array("gradients", gradients)
        wanted = (sum(unit.num_updated for unit in self.own_units),)
        if numpy.shape(gradients) != wanted:
            raise ShapeError(
                f"gradients of shape {numpy.shape(gradients)}; wanted {wanted}, as compute_gradients returns them"
            )

    def apply_gradients(self, gradients, learning_rate: float):
        """Clip and step with given gradients of what this rank updates, end to end over its own
        units.
        """
        self.weights.check()
        for unit in self.units:
            unit.gradients.drop()
            unit.gradients.put(0)
        at, self._items_reduced = 0, None
        for unit in self.own_units:
            unit.gradients.updated[...] = self.device.from_host(
                gradients[at : at + unit.num_updated]
            )
            at += unit.num_updated
        self.runtime.run(
            self._only((Kind.TIE,)), Step(x=[])
        )  # copies, which have zero, get the sum
        self.update(learning_rate)

    def _only(self, kinds) -> tuple[Action, ...]:
        return tuple(action for action in self.program if action.kind in kinds)

    def _without(self, kinds) -> tuple[Action, ...]:
        return tuple(action for action in self.program if action.kind not in kinds)

    @property
    def has_pending_gradients(self) -> bool:
        """True if accumulate() left gradients that are not reduced yet."""
        return self._micro_batches_pending > 0

    def drop_gradients(self):
        """Forget accumulated and reduced gradients. No communication."""
        for unit in self.units:
            unit.gradients.drop()
        self._items_pending, self._micro_batches_pending = 0.0, 0

    def _finish_step(self):
        self.state.step_number += 1
        self.weights.is_initial = False
        self.drop_gradients()
        for unit in self.units:
            unit.gather_if_lasting()

    def _run(self, actions, batch: Batch, step: Step) -> float:
        """Forward, backward and reduction; the mean loss."""
        self.drop_gradients()
        self._items_reduced = batch.items
        step.gradient_scale = self._gradient_scale(batch.items)
        self.runtime.run(actions, step)
        return self._mean_loss(step, batch.items)

    def _gradient_scale(self, items: float) -> float:
        """From sums over items, of a scaled loss, to means; NaN if there are no items, so that no
        rank takes the step.
        """
        return 1.0 / items / self.loss_scale.value if items else nan

    def _prepare(self, x, y, loss=None, ballot: Ballot | None = None) -> tuple[Batch, Step]:
        self.weights.check()
        batch = self._agree_on_batch(x, y, self.config.micro_batches, loss, ballot)
        num = self.config.micro_batches
        size = len(batch.x) // num
        parts = [slice(m * size, (m + 1) * size) for m in range(num)]
        contexts = [
            ForwardContext(
                training=True,
                seed=self.config.seed,
                step=self.state.step_number,
                first_sample=batch.first_sample + part.start,
            )
            for part in parts
        ]
        x, y = self._entering(batch.x), self.device.from_host(batch.y)
        return batch, Step(
            x=[x[part] for part in parts],
            y=[y[part] for part in parts],
            contexts=contexts,
            loss=batch.loss,
            number=self.state.next_update,
            loss_scale=self.loss_scale.value,
            form=self._form(batch) if loss is None else None,
        )

    def _form(self, batch: Batch):
        """What a recorded step depends on beside its numbers."""
        features = input_features(self.model)
        return batch.form, None if features is None else features.active

    def _entering(self, x):
        """x of the batch, on the device."""
        return self.numerics.entering(self.device.from_host(x))

    @property
    def _loss(self):
        """The configured one, or the model's own."""
        return self.config.loss or self.model.loss

    def _agree_on_batch(self, x, y, micro_batches: int, loss=None, ballot=None) -> Batch:
        return agree_on_batch(
            self.mesh,
            self.model,
            x,
            y,
            loss or self._loss,
            micro_batches,
            compare_peers=self.config.is_checked,
            ballot=ballot,
        )

    def check_samples(self, x, y):
        """Errors: ShapeError unless model and loss take them. No communication."""
        checked_samples(self.model, as_loss(self._loss), x, y)

    def _mean_loss(self, step: Step, items: float) -> float:
        """Losses of micro-batches, then of ranks, summed in the tree order of their gradients; NaN
        if there are no items.
        """
        level = [step.losses[m] for m in sorted(step.losses)] or [
            0.0
        ]  # no losses but on the last stage
        while len(level) > 1:
            level = [sum(level[i : i + 2]) for i in range(0, len(level), 2)]
        return _mean(self._sum_of_last_stages([level[0]])[0], items)

    def _sum_of_last_stages(self, numbers: list[float]) -> list[float]:
        """The sums over data ranks of what the last stage of each has, on all ranks.

        Down each pipeline first: then every rank needs its sum, and none adds numbers that nobody
        reads.
        """
        box = numpy.array(numbers, numpy.float64)
        self.pipeline.broadcast(box, self.stages.last_rank)
        return ordered_sum(self.data, box).tolist()

    @cached_property
    def bubble_fraction(self) -> float:
        """The part of the pipeline's time that is idle if every F, B and W takes equally long; by
        simulation.
        """
        return unit_timeline(
            self.config.schedule,
            self.mesh.size("pipeline"),
            self.config.micro_batches,
            self.config.virtual_stages,
        ).bubble_fraction

    # ---- without learning ------------------------------------------------------------------------

    def predict(self, x):
        """The output of the last block for this replica's x, a NumPy array, on all its pipeline
        ranks.
        """
        self.weights.check()
        with collectively(self.mesh.world):
            x = checked_input(self.model, x)
        if self.config.is_checked:
            check_peers(self.mesh, x)
        with whole_outputs():
            prediction = self._predict(x)
        shape = self.pipeline.broadcast_object(
            None if prediction is None else prediction.shape, self.stages.last_rank
        )
        if prediction is None:
            prediction = numpy.empty(shape, self.units[0].dtype)
        prediction = widened(to_host(prediction))
        self.pipeline.broadcast(prediction, self.stages.last_rank)
        return prediction

    def evaluate(self, x, y) -> float:
        """The mean loss over the parts of all data ranks; NaN if nothing in them counts."""
        return _mean(*self.total_loss(x, y))

    def total_loss(self, x, y, *, is_counted: bool = True) -> tuple[float, float]:
        """The sum of the loss over the parts of all data ranks, and the number of items that it
        counts.

        is_counted   False: this data rank has no part, and passes samples only because the others
                     gather with it
        """
        self.weights.check()
        batch = self._agree_on_batch(x, y, micro_batches=1)
        criterion = batch.loss
        prediction, total = self._predict(batch.x), 0.0
        if prediction is not None:
            with no_grad():
                total = float(
                    criterion.total(Tensor(prediction), self.device.from_host(batch.y)).item()
                )
        total, items = self._sum_of_last_stages(
            [total, criterion.count(batch.y)] if is_counted else [0.0, 0.0]
        )
        return total, items

    def _predict(self, x):
        """The output on the last stage, None elsewhere."""
        step = Step(x=[self._entering(x)], contexts=[ForwardContext(seed=self.config.seed)])
        return self.runtime.run(self._programs.forward, step).predictions.get(0)


def _mean(total: float, items: float) -> float:
    """Of so many items; NaN of none."""
    return total / items if items else nan
