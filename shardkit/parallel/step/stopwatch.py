"""A stopwatch inside the training step, for `shardkit bench`: which part of it takes how long on
this rank.

    step |- F ------------ B -------------------- REDUCE ------ CLIP, STEP -|    regions: actions
           [product][gelu]  [product][gelu_backward]  [all_reduce]  [adam]        calls inside

A call's time is its own: what calls inside of it take is theirs. What no call claims stays with the
region: Python, and passes over arrays that are no kernel. Inside `watching` kernels, products,
verbs and the executor are wrapped where each offers it, so a normal run pays nothing; the time that
the stopwatch takes itself is measured, and the reader of the table subtracts it.
"""

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from math import prod
from typing import NamedTuple

import numpy

from ...array import products
from ...array.device import Device
from ...array.registry import wrapped_kernels
from ...comm.watch.progress import Call, Progress
from ...schedule.actions import Action, Kind
from .executor import Runtime
from .inputs import Inputs, Results
from .pump import Pumped

COMMUNICATION = "communication"
MESSAGE_WAIT = "waiting for a message"
OWN = "own"  # of a region, beside its kernels and products
OPTIMIZER = "optimizer"  # the region of CLIP and STEP
_REGIONS = {Kind.CLIP: OPTIMIZER, Kind.STEP: OPTIMIZER}  # other actions: the name of their kind


class Product(NamedTuple):
    """A matrix product by the sizes of its operands, and the order of their dims from the widest
    stride to the narrowest.
    """

    a_shape: tuple[int, ...]
    a_order: tuple[int, ...]
    b_shape: tuple[int, ...]
    b_order: tuple[int, ...]
    dtype: str

    @classmethod
    def of(cls, a, b) -> "Product":
        return cls(a.shape, _order(a), b.shape, _order(b), str(a.dtype))

    @property
    def flops(self) -> int:
        """A multiplication and an addition for each element of a row and column."""
        leading = numpy.broadcast_shapes(self.a_shape[:-2], self.b_shape[:-2])
        return 2 * prod(leading) * prod(self.a_shape[-2:]) * self.b_shape[-1]

    def seconds_alone(self, device: Device, *, repeats: int = 3) -> float:
        """Return the seconds of the fastest of a few, with nothing in between."""
        a, b = [
            _alike(device.xp, shape, order, self.dtype)
            for shape, order in ((self.a_shape, self.a_order), (self.b_shape, self.b_order))
        ]
        out, fastest = products.matmul(a, b), float("inf")
        for _ in range(repeats):
            device.synchronize()
            began = time.perf_counter()
            products.matmul(a, b, out=out)
            device.synchronize()
            fastest = min(fastest, time.perf_counter() - began)
        return fastest

    def __str__(self):
        def text(shape, order):
            return "x".join(map(str, shape)) + (
                "" if order == tuple(sorted(order)) else " transposed"
            )

        return f"{text(self.a_shape, self.a_order)} @ {text(self.b_shape, self.b_order)}"


def _order(array) -> tuple[int, ...]:
    strides = array.strides
    return tuple(sorted(range(len(strides)), key=lambda dim: -strides[dim]))


def _alike(xp, shape, order, dtype):
    """Return an array of this shape whose memory lies in this order of dims."""
    array = xp.ones([shape[dim] for dim in order], dtype)
    return array.transpose([order.index(dim) for dim in range(len(order))])


@dataclass
class Waiting:
    """A collective that this rank was inside of, on the rank's own clock."""

    group: str
    number: int
    entered: float
    left: float


@dataclass
class Record:
    """What one step took on this rank.

    table    {(region, call): [seconds of its own, number of calls]}; call: a kernel's name, a
             Product, COMMUNICATION, MESSAGE_WAIT, or OWN for what is left of the region
    begun    {(group, number of the collective call on it): when this rank came to it}
    waits    collectives that this rank was inside of, blocking or in wait()
    """

    seconds: float = 0.0
    table: dict = field(default_factory=lambda: defaultdict(lambda: [0.0, 0]))
    begun: dict[tuple[str, int], float] = field(default_factory=dict)
    waits: list[Waiting] = field(default_factory=list)

    @property
    def num_calls(self) -> int:
        """Number of calls that were timed."""
        return sum(calls for _, calls in self.table.values())


class Stopwatch:
    """Nested timed calls; `record` is that of the step under way. On a GPU a call's work is waited
    for before it counts.
    """

    def __init__(self, device: Device):
        self._device = device
        self.record = Record()
        self._stack: list[list] = []  # [region, call, when it began, seconds of calls inside]
        self._calls: list[Call] = []  # verbs under way, innermost last

    def now(self) -> float:
        """Return seconds on this rank's clock, once the device has finished its work."""
        self._device.synchronize()
        return time.perf_counter()

    def enter(self, call, region: str | None = None) -> None:
        """Begin a call; leave() must follow. region: None for that of the call around it."""
        if region is None:
            region = self._stack[-1][0] if self._stack else "step"
        self._stack.append([region, call, self.now(), 0.0])

    def leave(self) -> float:
        """End the innermost call; return when it ended."""
        now = self.now()
        region, call, began, inside = self._stack.pop()
        entry = self.record.table[region, call]
        entry[0] += now - began - inside
        entry[1] += 1
        if self._stack:
            self._stack[-1][3] += now - began
        return now

    def timed(self, function, call, region: str | None = None):
        """Return the function, timed as `call`; a callable `call` names it by its arguments."""

        @wraps(function)
        def run(*arguments, **named):
            self.enter(call(*arguments) if callable(call) else call, region)
            try:
                return function(*arguments, **named)
            finally:
                self.leave()

        return run

    # ---- verbs of communication ------------------------------------------------------------------

    def begin_verb(self, call: Call, is_first: bool) -> None:
        """Begin a verb, or the wait for one that was begun earlier (is_first False)."""
        waits_for_message = call.verb == "receive" or call.verb == "irecv" and not is_first
        self._calls.append(call)
        self.enter(MESSAGE_WAIT if waits_for_message else COMMUNICATION)
        if is_first and call.number is not None:
            self.record.begun[call.group, call.number] = self._stack[-1][2]

    def end_verb(self) -> None:
        call, entered = self._calls.pop(), self._stack[-1][2]
        left = self.leave()
        if call.number is not None:
            self.record.waits.append(Waiting(call.group, call.number, entered, left))


class Watched:
    """Wraps an executor: each action is a region."""

    def __init__(self, executor, stopwatch: Stopwatch):
        self._executor = executor
        self._stopwatch = stopwatch

    def execute(self, actions: Iterable[Action], inputs: Inputs, results: Results) -> None:
        """Execute the actions, timed."""
        self._executor.execute(self._timed(actions), inputs, results)

    def _timed(self, actions):
        for action in actions:
            self._stopwatch.enter(OWN, _REGIONS.get(action.kind, action.kind.name))
            try:
                yield action
            finally:
                self._stopwatch.leave()


class TimedLedger:
    """Stands in the place of a ledger of calls, and goes on writing it.

    ledger   that was there, or None
    """

    is_written_by_loops = False  # every verb begins and ends here

    def __init__(self, stopwatch: Stopwatch, ledger):
        self._stopwatch = stopwatch
        self._ledger = ledger

    def begin(self, verb, group, ranks, number, dtype=None, count=-1) -> None:
        """Begin a verb, or the wait for one that was begun earlier."""
        if self._ledger is not None:
            self._ledger.begin(verb, group, ranks, number, dtype, count)
        waited_for = verb.removeprefix("wait for ")
        self._stopwatch.begin_verb(Call(waited_for, group, ranks, number), waited_for == verb)

    def describe(self, dtype, count) -> None:
        """Pass on what the call under way carries."""
        if self._ledger is not None:
            self._ledger.describe(dtype, count)

    def end(self) -> None:
        """End the verb."""
        self._stopwatch.end_verb()
        if self._ledger is not None:
            self._ledger.end()

    def fail(self) -> None:
        """Pass on that an exception ended it."""
        if self._ledger is not None:
            self._ledger.fail()


@contextmanager
def watching(stopwatch: Stopwatch, runtime: Runtime, progress: Progress) -> Iterator[None]:
    """Inside, kernels, matrix products, verbs and this runtime's actions are timed.

    For a rank that is a whole process: kernels are wrapped for all its threads.
    progress   of this process
    """
    guard = runtime.executor
    executor, ledger = guard.executor, progress.ledger

    def timed_product(multiply):
        return stopwatch.timed(multiply, lambda a, b, *out: Product.of(a, b))

    guard.executor = _watched(executor, stopwatch)
    progress.ledger = TimedLedger(stopwatch, ledger)
    try:
        with wrapped_kernels(stopwatch.timed), products.wrapped_products(timed_product):
            yield
    finally:
        guard.executor = executor
        progress.ledger = ledger


def _watched(executor, stopwatch):
    """Return the executor, timed; what it pumps is communication."""
    if isinstance(executor, Pumped):
        pump = stopwatch.timed(executor.pump, COMMUNICATION)
        return Pumped(Watched(executor.executor, stopwatch), pump)
    return Watched(executor, stopwatch)


def overhead_per_call(device: Device, repeats: int = 2000) -> float:
    """Return the seconds that a timed call adds to the call around it."""
    stopwatch = Stopwatch(device)
    timed = stopwatch.timed(lambda: None, "inside")
    stopwatch.enter(OWN, "outside")
    for _ in range(repeats):
        timed()
    stopwatch.leave()
    return stopwatch.record.table["outside", OWN][0] / repeats


def large_product_speed(device: Device, dtype: str, size: int = 1024) -> float:
    """Return the floating point operations per second of a product of two square matrices."""
    square = Product((size, size), (0, 1), (size, size), (0, 1), dtype)
    return square.flops / square.seconds_alone(device)
