"""What a run says of itself: its first lines, its progress, and what it needed in the end."""

import os
import resource
import time

import numpy

from ..comm.mpi.launch import launch_warnings
from ..comm.ranks import ranks_text
from ..comm.seats import Seat, crowding, seats_on_first
from ..data.stream import Stream
from ..environment import slurm_node
from ..errors import NonFiniteError
from ..parallel.model.callback import Callback
from ..parallel.model.sharded_model import ShardedModel, parts_of
from ..plain import counted
from ..task.task import Task
from .log import RankLog, Reporter, duration_text
from .ranks import bits_text
from .settings import RunConfiguration


class RunReport(Callback):
    """The lines and the curve of one run in progress."""

    on_all_ranks = True

    def __init__(
        self, task: Task, model: ShardedModel, stream: Stream, reporter: Reporter, log: RankLog
    ):
        self._task = task
        self._model, self._parts = model, parts_of(model)
        self._backend, self._stream = model.mesh.world, stream
        self._reporter, self._log = reporter, log
        self._unit = task.unit or task.sample
        self._knows_overlap = False  # the log says what was chosen
        self._began = self._reported_at = time.perf_counter()
        self._reported_step = model.step_number
        self._reported_wait = 0.0
        self._first_report: tuple[float, int] | None = None  # when, and after which step

    @property
    def _settings(self) -> RunConfiguration:
        return self._task.settings

    # ---- at the start ----------------------------------------------------------------------------

    def at_start(self, run):
        """Say what is trained, where, and which ranks do it; start the clock. Collective."""
        about, settings = self._model.get_model_metadata(), self._settings
        computed, multiplied = about["compute_dtype"], about["product_dtype"]
        mixed = f", computed in {computed}" if self._parts.engine.plan.numerics.is_mixed else ""
        if multiplied != computed:
            mixed += f" with products in {multiplied}"
        mixed += "" if settings.parallel.blas == "numpy" else f", products by {about['blas']}"
        self._reporter.line(
            f"shardkit: {about['parameter_count']:,} parameters as {self._parts.policy.name} on "
            f"{counted(self._backend.world_size, 'rank')} ({self._model.mesh.shape}), "
            f"{about['shard_size']:,} on this one{mixed}; {self._task.describe_data()}; "
            f"{settings.batch.sequences} {self._task.sample} per step{_epochs_text(settings)}; "
            f"{bits_text(settings, self._backend.world_size)}; run folder {settings.run.folder}"
        )
        self._introduce_ranks()
        self._began = self._reported_at = time.perf_counter()
        self._reported_step = self._model.step_number

    def _introduce_ranks(self):
        threads = self._settings.run.threads
        at, rank = self._model.mesh.coordinates, self._backend.rank
        seat, node = Seat.here(threads), f", SLURM node {slurm_node()}" if slurm_node() else ""
        self._log.line(
            f"rank {rank} of {self._backend.world_size} at {at}: host {seat.host}{node}, process "
            f"{os.getpid()}, cores {ranks_text(seat.cores)}, {seat.threads} BLAS threads"
        )
        seats = seats_on_first(self._backend, threads)
        for text in [*launch_warnings(self._backend.world_size), *crowding(seats)]:
            self._reporter.line(f"warning: {text}")

    # ---- during it -------------------------------------------------------------------------------

    def after_step(self, step, loss):
        """Move the bar, and say what was decided or went wrong in this step.

        Errors, on all ranks: NonFiniteError if too many steps in a row were skipped.
        """
        self._look_at_skip()
        self._report_overlap()
        self._reporter.progress(step)

    def speed(self, step: int, loss: float) -> dict[str, float]:
        """Say how the steps since the last report went, and return it in numbers."""
        run, now = self._settings.run, time.perf_counter()
        left = self._left_text(now, step)
        samples = (step - self._reported_step) * self._settings.batch.sequences
        waited = self._stream.waited_seconds - self._reported_wait
        num_steps = step - self._reported_step
        speed = samples * self._task.units_per_sample / (now - self._reported_at)
        self._reported_at, self._reported_step = now, step
        self._reported_wait = self._stream.waited_seconds
        engine = self._parts.engine
        exposed, scale = sum(engine.listening.exposed.values()), engine.state.loss_scale
        text = (
            f"loss {loss:.4f}  {speed:,.0f} {self._unit}/s  {exposed * 1e3:.1f} ms exposed "
            f"communication{left}"
        )
        self._reporter.progress(step, text)
        self._reporter.line(f"step {step}/{run.steps}  {text}")
        parts = {
            f"train_loss_{name}": part for name, part in engine.evaluation.loss_parts().items()
        }
        return {
            "train_loss": loss,
            **parts,
            "learning_rate": engine.state.rule.rate(step),
            f"{self._unit}_per_second": speed,
            "gradient_norm": engine.gradient_norm,
            "exposed_communication_seconds": exposed,
            "data_wait_seconds": waited / num_steps,
            **({"loss_scale": scale.value} if scale.is_dynamic else {}),
        }

    def _left_text(self, now: float, step: int) -> str:
        """Return the time that is left, by all that happened since the first report.

        "" in the first one: the steps before it compiled kernels and tried what is faster.
        """
        if self._first_report is None:
            self._first_report = now, step
            return ""
        began, first = self._first_report
        steps_left = self._settings.run.steps - step
        seconds_left = (now - began) / (step - first) * steps_left
        text = "less than 1s" if seconds_left < 1 else duration_text(seconds_left)
        return f"  {text} left" if steps_left else ""

    def after_report(self, step, values):
        """Record the numbers of a report."""
        self._reporter.record(step=step, **values)

    def leave_out(self, seconds: float) -> None:
        """Count these seconds as no training time, in the speed of the next report."""
        self._reported_at += seconds

    def after_validation(self, step, values):
        """Say and record the loss and the metrics of the held-out samples."""
        words = "".join(
            f"  {name} {values[name]:.4g}" for name in self._task.metrics if name in values
        )
        self._reporter.line(
            f"step {step}/{self._settings.run.steps}  validation loss "
            f"{self._task.describe_loss(values['validation_loss'])}{words}"
        )
        self._reporter.record(step=step, **values)

    def _report_overlap(self):
        """Say what was chosen, once it has been measured."""
        overlap = self._parts.engine.overlap
        if overlap.is_settled and overlap.medians and not self._knows_overlap:
            self._knows_overlap = True
            self._reporter.line(f"overlap of communication and computation is {overlap}")

    def _look_at_skip(self):
        """Say so if the step was skipped."""
        skips, limit = self._parts.state.skips, self._settings.run.stop_after_bad_steps
        if skips.last is None:
            return
        scale = self._parts.engine.state.loss_scale
        rescaled = (
            f"; the loss is scaled by {scale.value:g} from now on" if scale.is_dynamic else ""
        )
        self._reporter.line(f"{skips.last} ({skips.in_a_row} in a row){rescaled}")
        self._reporter.record(step=self._model.step_number, skipped_steps=skips.total)
        if skips.in_a_row >= limit:
            raise NonFiniteError(
                f"{limit} steps in a row were NaN or infinite; the last: {skips.last}. Parameters "
                "are those "
                f"of step {self._model.step_number - limit}; try a lower optimizer.learning_rate "
                "or optimizer.max_gradient_norm with --resume, or look at the data of these steps"
            )

    # ---- at the end ------------------------------------------------------------------------------

    def report_memory(self) -> None:
        """Say how long it took, and the memory of each rank. Collective."""
        peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        everyones = numpy.zeros(self._backend.world_size)
        self._backend.all_gather(numpy.array([peak_mib]), everyones)
        self._reporter.line(
            f"trained for {duration_text(time.perf_counter() - self._began)}; peak memory per rank "
            f"{' '.join(f'{m:.0f}' for m in everyones[:8])}{' ...' if len(everyones) > 8 else ''} "
            "MiB"
        )


def _epochs_text(settings) -> str:
    """Return how many steps the epochs of a run take; "" for a run of given steps."""
    run = settings.run
    return "" if run.epochs is None else f"; {run.epochs:g} epochs are {run.steps:,} steps"
