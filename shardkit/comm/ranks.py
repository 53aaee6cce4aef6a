"""The ranks of a group in closed form: a group of a mesh is a few numbers, however many it has.

    0, 1, 2, ... 4095            "0-4095"
    3, 11, 19, ... 4091          "3-4091/8"        every eighth
    0, 1, 8, 9, ... 4088, 4089   "0-1x512/8"       0-1, and so 512 times, each 8 further on
    0, 1, 8, 9, 20               "0-1x2/8,20"

A tuple has 36 bytes for each of them.
"""

import re
from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import numpy

FEW = 16  # that a tuple holds as well
_PART = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?:/(\d{1,9}))?)?((?:x\d{1,9}/\d{1,9})*)", re.ASCII)
_TIMES = re.compile(r"x(\d+)/(\d+)", re.ASCII)
_MOST_SHOWN = 8  # named one by one


class Pattern(NamedTuple):
    """Numbers in a pattern: `first`, repeated count times by a step, and all this again, ...

    times   (count, step), the innermost first
    """

    first: int
    times: tuple[tuple[int, int], ...]

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return prod(count for count, _ in self.times)

    @property
    def rises(self) -> bool:
        """True if each number is larger than the one before."""
        reach = 0
        for count, step in self.times:
            if step <= reach:
                return False
            reach += (count - 1) * step
        return True

    def at(self, place: int) -> int:
        """Return the number at a place."""
        number = self.first
        for count, step in self.times:
            place, own = divmod(place, count)
            number += own * step
        return number

    def array(self) -> numpy.ndarray:
        """Return the numbers, int64."""
        found = numpy.array([self.first])
        for count, step in self.times:
            found = (numpy.arange(count)[:, None] * step + found).ravel()
        return found


class Ranks(Sequence):
    """Numbers of ranks, in any order; equal to a tuple of the same, and hashed as one.

    parts   one after the other
    """

    __slots__ = ("_hash", "_size", "parts")

    def __init__(self, parts: tuple[Pattern, ...]):
        self.parts = parts
        self._size = sum(part.size for part in parts)
        self._hash: int | None = None

    def __len__(self):
        return self._size

    def __getitem__(self, place):
        if isinstance(place, slice):
            return compact(self.array()[place].tolist())
        place += self._size if place < 0 else 0
        if place >= 0:
            for part in self.parts:
                if place < part.size:
                    return part.at(place)
                place -= part.size
        raise IndexError("there is no such rank")

    def __iter__(self):
        return iter(self.array().tolist())

    def __eq__(self, other):
        if isinstance(other, Ranks):
            return self.parts == other.parts
        return isinstance(other, tuple) and other == tuple(self)

    def __hash__(self):
        if self._hash is None:
            self._hash = hash(tuple(self))
        return self._hash

    def __repr__(self):
        return f"Ranks({ranges_text(self)})"

    def array(self) -> numpy.ndarray:
        """Return them all, int64."""
        return numpy.concatenate([part.array() for part in self.parts])


def compact(ranks: Sequence[int]) -> Sequence[int]:
    """Return the same numbers, in few bytes: a tuple of a few, or where they have no pattern."""
    if isinstance(ranks, Ranks):
        return ranks
    numbers = tuple(ranks)
    if len(numbers) <= FEW:
        return numbers
    parts = _parts(numpy.array(numbers), len(numbers) // 4)
    return numbers if parts is None else Ranks(parts)


def ranges_text(ranks) -> str:
    """Return the ranks as text, in order, each once."""
    if isinstance(ranks, Ranks) and len(ranks.parts) == 1 and ranks.parts[0].rises:
        parts: Sequence[Pattern] = ranks.parts
    else:
        found = numpy.unique(_array(ranks))
        parts = _parts(found, found.size) or ()
    return ",".join(text for part in parts for text in _texts(part))


def ranks_in(text: str, most: int) -> numpy.ndarray:
    """Return the ranks that ranges_text() wrote, int64.

    most   of them, and above all of them
    Errors: ValueError if it is no such text, or has more.
    """
    parts = [_part_of(part, most) for part in text.split(",")] if text else []
    if sum(part.size for part in parts) > most:
        raise ValueError(f"ranges of more than {most:,} ranks")
    return numpy.concatenate([numpy.empty(0, numpy.int64), *[part.array() for part in parts]])


def in_words(ranks: Sequence[int]) -> str:
    """Return "rank 3", "ranks 0, 1, 2", or of many "ranks 0-511 (512 of them)"."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) <= _MOST_SHOWN:
        return f"ranks {', '.join(map(str, ranks))}"
    return f"ranks {ranks_text(ranks)} ({len(ranks)} of them)"


def ranks_text(ranks) -> str:
    """Return the ranks in order for people: "0-2, 5", or of many "0, 8, ... 4088"."""
    found = numpy.unique(_array(ranks))
    runs = numpy.split(found, numpy.flatnonzero(numpy.diff(found) != 1) + 1)
    if len(runs) <= _MOST_SHOWN:
        return ", ".join(_ends(run) for run in runs if run.size)
    parts = _parts(found, 3)
    shown = [found] if parts is None else [part.array() for part in parts]
    return ", ".join(map(_shown, shown))


def _ends(run: numpy.ndarray) -> str:
    return f"{run[0]}-{run[-1]}" if run.size > 1 else f"{run[0]}"


def _shown(numbers: numpy.ndarray) -> str:
    """Return the first few and the last."""
    if numbers[-1] - numbers[0] == numbers.size - 1:
        return _ends(numbers)
    rest = f", ... {numbers[-1]}" if numbers.size > 2 else ""
    return ", ".join(map(str, numbers[:2])) + rest


def _array(ranks) -> numpy.ndarray:
    if isinstance(ranks, Ranks):
        return ranks.array()
    return numpy.asarray(ranks, numpy.int64)


def _parts(numbers: numpy.ndarray, most: int) -> tuple[Pattern, ...] | None:
    """Return the patterns in numbers, each as long as it gets; None: they are more than `most`."""
    parts: list[Pattern] = []
    while numbers.size:
        if len(parts) == most:
            return None
        parts.append(_first_part(numbers))
        numbers = numbers[parts[-1].size :]
    return tuple(parts)


def _first_part(numbers: numpy.ndarray) -> Pattern:
    """Return the pattern with which numbers begin."""
    size, times = 1, []
    while (count := _repeats(numbers, size)) > 1:
        times.append((count, int(numbers[size] - numbers[0])))
        size *= count
    return Pattern(int(numbers[0]), tuple(times))


def _repeats(numbers: numpy.ndarray, size: int) -> int:
    """Return how often numbers begin with a block of this size, each as far from the last one."""
    blocks = numbers[: numbers.size // size * size].reshape(-1, size)
    steps = numpy.diff(blocks[:1025], axis=0)
    count = _as_first(steps)
    if count == len(steps) and len(blocks) > len(steps) + 1:
        count = _as_first(numpy.diff(blocks, axis=0))
    return count + 1


def _as_first(steps: numpy.ndarray) -> int:
    """Return how many of these rows in a row are the first number of all alone."""
    if not steps.size:
        return 0
    other = numpy.flatnonzero((steps != steps[0, 0]).any(axis=1))
    return int(other[0]) if other.size else len(steps)


def _texts(part: Pattern) -> list[str]:
    """Return the text of a part, or of two numbers that are no range."""
    if not part.times:
        return [f"{part.first}"]
    (count, step), *more = part.times
    last = part.first + (count - 1) * step
    if count == 2 and step > 1 and not more:
        return [f"{part.first}", f"{last}"]
    by = "" if step == 1 else f"/{step}"
    times = "".join(f"x{count}/{step}" for count, step in more)
    return [f"{part.first}-{last}{by}{times}"]


def _part_of(text: str, most: int) -> Pattern:
    match = _PART.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r:.50} is no range of ranks")
    first = int(match[1])
    last = int(match[2] or first)
    step = int(match[3] or 1)
    inner = range(first, last + 1, step) if step else ()
    times = [(len(inner), step)]
    for more in _TIMES.findall(match[4]):
        times.append((int(more[0]), int(more[1])))
    part = Pattern(first, tuple(times))
    if not 0 < part.size <= most or max(last, part.at(part.size - 1)) >= most:
        raise ValueError(f"{text} is no range of {most:,} ranks")
    return part
