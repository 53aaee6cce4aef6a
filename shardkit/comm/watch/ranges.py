"""The ranks of a group as ranges: a group of a mesh has few, however many ranks it has.

0, 1, 2, ... 4095       "0-4095"
3, 11, 19, ... 4091     "3-4091/8"     every eighth
0, 1, 8, 9, 20          "0-1,8-9,20"
"""

import re

import numpy

_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?:/(\d{1,9}))?)?", re.ASCII)


def ranges_text(ranks) -> str:
    """Return the ranks as text, in order, each once."""
    found = numpy.unique(numpy.asarray(ranks, numpy.int64))
    steps = numpy.diff(found)
    ends = numpy.flatnonzero(numpy.diff(steps)) + 1
    parts = []
    start = 0
    for end in [*ends.tolist(), found.size - 1]:  # from one to the next, all steps are the same
        if start < end:
            parts.append(_part(found[start : end + 1].tolist()))
            start = end + 1
    parts += map(str, found[start:].tolist())
    return ",".join(parts)


def _part(ranks: list[int]) -> str:
    step = ranks[1] - ranks[0]
    if step == 1:
        return f"{ranks[0]}-{ranks[-1]}"
    if len(ranks) == 2:
        return f"{ranks[0]},{ranks[1]}"
    return f"{ranks[0]}-{ranks[-1]}/{step}"


def ranks_in(text: str, most: int) -> numpy.ndarray:
    """Return the ranks that ranges_text() wrote, int64.

    most   of them, and above all of them
    Errors: ValueError if it is no such text, or has more.
    """
    ranges = [_range(part, most) for part in text.split(",")] if text else []
    if sum(map(len, ranges)) > most:
        raise ValueError(f"ranges of more than {most:,} ranks")
    parts = [numpy.arange(each.start, each.stop, each.step) for each in ranges]
    return numpy.concatenate([numpy.empty(0, numpy.int64), *parts])


def _range(text: str, most: int) -> range:
    match = _RANGE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r:.50} is no range of ranks")
    first, last, step = match.groups()
    stop = int(last or first) + 1
    found = range(int(first), stop, int(step or 1))
    if found.stop > most or not found:
        raise ValueError(f"{text} is no range of {most:,} ranks")
    return found
