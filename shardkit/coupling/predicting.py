"""Predictions on a solver rank: by the newest model, on the rank itself or asked of a trainer."""

from typing import Any

import numpy

from ..errors import ShardingError
from .newest import NewestModel, from_note, to_note
from .solver import SolverSide


class Predictor:
    """One solver rank's. predict_on   "solver" or "trainer" """

    def __init__(self, solver: SolverSide, newest: NewestModel, predict_on: str):
        self._solver, self._newest = solver, newest
        self._asks = predict_on == "trainer"
        self._wants_model = False
        self._answers: list[numpy.ndarray] = []
        self._failures: list[str] = []
        solver.desk.listen(answer=self._note_answer, failure=self._note_failure)
        if not solver.is_alone:
            solver.desk.listen(model=self._take_model)

    def predict(self, x: Any) -> Any:
        """Return the newest model's output for x; wait for the first model."""
        return self._asked(x) if self._asks else self._own(x)

    def _own(self, x):
        solver = self._solver
        if not solver.is_alone:
            if not self._wants_model:
                self._want(after=0)
            solver.wait(self._has_model, "predict(), which waits for the first publish()")
        solver.listen()
        if not self._newest.number:
            raise ShardingError("predict() before a publish(): there is no model yet")
        return self._newest.predict(x)

    def _want(self, after: int):
        self._wants_model = True
        self._solver.desk.tell(self._solver.sides.own_trainer, "wants_model", after=after)

    def _has_model(self) -> bool:
        return bool(self._newest.number or not self._solver.is_training)

    def _take_model(self, source, facts, body):
        self._newest.take(body.tobytes(), facts["number"])
        self._want(after=facts["number"])

    def _asked(self, x):
        facts, body = to_note(x)
        trainer = self._solver.sides.own_trainer
        self._solver.desk.tell(trainer, "ask", body, **facts)
        self._solver.desk.wait(self._has_answer, [trainer], "predict()")
        if self._failures:
            raise ShardingError(self._failures.pop())
        return self._answers.pop()

    def _has_answer(self) -> bool:
        return bool(self._answers or self._failures)

    def _note_answer(self, source, facts, body):
        self._answers.append(from_note(facts, body))

    def _note_failure(self, source, facts, body):
        self._failures.append(facts["why"])
