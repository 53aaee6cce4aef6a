"""The spans of a step read as a table, for `shardkit bench`: which part of it takes how long on
this rank.

    step |- F ------------ B -------------------- REDUCE ------ CLIP, STEP -|    regions: actions
           [product][gelu]  [product][gelu_backward]  [all_reduce]  [adam]        calls inside

A call's time is its own: what calls inside of it take is theirs. What no call claims stays with the
region: Python, and passes over arrays that are no kernel. Inside `watching` kernels and products
are wrapped where each offers it, so a normal run pays nothing; the time that the stopwatch takes
itself is measured, and the reader of the table subtracts it.
"""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple

import numpy

from ...annotations import Shape
from ...array import products
from ...array.device import Device
from ...array.registry import wrapped_kernels
from ...schedule.actions import Kind
from .executor import Listening
from .recorder import CALL, COMMUNICATION, STEP, Recorder, TimeSpan

MESSAGE_WAIT = "waiting for a message"
OWN = "own"  # of a region, beside its kernels and products
OPTIMIZER = "optimizer"  # the region of CLIP and STEP
_REGIONS = {Kind.CLIP: OPTIMIZER, Kind.STEP: OPTIMIZER}  # other actions: the name of their kind


class Product(NamedTuple):
    """A matrix product by the sizes of its operands, and the order of their dims from the widest
    stride to the narrowest.
    """

    a_shape: Shape
    a_order: tuple[int, ...]
    b_shape: Shape
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

    seconds  of the spans that no other is around
    table    {(region, call): [seconds of its own, number of calls]}; call: a kernel's name, a
             Product, COMMUNICATION, MESSAGE_WAIT, or OWN for what is left of the region
    begun    {(group, number of the collective call on it): when this rank came to it}
    waits    collectives that this rank was inside of, blocking or in wait()
    """

    seconds: float = 0.0
    table: dict = field(default_factory=lambda: defaultdict(lambda: [0.0, 0]))
    begun: dict[tuple[str, int], float] = field(default_factory=dict)
    waits: list[Waiting] = field(default_factory=list)

    @classmethod
    def of(cls, spans: list[TimeSpan]) -> "Record":
        """Read the spans of a recorder, in which a span comes after those inside of it."""
        record = cls()
        around: dict[int, tuple] = {}  # by depth: the region, and its entry
        for span in reversed(spans):
            region, entry_around = around.get(span.depth - 1, (STEP, [0.0, 0]))
            region = _region(span, region)
            entry = record.table[region, _call(span)]
            entry[0] += span.seconds
            entry[1] += 1
            entry_around[0] -= span.seconds
            around[span.depth] = region, entry
        record.seconds = sum(span.seconds for span in spans if not span.depth)
        for span in spans:
            record._note_verb(span)
        return record

    def _note_verb(self, span: TimeSpan) -> None:
        if span.carried is None or span.carried.call.number is None:
            return
        group, number = span.carried.call.group, span.carried.call.number
        if span.carried.is_first:
            self.begun[group, number] = span.start
        self.waits.append(Waiting(group, number, span.start, span.end))

    @property
    def num_calls(self) -> int:
        """Number of calls that were timed."""
        return sum(calls for _, calls in self.table.values())


def _region(span: TimeSpan, around: str) -> str:
    """Return the region that a span belongs to: itself, unless it is a call."""
    if span.action is not None:
        return _REGIONS.get(span.action.kind, span.action.kind.name)
    return around if span.kind in (CALL, COMMUNICATION) else span.kind


def _call(span: TimeSpan):
    """Return the call, as a table has it, that a span is."""
    if span.kind == COMMUNICATION:
        return MESSAGE_WAIT if _waits_for_message(span) else COMMUNICATION
    return OWN if span.kind == STEP or span.action is not None else span.name


def _waits_for_message(span: TimeSpan) -> bool:
    if span.carried is None:
        return False
    verb, is_first = span.carried.call.verb, span.carried.is_first
    return verb == "receive" or verb == "irecv" and not is_first


class Stopwatch(Recorder):
    """A recorder of calls too, whose clock waits for the work of a GPU."""

    def __init__(self, device: Device):
        super().__init__(hears_calls=True)
        self._device = device

    def now(self) -> float:
        """Return seconds on this rank's clock, once the device has finished its work."""
        self._device.synchronize()
        return time.perf_counter()

    @property
    def record(self) -> Record:
        """What its spans say."""
        return Record.of(self.spans)


@contextmanager
def watching(stopwatch: Stopwatch, listening: Listening) -> Iterator[None]:
    """Inside, kernels, matrix products, verbs and the actions of an engine are timed.

    For a rank that is a whole process: kernels are wrapped for all its threads.
    """

    def timed_product(multiply):
        return stopwatch.timed(multiply, lambda a, b, *out: Product.of(a, b))

    with (
        listening.telling(stopwatch),
        wrapped_kernels(stopwatch.timed),
        products.wrapped_products(timed_product),
    ):
        yield


def overhead_per_call(device: Device, repeats: int = 2000) -> float:
    """Return the seconds that a timed call adds to the call around it."""
    stopwatch = Stopwatch(device)
    timed = stopwatch.timed(lambda: None, "inside")
    with stopwatch.span(OWN, "outside"):
        for _ in range(repeats):
            timed()
    return stopwatch.record.table["outside", OWN][0] / repeats


def large_product_speed(device: Device, dtype: str, size: int = 1024) -> float:
    """Return the floating point operations per second of a product of two square matrices."""
    square = Product((size, size), (0, 1), (size, size), (0, 1), dtype)
    return square.flops / square.seconds_alone(device)
