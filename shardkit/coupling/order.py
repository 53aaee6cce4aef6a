"""The order of samples: put by put, and of one put rank by rank.

    put 0: ranks 0 1 2    put 1: ranks 0 1 2    put 2: ranks 0 2      rank 1 has ended after 2 puts
    number 0 1 2          3 4 5                 6   8                 numbers have gaps then,
    sample 0 1 2          3 4 5                 6   7                 samples have none

Each number has a home, the trainer that gets it: number % trainers.
"""

from dataclasses import dataclass


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

    @property
    def has_ended(self) -> bool:
        """True if all ranks have ended."""
        return None not in self.ends

    def after(self, ends) -> "PutOrder":
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
        for end in sorted({end for end in self.ends if end is not None}):
            ranks = self._ranks(first)
            if sample < (end - first) * len(ranks):
                return self._at(first, ranks, sample)
            sample -= (end - first) * len(ranks)
            first = end
        ranks = self._ranks(first)
        return self._at(first, ranks, sample) if ranks else None

    def _ranks(self, put: int) -> list[int]:
        """Return which ranks put this one."""
        first = put * len(self.ends)
        return [rank for rank in range(len(self.ends)) if self.has(first + rank)]

    def _at(self, first: int, ranks: list[int], sample: int) -> int:
        put, place = divmod(sample, len(ranks))
        return (first + put) * len(self.ends) + ranks[place]
