"""Predictions on a solver rank: by the newest model, on the rank itself or asked of a trainer."""

from collections.abc import Callable
from typing import Any

import numpy

from ..errors import ShardingError
from .newest import NewestModel, from_note, to_note
from .solver import SolverSide


class Predictor:
    """One solver rank's. predict_on   "solver" or "trainer" """

    def __init__(self, solver: SolverSide, newest: NewestModel, predict_on: str):
        self._solver, self._newest = solver, newest
        self._asks = predict_on == "trainer" and not solver.is_alone
        self._wants_model = self._knows_model = False
        self._call = 0  # the number of this one: what comes too late for another is not heard
        self._answer: numpy.ndarray | None = None
        self._failure: str | None = None
        solver.desk.listen(answer=self._note_answer, no_model=self._note_failure)
        if not solver.is_alone:
            solver.desk.listen(model=self._take_model)

    def predict(self, x: Any) -> Any:
        """Return the newest model's output for x; wait for the first model."""
        self._solver.listen()
        self._call += 1
        self._answer = self._failure = None
        return self._asked(x) if self._asks else self._own(x)

    def _own(self, x):
        if self._solver.is_alone and not self._newest.number:
            raise ShardingError("predict() before a publish(): there is no model yet")
        if not self._newest.number:
            if not self._wants_model:
                self._want(after=0)
            self._wait(lambda: self._newest.number > 0)
        return self._newest.predict(x)

    def _want(self, after: int):
        self._wants_model = True
        self._solver.desk.tell(self._solver.sides.own_trainer, "wants_model", after=after)

    def _take_model(self, source, facts, body):
        self._newest.take(body.tobytes(), facts["number"])
        self._knows_model = True
        if not self._solver.desk.asks_no_more:
            self._want(after=facts["number"])

    def _asked(self, x):
        facts, body = to_note(x)
        self._solver.desk.tell(
            self._solver.sides.own_trainer, "ask", body, call=self._call, **facts
        )
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
