"""Models of grids, run on small ones: what each block keeps, computes and sends.

    a grid of s in each dim, and of 2 s       what grows with the points, and what does not
    3 s rows on three ranks that are threads  what the middle one has for its two edges

A model is run block by block, forward, backward and weight gradients, as the runtime does it. The
arrays that lie in an arena there are counted by a Meter; kernels and products by their arguments.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import accumulate, starmap
from math import prod
from operator import mul
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy

from ..array.accounts import Accounts
from ..array.arena import GONE, Meter, held_bytes
from ..array.products import wrapped_products
from ..array.registry import wrapped_kernels
from ..comm.mesh import Mesh
from ..comm.threads.backend import run_ranks
from ..errors import ShardingError, ShardkitError
from ..nn.autograd import Tensor, backward_inputs
from ..nn.buffer import unobserved
from ..nn.context import ForwardContext, forward_context
from ..nn.loss import Loss, as_loss
from ..nn.module import Module, blocks_of
from ..parallel.data.gradients import bind_gradients
from ..parallel.domain.plan import cut_layers
from ..parallel.domain.samples import SampleParts

_Events = list[tuple[int, int]]
PASSES = ("forward", "backward", "weight")
_FIRST_SIZES = {1: 256, 2: 64, 3: 16}  # of small grids, by their dims
_DOUBLINGS = 4  # until a model is refused on all of them
_FEW = 2  # samples: sums over one take another way
_RANKS = 3  # so that one has others on both sides
_GRID = 2, 2  # ranks that cut two dims


class BlockFigures(NamedTuple):
    """What a block has of a micro-batch: bytes, operations of each pass, bytes that each moves and
    sends.

    entered   bytes of its input
    """

    kept: float = 0.0
    deferred: float = 0.0
    working: float = 0.0
    entered: float = 0.0
    forward_flops: float = 0.0
    backward_flops: float = 0.0
    weight_flops: float = 0.0
    forward_moved: float = 0.0
    backward_moved: float = 0.0
    weight_moved: float = 0.0
    forward_sent: float = 0.0
    backward_sent: float = 0.0
    weight_sent: float = 0.0


class Counts(NamedTuple):
    """How many products, kernels, halos and other verbs a pass has, whatever the size of its input.

    halos   along one dim
    """

    products: int = 0
    calls: int = 0
    halos: int = 0
    others: int = 0


@dataclass(frozen=True)
class TracedBlock:
    """A block: what it has for each point of a grid, for each point where two ranks meet, for each
    sample, and in any case.

    counts   of each of PASSES
    """

    name: str
    per_point: BlockFigures
    per_edge: BlockFigures
    per_sample: BlockFigures
    per_call: BlockFigures
    counts: tuple[Counts, ...]

    def at(self, points: float, edges: float, samples: int) -> BlockFigures:
        """Return the figures of a micro-batch; points and edges of all its samples together."""
        kinds = zip(self.per_point, self.per_edge, self.per_sample, self.per_call)
        factors = points, edges, samples, 1
        return BlockFigures(*[_sum(factors, each) for each in kinds])


def _sum(factors: tuple, figures: tuple) -> float:
    """Return the sum of the products, or 0 if it is less."""
    return max(sum(map(mul, factors, figures)), 0.0)


@dataclass(frozen=True)
class Traced:
    """A model.

    refusal   why ranks cannot share its samples; "" if they can
    grid_refusal   the same where they cut several dims of these
    halved    rows of a sample for each one of the shortest activation
    events    of a Meter, the arrays of a micro-batch: (number, bytes for each point, sample and
              call), or (number, ()) of one that goes; () if sizes change more than these
    """

    blocks: tuple[TracedBlock, ...]
    refusal: str
    grid_refusal: str
    halved: float
    events: tuple[tuple[int, tuple[float, ...]], ...]

    def held_share(self, points: float, samples: int, otherwise: float) -> float:
        """Return how much an arena holds for a byte that arrays use.

        otherwise   where that is not known
        """
        factors = points, samples, 1
        sizes = [
            (number, round(_sum(factors, grown)) if grown else GONE)
            for number, grown in self.events
        ]
        if not sizes:
            return otherwise
        held, most = held_bytes(sizes, SimpleNamespace(kind="cpu", accounts=Accounts()))
        return held / most if most else otherwise


class Traceable(NamedTuple):
    """A model that was made for a grid, and a sample of it."""

    module: Module
    loss: Loss
    x: numpy.ndarray
    y: numpy.ndarray

    @classmethod
    def of(cls, module: Module, loss: Any, x_shape: tuple, y_shape: tuple) -> "Traceable":
        """Return a model with a sample: numbers, or a class where y has no shape."""
        rng = numpy.random.default_rng(0)
        x = rng.standard_normal((1, *x_shape), "float32")
        y = rng.standard_normal((1, *y_shape), "float32") if y_shape else numpy.zeros(1, "int64")
        return cls(module.finish(0), as_loss(loss or module.loss), x, y)

    def of_samples(self, count: int) -> "Traceable":
        """Return the model with this many samples."""
        x = numpy.concatenate([self.x] * count)
        y = numpy.concatenate([self.y] * count)
        return self._replace(x=x, y=y)


def traced(made: Callable[[tuple[int, ...]], Traceable], dims: int) -> Traced:
    """Return what a model has, run on the smallest grids that it takes.

    made   makes the model for a grid of these sizes
    Errors: those of the model on the largest of them.
    """
    size, small = _on_smallest(made, dims)
    large = _run(made((2 * size,) * dims).of_samples(_FEW), _Counting())
    double = _run(made((size,) * dims).of_samples(2 * _FEW), _Counting())
    refusal, middle, halved = _shared(made, size, dims)
    points = size**dims, (2 * size) ** dims
    blocks = []
    for number, of_three in enumerate(zip(small.blocks, large.blocks, double.blocks)):
        block = _grown(of_three, points)
        if middle is not None:
            block = _with_edges(block, middle.blocks[number], size, dims)
        blocks.append(block)
    events = _events(small, large, double, points=points)
    return Traced(tuple(blocks), refusal, _grid_refusal(made, size, dims), halved, events)


def _grown(of_three: tuple, points: tuple[int, int]) -> TracedBlock:
    """Return a block without edges, by what it had in each of three runs."""
    name, _, counts, _ = of_three[0]
    figures = zip(*[found for _, found, *_ in of_three])
    parts = zip(*[_linear(each, *points) for each in figures])
    slope, of_sample, rest = starmap(BlockFigures, parts)
    return TracedBlock(name, slope, BlockFigures(), of_sample, rest, counts)


def _with_edges(block: TracedBlock, of_middle: tuple, size: int, dims: int) -> TracedBlock:
    """Return a block with what it has at edges, by a rank with size rows and one on each side."""
    points = 2 * size ** (dims - 1)  # of both edges
    without = block.at(size**dims, 0, 1)
    added = numpy.subtract(of_middle[1], without) / points
    edge = BlockFigures(*added.tolist())._replace(**dict.fromkeys(_WORK, 0.0))
    pairs = zip(block.counts, of_middle[2])
    counts = tuple(starmap(_with_messages, pairs))
    others = dict(zip(_SENT, of_middle[3]))  # sums and modes, of one sample
    of_sample = block.per_sample._replace(**others)
    return replace(block, per_edge=edge, per_sample=of_sample, counts=counts)


def _with_messages(own: Counts, shared: Counts) -> Counts:
    return own._replace(halos=shared.halos, others=shared.others)


def _linear(found: tuple, few: int, many: int) -> tuple[float, float, float]:
    """Return the parts of a figure for each point, for each sample, and in any case.

    found      of _FEW small samples, of as many large ones, of twice as many small ones
    few, many  points of small and large samples
    """
    less, more, double = found
    slope = (more - less) / (many - few) / _FEW
    of_sample = (double - less) / _FEW - slope * few
    return slope, of_sample, less - _FEW * (slope * few + of_sample)


def _events(*found: "_TracedRun", points: tuple[int, int]) -> tuple:
    """Return the events of a Meter as they grow; () if the runs differ in more than sizes."""
    runs = [_numbered(each.events) for each in found]
    if len(set(map(_form, runs))) > 1:
        return ()
    grown = []
    for of_all in zip(*runs):
        numbers, sizes = zip(*of_all)
        is_gone = sizes[0] == GONE
        grown.append((numbers[0], () if is_gone else _linear(sizes, *points)))
    return tuple(grown)


def _form(events: _Events) -> tuple:
    """Return the events without sizes."""
    return tuple((number, size == GONE) for number, size in events)


def _numbered(events: _Events) -> _Events:
    """Return the events with arrays numbered as they come."""
    numbers: dict[int, int] = {}
    return [(numbers.setdefault(number, len(numbers)), size) for number, size in events]


_WORK = [f"{each}_{what}" for each in PASSES for what in ("flops", "moved")]
_SENT = [f"{each}_sent" for each in PASSES]


def _on_smallest(made, dims: int) -> "tuple[int, _TracedRun]":
    """Return the size of the smallest grid that the model takes, and what its blocks have."""
    size = _FIRST_SIZES[dims]
    for _ in range(_DOUBLINGS):
        try:
            return size, _run(made((size,) * dims).of_samples(_FEW), _Counting())
        except ShardkitError:
            size *= 2
    return size, _run(made((size,) * dims).of_samples(_FEW), _Counting())


def _shared(made, size: int, dims: int) -> "tuple[str, _TracedRun | None, float]":
    """Return why ranks cannot share samples, or "", what the middle one of three has, and how many
    rows of a sample come to one of the shortest activation.
    """
    grid = _RANKS * size, *(size,) * (dims - 1)
    models = [made(grid) for _ in range(_RANKS)]

    def on_rank(backend):
        module, loss, x, y = models[backend.rank]
        parts = SampleParts(module, backend, loss)
        x, y, loss = parts.part_of_batch(x, y, loss)
        found = _run(Traceable(module, loss, x, y), _Traffic(backend.traffic), parts)
        lengths = cut_layers(module, backend)[0].made
        return found, grid[0] / min(lengths or grid[:1])

    try:
        found, halved = run_ranks(_RANKS, on_rank)[1]
    except ShardingError as error:
        return str(error), None, 1.0
    return "", found, halved


def _grid_refusal(made, size: int, dims: int) -> str:
    """Return why ranks cannot cut several dims of samples, or ""."""
    if dims == 1:
        return "grids of one dim have no second one that ranks could cut"
    models = [made((2 * size,) * dims) for _ in range(prod(_GRID))]

    def on_rank(backend):
        lines = Mesh(backend, domain=prod(_GRID)).grid("domain", _GRID)
        module, loss, *_ = models[backend.rank]
        SampleParts(module, backend, loss, lines=lines)

    try:
        run_ranks(prod(_GRID), on_rank)
    except ShardingError as error:
        return str(error)
    return ""


# ---- one run -------------------------------------------------------------------------------------


class _Traffic:
    """Counts messages of a rank."""

    def __init__(self, traffic: Any = None):
        self.meter = Meter()
        self._traffic = traffic
        self.flops = self.moved = self.products = self.calls = 0

    def so_far(self) -> numpy.ndarray:
        """Return flops, bytes moved, of halos, of other messages, products, calls, halos, other
        messages.
        """
        num_bytes = verbs = (0, 0)
        if self._traffic is not None:
            num_bytes, verbs = _apart(self._traffic.by_verb), _apart(self._traffic.calls)
        bytes_and_flops = self.flops, self.moved, *num_bytes
        return numpy.array([*bytes_and_flops, self.products, self.calls, *verbs])

    def watching(self):
        return nullcontext()


def _apart(by_verb) -> tuple[int, int]:
    """Return what halos have, and all other verbs together."""
    halos = by_verb.get("send", 0)
    return halos, sum(by_verb.values()) - halos


class _Counting(_Traffic):
    """Counts kernels and products: wherever no other rank computes."""

    def __init__(self):
        super().__init__()
        self._depth = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        with wrapped_kernels(self._kernel), wrapped_products(self._product):
            yield

    def so_far(self):
        """Return its counts; what no kernel made was read once and written once."""
        found = super().so_far()
        found[1] += 2 * self.meter.made
        return found

    def _kernel(self, implementation, name):
        def counted(*args, **kwargs):
            result, is_first = self._inside(implementation, args, kwargs)
            if is_first and result is not NotImplemented:
                arrays = _arrays([result, *args, *kwargs.values()])
                self.moved += sum({id(each): each.nbytes for each in arrays}.values())
                self.calls += 1
                if name in _CONVOLUTIONS:
                    self._add(2 * _CONVOLUTIONS[name](result, *args))
            return result

        return counted

    def _product(self, multiply):
        def counted(a, b, *more):
            result, is_first = self._inside(multiply, (a, b, *more), {})
            if is_first:
                rows = a.shape[-2] if a.ndim > 1 else 1
                batch = max(prod(each.shape[:-2]) for each in (a, b))
                elements = batch * rows * b.shape[-1]  # of the result
                self._add(2 * elements * a.shape[-1])
                self.moved += a.nbytes + b.nbytes
                self.moved += elements * a.itemsize
            return result

        return counted

    def _inside(self, call, args, kwargs):
        """Return the result of a call, and whether no other was around it."""
        before, first = self.meter.made, len(self.meter.events)
        self._depth += 1
        try:
            result = call(*args, **kwargs)
        finally:
            self._depth -= 1
        if not self._depth:
            self.meter.events[first:] = self._joined(self.meter.events[first:])
            self.moved -= 2 * (self.meter.made - before)  # so_far() adds it
        return result, not self._depth

    def _joined(self, events):
        """Return what is left of the events of a call, and its scratch as one array: how many it
        takes depends on its sizes.
        """
        made = {number: size for number, size in events if size != GONE}
        gone = {number for number, size in events if size == GONE}
        known = [(made[number], size) for number, size in events if number in made]
        changes = [-own if size == GONE else own for own, size in known]
        stays = [(number, size) for number, size in made.items() if number not in gone]
        scratch = max(accumulate(changes), default=0) - sum(size for _, size in stays)
        number = self.meter.new_number()
        before = [(each, GONE) for each in sorted(gone - made.keys())]
        return [(number, scratch), *stays, (number, GONE), *before]

    def _add(self, flops):
        self.flops += flops
        self.products += 1


_CONVOLUTIONS = {  # {name: multiplications}, of its result and arguments
    "convolve": lambda y, x, weight, *_: y.size * weight[0].size,
    "convolve_input": lambda x, gradient, weight, *_: gradient.size * weight[0].size,
    "convolve_weight": lambda weight, gradient, *_: gradient.size * weight[0].size,
}


def _arrays(values) -> Iterator[numpy.ndarray]:
    for each in values:
        if isinstance(each, numpy.ndarray):
            yield each
        elif isinstance(each, (tuple, list)):
            yield from _arrays(each)


class _TracedRun(NamedTuple):
    """What a run has found.

    blocks   (name, BlockFigures, Counts of each pass, bytes that each sends beside halos) of each
    events   of the Meter
    """

    blocks: list[tuple]
    events: _Events


def _run(model: Traceable, watch: _Traffic, parts: SampleParts | None = None) -> _TracedRun:
    """Run a model forward and backward; parts: how ranks share its samples.

    Gradients of parameters have their place already, as in a step.
    """
    parameters = model.module.parameters()
    ends = list(accumulate((each.size for each in parameters), initial=0))
    spans = map(slice, ends, ends[1:])
    buffer = numpy.zeros(ends[-1], parameters[0].dtype)
    slots = zip(spans, [each.shape for each in parameters])
    bind_gradients(parameters, slots, buffer, is_empty=True)
    context = ForwardContext(
        training=True, observer=unobserved, num_samples=len(model.x), parts=parts
    )
    with watch.meter.in_use(), watch.watching(), forward_context(context):
        blocks = _blocks_run(model, watch, blocks_of(model.module))
    return _TracedRun(blocks, watch.meter.events)


def _blocks_run(model: Traceable, watch: _Traffic, blocks: list) -> list[tuple]:
    meter, x = watch.meter, model.x
    inputs: list[Tensor] = []
    outputs: list[Tensor] = []
    work: list[list] = []
    used = [meter.used]
    for number, (_, block) in enumerate(blocks):
        before = watch.so_far()
        inputs.append(Tensor(x, requires_grad=number > 0))
        outputs.append(block(inputs[-1]))
        if number == len(blocks) - 1:
            outputs[-1] = model.loss.total(outputs[-1], model.y)
        x = outputs[-1].array
        used.append(meter.used)
        work.append([watch.so_far() - before])
    found = [
        _backward(number, inputs, outputs, used, work, watch)
        for number in reversed(range(len(blocks)))
    ]
    names = [name for name, _ in blocks]
    return [(name, *each) for name, each in zip(names, found[::-1])]


def _backward(number: int, inputs, outputs, used, work, watch: _Traffic) -> tuple:
    """Run the backward of a block; return its BlockFigures, and Counts of each pass."""
    meter, begin = watch.meter, watch.so_far()
    is_last = number == len(inputs) - 1
    gradient = None if is_last else inputs[number + 1].grad
    if not is_last:
        inputs[number + 1] = None
    meter.reset_peak()
    owed = backward_inputs(outputs[number], gradient)
    outputs[number] = gradient = None
    given = inputs[number].grad
    entered = inputs[number].array.nbytes
    held = meter.used - used[number] - (0 if given is None else given.nbytes)
    middle = watch.so_far()
    owed.run()
    passes = [*work[number], middle - begin, watch.so_far() - middle]
    kept = used[number + 1] - used[number]
    sizes = kept, held, meter.peak - used[number + 1], entered
    figures = numpy.array(passes)
    flops, moved, halos, others = figures[:, :4].T.tolist()
    whole = figures[:, 4:].astype(int).tolist()
    counts = tuple(starmap(Counts, whole))
    return BlockFigures(*sizes, *flops, *moved, *halos), counts, others
