"""The engine: training steps of one model on a mesh, from a batch to the update.

    x, y of this data rank --agreed on--> micro-batches --run--> mean loss, reduced gradients
                                                        --voted--> clip, step; or nothing

Every strategy in sharded_model.py is a face on this one engine. Its parts are built in assembly.py;
predictions and losses without learning are in evaluation.py.
"""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from math import hypot

import numpy

from ...arguments import require
from ...array.backend import host_array
from ...array.dtypes import check_real
from ...comm.failure.agreement import agree, raise_together
from ...comm.failure.ballot import Ballot
from ...comm.mesh import Mesh
from ...errors import ShapeError, ShardingError
from ...layout.axes import COPIES
from ...layout.policy import Policy
from ...nn.loss import FunctionLoss, Loss
from ...nn.module import Module
from ...nn.objectives import Objectives
from ...optim.clipping import clip_factor
from ...schedule.grid import unit_timeline
from ..data.overlap import Overlap
from ..data.unit import Units
from ..settings import ShardingConfiguration
from .assembly import Assembly, Blueprint
from .batch import AgreedBatch, Batches, Intake
from .compilation import Compilation
from .evaluation import Evaluation
from .executor import Objective, groups_due
from .inputs import Inputs, Results, Update
from .votes import (
    NOTHING_COUNTS,
    SkippedStep,
    StepLosses,
    is_agreed_good,
    raise_failure,
    ranks_with_bad_losses,
)


class Accumulation:
    """Counts what the gradients of all units are sums of.

    samples         of all ranks, since the last step, that were accumulated
    computed        of all ranks, by compute_gradients() since then
    items           whose gradients are accumulated but not reduced
    micro_batches   of this rank, accumulated but not reduced
    reduced_items   whose gradients are reduced; None: given by hand
    is_reduced      there are gradients for a step: reduced, or given by hand
    """

    def __init__(self):
        self.reduced_items: float | None = None
        self.drop()

    def drop(self) -> None:
        """Begin anew."""
        self.samples = self.computed = self.micro_batches = 0
        self.items = 0.0
        self.is_reduced = False

    def add(self, micro_batches: int, samples: int, items: float) -> None:
        """Count gradients that were added to those of earlier calls."""
        self.micro_batches += micro_batches
        self.samples += samples
        self.items += items
        self.is_reduced = False  # what compute_gradients() returned is not of the next step

    def check_kept(self, call: str) -> None:
        """Errors: ShardingError if there are accumulated gradients, which this call would drop."""
        if self.samples:
            what = f"{call} would drop accumulated gradients of {self.samples} samples"
            rest = "step()" if self.is_reduced else "synchronize_gradients() and step()"
            raise ShardingError(f"{what}; call {rest} first")

    def count(self, computed: int) -> None:
        """Count samples of all calls of compute_gradients() since the last step."""
        self.computed = computed

    def reduce(self, items: float | None) -> None:
        """Count gradients of so many items as reduced, and none as pending."""
        self.reduced_items, self.is_reduced = items, True
        self.items = 0.0
        self.micro_batches = 0


class Engine:
    """Trains a wrapped model on `mesh` under `policy`.

    Making one, and every method here, is collective over the mesh.

    parts           what it is made of (assembly.py)
    objectives      what its steps train: one, or the parts of several
    compilation     of its steps as CUDA graphs
    overlap         whether messages go ahead in the next step
    gradient_norm   of the last step, before clipping; None if nothing clips
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
        self.model, self.config, self.mesh = model, config, mesh
        self.parts = parts = Assembly.of(model, config, mesh, policy, is_copy=is_copy)
        plan = parts.plan
        self.compilation = Compilation(parts.plain, parts.pools, mesh, model, plan.owners)
        samples = plan.samples
        batches = Batches(mesh, model, config.loss, samples, compares_peers=config.is_checked)
        self._batches, self._intake = batches, Intake(batches, parts, config)
        usual = config.loss or model.loss
        has_names = isinstance(usual, (FunctionLoss, Objectives)) or not isinstance(usual, Loss)
        self._losses = StepLosses(mesh, plan.stages.last_rank, may_have_parts=has_names)
        self.evaluation = Evaluation(
            parts.plain,
            plan.programs.forward,
            batches,
            self._losses,
            mesh,
            plan.device,
            plan.numerics,
            parts.state.weights,
            samples,
            seed=config.seed,
        )
        is_possible = (
            plan.device.kind == "cpu"
            and mesh.size(COPIES) > 1
            and plan.programs.ahead != plan.programs.plain
        )
        self.overlap = Overlap(config.overlap, mesh, is_possible=is_possible)
        self.objectives = parts.objectives(model, config, mesh, self.overlap, self.compilation)
        self._are_together = isinstance(usual, Objectives) and usual.together
        self._gradients = Accumulation()
        self._ballot: Ballot | None = None  # before each train() and accumulate()
        self.gradient_norm: float | None = None
        self.weights.settle()

    # ---- its parts, as others ask for them -------------------------------------------------------

    @property
    def plan(self) -> Blueprint:
        """What was decided of it before any memory was taken."""
        return self.parts.plan

    @property
    def device(self):
        """The device of this rank."""
        return self.plan.device

    @property
    def units(self) -> Units:
        """The units of this rank."""
        return self.parts.units

    @property
    def state(self):
        """What a checkpoint holds: weights, buffers, the optimizer's state, counts."""
        return self.parts.state

    @property
    def weights(self):
        """The parameters of all units."""
        return self.parts.state.weights

    @property
    def listening(self):
        """Who is told of its steps and actions, and how long they waited for others."""
        return self.parts.listening

    def clear_activations(self):
        """Give the memory of activations back to the operating system. No communication."""
        self.parts.pools.arena.clear()
        self.compilation.forget()

    @property
    def runtime(self):
        """What runs the next step, with its program; of several objectives that of the first."""
        return self.objectives[0].runtime

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

    def train(self, x, y, only=None) -> float:
        """Take one whole step, or of one objective; return the mean loss of the global batch."""
        began = time.perf_counter()
        self.listening.begin_step(self.state.step_number + 1)
        choice = only, self.objectives
        batch, inputs = self._intake.inputs(x, y, ballot=self._ballot, choice=choice)
        groups = groups_due(self.objectives, only, self._are_together)
        loss = self._take_steps((self._compute(due, batch, inputs) for due in groups), batch)
        self.listening.end_step()
        self.overlap.count(time.perf_counter() - began)
        return loss

    def compute_gradients(self, x, y, loss=None) -> float:
        """Do everything up to the reduction; return the mean loss.

        Afterwards units hold the mean gradient of what this rank owns.
        """
        require(not (loss and self.plan.owners), "loss", loss, "None: each objective has its own")
        self._gradients.check_kept("compute_gradients()")
        first = self._gradients.computed
        call = "compute_gradients"
        batch, inputs = self._intake.inputs(x, y, loss, first_sample=first, call=call)
        if not batch.items:
            raise ShapeError(f"{NOTHING_COUNTS}; the mean gradient is undefined")
        results = self._compute(self.objectives, batch, inputs)
        self._gradients.count(first + batch.samples)
        return self._checked_losses(results, batch.items)

    def accumulate(self, x, y, only: str | None = None) -> float:
        """Go forward and backward only; the local gradients are added to those of earlier calls."""
        pending = self._gradients
        if pending.is_reduced:
            pending.check_kept("train()")
        batch, inputs = self._intake.inputs(
            x,
            y,
            ballot=self._ballot,
            first_gradient=pending.micro_batches,
            first_sample=pending.samples,
            choice=(only, ()),
        )
        results = {each: each.run("local", inputs) for each in self.objectives}
        loss = self._checked_losses(results, batch.items)
        pending.add(self.config.micro_batches, batch.samples, batch.items)
        self.state.samples_seen += batch.samples
        return loss

    def reduce_accumulated(self):
        """Reduce what accumulate() left: the mean over all its calls.

        Errors: ShardingError if there is nothing.
        """
        if not self.has_pending_gradients:
            raise ShardingError(
                "no gradients are pending: call train() with auto_synchronize_gradients=False first"
            )
        items = self._gradients.items
        inputs = Inputs(gradient_scale=self._intake.gradient_scale(items))
        for objective in self.objectives:
            objective.run("reduction", inputs)
        self._gradients.reduce(items)

    def update(self, learning_rate: float | None = None):
        """Clip and apply the rule to the reduced gradients. Errors: ShardingError if there are
        none.
        """
        self._intake.check_weights()
        if not self._gradients.is_reduced:  # known on all ranks, also where all is frozen
            raise ShardingError(
                "no synchronized gradients; call compute_gradients() or synchronize_gradients() "
                "first"
            )
        results = {each: Results() for each in self.objectives}
        self._take_steps([results], learning_rate=learning_rate)

    def check_gradients(self, gradients):
        """Errors: ShapeError unless there is one number for each element that this rank updates."""
        gradients = host_array("gradients", gradients)
        wanted = (sum(unit.optimizer.parameters.size for unit in self.units.trained.own),)
        if numpy.shape(gradients) != wanted:
            raise ShapeError(
                f"gradients of shape {numpy.shape(gradients)}; wanted {wanted}, as "
                "compute_gradients returns them"
            )
        check_real("gradients", gradients.dtype)

    def check_samples(self, x, y):
        """Errors: ShapeError unless model and loss take them. No communication."""
        self._batches.check(x, y)

    def apply_gradients(self, gradients, learning_rate: float):
        """Clip and step with given gradients of what this rank updates, end to end over its own
        units.
        """
        self.weights.check()
        self._gradients.check_kept("apply_gradients()")
        for unit in self.units.trained:
            unit.gradients.drop()
            unit.gradients.put(0)
        at = 0
        for unit in self.units.trained.own:
            updated = unit.gradients.updated
            updated[...] = self.device.from_host(gradients[at : at + updated.size])
            at += updated.size
        self._gradients.reduce(None)
        for objective in self.objectives:  # copies, which have zero, get the sum
            objective.run("ties", Inputs())
        self.update(learning_rate)

    @property
    def has_pending_gradients(self) -> bool:
        """True if accumulate() left gradients that are not reduced yet."""
        return self._gradients.micro_batches > 0

    def drop_gradients(self):
        """Forget accumulated and reduced gradients, and what buffers observed. No communication."""
        for unit in self.parts.units.trained.all:
            unit.gradients.drop()
        for buffers in self.parts.observing:
            buffers.drop()
        self._gradients.drop()

    # ---- one step --------------------------------------------------------------------------------

    def _compute(self, objectives, batch: AgreedBatch, inputs):
        """Run forward, backward and reduction of each."""
        self.drop_gradients()
        results = {each: each.run("gradients", inputs) for each in objectives}
        self._gradients.reduce(batch.items)
        return results

    def _take_steps(
        self,
        computed: Iterable[dict[Objective, Results]],
        batch: AgreedBatch | None = None,
        learning_rate=None,
    ) -> float | None:
        """Take a step of the model: of each objective, group by group as they are computed."""
        taken: list[tuple] = []
        items = None if batch is None else batch.items
        for results in computed:
            try:
                taken += [self._take_step(*each, items, learning_rate) for each in results.items()]
            finally:
                self.drop_gradients()
            for unit in self.units.all:
                unit.gather_if_lasting()
        losses, norms, skips = zip(*taken)
        state, skip = self.state, next(filter(None, skips), None)
        state.skips.count(skip)
        if skip is None or not skip.is_empty:
            state.loss_scale.count(skip is None)
        state.step_number += 1
        state.samples_seen += 0 if batch is None else batch.samples
        self.gradient_norm = None if None in norms else hypot(*norms)
        return None if items is None else sum(losses)

    def _take_step(
        self, objective: Objective, computed: Results, items: float | None, learning_rate
    ) -> tuple:
        """Clip and apply the rule; or do nothing, if loss or gradients of any rank are NaN or
        infinite, or means of nothing. Return the mean loss over these items, norm and skip.

        With clipping the gradient norm is the vote, without it one small message is. Either way a
        GPU's losses are fetched with what is judged, so that the host waits once.
        Errors, on all ranks: OutOfMemoryError if a rank had to go on without memory, what a block
        of a rank raised; this objective has not changed then, what those before it did stays.
        """
        is_empty = self._gradients.reduced_items == 0
        state, name = self.state, objective.name
        is_good = computed.failure is None and not is_empty
        number = state.updates[name] + 1
        update = Update(number, learning_rate, is_good=is_good, computed=computed)
        norm = objective.run("clip", Inputs(update=update)).gradient_norm
        skip = None
        takes_it = is_agreed_good(self.mesh.world, norm, is_good, computed, objective.units.all)
        loss = None if items is None else self._losses.mean_of(computed, items, name)
        if takes_it:
            if norm is not None:
                factor = clip_factor(norm, self.config.max_gradient_norm)
                update = update._replace(clip_factor=factor)
            objective.run("step", Inputs(update=update))
            state.updates[name] = number
            for buffers in self.parts.observing:
                buffers.apply()
        else:
            raise_failure(self.mesh.world, computed.failure)
            ranks = ranks_with_bad_losses(self.mesh.world, computed.losses.values())
            skip = SkippedStep(state.step_number + 1, loss, norm, ranks, is_empty)
        return loss, norm, skip

    @contextmanager
    def voting(self, ballot: Ballot | None) -> Iterator[None]:
        """Inside, the ranks vote before each step whether to stop; None: nobody is asked."""
        self._ballot = ballot
        try:
            yield
        finally:
            self._ballot = None

    def _checked_losses(self, results: dict[Objective, Results], items: float) -> float:
        """Return the sum of mean losses; or raise on all ranks what made one go on with zeros."""
        failures = [each.failure for each in results.values() if each.failure is not None]
        if agree(self.mesh.world, bool(failures)):
            self.drop_gradients()
            raise_together(self.mesh.world, next(iter(failures), None))
        return sum(self._losses.mean_of(results[o], items, o.name) for o in results)
