"""Near-duplicates: places of a package whose lines have the same shape.

The shape of a line is its text without names, numbers and strings. A run is MIN_LINES lines or
more, one after the other, that stand in two places with the same shapes; lines of docstrings are
the same where their words are. Comments, imports, blank lines and lone brackets are passed over. A
pair is two files (or one file twice) that share a run: what is repeated in it can be written once.

A run that stands in more than MOST_PLACES places is how the language or the formatter writes, not a
copy; so is one of other names whose lines are mostly short.
"""

import keyword
import re
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

MIN_LINES = 6
MOST_PLACES = 8
FEW_TOKENS = 5  # a line with fewer has the shape of many
MOST_SHORT = 2  # such lines in a run of MIN_LINES
TOKENS = re.compile(
    r"""(?P<string>[rbfRBF]{0,2}(?:\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'))
      | (?P<number>\d[\w.]*) | (?P<name>[^\W\d]\w*) | (?P<sign>[^\s\w])""",
    re.VERBOSE,
)
STANDS_FOR = {"string": "S", "number": "0", "name": "N"}
BRACKETS = frozenset("()[]{},:")
QUOTES = '"""'  # alone: the end of a docstring


def shape_of(line: str) -> str:
    """Return a line of code without its names, numbers and strings: "N = N.N(S)"."""
    parts = []
    for found in TOKENS.finditer(line.partition("  #")[0]):
        text, kind = found.group(), found.lastgroup
        is_of_the_language = kind == "sign" or keyword.iskeyword(text)
        parts.append(text if is_of_the_language else STANDS_FOR[kind])
    return " ".join(parts)


@dataclass(frozen=True)
class Line:
    """A line of code that can be a copy: its number, its text, its shape."""

    number: int
    text: str
    shape: str

    @cached_property
    def is_short(self) -> bool:
        """True if many lines have this shape."""
        return len(self.shape.split()) < FEW_TOKENS


def lines_of(module) -> list[Line]:
    """Return the lines of a module that can be a copy."""
    found = []
    for number, text in enumerate(map(str.strip, module.text.splitlines()), 1):
        if text and not text.startswith("#") and number not in module.imported:
            shape = text if number in module.prose else shape_of(text)
            if not BRACKETS.issuperset(shape.split()) and shape != QUOTES:
                found.append(Line(number, text, shape))
    return found


def repeats(package) -> list[str]:
    """Return "file:line ~ file:line (lines)" of each pair of files that share a run, longest."""
    files = {
        str(module.path.relative_to(package.folder)): lines_of(module)
        for module in package.modules.values()
    }
    longest: dict[tuple[str, str], tuple[int, int, int]] = {}
    for (here, at), (there, there_at), length in runs(files):
        if length > longest.get((here, there), (0,))[0]:
            longest[here, there] = length, files[here][at].number, files[there][there_at].number
    found = sorted(longest.items(), key=lambda each: (-each[1][0], each[0]))
    return [
        f"{here}:{at} ~ {there}:{there_at} ({length} lines)"
        for (here, there), (length, at, there_at) in found
    ]


def runs(files: dict[str, list[Line]]):
    """Yield ((file, place), (file, place), number of lines) of runs that stand in two places."""
    starts = {
        (one, other)
        for places in windows(files).values()
        if 1 < len(places) <= MOST_PLACES
        for one, other in combinations(places, 2)
        if one[0] != other[0] or other[1] - one[1] >= MIN_LINES
    }
    for one, other in starts:
        if (_after(one, -1), _after(other, -1)) not in starts:
            more = 0
            while (_after(one, more + 1), _after(other, more + 1)) in starts:
                more += 1
            yield one, other, MIN_LINES + more


def windows(files: dict[str, list[Line]]) -> dict[tuple[str, ...], list[tuple[str, int]]]:
    """Return {MIN_LINES shapes, or texts where they are short: the places where they stand}."""
    found = defaultdict(list)
    for name, lines in files.items():
        for start in range(len(lines) - MIN_LINES + 1):
            window = lines[start : start + MIN_LINES]
            are_short = sum(line.is_short for line in window) > MOST_SHORT
            key = tuple(line.text if are_short else line.shape for line in window)
            found[key].append((name, start))
    return found


def _after(place: tuple[str, int], lines: int) -> tuple[str, int]:
    name, start = place
    return name, start + lines
