"""predict(): the newest model that trainers have published, on a solver rank or asked of a trainer.

solver ranks                                        trainers
wants_model -->  <-- model, again when it is newer     predict_on = "solver"
ask x       -->  <-- answer                            predict_on = "trainer"
waits       -->  <-- no_model: none comes, since the trainers wait for puts of this rank, or
                     have finished
"""

import threading
from collections.abc import Callable
from typing import Any

import numpy

from ..checkpoint.whole import load
from ..errors import ShardingError
from ..nn.module import Module
from ..parallel.model.sharded_model import ShardedModel
from .receiving import Receiver
from .solver import SolverSide

FINISHED = "the trainers have finished without a publish()"
STUCK = (
    "it waits for the first publish(), and the trainers wait for a put() of this rank; publish() "
    "the model before batches(), or put() more before predict()"
)


class NewestModel:
    """The newest image of a model, which is loaded when a prediction needs it.

    number   of the image, counted from 1; 0: there is none yet
    """

    def __init__(self, factory: Callable[..., Module] | None):
        self._factory = factory
        self.image: bytes = b""
        self.number = 0
        self._lock = threading.Lock()
        self._loaded: tuple[int, Module | None] = (0, None)

    def take(self, image: bytes, number: int) -> None:
        """Predict by this image from now on."""
        self.image, self.number = image, number

    def predict(self, x: Any) -> Any:
        """Return the model's output for x."""
        with self._lock:
            number, model = self._loaded
            if number < self.number or model is None:
                number, model = self.number, load(self.image, self._factory)
                self._loaded = number, model
            return model.predict(x)


def to_note(array) -> dict[str, Any]:
    """Return what a note has of an array."""
    array = numpy.ascontiguousarray(array)
    body = array.reshape(-1).view(numpy.uint8)
    return {"dtype": array.dtype.str, "shape": array.shape, "body": body}


def from_note(facts: dict[str, Any], body: numpy.ndarray) -> numpy.ndarray:
    """Return the array that to_note() took."""
    flat = numpy.ascontiguousarray(body).view(facts["dtype"])
    return flat.reshape(facts["shape"]).copy()


class Predictor:
    """One solver rank's part.

    predict_on   "solver" or "trainer"
    """

    def __init__(self, solver: SolverSide, newest: NewestModel, predict_on: str):
        self._solver, self._newest = solver, newest
        self._asks = predict_on == "trainer" and not solver.sides.is_shared
        self._wants_model = self._knows_model = False
        self._call = 0  # the number of this one: what comes too late for another is not heard
        self._answer: numpy.ndarray | None = None
        self._failure: str | None = None
        solver.desk.listen(answer=self._note_answer, no_model=self._note_failure)
        if not solver.sides.is_shared:
            solver.desk.listen(model=self._take_model)

    def predict(self, x: Any) -> Any:
        """Return the newest model's output for x; wait for the first model."""
        self._solver.listen()
        self._call += 1
        self._answer = self._failure = None
        return self._asked(x) if self._asks else self._own(x)

    def _own(self, x):
        if self._solver.sides.is_shared and not self._newest.number:
            raise ShardingError("predict() before a publish(): there is no model yet")
        if not self._newest.number:
            if not self._wants_model:
                self._want(after=0)
            self._wait(lambda: self._newest.number > 0)
        return self._newest.predict(x)

    def _want(self, after: int):
        self._wants_model = True
        self._tell_trainer("wants_model", after=after)

    def _tell_trainer(self, kind: str, **facts: Any) -> None:
        self._solver.desk.tell(self._solver.sides.own_trainer, kind, **facts)

    def _take_model(self, source, facts, body):
        self._newest.take(body.tobytes(), facts["number"])
        self._knows_model = True
        if not self._solver.desk.asks_no_more:
            self._want(after=facts["number"])

    def _asked(self, x):
        self._tell_trainer("ask", call=self._call, **to_note(x))
        self._wait(lambda: self._answer is not None)
        return self._answer

    def _wait(self, is_there: Callable[[], bool]) -> None:
        """Wait until this is true. Errors: ShardingError, CommunicationError if it cannot be."""
        solver = self._solver
        if not self._knows_model:
            solver.tell_waiting(self._call)

        def is_over() -> bool:
            solver.raise_refusal()
            return self._failure is not None or is_there()

        solver.attendant.wait(is_over, lambda: solver.sides.trainers, "predict()")
        if self._failure is not None:
            raise ShardingError(self._failure)

    def _note_answer(self, source, facts, body):
        if facts.pop("call") == self._call:
            self._answer, self._knows_model = from_note(facts, body), True

    def _note_failure(self, source, facts, body):
        if facts["call"] == self._call:
            self._failure = facts["why"]


class Publisher:
    """One trainer's part: images go to the solver ranks that predict, or wait here."""

    def __init__(self, receiver: Receiver, newest: NewestModel):
        self._receiver, self._newest = receiver, newest
        self._wanted_by: set[int] = set()  # ranks that wait for a newer model
        self._asked: list[tuple] = []
        receiver.desk.listen(wants_model=self._note_want, ask=self._note_ask)

    def publish(self, model: ShardedModel) -> None:
        """Take the model's weights. Collective over the trainers."""
        image = model.serialize()
        with self._receiver.attendant.lock:
            self._newest.take(image, self._newest.number + 1)
            for rank in sorted(self._wanted_by):
                self._send(rank)
            asked, self._asked = self._asked, []
        for question in asked:
            self._answer(*question)

    def _send(self, rank: int):
        """Send the newest model; the rank asks again when it has it, so only one is under way."""
        self._wanted_by.discard(rank)
        body = numpy.frombuffer(self._newest.image, numpy.uint8)
        self._receiver.desk.tell(rank, "model", body, number=self._newest.number)

    def _note_want(self, source, facts, body):
        self._wanted_by.add(source)
        if self._newest.number > facts["after"]:
            self._send(source)

    def _note_ask(self, source, facts, body):
        question = source, facts.pop("call"), from_note(facts, body)
        if self._newest.number:
            self._receiver.attendant.jobs.append(lambda: self._answer(*question))
        else:
            self._asked.append(question)

    def _answer(self, rank: int, call: int, x):
        """Compute the output, beside what the trainer does, and send it."""
        try:
            kind, told = "answer", to_note(self._newest.predict(x))
        except Exception as error:  # raised where it was asked: the training goes on
            why = f"predict() on the trainer: {type(error).__name__}: {error}"
            kind, told = "no_model", {"why": why}
        self._receiver.attendant.tell([rank], kind, call=call, **told)


class WaitingSolvers:
    """One trainer's knowledge of solver ranks that wait for a first model, which may never come.

    Its methods are called with the lock held.
    """

    def __init__(self, receiver: Receiver, newest: NewestModel):
        self._receiver, self._newest = receiver, newest
        self._waiting: dict[int, dict[str, Any]] = {}  # rank -> its call, its puts, and those here
        self._has_finished = False
        receiver.desk.listen(waits=self._note)

    def _note(self, source, facts, body):
        self._waiting[source] = facts
        if self._has_finished:
            self.finish()

    def finish(self) -> None:
        """Let all raise that wait without a model, from now on."""
        self._has_finished = True
        self._refuse([*self._waiting], FINISHED)

    def judge(self, numbers: list[int]) -> None:
        """Let those raise without whose puts this trainer waits for these numbers for ever."""
        receiver = self._receiver
        if receiver.options.is_ordered:
            holders = [receiver.sides.put_of(number) for number in numbers]
            stuck = {rank for put, rank in holders if self._waits_before(put, rank)}
        else:
            sent = {rank: facts["sent"] for rank, facts in self._waiting.items()}
            is_dry = sent.keys() >= {*receiver.unended} and receiver.has_all(sent)
            stuck = {*sent} if is_dry else set()
        self._refuse(sorted(stuck), STUCK)

    def _waits_before(self, put: int, rank: int) -> bool:
        """Return True if a rank waits, and before it has put this one."""
        return rank in self._waiting and self._waiting[rank]["puts"] <= put

    def _refuse(self, ranks: list[int], why: str) -> None:
        for rank in ranks:
            call = self._waiting.pop(rank)["call"]
            if not self._newest.number:
                self._receiver.desk.tell(rank, "no_model", call=call, why=f"predict(): {why}")
