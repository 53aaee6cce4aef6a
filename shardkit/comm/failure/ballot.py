"""Ballots: what any rank wants before the next step, decided by all ranks in a message that is sent
anyway.

    ballot = Ballot(signal=signals.is_raised, time=clock.is_short)
    with collectively(backend, ballot):             # its one message also carries the votes
        check_batch(x, y)
    ballot.outcome                                  # ("time",) on all ranks, if any of them is
                                                    short of time

A signal reaches one rank, a clock runs on one node: a rank that acts on its own leaves the others
waiting for it.
"""

from collections.abc import Callable


class Ballot:
    """Questions that every rank answers for itself; a question is decided by one yes.

    questions   {name: function () -> bool}, the same names in the same order on all ranks; they
                must not raise
    """

    def __init__(self, **questions: Callable[[], bool]):
        self._questions = questions
        self.outcome: tuple[
            str, ...
        ] = ()  # names of what was decided in the last vote, the same on all ranks

    def cast(self) -> list[bool]:
        """This rank's votes, in the order of the questions."""
        return [bool(ask()) for ask in self._questions.values()]

    def count(self, decided: list[bool]) -> None:
        """Take down what the ranks have decided."""
        self.outcome = tuple(
            name for name, is_decided in zip(self._questions, decided) if is_decided
        )
