"""Which ranks of a coupling solve, and which train."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Sides:
    """Who is who. rank   of this process; size   of the communicator

    trainers_asked   the last so many ranks train, the others solve; None: every rank does both
    """

    rank: int
    size: int
    trainers_asked: int | None

    @property
    def is_shared(self) -> bool:
        """True if every rank is both."""
        return self.trainers_asked is None

    @property
    def trainers(self) -> tuple[int, ...]:
        """Ranks that train."""
        first = 0 if self.trainers_asked is None else self.size - self.trainers_asked
        return tuple(range(first, self.size))

    @property
    def solvers(self) -> tuple[int, ...]:
        """Ranks that solve."""
        return tuple(range(self.size - (self.trainers_asked or 0)))

    @property
    def num_trainers(self) -> int:
        """How many ranks train."""
        return len(self.trainers)

    @property
    def is_trainer(self) -> bool:
        """True if this rank trains."""
        return self.rank in self.trainers

    @property
    def is_solver(self) -> bool:
        """True if this rank solves."""
        return self.rank in self.solvers

    @property
    def own_trainer(self) -> int:
        """The trainer that serves this solver rank."""
        return self.trainers[self.rank % self.num_trainers]

    def number(self, put: int) -> int:
        """Return the number of a put of this solver rank."""
        return put * len(self.solvers) + self.rank
