"""Buffers: which records a trainer keeps, in memory that is allocated once, and which it reads.

    slot() --> a record arrives there --> keep(slot) --> take(numbers) --> release(slots)

    buffer      when_full     reads
    once        wait          each record once, in the order of the numbers
    once        drop_...      each at most once, as they came
    latest      any           each at most once, the newest first
    reservoir                 any of a fair selection of all that were put, again and again

Sources: Vitter, "Random sampling with a reservoir" (1985); with weights, Efraimidis, Spirakis,
"Weighted random sampling with a reservoir" (2006).
"""

import heapq
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence

import numpy

from .records import header_of

WAIT = "wait"
DROP_OLDEST = "drop_oldest"
DROP_RANDOM = "drop_random"
WHEN_FULL = (WAIT, DROP_OLDEST, DROP_RANDOM)
USUALLY = {"once": WAIT, "latest": DROP_OLDEST, "reservoir": None}  # what follows when one is full


class SampleBuffer(ABC):
    """The records of one trainer.

    records                  [slots, record_bytes] uint8
    num_received, num_dropped
        Records that came, and those among them that were overwritten before they were read.
    """

    def __init__(self, num_slots: int, record_bytes: int, seed: int):
        self.records = numpy.zeros((num_slots, record_bytes), numpy.uint8)
        self.num_received = self.num_dropped = 0
        self.seed = seed
        self._free = list(range(num_slots))

    def slot(self) -> int | None:
        """Return where the next record may be written; None: it has to wait."""
        if not self._free:
            self.make_room()
        return self._free.pop() if self._free else None

    def keep(self, slot: int) -> None:
        """Take the record that has been written there."""
        self.num_received += 1
        self.add(slot)

    def release(self, slot: int) -> None:
        """Let another record be written there."""
        self._free.append(slot)

    def drop(self, slot: int) -> None:
        """Let a record be overwritten that was not read."""
        self.num_dropped += 1
        self._free.append(slot)

    def make_room(self) -> None:
        """Drop a record, if that is how it goes on."""

    def done(self, slots: Sequence[int]) -> None:
        """Note that records have been read."""
        self._free.extend(slots)

    @abstractmethod
    def add(self, slot: int) -> None:
        """Note a record that may be read."""

    @abstractmethod
    def can_serve(self, numbers: Sequence[int]) -> bool:
        """Return True if take() has as many records."""

    @abstractmethod
    def take(self, numbers: Sequence[int]) -> list[int]:
        """Return the slots of these samples, ascending numbers; they stay until release()."""


class QueueBuffer(SampleBuffer):
    """Each record is read once at most. newest_first: or else as they came"""

    def __init__(self, *memory, when_full: str, newest_first: bool):
        super().__init__(*memory)
        self._when_full, self._newest_first = when_full, newest_first
        self._unread: deque[int] = deque()

    def make_room(self):
        if self._when_full != WAIT and self._unread:
            place = 0
            if self._when_full == DROP_RANDOM:
                draw = numpy.random.default_rng([self.seed, self.num_dropped])
                place = int(draw.integers(len(self._unread)))
            slot = self._unread[place]
            del self._unread[place]
            self.drop(slot)

    def add(self, slot):
        self._unread.append(slot)

    def can_serve(self, numbers):
        return len(self._unread) >= len(numbers)

    def take(self, numbers):
        following = self._unread.pop if self._newest_first else self._unread.popleft
        return [following() for _ in numbers]


class OrderedBuffer(SampleBuffer):
    """Each record is read once, by its number. They come in the order of their numbers."""

    def __init__(self, *memory):
        super().__init__(*memory)
        self._unread: dict[int, int] = {}  # number -> slot, ascending

    def add(self, slot):
        self._unread[int(header_of(self.records[slot])["number"])] = slot

    def can_serve(self, numbers):
        for number in list(self._unread):
            if number >= min(numbers, default=0):
                break
            self.drop(self._unread.pop(number))  # a solver that goes on has put it again
        return all(number in self._unread for number in numbers)

    def take(self, numbers):
        return [self._unread.pop(number) for number in numbers]


class ReservoirBuffer(SampleBuffer):
    """A selection of all records, each with a chance in proportion to its weight.

    Those with the largest keys u^(1 / weight) are kept, where u is drawn from seed and number: so
    the selection does not depend on the order in which records come. One slot stays free.
    """

    def __init__(self, *memory):
        super().__init__(*memory)
        self._kept: list[tuple[float, int, int]] = []  # key, number, slot: a heap

    def make_room(self):
        _, _, slot = heapq.heappop(self._kept)
        self.drop(slot)

    def add(self, slot):
        number, _, weight = header_of(self.records[slot]).item()
        draw = numpy.random.default_rng([self.seed, number]).random()
        heapq.heappush(self._kept, (numpy.log1p(-draw) / weight, number, slot))
        if not self._free:
            self.make_room()

    def can_serve(self, numbers):
        return len(self._kept) >= min(len(numbers), len(self.records) - 1)

    def take(self, numbers):
        by_number = sorted((number, slot) for _, number, slot in self._kept)
        draws = [numpy.random.default_rng([self.seed, 1, n]).random() for n in numbers]
        return [by_number[int(draw * len(by_number))][1] for draw in draws]

    def done(self, slots):
        pass


def open_buffer(
    kind: str, when_full: str | None, buffer_bytes: int, record_bytes: int, seed: int
) -> SampleBuffer | None:
    """Return a buffer of at most so many bytes; None if it has no room for the least of records."""
    memory = buffer_bytes // record_bytes, record_bytes, seed
    if memory[0] < (2 if kind == "reservoir" else 1):
        return None
    if kind == "reservoir":
        return ReservoirBuffer(*memory)
    if kind == "once" and when_full == WAIT:
        return OrderedBuffer(*memory)
    assert when_full is not None
    return QueueBuffer(*memory, when_full=when_full, newest_first=kind == "latest")
