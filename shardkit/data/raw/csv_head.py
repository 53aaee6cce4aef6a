"""The first line of a CSV file: names of columns, or already a row.

    a,b,c        names: some cell is no number
    0,1,2        names, over columns of which some have no whole number: what pandas writes of a
                 bare array
    1.5,2.5      a row
    3,1,2        a row, if rows below have whole numbers too

Whole numbers that might be either (0,1,2 over whole numbers; any over none) are refused: a row that
is lost, or a row of names that is trained on, nobody would see.
"""

import re
from pathlib import Path

from ...errors import ConfigurationError

_WHOLE = re.compile(r"\s*[+-]?\d+\s*", re.ASCII)
_INDEX = re.compile(r"Unnamed: \d+(_level_\d+)?|__index_level_\d+__|", re.ASCII)  # or nothing


def has_names(cells: list[str], rows: list[list[str]], path: Path) -> bool:
    """Return True if the cells of the first line are names.

    rows   cells of some lines below it
    Errors: ConfigurationError where they might be either.
    """
    if not all(map(is_number, cells)):
        return True
    if not all(map(_WHOLE.fullmatch, cells)):
        return False
    numbers = [*map(int, cells)]
    is_counted = len(cells) > 1 and numbers == [*range(len(cells))]
    whole = [any(map(_WHOLE.fullmatch, column)) for column in zip(*rows)]
    if is_counted and rows and not (all(whole) if len(cells) > 2 else any(whole)):
        return True
    is_ascending = len(cells) > 2 and numbers == [numbers[0] + i for i in range(len(cells))]
    if (any(whole) or not rows) and not is_counted and not is_ascending:
        return False
    raise ConfigurationError(
        f"{path}: its first line, {', '.join(cells)[:100]}, may be names of columns or a row of "
        "numbers; put a line of names that are no numbers in its place, or above it"
    )


def is_index(name: str) -> bool:
    """Return True for a column without a name, such as the index that pandas writes."""
    return _INDEX.fullmatch(name) is not None


def is_number(cell: str) -> bool:
    """Return True if a cell is a number."""
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell
