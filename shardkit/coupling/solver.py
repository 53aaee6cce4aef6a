"""The solver's side: a put copies the fields into a record of a pool, and begins to send it.

    put --copy--> pool record --Issend--> the trainer that is its home      pool full: the put waits

A record is free again when the trainer has begun to take it, so what is under way is never more
than the pool, however small the records are.
"""

from collections.abc import Callable
from typing import Any

import numpy

from ..comm.mpi.post import Post, Posted
from ..errors import CommunicationError, ShardingError
from ..files.notes import tell
from .attendant import Attendant
from .desk import RECORD_TAG, NoteDesk
from .records import RecordForm, RecordMemory
from .sides import Options, Sides


class Pool:
    """Records of one form: those that are free, the last of them for the next put, and the rest."""

    def __init__(self, form: RecordForm, num_records: int):
        memory = numpy.zeros((num_records, form.record_bytes), numpy.uint8)
        self.free = [RecordMemory(form, content) for content in memory]
        self._under_way: list[tuple[Posted, RecordMemory]] = []

    def send(self, record: RecordMemory, post: Post, to: int) -> None:
        """Begin to send a record, which comes back when it has been taken."""
        self._under_way.append((post.send(record.content, to, RECORD_TAG), record))

    def collect(self) -> bool:
        """Take back what has been taken; return True if nothing is under way."""
        under_way = []
        for posted, record in self._under_way:
            if posted.is_done():
                self.free.append(record)
            else:
                under_way.append((posted, record))
        self._under_way = under_way
        return not under_way


class SolverSide:
    """One solver rank.

    num_puts      puts so far, with those before a restart
    num_unwanted  puts that no trainer took: it had ended, or was lost
    desk, sides   that it was made with
    attendant     of this rank alone
    steered       {name: value} that trainers have sent
    is_training   False once the trainers have ended, or are lost
    """

    def __init__(
        self,
        desk: NoteDesk,
        sides: Sides,
        options: Options,
        deliver: Callable[[numpy.ndarray], None] | None,
    ):
        self.num_puts, self.num_unwanted = options.first_put, 0
        self.steered: dict[str, Any] = {}
        self.is_training = True
        self.desk, self.sides = desk, sides
        self.attendant = Attendant(desk, desk.hear)
        self._options, self._deliver = options, deliver
        self._pool: Pool | None = None
        self._sent = [0] * len(sides.trainers)
        self._refusal: str | None = None
        self._has_finished = self._has_raised = False
        desk.listen(steer=self._note_steer, stop=self._note_stop, refuse=self._note_refusal)

    # ---- putting ---------------------------------------------------------------------------------

    def put(self, fields: dict[str, Any], time: float | None, weight: float) -> None:
        """Copy the fields and begin to send them."""
        if self._has_finished:
            raise ShardingError("put() after finish(); wanted all puts before it")
        if not (weight > 0 and weight < float("inf")):
            raise ValueError(f"put(weight={weight!r}); wanted a number above 0")
        stamp = float(self.num_puts if time is None else time)
        self.listen()
        pool = self._pool or self._begin(fields)
        pool.collect()
        if self.is_training and not pool.free:
            self._wait_for_room(pool)
        if self.is_training:
            self._send(pool, fields, stamp, float(weight))
        else:
            self.num_unwanted += 1
        self.num_puts += 1

    def _begin(self, fields) -> Pool:
        form = RecordForm.of(fields)
        facts = {"form": form.text(), "first_put": self._options.first_put}
        self.attendant.tell(self.sides.trainers, "form", **facts)
        self._pool = Pool(form, 1 if self.sides.is_shared else self._options.in_flight)
        return self._pool

    def _wait_for_room(self, pool: Pool) -> None:
        """Wait until a record is free, or the trainers are gone."""

        def is_over() -> bool:
            return bool(pool.collect() or pool.free or self._refusal or not self.is_training)

        self._wait(is_over, f"put() number {self.num_puts + 1}")
        self.raise_refusal()

    def _send(self, pool: Pool, fields, time: float, weight: float):
        number, record = self.sides.number(self.num_puts), pool.free[-1]
        record.write(fields, number, time, weight)
        home = self.sides.home(number)
        if self._deliver is not None:
            self._deliver(record.content)
        else:
            pool.send(pool.free.pop(), self.desk.post, self.sides.trainers[home])
        self._sent[home] += 1

    def finish(self) -> None:
        """Say that this rank puts no more, once all that it has put has been taken."""
        if self._has_finished:
            return
        self._has_finished = True
        pool = self._pool
        if pool is not None and self.is_training:
            self._wait(lambda: pool.collect() or not self.is_training, "finish()")
        self._tell_puts("ends")
        if not self._has_raised:
            self.raise_refusal()

    def tell_waiting(self, call: int) -> None:
        """Say to all trainers that this rank puts nothing until a model is there.

        call   of predict()
        """
        self._tell_puts("waits", call=call)

    def _tell_puts(self, kind: str, **facts: Any) -> None:
        for trainer, sent in zip(self.sides.trainers, self._sent):
            self.desk.tell(trainer, kind, puts=self.num_puts, sent=sent, **facts)

    # ---- listening -------------------------------------------------------------------------------

    def listen(self) -> None:
        """Hear what trainers have said, and raise what they have refused. No wait."""
        while self.desk.hear():
            pass
        self.raise_refusal()
        if self.is_training and self.desk.has_news:
            self._unless_lost(self.desk.check, self.sides.trainers, "a solver rank")

    def _wait(self, until: Callable[[], bool], doing: str) -> None:
        self._unless_lost(self.attendant.wait, until, lambda: self.sides.trainers, doing)

    def raise_refusal(self) -> None:
        """Raise what a trainer has refused."""
        if self._refusal is not None:
            self._has_raised = True
            raise ShardingError(self._refusal)

    def _unless_lost(self, call: Callable[..., None], *arguments: Any) -> None:
        """Call it; where a trainer is lost, raise or go on alone, as was asked."""
        try:
            call(*arguments)
        except CommunicationError as error:
            if self._options.on_loss == "raise":
                raise
            self.is_training = False
            tell(f"the solver goes on without a training: {error}")

    def _note_steer(self, source, facts, body):
        self.steered.update(facts["values"])

    def _note_refusal(self, source, facts, body):
        self._refusal = facts["why"]

    def _note_stop(self, source, facts, body):
        self.is_training = False
