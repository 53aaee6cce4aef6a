"""Samples: what a run is trained on, numbered from 0.

    order.py: which numbers      Samples.read(numbers)       stream.py: the batch of a step
    (seed, step) ------------------> x, y on the host ----------> one batch ahead

A source of samples knows neither models nor the settings of a run. It stays where it is: in files
that are mapped into memory or read piece by piece, so that its size costs nothing.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy

from ..arguments import require
from ..array.random import key_of
from ..layout.part import SamplePart
from .draw import Draw

TRAINING = "training"  # the parts that the data of a run is split into
VALIDATION = "validation"
STREAM = "stream"  # StopVoted(STREAM): all ranks have read to the end of a stream


class Samples(ABC):
    """Numbered samples, each an input and a target.

    Attributes
    ----------
    run_length
        So many neighbors lie together in the file (the rows of an HDF5 chunk); orders shuffle such
        runs, then the samples within a few runs.
    """

    run_length: int = 1
    is_numbered: bool = True  # False of a stream, which is read once, in its order

    @abstractmethod
    def __len__(self) -> int:
        """Return how many samples there are, at least 1."""

    @abstractmethod
    def read(self, numbers: numpy.ndarray) -> tuple:
        """Return the samples of these numbers, in their order, as fresh arrays on the host.

        Parameters
        ----------
        numbers
            [n] int64 in [0, len), in any order, repeats allowed.

        Returns
        -------
        tuple
            x [n, ...], y [n, ...]: arrays, or trees of arrays (shardkit/tree.py).

        Raises
        ------
        CorpusError
            If a sample cannot be trained on.
        OSError
        StopVoted
            From a stream that ranks read together, on all of them: it has ended, and so does the
            run.

        Notes
        -----
        One thread calls at a time.

        What is drawn at random must depend on the arguments alone. A read that takes `draw=None`
        too is given a Draw in training: random numbers for each sample, new in each epoch, the same
        on every mesh and after a restart. None: for validation, predictions and figures.

        Where ranks share each sample, a read that takes `part=None` too is told a SamplePart, the
        part of each that this rank wants: it reads those rows alone, part.span(length), and returns
        part.x(rows, length), part.y(rows, length). What another read returns is cut, so that whole
        samples pass through the memory of each rank.
        """

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a hash, in hex, that is equal if and only if the samples are the same.

        It is of all that they hold, the last of them too, and has no path in it. Those of
        shardkit read every byte of a file once, when a run starts, and later only if it was touched
        (contents.py).
        """

    @property
    def reads_parts(self) -> bool:
        """True if read() reads no more of samples than the part that it is told of.

        By default, whether it takes `part`.
        """
        return "part" in taken_by(self.read)

    def selected(self, ranges: Any) -> "Samples":
        """Return some of these samples, such as those that are not held out.

        Parameters
        ----------
        ranges
            Of their numbers (split.py).
        """
        return Selected(self, ranges)


class SamplesOf(Samples):
    """What is made of the samples of another source, and reads parts as far as that does."""

    def __init__(self, source: Samples):
        self._read, self.source = reader_of(source), source
        self.run_length, self.is_numbered = source.run_length, source.is_numbered

    def __len__(self):
        return len(self.source)

    @property
    def reads_parts(self):
        return self.source.reads_parts

    def fingerprint(self):
        return self.source.fingerprint()


class Selected(SamplesOf):
    """Some of the samples of a source, such as those that are not held out."""

    def __init__(self, source: Samples, ranges: Any):
        super().__init__(source)
        self.ranges = ranges

    def __len__(self):
        return len(self.ranges)

    def read(self, numbers, draw=None, part=None):
        """Return x, y of the samples of these numbers in the selection."""
        return self._read(self.ranges.numbers(numbers), draw, part)

    def fingerprint(self):
        """Return a hash of the whole and of the ranges."""
        ranges = numpy.stack([self.ranges.starts, self.ranges.stops]).tobytes().hex()
        return f"{key_of(self.source.fingerprint(), ranges):016x}"


def taken_by(read: Callable[..., Any]) -> set[str]:
    """Return what a read() takes beside numbers: of "draw" and "part". Positions are refused."""
    try:
        parameters = list(inspect.signature(read).parameters.values())
    except (TypeError, ValueError):  # of a read that is not written in Python
        parameters = []
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return {"draw", "part"}
    names = {each.name for each in parameters}
    wanted = "draw=None in its place, whose draw.positions they are"
    require("positions" not in names, "positions", f"{read} takes them", wanted)
    return names & {"draw", "part"}


def reader_of(samples: Samples) -> Callable[..., tuple]:
    """Return (numbers, draw=None, part=None) -> x, y: its read(), told what it takes.

    Where it takes no part, what it reads whole is cut.
    """
    read: Callable[..., tuple] = samples.read
    taken = taken_by(read)

    def found(numbers, draw: Draw | None = None, part: SamplePart | None = None) -> tuple:
        told: dict[str, Any] = {"draw": draw}
        if part is not None:
            told["part"] = part
        x, y = read(numbers, **{name: told[name] for name in taken & told.keys()})
        return (x, y) if part is None else part.cut(x, y)

    return found
