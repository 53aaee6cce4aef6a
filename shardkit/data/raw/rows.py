"""Where the rows of a CSV file end: at line ends that are in no quotes.

    a,"x\\ny",1\\n     one row: a quote that begins a cell goes on to the next single one
    5" pipe,2\\n       another quote is an inch, and opens nothing
    1,2\\r\\r\\n        two rows, the second of which is empty: a \\r ends a row by itself, too

pyarrow reads files so.
"""

import re
from functools import cache

import numpy

_QUOTE, _CR, _LF = map(ord, '"\r\n')
DELIMITERS = ",;\t|"


def row_ends(content: bytes, delimiter: str = DELIMITERS) -> numpy.ndarray:
    """Return the bytes behind the line ends that are outside of quotes.

    delimiter   between cells; several: any of them may be it
    """
    characters = numpy.frombuffer(content, numpy.uint8)
    is_end = characters == _LF
    if b"\r" in content:
        is_alone = characters[1:] != _LF
        is_end[:-1] |= (characters[:-1] == _CR) & is_alone
    ends = numpy.flatnonzero(is_end)
    if b'"' in content:
        ends = ends[_are_outside(content, characters, ends, delimiter)]
    return ends + 1


def has_open_quote(content: bytes, delimiter: str) -> bool:
    """Return True if a quote that begins a cell is not closed."""
    characters = numpy.frombuffer(content, numpy.uint8)
    quotes = numpy.flatnonzero(characters == _QUOTE)
    if _are_pairs(characters, quotes, delimiter):
        return len(quotes) % 2 == 1
    found = [*_quoted(delimiter).finditer(content)]
    return bool(found) and found[-1]["end"] is None


def _are_outside(content: bytes, characters, places, delimiter: str) -> numpy.ndarray:
    """Return which of these places are outside of quotes: bool."""
    quotes = numpy.flatnonzero(characters == _QUOTE)
    if _are_pairs(characters, quotes, delimiter):
        return numpy.searchsorted(quotes, places) % 2 == 0
    spans = [found.span() for found in _quoted(delimiter).finditer(content)]
    starts, stops = numpy.array(spans, numpy.int64).reshape(-1, 2).T
    behind = numpy.searchsorted(starts, places, side="right") - 1
    return (behind < 0) | (places >= numpy.append(stops, 0)[behind])


def _are_pairs(characters, quotes, delimiter: str) -> bool:
    """Return True if every second quote begins a cell, or stands behind the one before: two in a
    row are one of the text.
    """
    opening = quotes[::2]
    before = characters[opening[opening > 0] - 1]
    return bool(numpy.isin(before, [_QUOTE, _CR, _LF, *delimiter.encode()]).all())


@cache
def _quoted(delimiter: str) -> re.Pattern:
    """Return the pattern of a cell in quotes, without an end where none closes it."""
    before = re.escape(delimiter.encode() + b"\r\n")
    return re.compile(rb'(?<![^%s])"[^"]*(?:""[^"]*)*(?P<end>")?' % before)
