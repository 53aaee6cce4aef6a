"""Ballots: what any rank wants before the next step, decided by all in a message sent anyway.

    ballot = Ballot(signal=signals.is_raised, time=clock.is_short)
    with collectively(backend, ballot):      # its one message also carries the votes
        check_batch(x, y)
    ballot.outcome                           # ("time",) on all ranks if any is short of time

A signal reaches one rank, and a clock runs on one node: a rank that acts alone would leave the
others waiting for it.
"""

from collections.abc import Callable


class Ballot:
    """Questions that every rank answers for itself; one yes decides a question.

    questions   {name: function () -> bool} with the same names and order on all ranks
    outcome     names of what the last vote decided, the same on all ranks
    """

    def __init__(self, **questions: Callable[[], bool]):
        self._questions = questions
        self.outcome: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self._questions)

    def cast(self) -> list[bool]:
        """Return this rank's votes, in the order of the questions."""
        return [bool(ask()) for ask in self._questions.values()]

    def count(self, decided: list[bool]) -> None:
        """Record the decisions of the vote."""
        self.outcome = tuple(
            name for name, is_decided in zip(self._questions, decided) if is_decided
        )
