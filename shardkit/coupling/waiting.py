"""Waiting: solver ranks that wait for the first model, which trainers may never publish.

predict() of rank 0 --waits--> trainers: do they wait for its puts, or have they finished?
                    <--no_model--        then no model comes, and it raises
"""

from typing import Any

from .newest import NewestModel
from .receiving import Receiver

FINISHED = "the trainers have finished without a publish()"
STUCK = (
    "it waits for the first publish(), and the trainers wait for a put() of this rank; publish() "
    "the model before batches(), or put() more before predict()"
)


class WaitingSolvers:
    """One trainer's knowledge of them. Its methods are called with the lock held."""

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
        self._refuse(list(self._waiting), FINISHED)

    def judge(self, numbers: list[int]) -> None:
        """Let those raise without whose puts this trainer waits for these numbers for ever."""
        receiver = self._receiver
        if receiver.is_ordered:
            stuck = {self._rank_of(number) for number in numbers if self._never_comes(number)}
        else:
            sent = {rank: facts["sent"] for rank, facts in self._waiting.items()}
            is_dry = sent.keys() >= {*receiver.unended} and receiver.has_all(sent)
            stuck = {*sent} if is_dry else set()
        self._refuse(sorted(stuck), STUCK)

    def _rank_of(self, number: int) -> int:
        solvers = self._receiver.sides.solvers
        return solvers[number % len(solvers)]

    def _never_comes(self, number: int) -> bool:
        """Return True if its rank waits before it puts this number."""
        facts = self._waiting.get(self._rank_of(number))
        return facts is not None and number // len(self._receiver.sides.solvers) >= facts["puts"]

    def _refuse(self, ranks: list[int], why: str) -> None:
        for rank in ranks:
            call = self._waiting.pop(rank)["call"]
            if not self._newest.number:
                self._receiver.desk.tell(rank, "no_model", call=call, why=f"predict(): {why}")
