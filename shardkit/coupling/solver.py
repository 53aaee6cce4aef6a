"""The solver's side: a put copies the fields into a record of a pool, and begins to send it.

    put --copy--> pool record --Issend--> the trainer that is its home      pool full: the put waits

A record is free again when the trainer has begun to take it, so what is under way is never more
than the pool, however small the records are.
"""

from collections.abc import Callable
from typing import Any

import numpy

from ..comm.mpi.post import Posted
from ..errors import CommunicationError, ShardingError
from ..files.notes import tell
from .attendant import Attendant
from .desk import RECORD_TAG, NoteDesk
from .records import RecordForm
from .sides import Options, Sides


class Pool:
    """Records of one size, and those of them that are under way."""

    def __init__(self, num_records: int, record_bytes: int):
        self._free = [numpy.zeros(record_bytes, numpy.uint8) for _ in range(num_records)]
        self._under_way: list[Posted] = []

    def take(self) -> list[numpy.ndarray]:
        """Return a free record, if not all are under way."""
        self.collect()
        return [self._free.pop()] if self._free else []

    def send(self, record, post, to: int) -> None:
        """Begin to send a record, which comes back when it has been taken."""
        self._under_way.append(post.send(record, to, RECORD_TAG))

    def give_back(self, record) -> None:
        """Let a record be used again that was not sent."""
        self._free.append(record)

    def collect(self) -> bool:
        """Take back what has been taken; return True if nothing is under way."""
        under_way = []
        for posted in self._under_way:
            if posted.is_done():
                self._free.append(posted.array)
            else:
                under_way.append(posted)
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
        self._form: RecordForm | None = None
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
        if self._form is None:
            self._begin(fields)
        record = self._record()
        if record is None:
            self.num_unwanted += 1
        else:
            self._send(record, fields, stamp, float(weight))
        self.num_puts += 1

    def _begin(self, fields):
        self._form = RecordForm.of(fields)
        facts = {"form": self._form.text(), "first_put": self._options.first_put}
        self.attendant.tell(self.sides.trainers, "form", **facts)
        num_records = 1 if self.sides.is_shared else self._options.in_flight
        self._pool = Pool(num_records, self._form.record_bytes)

    def _record(self):
        """Return a free record, once there is one; None: the trainers are gone."""
        found: list[numpy.ndarray] = []
        pool = self._pool
        assert pool is not None

        def is_there() -> bool:
            if self.is_training and not self._refusal:
                found.extend(pool.take())
            return bool(found or self._refusal or not self.is_training)

        self._wait(is_there, f"put() number {self.num_puts + 1}")
        self.raise_refusal()
        return found[0] if found else None

    def _send(self, record, fields, time: float, weight: float):
        assert self._form is not None and self._pool is not None
        number = self.sides.number(self.num_puts)
        try:
            self._form.write(record, fields, number, time, weight)
            if self._deliver is not None:
                self._deliver(record)
        except BaseException:
            self._pool.give_back(record)
            raise
        home = self.sides.home(number)
        self._sent[home] += 1
        if self._deliver is None:
            self._pool.send(record, self.desk.post, self.sides.trainers[home])
        else:
            self._pool.give_back(record)

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
        if self.is_training:
            self._unless_lost(lambda: self.desk.check(self.sides.trainers, "a solver rank"))

    def _wait(self, until: Callable[[], bool], doing: str) -> None:
        trainers = self.sides.trainers
        self._unless_lost(lambda: self.attendant.wait(until, lambda: trainers, doing))

    def raise_refusal(self) -> None:
        """Raise what a trainer has refused."""
        if self._refusal is not None:
            self._has_raised = True
            raise ShardingError(self._refusal)

    def _unless_lost(self, call: Callable[[], None]) -> None:
        """Call it; where a trainer is lost, raise or go on alone, as was asked."""
        try:
            call()
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
