"""Who solves and who trains, which put is which sample, and which trainer gets it.

    put 0: ranks 0 1 2    put 1: ranks 0 1 2    put 2: ranks 0 2      rank 1 has ended after 2 puts
    number 0 1 2          3 4 5                 6   8                 numbers have gaps then,
    sample 0 1 2          3 4 5                 6   7                 samples have none

Each number has a home, the place of the trainer that gets it: number % trainers.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..nn.module import Module


@dataclass(frozen=True)
class Options:
    """What coupled() was given.

    when_full   None for a reservoir alone
    """

    trainers: int | None
    buffer: str
    buffer_bytes: int
    when_full: str | None
    seed: int
    predict_on: str
    factory: Callable[..., Module] | None
    on_loss: str
    first_put: int
    in_flight: int

    @property
    def is_ordered(self) -> bool:
        """True if each sample is a certain put."""
        return self.buffer == "once" and self.when_full == "wait"


@dataclass(frozen=True)
class Sides:
    """Which ranks solve and which train; the same ones if each is both.

    rank   of this process
    """

    rank: int
    solvers: range
    trainers: range

    @classmethod
    def of(cls, rank: int, size: int, num_trainers: int | None) -> "Sides":
        """Return them where the last ranks train; None: every rank does both."""
        first = 0 if num_trainers is None else size - num_trainers
        return cls(rank, range(first or size), range(first, size))

    @property
    def is_shared(self) -> bool:
        """True if every rank is both."""
        return self.solvers == self.trainers

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
        return self.trainers[self.home(self.rank)]

    @property
    def place(self) -> int:
        """Place of this rank among the trainers."""
        return self.trainers.index(self.rank)

    def home(self, number: int) -> int:
        """Return the place of the trainer that gets the put of this number."""
        return number % len(self.trainers)

    def at_home(self, numbers: Iterable[int]) -> list[int]:
        """Return those of them that this trainer gets."""
        place = self.place
        return [number for number in numbers if self.home(number) == place]

    def number(self, put: int) -> int:
        """Return the number of a put of this solver rank."""
        return put * len(self.solvers) + self.rank

    def put_of(self, number: int) -> tuple[int, int]:
        """Return which put of which solver rank has this number."""
        return divmod(number, len(self.solvers))


@dataclass(frozen=True)
class PutOrder:
    """Which number each sample of a stream has.

    ends   of each solver rank: after how many puts it has ended; None: it goes on
    """

    ends: tuple[int | None, ...]

    @classmethod
    def of(cls, num_solvers: int) -> "PutOrder":
        """Return the order of ranks that all go on."""
        return cls((None,) * num_solvers)

    def after(self, ends: Iterable[int | None]) -> "PutOrder":
        """Return the order where these ends are known too."""
        pairs = zip(self.ends, ends)
        return PutOrder(tuple(new if old is None else old for old, new in pairs))

    def has(self, number: int) -> bool:
        """Return False if the rank of this number has ended before it."""
        put, rank = divmod(number, len(self.ends))
        end = self.ends[rank]
        return end is None or put < end

    def number(self, sample: int) -> int | None:
        """Return the number of a sample; None: the stream ends before it."""
        first = 0  # put at which a run of puts by the same ranks begins
        for end in (*sorted({end for end in self.ends if end is not None}), None):
            ranks = self._ranks(first)
            if ranks and (end is None or sample < (end - first) * len(ranks)):
                put, place = divmod(sample, len(ranks))
                return (first + put) * len(self.ends) + ranks[place]
            if end is not None:
                sample, first = sample - (end - first) * len(ranks), end
        return None

    def _ranks(self, put: int) -> list[int]:
        """Return which ranks put this one."""
        first = put * len(self.ends)
        return [rank for rank in range(len(self.ends)) if self.has(first + rank)]
