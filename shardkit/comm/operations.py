"""Small values of every backend: the operation of a reduction, handles, the traffic record.

handle = backend.iall_reduce(gradients)        # the array belongs to the backend until wait()
                                               returns
backend.traffic.bytes_sent                     # bytes this rank has sent, by the formulas of
                                               `Traffic`
"""

import enum
from abc import ABC, abstractmethod
from typing import TypeAlias

import numpy

# by their numbers in node/mailbox.py
COMPILED_VERBS = ("barrier", "all_reduce", "reduce_scatter", "all_gather", "broadcast")


class ReductionOperation(enum.Enum):
    """What all_reduce and reduce_scatter do with the values of the ranks.

    AVERAGE is SUM divided by the number of ranks.
    """

    SUM = "sum"
    PRODUCT = "product"
    MIN = "min"
    MAX = "max"
    AVERAGE = "average"

    @classmethod
    def _missing_(cls, value: object) -> "ReductionOperation | None":
        """Return the one that is meant by its name in capitals, or by a short one."""
        short = {"prod": "product", "avg": "average", "mean": "average"}
        name = value.lower() if isinstance(value, str) else ""
        return next((each for each in cls if each.value == short.get(name, name)), None)

    # Enum's own is written in Python, and verbs look operations up in tables.
    __hash__ = object.__hash__


Operation: TypeAlias = ReductionOperation | str  # str: its name


class Handle(ABC):
    """A communication under way.

    Its arrays must not be touched before wait() returned or test() gave True.
    """

    @abstractmethod
    def wait(self) -> None:
        """Block until the communication is complete; a second wait() returns immediately.

        For GPU arrays under "nccl" the GPU waits, and not the host: later work on the streams that
        compute the arrays, and on the current one.
        """

    @abstractmethod
    def test(self) -> bool:
        """Return True if the communication is complete; never blocks.

        Calling it also lets MPI make progress.
        """


class SeveralHandles(Handle):
    """Several communications that are one to the caller."""

    def __init__(self, parts: list[Handle]):
        self._parts = parts

    def wait(self) -> None:
        for part in self._parts:
            part.wait()

    def test(self) -> bool:
        return all([part.test() for part in self._parts])


def together(parts: list[Handle]) -> Handle:
    """Return one handle of them all; at least one."""
    return parts[0] if len(parts) == 1 else SeveralHandles(parts)


class FinishedHandle(Handle):
    """A carrier's handle, and what remains to be done once it is complete.

    Such as scale, narrow, copy to the GPU.
    """

    def __init__(self, carrier: Handle, finish, waiting):
        self._carrier, self._finish = carrier, finish
        self._waiting = waiting  # context manager around a wait(), which may block
        self._is_complete = False

    def wait(self) -> None:
        if not self._is_complete:
            with self._waiting():
                self._carrier.wait()
            self._complete()

    def test(self) -> bool:
        if not self._is_complete and self._carrier.test():
            self._complete()
        return self._is_complete

    def _complete(self):
        self._is_complete = True
        if self._finish is not None:
            self._finish()


class CompleteHandle(Handle):
    """The handle of what is done already."""

    def wait(self) -> None:
        """Do nothing: nothing is under way."""

    def test(self) -> bool:
        return True


class Traffic:
    """Bytes this rank has sent to other ranks, per verb.

    Counted by formula, from what this rank contributes to the ring or pairwise form of each verb on
    n ranks (what an MPI really does inside may differ). N: bytes of the whole array, own: bytes of
    this rank's slice. Half floats travel in reductions as float32 and count as such.

        all_reduce          2 (n-1) N / n        reduce_scatter + all_gather of even slices
        all_gather          (n-1) own            own slice to every other rank
        reduce_scatter      N - own              every other owner its slice
        all_to_all          sent - to itself
        broadcast, scatter  root: (n-1) N, N - own; others 0
        gather              own; root 0
        send                N                    0 to itself
    """

    def __init__(self):
        self._bytes: dict[str, int] = {}
        self._calls: dict[str, int] = {}
        # of compiled verbs, which count for themselves: bytes of each, then calls of each
        self.of_loops = numpy.zeros(2 * len(COMPILED_VERBS), numpy.int64)

    @property
    def by_verb(self) -> dict[str, int]:
        """Bytes sent, by verb."""
        return self._merged(self._bytes, self.of_loops[: len(COMPILED_VERBS)])

    @property
    def calls(self) -> dict[str, int]:
        """Calls made, by verb."""
        return self._merged(self._calls, self.of_loops[len(COMPILED_VERBS) :])

    def _merged(self, counted, of_loops):
        calls = self.of_loops[len(COMPILED_VERBS) :].tolist()
        merged = dict(counted)
        for verb, count, num_calls in zip(COMPILED_VERBS, of_loops.tolist(), calls):
            if num_calls:
                merged[verb] = merged.get(verb, 0) + count
        return merged

    @property
    def bytes_sent(self) -> int:
        """Sum over all verbs."""
        return sum(self.by_verb.values())

    def add(self, verb: str, num_bytes: int) -> None:
        """Count one call of this verb."""
        self._bytes[verb] = self._bytes.get(verb, 0) + num_bytes
        self._calls[verb] = self._calls.get(verb, 0) + 1

    def reset(self) -> None:
        """Start counting from zero."""
        self._bytes.clear()
        self._calls.clear()
        self.of_loops[:] = 0

    def __repr__(self):
        return f"Traffic({self.bytes_sent} bytes: {self.by_verb})"
