"""The training run: from settings to a trained model, its checkpoints and its curve.

run folder/
  configuration.json    the settings, so that --resume needs none
  data/                 the text as tokens
  metrics.jsonl         the curve: one record per report
  logs/                 one file per rank
  checkpoints/          see checkpoint/store.py
"""

import os
import resource
import time
from dataclasses import dataclass
from pathlib import Path

import numpy
from threadpoolctl import threadpool_limits

from ..checkpoint.background import PendingCheckpoint
from ..comm.backend import CommunicationBackend
from ..comm.failure.agreement import collectively
from ..comm.failure.ballot import Ballot
from ..comm.failure.program import Program
from ..comm.mpi.launch import all_seats, crowding, launch_warnings, ranks_text
from ..environment import slurm_node
from ..errors import CheckpointError, NonFiniteError, StopVoted
from .data import Windows, build_corpus, corpus_fingerprint, has_corpus
from .folder import check_folder, store_settings
from .initial import load_weights
from .log import BITS_PER_NAT, RankLog, Reporter, duration_text
from .model import bits_text, check_batch, make_gpt, make_model
from .sample import fill_parameters, generate_text
from .settings import RunConfiguration, settled
from .stopping import Clock, Patience, StopSignals


@dataclass(frozen=True)
class RunResult:
    """How a run ended: its last losses in nats per byte, and the sample it wrote.

    is_interrupted  it was told to stop, or its time ran out: a checkpoint is there, and --resume
                    goes on
    """

    steps: int
    train_loss: float | None
    validation_loss: float | None
    sample: str
    is_interrupted: bool = False


def train_run(
    settings: RunConfiguration,
    backend: CommunicationBackend,
    *,
    resume: bool = False,
    program: Program | None = None,
    signals: StopSignals | None = None,
) -> RunResult:
    """Train, or go on training, the run that the settings describe. Collective over the backend.

    program  of the abort_on_error around this call, which learns the run folder and the step from
             here
    signals  that end the run early, with a checkpoint
    Errors, on all ranks: ConfigurationError (also CorpusError), CheckpointError, OSError,
    OutOfMemoryError, NonFiniteError.
    """
    settings = settled(settings)
    folder = Path(settings.run.folder)
    prepare_run(settings, backend, resume=resume)
    backend.timeout = settings.run.timeout
    with collectively(backend):
        backend.keep_ledger(folder / "ledger")
        log = RankLog(folder, backend.rank)
    with threadpool_limits(settings.run.threads), log:
        run = TrainingRun(settings, backend, signals or StopSignals(), log)
        begin_run(run, settings, resume=resume)
        if program is not None:
            program.run_folder, program.describe = (
                folder,
                lambda: f"step {run.model.step_number + 1}",
            )
        return run.go()


def prepare_run(settings: RunConfiguration, backend: CommunicationBackend, *, resume: bool) -> None:
    """Make the run folder with its text, if these ranks can do the run. Collective. Errors: as
    train_run.
    """
    folder = Path(settings.run.folder)
    check_batch(settings, backend.world_size)
    with collectively(backend):
        if backend.rank == 0:
            check_folder(folder, resume)
            if not (
                resume and has_corpus(folder / "data")
            ):  # a start before this one may have left other text
                text = settings.data
                build_corpus(
                    folder / "data", text.path, text.validation_percent, text.maximum_bytes
                )


def begin_run(run: "TrainingRun", settings: RunConfiguration, *, resume: bool) -> None:
    """Bring a run to its first step, or to that of its newest checkpoint, and write down its
    settings. Collective.

    Not before the model is there: settings that it refuses shall not be those that the next
    --resume finds.
    """
    run.resume() if resume else run.start()
    with collectively(run.backend):
        if run.backend.rank == 0:
            store_settings(run.folder, settings)


class TrainingRun:
    """One training run in progress, in a folder that is prepared, on a model with its first
    weights.

    commit   function (), called after each step; may be set
    """

    def __init__(
        self,
        settings: RunConfiguration,
        backend: CommunicationBackend,
        signals: StopSignals,
        log: RankLog,
    ):
        self.settings = settings
        self.folder = Path(settings.run.folder)
        self.backend = backend
        self.log = log
        self.commit = lambda: None
        folder = self.folder
        length, seed = settings.model.sequence_length, settings.run.seed
        with collectively(backend):
            self.text = Windows.open(folder / "data" / "train.bin", length, seed)
            self.held_out = Windows.open(
                folder / "data" / "validation.bin", length, seed, "validation"
            )
            self.fingerprint = corpus_fingerprint(folder / "data")
        self.model = make_model(settings, backend)
        self.reporter = Reporter(folder, settings.run.steps, log, is_writer=backend.rank == 0)
        self.pending: tuple[int, PendingCheckpoint] | None = (
            None  # step and checkpoint that is being written
        )
        self._knows_overlap = False  # the log says what was chosen
        self.saved_step: int | None = None  # of the newest checkpoint, written or being written
        self.signals = signals
        rank = self.model.mesh.coordinates.data
        self.part = settings.batch.sequences // self.model.mesh.size("data")
        self.first = rank * self.part

    def start(self):
        """Be at step 0, with the weights that the settings name, if they do. Collective."""
        if self.settings.model.initial:
            self.reporter.line(load_weights(self.model, self.settings.model.initial))

    def resume(self):
        """Be where the newest valid checkpoint of the run is. Collective."""
        manifest = self.model.load_model(self.folder / "checkpoints")
        for reason in manifest["skipped"]:
            self.reporter.line(f"skipped: {reason}")
        with collectively(self.backend):
            if manifest["data_position"].get("corpus_sha256") != self.fingerprint:
                raise CheckpointError(
                    f"{self.folder / 'data'} is not the text that this run was trained on; restore "
                    "it, or "
                    "start a new run"
                )
        self.saved_step = self.model.step_number
        self.be_at_step(f"resumed at step {self.model.step_number}")

    def be_at_step(self, why: str):
        """Report that the model is at another step now, and end the curve there.
        Collective.
        """
        with collectively(self.backend):
            self.reporter.drop_records_after(self.model.step_number)
        self.reporter.line(why)

    def _listen(self):
        """From now on every step begins with the question whether to stop."""
        run, is_first = self.settings.run, self.backend.rank == 0
        losses = self.reporter.recorded("validation_loss") if is_first else None
        self.clock = Clock.of_run(run) if is_first else Clock(None, run.stop_margin_seconds)
        if not run.time_limit_seconds:  # of one's own, after which nobody kills
            self.backend.seconds_left = lambda: self.clock.seconds_left
        self.patience = Patience(run.patience, self.backend.broadcast_object(losses, 0))
        self.model.engine.ballot = Ballot(
            signal=self.signals.is_raised, time=self.clock.is_short, patience=self.patience.is_over
        )

    def go(self) -> RunResult:
        """Train to the last step, then write a sample; or stop before, as the ranks vote."""
        run = self.settings.run
        self._listen()
        self._introduce()
        began, first_step = time.perf_counter(), self.model.step_number
        reported_at, reported_step = began, first_step
        train_loss = validation_loss = stop = None
        with self.reporter:
            while self.model.step_number < run.steps:
                try:
                    train_loss = self.model.train(
                        *self.text.batch(self.model.step_number, self.first, self.part)
                    )
                except StopVoted as vote:
                    stop = vote
                    break
                self.commit()
                step, now = self.model.step_number, time.perf_counter()
                self._report_checkpoint()
                self._look_at_skip()
                self._report_overlap()
                self.reporter.progress(step)
                if step % run.report_every == 0 or step == run.steps:
                    seconds_left = (now - began) / (step - first_step) * (run.steps - step)
                    tokens = (
                        (step - reported_step)
                        * self.settings.batch.sequences
                        * self.settings.model.sequence_length
                    )
                    self._report(step, train_loss, tokens / (now - reported_at), seconds_left)
                    reported_at, reported_step = now, step
                if step % run.validate_every == 0 or step == run.steps:
                    validation_loss = self._validate(step)
                    reported_at += time.perf_counter() - now  # validation is not training time
                if step % run.checkpoint_every == 0 or step == run.steps:
                    now = time.perf_counter()
                    self._save()
                    reported_at += time.perf_counter() - now
            if stop is not None:
                self._say_why(stop)
                self._save()
            if self.pending is not None:
                self.pending[1].wait()
                self._report_checkpoint()
        is_interrupted = stop is not None and stop.reasons != ("patience",)
        if is_interrupted:
            self.reporter.line(
                f"stopped with a checkpoint of step {self.model.step_number}; to go on: shardkit "
                "train --resume "
                f"--run.folder={self.folder}"
            )
        if validation_loss is None and not is_interrupted:
            validation_loss = self._validate(self.model.step_number)
        self._report_memory(time.perf_counter() - began)
        sample = "" if is_interrupted else self._write_sample()
        return RunResult(
            self.model.step_number, train_loss, validation_loss, sample, is_interrupted
        )

    # ---- reports ---------------------------------------------------------------------------------

    def _introduce(self):
        about, settings = self.model.get_model_metadata(), self.settings
        mixed = (
            f", computed in {about['compute_dtype']}" if self.model.engine.numerics.is_mixed else ""
        )
        mixed += "" if settings.parallel.blas == "numpy" else f", products by {about['blas']}"
        self.reporter.line(
            f"shardkit: {about['parameter_count']:,} parameters as {self.model.policy.name} on "
            f"{self.backend.world_size} ranks "
            f"({self.model.mesh.shape}), {about['shard_size']:,} on this one{mixed}; "
            f"text of {len(self.text.tokens):,} bytes + {len(self.held_out.tokens):,} held out; "
            f"{settings.batch.sequences} sequences of {settings.model.sequence_length} bytes per "
            "step; "
            f"{bits_text(settings, self.backend.world_size)}; run folder {self.folder}"
        )
        seats, at = all_seats(self.backend, settings.run.threads), self.model.mesh.coordinates
        seat, node = (
            seats[self.backend.rank],
            f", SLURM node {slurm_node()}" if slurm_node() else "",
        )
        self.log.line(
            f"rank {self.backend.rank} of {self.backend.world_size} at pipeline {at.pipeline}, "
            f"data {at.data}, tensor "
            f"{at.tensor}: host {seat.host}{node}, process {os.getpid()}, cores "
            f"{ranks_text(seat.cores)}, "
            f"{seat.threads} BLAS threads"
        )
        for text in [*launch_warnings(self.backend.world_size), *crowding(seats)]:
            self.reporter.line(f"warning: {text}")

    def _report(self, step, loss, tokens_per_second, seconds_left):
        learning_rate = self.model.engine.state.rule.rate(step)
        exposed = sum(self.model.engine.exposure.of_step.values())
        text = (
            f"loss {loss:.4f}  {tokens_per_second:,.0f} tokens/s  {exposed * 1e3:.1f} ms exposed "
            "communication  "
            f"{duration_text(seconds_left)} left"
        )
        self.reporter.progress(step, text)
        self.reporter.line(f"step {step}/{self.settings.run.steps}  {text}")
        self.reporter.record(
            step=step,
            train_loss=loss,
            learning_rate=learning_rate,
            tokens_per_second=tokens_per_second,
            gradient_norm=self.model.engine.gradient_norm,
            exposed_communication_seconds=exposed,
            **self._scale_record(),
        )

    def _report_overlap(self):
        """Say what was chosen, once it has been measured."""
        overlap = self.model.engine.overlap
        if overlap.is_settled and overlap.medians and not self._knows_overlap:
            self._knows_overlap = True
            self.reporter.line(f"overlap of communication and computation is {overlap}")

    def _scale_record(self) -> dict:
        """Return the entry of metrics.jsonl for the scale of the loss, if there is one."""
        scale = self.model.engine.loss_scale
        return {"loss_scale": scale.value} if scale.is_dynamic else {}

    def _look_at_skip(self):
        """Say so if the step was skipped. Errors, on all ranks: NonFiniteError if that happens too
        often.
        """
        skips, limit = self.model.engine.state.skips, self.settings.run.stop_after_bad_steps
        if skips.last is None:
            return
        scale = self.model.engine.loss_scale
        rescaled = (
            f"; the loss is scaled by {scale.value:g} from now on" if scale.is_dynamic else ""
        )
        self.reporter.line(f"{skips.last} ({skips.in_a_row} in a row){rescaled}")
        self.reporter.record(step=self.model.step_number, skipped_steps=skips.total)
        if skips.in_a_row >= limit:
            raise NonFiniteError(
                f"{limit} steps in a row were NaN or infinite; the last: {skips.last}. Parameters "
                "are those "
                f"of step {self.model.step_number - limit}; try a lower optimizer.learning_rate or "
                "optimizer.max_gradient_norm with --resume, or look at the data of these steps"
            )

    def _say_why(self, vote: StopVoted):
        """One line on what was decided, and by whom. Collective."""
        names = self.backend.all_gather_object(self.signals.name)
        words = {
            "signal": ", ".join(
                f"{name} on rank {rank}" for rank, name in enumerate(names) if name
            )[:100],
            "time": self.clock.left(),
            "patience": f"{self.settings.run.patience} validations without a lower loss",
        }
        self.reporter.line(
            f"step {self.model.step_number}/{self.settings.run.steps}  stopping: "
            f"{'; '.join(words[reason] for reason in vote.reasons)}"
        )

    def _validate(self, step) -> float:
        count = self.settings.run.validation_batches
        losses = [
            self.model.evaluate(*self.held_out.batch(i, self.first, self.part))
            for i in range(count)
        ]
        loss = sum(losses) / count
        self.patience.note(loss)
        self.reporter.line(
            f"step {step}/{self.settings.run.steps}  validation loss {loss:.4f} nats per byte  "
            f"({loss * BITS_PER_NAT:.3f} bits per byte)"
        )
        self.reporter.record(step=step, validation_loss=loss, bits_per_byte=loss * BITS_PER_NAT)
        return loss

    def _report_memory(self, seconds):
        peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        everyones = numpy.zeros(self.backend.world_size)
        self.backend.all_gather(numpy.array([peak_mib]), everyones)
        self.reporter.line(
            f"trained for {duration_text(seconds)}; peak memory per rank "
            f"{' '.join(f'{m:.0f}' for m in everyones[:8])}{' ...' if len(everyones) > 8 else ''} "
            "MiB"
        )

    # ---- what is kept ----------------------------------------------------------------------------

    def _save(self):
        """Write a checkpoint of this step, unless it is there already."""
        run = self.settings.run
        step = self.model.step_number
        began = time.perf_counter()
        if step == self.saved_step:
            return
        how = {
            "keep": run.keep_checkpoints,
            "keep_every": run.keep_every,
            "data_position": {"corpus_sha256": self.fingerprint, "next_step": step},
        }
        if run.asynchronous_checkpoints:
            pending = self.model.save_model_async(self.folder / "checkpoints", **how)
            self._report_checkpoint()  # the one before, if it was still being written
            self.pending = step, pending
        else:
            folder = self.model.save_model(self.folder / "checkpoints", **how)
            self.clock.note_save(time.perf_counter() - began)
            self.reporter.line(f"step {step}/{run.steps}  checkpoint {folder}")
        self.saved_step = step
        self.reporter.record(step=step, checkpoint_pause_seconds=time.perf_counter() - began)

    def _report_checkpoint(self):
        """Say that the checkpoint which was being written is there, once it is."""
        if self.pending is None or not self.pending[1].is_committed:
            return
        step, checkpoint = self.pending
        self.pending = None
        self.clock.note_save(checkpoint.pause_seconds + checkpoint.write_seconds)
        self.reporter.line(
            f"step {step}/{self.settings.run.steps}  checkpoint {checkpoint.folder}  written in "
            f"{checkpoint.write_seconds:.2f} s, training stood still for "
            f"{checkpoint.pause_seconds:.3f} s"
        )

    def _write_sample(self) -> str:
        sample = self.settings.sample
        if sample.tokens == 0:
            return ""
        vector = self.model.gather_full_parameters()
        text = ""
        with collectively(self.backend):
            if self.backend.rank == 0:
                plain = make_gpt(self.settings)
                fill_parameters(plain, vector)
                prompt = sample.prompt.replace("\\n", "\n")
                text = generate_text(
                    plain, prompt, sample.tokens, sample.temperature, self.settings.run.seed
                )
        self.reporter.line(f"sample of generated text:\n{text}")
        return text
