"""The batch of a step: this data rank's part, checked on all ranks together, with its place in the
global batch.

    data rank 0  x [n0, ...] | data rank 1  x [n1, ...] | ...    the other ranks of a replica pass
                                                                 the same part

x and y are arrays or trees of arrays (shardkit/tree.py), all leaves with the same number of samples
along dim 0. The trees of all ranks have one structure.
"""

import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from math import nan
from operator import itemgetter
from struct import Struct
from typing import Any, NamedTuple

import numpy

from ...arguments import require
from ...array.backend import host_array, is_array
from ...array.dtypes import check_real
from ...comm.failure.agreement import CommonNumber, collectively
from ...comm.failure.ballot import Ballot
from ...comm.mesh import Mesh
from ...comm.same import CALL, difference
from ...errors import ShapeError, ShardingError, StopVoted
from ...layout.axes import COPIES
from ...layout.part import Rows
from ...nn.context import ForwardContext, hold_marks
from ...nn.loss import Loss, as_loss, check_targets_of
from ...nn.module import Module, check_input_of, context_of_pass, output_shape_of
from ...tree import is_tree, leaves, map_tree, named_leaves, num_samples, rebuild, structure
from .inputs import Inputs, MicroBatch, Update

# of the number of a rank's samples; above it, in the same message, is the form of its part
SAMPLE_BITS = 32

_COUNTS = Struct("qd")  # a rank's samples and form, and its items
_UNMARKED = ForwardContext(is_unmarked=True)
_PASSED = "passed"  # beside what ranks must have alike


def arrays_in(tree) -> list:
    """Return the arrays of a tree; of one array itself, at no cost."""
    return [tree] if is_array(tree) else leaves(tree)


def each(function, tree):
    """Return function(array) of one array, or a tree of it for each array of a tree."""
    return function(tree) if is_array(tree) else map_tree(function, tree)


def _not_placed(x, y) -> tuple:
    return ()


def part_of(tree, first: int, count: int):
    """Return some samples of an array, or of each array of a tree; no copies."""
    return each(itemgetter(slice(first, first + count)), tree)


def tree_total(numbers: list[float]) -> float:
    """Return the sum of one number or more as a tree: neighbors first, level by level."""
    while len(numbers) > 1:
        numbers = [sum(numbers[i : i + 2]) for i in range(0, len(numbers), 2)]
    return numbers[0]


@dataclass(frozen=True)
class AgreedBatch:
    """This data rank's part of a global batch, and where it lies in the whole."""

    x: object
    y: object
    own_samples: int  # of x and y
    first_sample: int  # number of x[0] in the global batch
    loss: Loss
    samples: int  # of the global batch
    items: float  # that the loss counts in the global batch (tokens, for a language model)
    form: bytes  # equal, on all ranks, for batches of the same shapes and dtypes on every data rank
    placed: tuple  # what the caller has made of x and y before the ranks agreed


class _OwnPart(NamedTuple):
    """What a rank computes of the samples that it was given, and tells the others of it.

    told   [2] int64: its samples and their form, and its items as a float64, as _COUNTS has them
    """

    x: Any
    y: Any
    count: int
    loss: Loss
    told: numpy.ndarray


class Batches:
    """The door that batches of one model come in by.

    loss             the usual one: a Loss, or a function (prediction, y) -> mean loss; None: the
                     model's own
    samples          how ranks share each sample (domain/samples.py); None: they do not
    compares_peers   checked mode: peers of a replica must have passed the same part, each time;
                     else it is compared the first time
    """

    def __init__(self, mesh: Mesh, model: Module, loss, samples=None, *, compares_peers: bool):
        self._mesh = mesh
        self._copies = mesh.group(COPIES)
        self._part, self._num_parts = mesh.sample_part
        self._samples = samples
        self._model = model
        self._loss = loss
        self.compares_peers = compares_peers
        self._has_compared = mesh.world.world_size == self._num_parts  # nobody has peers

    def agree(
        self,
        x,
        y,
        micro_batches: int,
        loss=None,
        ballot: Ballot | None = None,
        choice=(None, ()),
        *,
        call: str,
        rates: Callable[[], list[float]] = list,
        placed: Callable[[Any, Any], tuple] = _not_placed,
    ) -> AgreedBatch:
        """Return the batch of this step. Collective over the mesh.

        loss     instead of the usual one
        ballot   whether to stop, decided in the message that the ranks need anyway to agree that
                 the batch is good
        choice   `only` that objective, None: all; and all
        call     that begins here
        rates    function that returns learning rates: a schedule may differ between ranks
        placed   function of x and y that puts them where they are computed: a rank may have no
                 room there
        Errors, on all ranks: ConfigurationError on another choice; ShapeError if the part of any
        rank is empty, does not divide into the micro-batches, is not accepted by the model or the
        loss, or if structure of trees or `only` are not those of other ranks; StopVoted,
        ShardingError naming the ranks that passed another part than their peers, or are in another
        call, or have other rates.
        """
        common = CommonNumber()
        only, objectives = choice
        with collectively(self._mesh.world, ballot, common):
            _check_choice(only, [each.name for each in objectives if each.name])
            criterion = as_loss(loss or self._usual_loss())
            x, y = self._checked_samples(criterion, x, y)
            _check_division(len(arrays_in(x)[0]), micro_batches)
            said = {CALL: call, "the learning rate": str(rates())}
            common.value = _structure_number(said, x, y, only=only)
            own = self._own_part(x, y, criterion, micro_batches)
            ready = placed(own.x, own.y)
        if ballot is not None and ballot.outcome:
            raise StopVoted(*ballot.outcome)
        self._check_common(common, said, only, x=x, y=y)
        self._check_peers(x, y)
        return self._agreed(own, ready)

    def _own_part(self, x, y, loss: Loss, micro_batches: int) -> "_OwnPart":
        """Return what this rank computes of samples that are good, and tells the others of it."""
        count = len(arrays_in(x)[0])
        if self._samples is not None:
            x, y, loss = self._samples.part_of_batch(x, y, loss)
        about = self.context_for(x, _UNMARKED).is_unmarked
        size_and_form = count | _form(about, x, y) << SAMPLE_BITS
        told = numpy.array([size_and_form, 0], numpy.int64)
        told[1:].view(numpy.float64)[:] = _count(loss, y, count, micro_batches)
        return _OwnPart(x, y, count, loss, told)

    def _agreed(self, own: "_OwnPart", placed: tuple) -> AgreedBatch:
        """Return this rank's part with its place in the global batch. Collective over the copies of
        the model.

        placed   what the caller has made of x and y
        """
        everyones = numpy.zeros((self._copies.world_size, 2), numpy.int64)
        self._copies.all_gather(own.told, everyones.reshape(-1))
        sizes_and_forms, items = zip(*_COUNTS.iter_unpack(everyones))
        samples = [each & (1 << SAMPLE_BITS) - 1 for each in sizes_and_forms[: self._num_parts]]
        return AgreedBatch(
            own.x,
            own.y,
            own.count,
            sum(samples[: self._part]),
            own.loss,
            sum(samples),
            tree_total(list(items)),
            everyones[:, 0].tobytes(),
            placed,
        )

    def context_for(self, x, context: ForwardContext) -> ForwardContext:
        """Return the context of a pass of the model over x, on the host."""
        is_unmarked = not any(map(hold_marks, arrays_in(x)))
        if context.is_unmarked != is_unmarked:
            context = replace(context, is_unmarked=is_unmarked)
        return context_of_pass(self._model, x, context)

    @property
    def mesh(self) -> Mesh:
        """All of its ranks agree."""
        return self._mesh

    def _usual_loss(self):
        return self._loss or self._model.loss

    def check(self, x, y) -> None:
        """Errors: ShapeError unless model and usual loss take them. No communication."""
        self._checked_samples(as_loss(self._usual_loss()), x, y)

    def own_samples(self, x, y) -> tuple:
        """Return x, y on the host, and how many samples they have; None is none.

        No communication. Errors: ShapeError unless model and usual loss take them.
        """
        if x is None and y is None:
            return x, y, 0
        x, y = self._on_host("x", x), self._on_host("y", y)
        _check_lengths(x=x, y=y)
        count = len(arrays_in(x)[0])
        if count:
            self.check(x, y)
        return x, y, count

    def agree_on_input(self, x):
        """Return x on the host, if the model takes it; it may have no samples. Collective over the
        mesh.

        Errors, on all ranks: as agree().
        """
        common = CommonNumber()
        about = {CALL: "predict"}
        with collectively(self._mesh.world, common):
            x = self._on_host("x", x)
            for name, array in named_leaves(x, "x"):
                if array.ndim == 0:
                    raise ShapeError(f"{name} is a single number; wanted an array [samples, ...]")
            _check_lengths(x=x)
            self._check_input(x)
            common.value = _structure_number(about, x)
        self._check_common(common, about, x=x)
        self._check_peers(x)
        return x

    def _on_host(self, what, value):
        """Return what a caller passed as an array of the host, a slab or a tree of arrays.

        Errors: ShapeError if a leaf holds no real numbers, or there is no leaf, or on a slab where
        ranks share no samples; DeviceError.
        """
        if self._samples is None or not isinstance(value, Rows):
            return _on_host(what, value)
        return value.map(lambda array: _numbers(what, array))

    def _check_input(self, x) -> None:
        """Errors: ShapeError unless the model takes x, of which this rank may have a slab."""
        for form in [x] if self._samples is None else self._samples.forms_of(x):
            check_input_of(self._model, form)

    def _checked_samples(self, criterion: Loss, x, y):
        """Return x and y on the host, if model and loss take them. No communication.

        Errors: ShapeError, DeviceError.
        """
        x, y = self._on_host("x", x), self._on_host("y", y)
        _check_lengths(x=x, y=y)
        if any(map(_is_empty, (x, y))):
            raise ShapeError(
                f"{_shapes(x=x, y=y)}: there is nothing in it; wanted a sample or more on every "
                "rank"
            )
        self._check_input(x)
        shape = output_shape_of(self._model, x.shape) if hasattr(x, "shape") else None
        form = (y, shape) if self._samples is None else self._samples.targets_form(y, shape)
        check_targets_of(criterion, *form)
        return x, y

    def _check_peers(self, *trees) -> None:
        """Raise on all ranks if peers of a replica passed other arrays, as far as is looked at:
        where ranks share samples the shapes, by which they size their messages, and a few elements;
        of the first batch, and of each in checked mode, all. Collective over the mesh then.
        """
        if self._samples is not None:
            with collectively(self._mesh.world):
                self._samples.check_same(*trees)
        if self.compares_peers or not self._has_compared:
            check_peers(self._mesh, *trees)
            self._has_compared = True

    def _check_common(
        self, common: CommonNumber, about: dict[str, str], only: str | None = None, **trees
    ) -> None:
        """Raise on all ranks if some have other structures of trees, or another only (ShapeError),
        or differ in `about` (ShardingError).
        """
        if common.is_common:
            return
        mine = ", ".join(f"{name} = {_told(tree)}" for name, tree in trees.items())
        mine += "" if only is None else f", only = {only!r}"
        everyones = self._mesh.world.all_gather_object({**about, _PASSED: mine})
        told = [facts.pop(_PASSED, "") for facts in everyones]
        if any(facts != everyones[0] for facts in everyones):
            raise ShardingError(difference(everyones, "give the same on all ranks"))
        rank = next(rank for rank, theirs in enumerate(told) if theirs != told[0])
        raise ShapeError(
            f"rank 0 passed {told[0]}, but rank {rank} {told[rank]}; wanted trees of one structure "
            "on all ranks, * standing for an array, and the same only"
        )


class Intake:
    """Makes batches the inputs of programs.

    batches   the door that they come in by
    parts     of the engine (assembly.py): its plan, state, and buffers that observe
    """

    def __init__(self, batches: Batches, parts, config):
        self._batches, self._parts = batches, parts
        self._micro_batches, self._seed = config.micro_batches, config.seed
        self._groups = config.parameter_groups

    def inputs(
        self,
        x,
        y,
        loss=None,
        ballot: Ballot | None = None,
        *,
        first_gradient: int = 0,
        first_sample: int = 0,
        choice=(None, ()),
        call: str = "train",
    ) -> tuple[AgreedBatch, Inputs]:
        """Agree on the batch, and cut this rank's part into micro-batches. Collective.

        first_sample   number of the first in the whole batch of the step, of which this is a part
        Errors, on all ranks: as Batches.agree() and check_weights().
        """
        self.check_weights()
        num, parts = self._micro_batches, self._parts
        state = parts.state
        rates = self._rates_ahead if call == "train" else list
        given = {"call": call, "rates": rates, "placed": self._placed}
        batch = self._batches.agree(x, y, num, loss, ballot, choice, **given)
        size = batch.own_samples // num
        whole = batch.x
        x, y = batch.placed
        micro_batches = tuple(
            MicroBatch(
                part_of(x, start, size),
                part_of(y, start, size),
                self._batches.context_for(
                    part_of(whole, start, size),
                    ForwardContext(
                        training=True,
                        is_unmarked=True,
                        seed=self._seed,
                        step=state.step_number,
                        first_sample=first_sample + batch.first_sample + start,
                        num_samples=size,
                        observer=self._observer(first_gradient + number),
                        parts=parts.plan.samples,
                    ),
                ),
            )
            for number, start in enumerate(range(0, num * size, size))
        )
        return batch, Inputs(
            micro_batches,
            batch.loss,
            batch.form,
            loss_scale=state.loss_scale.value,
            gradient_scale=self.gradient_scale(batch.items),
            first_gradient=first_gradient,
            update=Update(state.step_number + 1),
        )

    def _placed(self, x, y) -> tuple:
        """Return x and y on the device, x as the first block reads it. Errors: OutOfMemoryError."""
        plan, number = self._parts.plan, self._parts.state.step_number + 1
        place = f"the batch of step {number}"
        return plan.numerics.placed(plan.device, x, y, self._batches.mesh, place)

    def _rates_ahead(self) -> list[float]:
        """Return the learning rates of the next update: of the rule, and of groups with their own.

        A rule of one's own may have none. Errors: ConfigurationError, and what a schedule raises.
        """
        state = self._parts.state
        rules = [state.rule, *(group.rule for group in self._groups)]
        numbers = {*state.updates.values()}
        return [
            rule.rate(number + 1)
            for rule in rules
            if hasattr(rule, "rate")
            for number in sorted(numbers)
        ]

    def check_weights(self) -> None:
        """Errors: ShardingError while the model awaits its weights, or averages stand in their
        place.
        """
        state = self._parts.state
        if state.weights.awaits_values:
            state.weights.check()
        if state.averages.is_in_use:
            state.averages.check_not_in_use("train")

    def gradient_scale(self, items: float) -> float:
        """Return the factor from sums over items, of a scaled loss, to means.

        NaN if there are no items, so that no rank takes the step.
        """
        return 1.0 / items / self._parts.state.loss_scale.value if items else nan

    def _observer(self, micro_batch: int):
        """Return what takes the observations of buffers; None in a model that has none."""
        return next((each.observer(micro_batch) for each in self._parts.observing), None)


def check_peers(mesh: Mesh, *trees) -> None:
    """Raise ShardingError on all ranks if one passed other arrays than its replica's first rank.

    Collective over the mesh; by checksums.
    """
    arrays = [array for tree in trees for array in arrays_in(tree)]
    slabs = [each for each in arrays if isinstance(each, Rows)]
    starts = tuple([cut.start for each in slabs for cut in each.cuts])
    part, _ = mesh.sample_part
    everyones = mesh.world.all_gather_object(((part, starts), list(map(_sum_of, arrays))))
    first: dict[tuple, int] = {}  # part of the samples, and of each sample -> its first rank
    for rank, (owned, _) in enumerate(everyones):
        first.setdefault(owned, rank)
    wrong = [
        rank
        for rank, (owned, theirs) in enumerate(everyones)
        if theirs != everyones[first[owned]][1]
    ]
    if wrong:
        owned = everyones[wrong[0]][0]
        replica = owned[0]
        raise ShardingError(
            f"rank {', '.join(map(str, wrong))} passed another batch than rank {first[owned]}, "
            f"its peer in data replica {replica}; wanted the same part on all ranks of a "
            "replica: take it with split_batch(model.mesh, x, y)"
        )


def _sum_of(array) -> tuple:
    """Return the shape of an array or slab, its dtype, and a checksum."""
    rows = numpy.ascontiguousarray(array.array if isinstance(array, Rows) else array)
    return array.shape, str(array.dtype), zlib.crc32(rows)


def _form(about, *trees) -> int:
    """Return 31 bits for shapes, dtypes and memory order, and what else decides what is run."""
    forms = [
        (array.shape, array.dtype.str, array.dtype.char, array.flags.c_contiguous)
        for tree in trees
        for array in arrays_in(tree)
    ]
    return _bits_of((about, *forms)) >> 1


@lru_cache(maxsize=256)
def _bits_of(words: tuple) -> int:
    """Return 32 bits for what has a repr of its own, the same on all ranks."""
    return zlib.crc32(repr(words).encode())


def _is_empty(tree) -> bool:
    return 0 in tree.shape if hasattr(tree, "shape") else not num_samples(tree)


def _check_choice(only: str | None, names: list[str]) -> None:
    wanted = ", ".join(names) or "None: no objective is chosen"
    if only is not None:
        require(only in names, "only", only, wanted)


def _structure_number(about: dict[str, str], *trees, only: str | None = None) -> int:
    """Return 32 bits for what is said, the structure of trees and a choice."""
    words = [*about.values()]
    if only is not None or not all(map(is_array, trees)):
        words += [*map(_told, trees), repr(only)]
    return _bits_of(tuple(words))


def _told(tree) -> str:
    return "a slab" if isinstance(tree, Rows) else str(structure(tree))


def _on_host(what, value):
    """Return what a caller passed as an array of the host, or a tree of them.

    Errors: ShapeError if a leaf holds no real numbers, or there is no leaf; DeviceError.
    """
    if is_array(value) or not is_tree(value):
        return _numbers(what, value)
    form = structure(value)
    if not form.num_leaves:
        raise ShapeError(f"{what} is {form}, without an array in it; wanted one or more")
    return rebuild(form, [_numbers(name, leaf) for name, leaf in named_leaves(value, what)])


def _check_lengths(**trees) -> None:
    """Raise ShapeError unless all leaves of all trees have the same number of samples."""
    arrays = [array for tree in trees.values() for array in arrays_in(tree)]
    if any(array.ndim == 0 or len(array) != len(arrays[0]) for array in arrays):
        raise ShapeError(
            f"{_shapes(**trees)}; wanted the same number of samples along dim 0 of each"
        )


def _shapes(**trees) -> str:
    """Return the shape of each leaf, as text."""
    return ", ".join(
        f"{name} has shape {array.shape}"
        for what, tree in trees.items()
        for name, array in named_leaves(tree, what)
    )


def _numbers(what, array):
    """Return what a caller passed, as an array of the host.

    Errors: ShapeError if it holds no real numbers.
    """
    array = host_array(what, array)
    check_real(what, array.dtype)
    return array


def _count(criterion: Loss, y, own_samples: int, micro_batches: int) -> float:
    """Return how many items this rank has, added as the gradients are: counts need not be whole,
    and their sum would have other bits in another order.
    """
    size = own_samples // micro_batches
    starts = range(0, micro_batches * size, size)
    return tree_total([criterion.count(part_of(y, start, size)) for start in starts])


def _check_division(num_samples, micro_batches):
    if num_samples % micro_batches:
        raise ShapeError(
            f"{num_samples} samples on this rank do not divide into {micro_batches} micro-batches; "
            f"pass a multiple of {micro_batches}, at least {micro_batches}"
        )
