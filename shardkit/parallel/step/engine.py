"""The engine: training steps of one model on a mesh, from a batch to the update.

    x, y of this data rank --agreed on--> micro-batches --run--> mean loss, reduced gradients
                                                        --voted--> clip, step; or nothing

Every strategy in sharded_model.py is a face on this one engine. Its parts are built in assembly.py;
predictions and losses without learning are in evaluation.py.
"""

import time
from dataclasses import replace
from functools import cached_property
from math import nan

import numpy

from ...array.backend import host_array
from ...comm.failure.agreement import agree, raise_together
from ...comm.failure.ballot import Ballot
from ...comm.mesh import Mesh
from ...errors import ShapeError, ShardingError
from ...layout.policy import Policy
from ...nn.context import ForwardContext
from ...nn.module import Module
from ...optim.clipping import clip_factor
from ...schedule.actions import Action
from ...schedule.grid import unit_timeline
from ..data.overlap import Overlap
from ..data.unit import Unit
from ..settings import ShardingConfiguration
from .assembly import Assembly
from .batch import AgreedBatch, Batches, each, part_of
from .cuda_graphs import Compilation
from .evaluation import Evaluation
from .inputs import Inputs, MicroBatch, Results, Update
from .votes import (
    NOTHING_COUNTS,
    SkippedStep,
    StepLosses,
    is_agreed_good,
    raise_failure,
    ranks_with_bad_losses,
)


class Engine:
    """Trains a wrapped model on `mesh` under `policy`.

    Making one, and every method here, is collective over the mesh.

    ballot          whether to stop, voted on before each step of train(); None: nobody asks
    gradient_norm   of the last step, before clipping; None if nothing clips
    trained_units   of this rank, and trained_here those that are not copies: without frozen ones
    listening       who is told of its steps and actions, and how long they waited for others
    """

    def __init__(
        self,
        model: Module,
        config: ShardingConfiguration,
        mesh: Mesh,
        policy: Policy,
        *,
        is_copy: bool = False,
    ):
        self.model = model
        self.config = config
        self.mesh = mesh
        self.data = mesh.group("data")
        self.pipeline = mesh.group("pipeline")
        parts = Assembly.of(model, config, mesh, policy, is_copy=is_copy)
        self.device = parts.device
        self.numerics = parts.numerics
        self.keepers = parts.keepers
        self.loss_scale = parts.loss_scale
        self.stages = parts.stages
        self.memory = parts.pools
        self.weights = parts.weights
        self.state = parts.state
        self.buffers = parts.state.buffers
        self._observing = [self.buffers] if self.buffers.everyones else []
        self.units_by_place = parts.units
        self.units = list(parts.units.values())
        self.trained_units = [unit for unit in self.units if unit.gradients is not None]
        self.trained_here = [unit for unit in self.trained_units if not unit.plan.is_copy]
        self._programs = parts.programs
        self._ahead = parts.ahead
        self.compilation = Compilation(parts.plain, parts.pools, mesh, model)
        self._batches = Batches(mesh, model, config.loss, compares_peers=config.is_checked)
        self._losses = StepLosses(mesh, self.stages.last_rank)
        self.evaluation = Evaluation(
            parts.plain,
            self._programs.forward,
            self._batches,
            self._losses,
            mesh,
            self.device,
            self.numerics,
            self.weights,
            seed=config.seed,
        )
        is_possible = (
            self.device.kind == "cpu"
            and self.data.world_size > 1
            and self._programs.ahead != self._programs.plain
        )
        self.overlap = Overlap(config.overlap, mesh, is_possible=is_possible)
        self.listening = parts.listening
        self.ballot: Ballot | None = None
        self.gradient_norm: float | None = None
        self._samples_accumulated = 0  # of all ranks, since the last step
        self._samples_computed = 0  # of all ranks, by compute_gradients() since then
        self._items_pending = 0.0  # whose gradients are accumulated but not reduced
        self._items_reduced: float | None = None  # whose gradients are reduced; None: given by hand
        self._micro_batches_pending = 0
        self._has_gradients = False  # reduced, or given by hand
        self.weights.settle()

    def clear_activations(self):
        """Return the memory of activations to the operating system. No communication."""
        self.memory.arena.clear()
        self.compilation.forget()

    @property
    def own_units(self) -> list[Unit]:
        """The units of this rank that are not copies of another pipeline rank's."""
        return [unit for unit in self.units if not unit.plan.is_copy]

    @property
    def runtime(self):
        """What runs the next step."""
        return self._ahead if self.overlap.is_on else self.compilation.runtime

    @property
    def _program(self):
        return self._programs.ahead if self.overlap.is_on else self._programs.plain

    @property
    def program(self) -> tuple[Action, ...]:
        """The actions of the next step, on this pipeline rank."""
        return self._program.whole

    @cached_property
    def bubble_fraction(self) -> float:
        """The part of the pipeline's time that is idle if every F, B and W takes equally long."""
        return unit_timeline(
            self.config.schedule,
            self.mesh.size("pipeline"),
            self.config.micro_batches,
            self.config.virtual_stages,
        ).bubble_fraction

    # ---- training --------------------------------------------------------------------------------

    def train(self, x, y) -> float:
        """Take one whole step; return the mean loss of the global batch before it."""
        began = time.perf_counter()
        self.listening.begin_step(self.state.step_number + 1)
        batch, inputs = self._prepare(x, y, ballot=self.ballot)
        results = self._compute(batch, inputs)
        loss = self._take_step(results, batch.items)
        self.state.samples_seen += batch.samples
        self.listening.end_step()
        if not self.overlap.is_settled:
            self.overlap.count(time.perf_counter() - began)
        return loss

    def compute_gradients(self, x, y, loss=None) -> float:
        """Do everything up to the reduction; return the mean loss.

        Afterwards units hold the mean gradient of what this rank owns.
        """
        first = self._samples_computed
        batch, inputs = self._prepare(x, y, loss, first_sample=first)
        if not batch.items:
            raise ShapeError(f"{NOTHING_COUNTS}; there is no mean gradient of nothing")
        results = self._compute(batch, inputs)
        self._samples_computed = first + batch.samples
        mean_loss = self._losses.mean_of(results, batch.items)
        self._check_failures(results)
        return mean_loss

    def accumulate(self, x, y) -> float:
        """Go forward and backward only; the local gradients are added to those of earlier calls."""
        batch, inputs = self._prepare(
            x,
            y,
            first_gradient=self._micro_batches_pending,
            first_sample=self._samples_accumulated,
        )
        results = self.runtime.run(self._program.local, inputs)
        self._check_failures(results)
        self._micro_batches_pending += self.config.micro_batches
        self._samples_accumulated += batch.samples
        self._items_pending += batch.items
        self.state.samples_seen += batch.samples
        return self._losses.mean_of(results, batch.items)

    def reduce_accumulated(self):
        """Reduce what accumulate() left: the mean over all its calls.

        Errors: ShardingError if there is nothing.
        """
        if not self._micro_batches_pending:
            raise ShardingError(
                "no gradients are pending: call train() with auto_synchronize_gradients=False first"
            )
        self._items_reduced = self._items_pending
        inputs = Inputs(gradient_scale=self._gradient_scale(self._items_pending))
        self.runtime.run(self._program.reduction, inputs)
        self._has_gradients = True
        self._items_pending = 0.0
        self._micro_batches_pending = 0

    def update(self, learning_rate: float | None = None):
        """Clip and apply the rule to the reduced gradients. Errors: ShardingError if there are
        none.
        """
        self._check_own_weights()
        if not self._has_gradients:  # known on all ranks, also where all is frozen
            raise ShardingError(
                "no synchronized gradients; call compute_gradients() or synchronize_gradients() "
                "first"
            )
        self._take_step(Results(), learning_rate=learning_rate)

    def check_gradients(self, gradients):
        """Errors: ShapeError unless there is one number for each element that this rank updates."""
        gradients = host_array("gradients", gradients)
        wanted = (sum(unit.optimizer.parameters.size for unit in self.trained_here),)
        if numpy.shape(gradients) != wanted:
            raise ShapeError(
                f"gradients of shape {numpy.shape(gradients)}; wanted {wanted}, as "
                "compute_gradients returns them"
            )

    def check_samples(self, x, y):
        """Errors: ShapeError unless model and loss take them. No communication."""
        self._batches.check(x, y)

    def apply_gradients(self, gradients, learning_rate: float):
        """Clip and step with given gradients of what this rank updates, end to end over its own
        units.
        """
        self.weights.check()
        for unit in self.trained_units:
            unit.gradients.drop()
            unit.gradients.put(0)
        at = 0
        self._items_reduced = None
        for unit in self.trained_here:
            updated = unit.gradients.updated
            updated[...] = self.device.from_host(gradients[at : at + updated.size])
            at += updated.size
        self._has_gradients = True
        self.runtime.run(self._program.ties, Inputs())  # copies, which have zero, get the sum
        self.update(learning_rate)

    @property
    def has_pending_gradients(self) -> bool:
        """True if accumulate() left gradients that are not reduced yet."""
        return self._micro_batches_pending > 0

    def drop_gradients(self):
        """Forget accumulated and reduced gradients, and what buffers observed. No communication."""
        for unit in self.trained_units:
            unit.gradients.drop()
        for buffers in self._observing:
            buffers.drop()
        self._items_pending = 0.0
        self._micro_batches_pending = self._samples_accumulated = self._samples_computed = 0
        self._has_gradients = False

    # ---- one step --------------------------------------------------------------------------------

    def _prepare(
        self,
        x,
        y,
        loss=None,
        ballot: Ballot | None = None,
        first_gradient: int = 0,
        first_sample: int = 0,
    ) -> tuple[AgreedBatch, Inputs]:
        """Agree on the batch, and cut this rank's part into micro-batches.

        first_sample   number of the first in the whole batch of the step, of which this is a part
        """
        self._check_own_weights()
        num = self.config.micro_batches
        batch = self._batches.agree(x, y, num, loss, ballot)
        size = batch.own_samples // num
        x = self.numerics.entering(each(self.device.from_host, batch.x))
        y = each(self.device.from_host, batch.y)
        micro_batches = tuple(
            MicroBatch(
                part_of(x, start, size),
                part_of(y, start, size),
                ForwardContext(
                    training=True,
                    seed=self.config.seed,
                    step=self.state.step_number,
                    first_sample=first_sample + batch.first_sample + start,
                    num_samples=size,
                    observer=self._observer(first_gradient + number),
                ),
            )
            for number, start in enumerate(range(0, num * size, size))
        )
        return batch, Inputs(
            micro_batches,
            batch.loss,
            batch.form,
            loss_scale=self.loss_scale.value,
            gradient_scale=self._gradient_scale(batch.items),
            first_gradient=first_gradient,
            update=Update(self.state.next_update),
        )

    def _check_own_weights(self):
        """Errors: ShardingError while the model awaits its weights, or averages stand in their
        place.
        """
        if self.weights.awaits_values:
            self.weights.check()
        if self.state.averages.is_in_use:
            self.state.averages.check_not_in_use("train")

    def _observer(self, micro_batch: int):
        """Return what takes the observations of buffers; None in a model that has none."""
        return next((buffers.observer(micro_batch) for buffers in self._observing), None)

    def _gradient_scale(self, items: float) -> float:
        """Return the factor from sums over items, of a scaled loss, to means.

        NaN if there are no items, so that no rank takes the step.
        """
        return 1.0 / items / self.loss_scale.value if items else nan

    def _compute(self, batch: AgreedBatch, inputs: Inputs) -> Results:
        """Run forward, backward and reduction."""
        self.drop_gradients()
        self._items_reduced = batch.items
        results = self.runtime.run(self._program.gradients, inputs)
        self._has_gradients = True
        return results

    def _take_step(
        self, computed: Results, items: float | None = None, learning_rate: float | None = None
    ) -> float | None:
        """Clip and apply the rule; or do nothing, if loss or gradients of any rank are NaN or
        infinite, or means of nothing. Return the mean loss over these items.

        With clipping the gradient norm is the vote, without it one small message is. Either way a
        GPU's losses are fetched with what is judged, so that the host waits once.
        Errors, on all ranks: OutOfMemoryError if a rank had to go on without memory, what a block
        of a rank raised; nothing has changed then.
        """
        is_empty = self._items_reduced == 0
        is_good = computed.failure is None and not is_empty
        update = Update(self.state.next_update, learning_rate, is_good=is_good, computed=computed)
        norm = self.runtime.run(self._program.clip, Inputs(update=update)).gradient_norm
        self.gradient_norm = norm
        skip = None
        takes_it = is_agreed_good(self.mesh.world, norm, is_good, computed, self.trained_units)
        loss = None if items is None else self._losses.mean_of(computed, items)
        if takes_it:
            if norm is not None:
                factor = clip_factor(norm, self.config.max_gradient_norm)
                update = replace(update, clip_factor=factor)
            self.runtime.run(self._program.step, Inputs(update=update))
            for buffers in self._observing:
                buffers.apply()
        else:
            self.drop_gradients()
            raise_failure(self.mesh.world, computed.failure)
            ranks = ranks_with_bad_losses(self.mesh.world, computed.losses.values())
            skip = SkippedStep(self.state.step_number + 1, loss, norm, ranks, is_empty)
        self.state.skips.count(skip)
        if not is_empty:
            self.loss_scale.count(skip is None)
        self._finish_step()
        return loss

    def _check_failures(self, results: Results):
        """Raise on all ranks what stopped one that had to go on with zeros; its gradients are of no
        use then.
        """
        if agree(self.mesh.world, results.failure is not None):
            self.drop_gradients()
            raise_together(self.mesh.world, results.failure)

    def _finish_step(self):
        self.state.step_number += 1
        self.weights.is_initial = False
        self.drop_gradients()
        for unit in self.units:
            unit.gather_if_lasting()
