"""Which files hold which part of each tensor, in a few numbers for all that are cut alike.

    rank 0    model/a  elements [0, 700)      rank 1    model/a  elements [700, 1000), model/b ...
    parts     files [[0, 1, 2]], starts [[0, 700, 2]], sizes [[700, 0, 1], [300, 0, 1]]

A file holds boxes that lie between the first and the last element of a range of the tensor, in C
order; other files may hold others between them. What it holds exactly stands in its table
(tables.py). A sequence is written as runs [first, step, count], so the shards of a regular layout
are a formula, however many there are; the tensors of all layers, and their optimizer state, share
one entry.

That all boxes together tile each tensor exactly once is shown without a list of them: at a random
point z, the sum over elements of z^index is known for the whole tensor, and each rank sums its own
boxes. Were an element left out, or held twice, the sums would agree with a chance below 1e-12.
Source: Schwartz (1980), Zippel (1979), identity testing of polynomials.
"""

import zlib
from dataclasses import dataclass
from functools import cache, cached_property
from math import prod

import numpy

from ...annotations import Shape
from ...errors import CheckpointError, LayoutError
from ...files.reading import LARGEST
from ...layout.box import Box, tiles_exactly
from .files import checksum
from .reads import first_element
from .stored import StoredBox

PRIME = (1 << 61) - 1


@dataclass(frozen=True)
class Summary:
    """What the boxes of one file are, without a list of them.

    forms          texts "dtype sizes tensor", a zero byte between them, compressed
    starts, stops  for each text the range of elements between which its boxes lie
    covered        the sum over their elements, modulo PRIME
    """

    forms: bytes
    starts: numpy.ndarray
    stops: numpy.ndarray
    covered: int

    @classmethod
    def of(cls, boxes: list[StoredBox]) -> "Summary":
        """Return the summary of the boxes of one file."""
        ranges: dict[str, tuple[int, int]] = {}
        covered = 0
        for box in boxes:
            form = form_text(box.tensor, box.dtype, box.global_shape)
            start, stop = ranges.get(form, (prod(box.global_shape), 0))
            own = range_of(box.box, box.global_shape)
            ranges[form] = min(start, own[0]), max(stop, own[1])
            covered += fingerprint(box.tensor, box.box)
        starts = numpy.array([start for start, _ in ranges.values()], numpy.int64)
        stops = numpy.array([stop for _, stop in ranges.values()], numpy.int64)
        forms = zlib.compress("\0".join(ranges).encode())
        return cls(forms, starts, stops, covered % PRIME)

    def texts(self) -> list[str]:
        """Return the forms."""
        return zlib.decompress(self.forms).decode().split("\0") if self.starts.size else []


def form_text(tensor: str, dtype: str, shape: Shape) -> str:
    """Return a text that says what a tensor is; its path, which may hold blanks, is the last."""
    return f"{dtype} {','.join(map(str, shape))} {tensor}"


def form_in(text: str) -> tuple[str, str, Shape]:
    """Return the tensor, dtype and shape of a text."""
    dtype, sizes, tensor = text.split(" ", 2)
    return tensor, dtype, tuple(map(int, sizes.split(","))) if sizes else ()


def range_of(box: Box, shape: Shape) -> tuple[int, int]:
    """Return [start, stop) of the elements of a tensor, in C order, between which a box lies."""
    whole = Box.whole(shape)
    last = tuple(stop - 1 for stop in box.stop)
    corner = Box(last, (1,) * len(shape))
    return first_element(box, whole), first_element(corner, whole) + 1


# ---- coverage ------------------------------------------------------------------------------------


def fingerprint(tensor: str, box: Box) -> int:
    """Return the sum over the elements of a box of z^index, times a number of the tensor's own."""
    total = _point(tensor)
    for dim, (start, size) in enumerate(zip(box.offset, box.shape)):
        z = _point(dim)
        run = (pow(z, size, PRIME) - 1) * _inverse(dim)
        total = total * pow(z, start, PRIME) * run % PRIME
    return total


def _point(key) -> int:
    text = f"{type(key).__name__} {key}"
    return 2 + int(checksum(text.encode()), 16) % (PRIME - 3)


@cache
def _inverse(dim: int) -> int:
    """Return 1 / (z - 1) for the z of a dim."""
    return pow(_point(dim) - 1, -1, PRIME)


# ---- writing -------------------------------------------------------------------------------------


def tables_of(summaries: list[Summary]) -> tuple[dict, list]:
    """Return the "tensors" and "parts" of a manifest, for the summaries of files 0, 1, and so on.

    Errors: CheckpointError if owners of a tensor do not agree.
    """
    known: dict[str, int] = {}
    held = [[known.setdefault(form, len(known)) for form in each.texts()] for each in summaries]
    forms = [form_in(text) for text in known]
    _check_forms(forms)
    number = numpy.array([n for own in held for n in own], numpy.int64)
    file = numpy.repeat(numpy.arange(len(held)), [len(own) for own in held])
    start = numpy.concatenate([each.starts for each in summaries])
    size = numpy.concatenate([each.stops for each in summaries]) - start
    order = numpy.lexsort((file, start, number))
    cuts = numpy.searchsorted(number[order], numpy.arange(1, len(forms)))
    tensors: dict[str, dict] = {}
    parts: dict[tuple, tuple] = {}
    for (tensor, dtype, shape), rows in zip(forms, numpy.split(order, cuts)):
        first = int(file[rows].min())
        content = file[rows] - first, start[rows], size[rows]
        key = tuple(each.tobytes() for each in content)
        entry, _ = parts.setdefault(key, (len(parts), content))
        form = {"shape": list(shape), "dtype": dtype}
        tensors[tensor] = {**form, "parts": entry, "first": first}
    names = "files", "starts", "sizes"
    return dict(sorted(tensors.items())), [
        dict(zip(names, map(runs_of, content))) for _, content in parts.values()
    ]


def are_whole(tensors: dict, summaries: list[Summary]) -> bool:
    """Return True if the boxes of all files tile each of these tensors exactly once."""
    covered = sum(each.covered for each in summaries)
    for tensor, entry in tensors.items():
        covered -= fingerprint(tensor, Box.whole(entry["shape"]))
    return covered % PRIME == 0


def _check_forms(forms) -> None:
    seen: dict[str, tuple] = {}
    for tensor, *form in forms:
        if seen.setdefault(tensor, form) != form:
            (one, shape), (other, other_shape) = seen[tensor], form
            raise CheckpointError(
                f"two owners of {tensor} do not agree: {one} {list(shape)}, and {other} "
                f"{list(other_shape)}"
            )


def runs_of(numbers: numpy.ndarray) -> list[list[int]]:
    """Return a sequence as runs [first, step, count]."""
    ends = numpy.flatnonzero(numpy.diff(numbers, 2)) + 1
    runs = []
    start = 0
    last = numbers.size - 1
    for end in [*ends.tolist(), last]:
        if end > start or end == last:
            run = numbers[start : end + 1].tolist()
            step = run[1] - run[0] if len(run) > 1 else 0
            runs.append([run[0], step, len(run)])
            start = end + 1
    return runs


# ---- reading -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TensorCut:
    """One entry of "parts": which files hold something between which elements.

    most   files that there are: none stands in an entry twice
    Errors: CheckpointError, TypeError, ValueError if the entry is damaged.
    """

    entry: dict
    most: int

    @cached_property
    def _columns(self) -> tuple[numpy.ndarray, numpy.ndarray, numpy.ndarray]:
        files, starts, sizes = (
            _sequence(self.entry[name], self.most) for name in ("files", "starts", "sizes")
        )
        if not files.size == starts.size == sizes.size:
            raise CheckpointError("an entry of parts has sequences of several lengths")
        return files, starts, starts + sizes

    def files(self, start: int, stop: int) -> list[int]:
        """Return the numbers of the files that hold something between these elements."""
        files, starts, stops = self._columns
        return files[(starts < stop) & (stops > start)].tolist()

    def num_elements(self) -> int:
        """Return up to which element files hold something; -1 if there is a gap before."""
        _, starts, stops = self._columns
        order = numpy.argsort(starts, kind="stable")
        reached = numpy.concatenate([[0], numpy.maximum.accumulate(stops[order])])
        has_gap = (starts[order] > reached[:-1]).any()
        return -1 if has_gap else int(reached[-1])

    def last_file(self) -> int:
        """Return the largest number of a file."""
        return int(self._columns[0].max(initial=-1))


def _sequence(runs, most: int) -> numpy.ndarray:
    """Return the numbers of runs. Errors: CheckpointError if they are more than so many."""
    for run in runs:
        first, step, count = run if _is_run(run) else (-1, 0, 0)
        ends = first, first + step * (count - 1)
        if min(ends) < 0 or max(ends) > LARGEST // 2 or not 0 < count <= most:
            raise CheckpointError(f"parts have {run!r:.100}; wanted [first, step, count]")
    if sum(count for *_, count in runs) > most:
        raise CheckpointError(f"an entry of parts has more than the {most:,} files that there are")
    parts = [first + step * numpy.arange(count) for first, step, count in runs]
    return numpy.concatenate([numpy.empty(0, numpy.int64), *parts])


def _is_run(run) -> bool:
    return type(run) is list and [type(number) for number in run] == [int] * 3


def check_whole(tensor: str, wanted: Box, boxes: list[StoredBox]) -> None:
    """Raise CheckpointError unless these boxes hold all that is wanted of a tensor, once."""
    common = [box.box.intersection(wanted) for box in boxes]
    inside = [each.relative_to(wanted) for each in common if each is not None]
    try:
        tiles_exactly(wanted.shape, inside)
    except LayoutError as error:
        raise CheckpointError(
            f"the stored boxes of {tensor} do not make it whole: {error}"
        ) from None
