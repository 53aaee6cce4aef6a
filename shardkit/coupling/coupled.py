"""sk.coupled: one MPI program in which a simulation runs and its surrogate is trained.

A Coupled holds the parts of its rank: docs/coupled.md shows a program of both sides.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from enum import Enum
from typing import Any, Self

import numpy

from ..annotations import Array, Tree
from ..arguments import is_integer
from ..comm.mpi.backend import MPICommunicationBackend
from ..comm.mpi.post import Post
from ..data.samples import Samples
from ..errors import (
    CheckpointError,
    CommunicationError,
    ConfigurationError,
    ShardingError,
    StopVoted,
)
from ..files.notes import tell
from ..parallel.model.sharded_model import ShardedModel, parts_of
from .desk import NoteDesk
from .moments import FieldMoments, from_stored, to_stored
from .predicting import NewestModel, Predictor, Publisher, WaitingSolvers
from .reading import Reading
from .receiving import Receiver
from .sides import Options, Sides
from .solver import SolverSide
from .stream import Chosen, CouplingCallback, StreamSamples, chosen

COMPANION = "coupling.json"


class _Phase(Enum):
    OPEN = "open"
    FINISHED = "finished"
    CLOSED = "closed"


class Coupled:
    """One rank's end of a simulation and a training that run beside each other; see coupled().

    Attributes
    ----------
    is_solver, is_trainer
        What this rank does; where ranks share their time, both.
    backend
        Of the ranks of this side: what a model on the trainers is made with.
    solvers
        The mpi4py communicator of the solver ranks, for their own messages until close(); None on
        trainers.
    steered
        {name: value}: what trainers have sent by steer(), on solver ranks.
    """

    def __init__(self, post: Post, sides: Sides, options: Options) -> None:
        self._desk = NoteDesk(post)
        self._sides, self._options = sides, options
        self.is_solver, self.is_trainer = sides.is_solver, sides.is_trainer
        self._part = post.parent.Split(int(sides.is_solver), sides.rank)
        self.solvers: Any = self._part if sides.is_solver else None
        self.backend = MPICommunicationBackend(self._part, on_failure="raise")
        self.backend.initialize()
        newest = NewestModel(options.factory)
        self._phase = _Phase.OPEN
        self._receiver: Receiver | None = None
        self._solver: SolverSide | None = None
        if sides.is_trainer:
            self._receiver = Receiver(self._desk, sides, options)
            self._reading = Reading(self._receiver, WaitingSolvers(self._receiver, newest))
            self._publisher = Publisher(self._receiver, newest)
        if sides.is_solver:
            deliver = self._receiver.deliver if self._receiver is not None else None
            self._solver = SolverSide(self._desk, sides, options, deliver)
            self._predictor = Predictor(self._solver, newest, options.predict_on)
        side = self._receiver or self._solver
        assert side is not None
        self._attendant = side.attendant
        post.parent.Barrier()  # all listen from now on

    # ---- on solver ranks -------------------------------------------------------------------------

    def put(self, /, *, time: float | None = None, weight: float = 1.0, **fields: Any) -> None:
        """Send a sample to a trainer; it costs the copy of its arrays. Not collective.

        Parameters
        ----------
        time
            A stamp of the sample, which trainers can read as "time"; None: the number of the put.
        weight
            Above 0: the chance to be kept in a reservoir; trainers can read it as "weight".
        fields
            Arrays of one sample; the first put says which, and all puts of all ranks are alike.
            They may change afterwards.

        Raises
        ------
        ShapeError
            If the fields are others than those of the first put.
        ShardingError
            After finish(), or what a trainer has refused.
        CommunicationError
            If a trainer is lost, unless on_loss is "go_on".

        Notes
        -----
        It waits only while in_flight records are under way, as they are where a buffer is full that
        drops nothing. Where ranks share their time, such a buffer raises BufferError.
        """
        self._solver_side("put").put(fields, time, weight)

    def predict(self, x: Array) -> Tree:
        """Return the output of the newest published model for x; wait for the first one.

        On the solver itself or asked of a trainer, as predict_on says. Not collective.

        Parameters
        ----------
        x
            [n, ...], as the model takes it in one process.

        Raises
        ------
        ShardingError
            If no first model comes: the trainers have finished without one, or wait for puts of
            this rank. And what the trainer that was asked has raised.
        CommunicationError
            If a trainer is lost.
        """
        self._solver_side("predict")
        return self._predictor.predict(x)

    @property
    def steered(self) -> dict[str, Any]:
        side = self._solver_side("steered")
        side.listen()
        return dict(side.steered)

    @property
    def is_training(self) -> bool:
        """On solver ranks, True until the trainers have finished or are lost."""
        side = self._solver_side("is_training")
        side.listen()
        return side.is_training

    @property
    def num_puts(self) -> int:
        """Puts of this solver rank, those before a restart too: first_put of the next start."""
        return self._solver_side("num_puts").num_puts

    # ---- on trainers -----------------------------------------------------------------------------

    def batches(
        self, model: ShardedModel, batch: int, *, x: Chosen = "x", y: Chosen = "y"
    ) -> Iterator[tuple[Tree, Tree]]:
        """Yield this rank's part of each global batch, x and y, until the solver ranks have ended.

        Collective over the trainers. Where ranks share their time, until the next batch is not all
        there yet, so that the solver goes on; after finish() until the stream ends. A reservoir has
        always another one: leave the loop, and the next call goes on behind it.

        Parameters
        ----------
        model
            Its mesh cuts the batches. Its checkpoints hold from now on how far the stream was read
            and the statistics, and after load_model() the batches go on from there.
        batch
            Samples of a global batch; what is left of the stream in the end is not yielded.
        x, y
            Names of fields, "time" or "weight"; of several, a dict of arrays [n, ...].

        Raises
        ------
        ConfigurationError
            If the ranks cannot share the batch.
        ShardingError
            If a batch can never be read, with what to do.
        CommunicationError
            If a trainer is lost.
        """
        reading, (number, parts) = self._on_trainer("batches"), model.mesh.sample_part
        if not is_integer(batch) or batch < 1 or batch % parts:
            raise ConfigurationError(
                f"batches(batch={batch!r}) over {parts} data ranks; wanted a multiple of {parts}"
            )
        count, begin = batch // parts, self.go_on_from(model)
        while True:
            first = begin + number * count
            samples = numpy.arange(first, first + count)
            waits = self._phase is not _Phase.OPEN or not self._sides.is_shared
            try:
                fields = reading.read(samples, waits=waits)
            except StopVoted:
                return
            if fields is None:
                return
            begin += batch
            self.note_in(model, begin)
            yield chosen(fields, x), chosen(fields, y)

    def samples(self, *, x: Chosen = "x", y: Chosen = "y", expected: int = 1 << 40) -> Samples:
        """Return the stream as samples of a run: sk.Training(model, (c.samples(), held_out), ...).

        The run ends when the solver ranks have ended, or after run.steps; give it c.callback() too.

        Parameters
        ----------
        x, y
            As of batches().
        expected
            Samples of an epoch, for run.epochs.
        """
        reading = self._on_trainer("samples")
        if self._sides.is_shared:
            raise ShardingError(
                "samples() where each rank is both: a run would wait for a solver that waits for "
                "it; use batches() between the puts, or set trainers"
            )
        return StreamSamples(reading, self._options.buffer, x, y, expected)

    def callback(self, publish_every: int = 0) -> CouplingCallback:
        """Return what a run of samples() needs among its callbacks.

        Its checkpoints hold the statistics then, and solver ranks read `steered` with step and
        loss.

        Parameters
        ----------
        publish_every
            Steps between two calls of publish(); 0: none.
        """
        self._on_trainer("callback")
        if not is_integer(publish_every) or publish_every < 0:
            raise ConfigurationError(f"publish_every = {publish_every!r}; wanted a number of steps")
        return CouplingCallback(self, publish_every)

    def publish(self, model: ShardedModel) -> None:
        """Let predict() use the weights that the model has now. Collective over the trainers."""
        self._on_trainer("publish")
        self._desk.check_open()
        self._publisher.publish(model)

    def steer(self, /, **values: Any) -> None:
        """Send values to all solver ranks, which read them as `steered`. Called on all trainers.

        Parameters
        ----------
        values
            Numbers, texts, lists or dicts of them; those of the first trainer are sent.
        """
        self._on_trainer("steer")
        try:
            json.dumps(values)
        except (TypeError, ValueError) as error:
            raise ShardingError(f"steer(): {error}; wanted numbers, texts and lists") from None
        if self._sides.rank == self._sides.trainers[0]:
            self._attendant.tell(self._sides.solvers, "steer", values=values)

    def statistics(self) -> dict[str, FieldMoments]:
        """Return mean, variance and deviation of each field over the samples read so far.

        Exact over samples, so the same bits on any number of ranks. No communication.
        """
        return self._on_trainer("statistics").moments()

    def report(self) -> dict[str, Any]:
        """Return what was counted on this rank. No communication.

        Of a trainer records received and dropped, buffer_bytes, and ended_by: why the stream is
        over before the solver ranks have finished, or None. Of a solver rank puts, and among them
        those unwanted, which no trainer took since it had ended.
        """
        found: dict[str, Any] = {}
        if self._receiver is not None:
            found |= {**self._receiver.counts(), "ended_by": self._reading.ended_by}
        if self._solver is not None:
            found |= {"puts": self._solver.num_puts, "unwanted": self._solver.num_unwanted}
        return found

    def go_on_from(self, model: ShardedModel) -> int:
        """Return how many samples were read before the state of the model; count on from there."""
        content = parts_of(model).checkpoints.companions.get(COMPANION)
        if content is None:
            return 0
        try:
            stored = json.loads(content)
            samples, moments = int(stored["samples"]), from_stored(stored["moments"])
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CheckpointError(f"{COMPANION} of the checkpoint: {error}") from error
        if samples != self._reading.num_read:
            self._reading.go_on_from(samples, moments)
        return samples

    def note_in(self, model: ShardedModel, samples: int) -> None:
        """Let checkpoints of the model say that so many samples were read, and the statistics."""
        moments = to_stored(self._reading.moments(samples))
        content = json.dumps({"samples": samples, "moments": moments}).encode()
        parts_of(model).checkpoints.add_companions({COMPANION: content})
        self._reading.go_behind(samples)

    # ---- the end ---------------------------------------------------------------------------------

    def finish(self) -> None:
        """Say that this rank is done. Not collective, but all ranks call it, once.

        A solver rank puts no more: the stream ends after what all have put. A trainer reads no
        more: puts are not waited for from now on, and is_training is False on solver ranks.
        """
        if self._phase is not _Phase.OPEN:
            return
        self._phase = _Phase.FINISHED
        if self._solver is not None:
            self._solver.finish()
        else:
            self._reading.finish()
            self._attendant.tell(self._desk.others, "stop")

    def close(self) -> None:
        """Finish, and free what the ranks have made together. Collective over all of them.

        Where a rank is lost, the others are not waited for, and a line says so.
        """
        if self._phase is _Phase.CLOSED:
            return
        self.finish()
        self._phase = _Phase.CLOSED
        receiver, sides = self._receiver, self._sides
        try:
            if receiver is None:
                self._attendant.meet_all(lambda: True, tuple)
            else:
                self._attendant.meet_all(lambda: receiver.is_complete, lambda: receiver.unended)
        except CommunicationError as error:
            tell(f"a coupling ends: {error}")
            if not self._desk.lost(sides.trainers if sides.is_trainer else sides.solvers):
                with suppress(CommunicationError):  # one was lost in the meantime
                    self.backend.shutdown()
        else:
            self.backend.shutdown()
            self._part.Free()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if error is None:
            self.close()
        else:
            self._attendant.fail(f"{kind.__name__}: {error}")

    # ---- inside ----------------------------------------------------------------------------------

    def _solver_side(self, name: str) -> SolverSide:
        if self._solver is None:
            raise ShardingError(f"{name} is of solver ranks; this one trains (is_solver is False)")
        return self._solver

    def _on_trainer(self, name: str) -> Reading:
        if self._receiver is None:
            raise ShardingError(f"{name} is of trainers; this rank solves (is_trainer is False)")
        return self._reading
