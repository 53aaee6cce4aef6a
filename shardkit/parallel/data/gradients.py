"""The gradients of a unit, from the first micro-batch to the sum over data ranks.

    micro-batch --open, W, close--> sum over micro-batches --reduce--> sum over data ranks, of which
                                    one per user of the unit            the keeper keeps its part

    micro-batch   0   1   2   3   4       a finished pair is added immediately, so at most
                   \\ /     \\ /   |       log2(m) + 1 partial sums are alive; an odd one is
                   01      23    |       carried up and joins at the end
                     \\   /       |
                      0123 ----- 01234

The tree depends on the numbers of the micro-batches alone. A rank that owns an aligned run of 2^k
of them computes a whole subtree, and the reduction over ranks goes on with the same tree: the bits
of the sum do not depend on the number of ranks.

begin_reduce() posts the messages of reduce() ahead.
"""

from math import frexp

from ...array import fresh, kernels
from ...array.device import BufferPool
from ...errors import ShardingError
from ..tensor.claims import is_counted, is_partial, sum_partial
from .keepers import Shard, Whole

NORM_BLOCK = 256  # elements whose squares are summed together; shards are multiples of it


class GradientTree:
    """The sum over micro-batches in tree order, in whichever order they finish."""

    def __init__(self, pool: BufferPool, size: int):
        self._pool, self._size = pool, size
        self._partial_sums: dict[tuple[int, int], object] = {}  # (level, index) -> [size]

    def begin(self):
        """Return a buffer [size] for one micro-batch, and True: its contents mean nothing."""
        return self._pool.take(self._size), True

    def end(self, micro_batch: int, buffer):
        """Add the complete gradient of this micro-batch to its neighbor, and on up the tree."""
        level, index = 0, micro_batch
        while (level, index ^ 1) in self._partial_sums:
            neighbor = self._partial_sums.pop((level, index ^ 1))
            buffer = self._add(neighbor, buffer)  # a + b and b + a are the same bits
            level, index = level + 1, index // 2
        self._partial_sums[level, index] = buffer

    def finish(self):
        """Return the sum of all micro-batches [size], the caller's now; None if there were none."""
        if not self._partial_sums:
            return None
        largest_first = sorted(self._partial_sums, reverse=True)
        rest = [self._partial_sums.pop(node) for node in largest_first]
        total = rest.pop()
        while rest:
            total = self._add(rest.pop(), total)
        return total

    def _add(self, left, right):
        """Return the sum, in left's memory; right's goes back to the pool."""
        left += right
        self._pool.give(right)
        return left


class GradientRunningSum:
    """The sum over micro-batches in one buffer, as they come: bits depend on the mesh."""

    def __init__(self, pool: BufferPool, size: int):
        self._pool, self._size = pool, size
        self._sum = None

    def begin(self):
        """Return the running sum [size], and whether its contents mean nothing yet."""
        is_empty = self._sum is None
        if is_empty:
            self._sum = self._pool.take(self._size)
        return self._sum, is_empty

    def end(self, micro_batch: int, buffer):
        """Do nothing: backward has added this micro-batch already."""

    def finish(self):
        """Return the sum of all micro-batches [size], the caller's now; None if there were none."""
        total, self._sum = self._sum, None
        return total


class WholeSum:
    """The sum over ranks stays where it was made, in a buffer of the pool.

    keeper   of the sum, from open() or keep() to drop()
    """

    def __init__(self, site):
        self._site, self._pool = site, site.pools.whole_gradients
        self.keeper = Whole(site)

    def open(self) -> None:
        """Take a buffer for a gradient that is not summed here."""
        self.keep(self._pool.take(self._site.layout.size))

    def destination(self, part):
        """Return where the sum over ranks of `part` of the first total goes: its own place."""
        return part

    def keep(self, total) -> None:
        """Take over the first total, whose sum is complete."""
        self.keeper = Whole(self._site, total)

    def drop(self) -> None:
        """Give the buffer back."""
        self._pool.give(self.keeper.array)
        self.keeper = Whole(self._site)


class ShardSum:
    """This rank's shard of the sum over ranks has an array of its own.

    keeper   of the sum
    """

    def __init__(self, site):
        self._pool = site.pools.whole_gradients
        self.keeper = Shard(site, site.zeros(site.layout.shard, "gradients"))

    def open(self) -> None:
        """Do nothing: the array lasts."""

    def destination(self, part):
        """Return where the sum over ranks of `part` of the first total goes: here."""
        return self.keeper.array

    def keep(self, total) -> None:
        """Give the first total, of which this shard has the sum, back to the pool."""
        self._pool.give(total)

    def drop(self) -> None:
        """Do nothing: the array lasts."""


_SUMS: dict[type, type[WholeSum] | type[ShardSum]] = {Whole: WholeSum, Shard: ShardSum}


class Gradients:
    """The gradients of one unit.

    parameters   {name: Parameter} of the unit
    site         its layout, data axis and memory (site.py)
    keepers      of its policy (keepers.py)
    The reduced gradient is what the keeper keeps times a scale that may still have to be applied.
    """

    def __init__(self, parameters: dict, site, keepers):
        self._parameters, self._site = parameters, site
        self._movement, self._pool = site.movement, site.pools.whole_gradients
        self._sum = _SUMS[keepers.gradients](site)
        self._reduced = keepers.state.reduced
        self._updated = keepers.state.updated(site)
        # one term each on several tensor ranks, and what another of them counts
        self._partial = [
            piece for piece in keepers.state.pieces(site) if is_partial(parameters[piece.name])
        ]
        self._uncounted = [
            piece for piece in site.span_pieces if not is_counted(parameters[piece.name])
        ]
        self._sums: dict[int, GradientTree | GradientRunningSum] = {}  # by user
        self._reducing: list | None = None  # (total, part, handle) from begin_reduce() to reduce()
        self._is_reduced, self._scale = False, 1.0

    # ---- one micro-batch -------------------------------------------------------------------------

    def open(self, user: int):
        """Bind the parameters' gradients to a buffer for one micro-batch, and return the buffer.

        user   the unit whose backward writes it
        Nothing is set to zero first: the first gradient of each parameter overwrites what is there.
        """
        if user not in self._sums:
            kind = GradientTree if self._movement.is_deterministic else GradientRunningSum
            self._sums[user] = kind(self._pool, self._site.layout.size)
        buffer, is_empty = self._sums[user].begin()
        buffer[self._site.padding] = 0
        bind_gradients(self._parameters.values(), self._site.slots, buffer, is_empty=is_empty)
        return buffer

    def close(self, user: int, micro_batch: int, buffer) -> None:
        """Add this micro-batch's gradient, which is complete, to the sum."""
        for parameter in self._parameters.values():
            if parameter.grad_is_empty:  # no operation used it
                parameter.grad.fill(0)
            parameter.grad, parameter.grad_is_empty = None, False
        self._sums[user].end(micro_batch, buffer)

    # ---- the sum over data ranks -----------------------------------------------------------------

    def begin_reduce(self) -> None:
        """Post the messages of reduce(), which comes next; never block for long.

        Collective over the data axis.
        """
        self._reducing = [
            (total, part, self._movement.begin_sum(total, part))
            for total, part in self._take_sums()
        ]

    def reduce(self, scale: float) -> None:
        """Sum the gradients over the data axis, times `scale`, and keep what the keeper keeps.

        Collective over the data axis. Sums in tree order over micro-batches and then ranks, unless
        deterministic is off. Tied weights have one sum per unit that uses them: each is reduced by
        itself before they are added, so that it does not matter whether the users are on one rank
        or on several.
        Errors: ShardingError if there is nothing to reduce.
        Source: ZeRO (arXiv 1910.02054), gradient partitioning.
        """
        sums = self._sum_now() if self._reducing is None else self._end_sums()
        totals, parts = zip(*sums)
        first, *others = parts
        if not others and _changes_no_digit(scale):
            self._scale = scale
        else:
            for part in parts:  # scaled one by one, as they are on different ranks
                part *= part.dtype.type(scale)
            for other in others:
                first += other
        self._sum.keep(totals[0])
        self._is_reduced = True
        for total in totals[1:]:
            self._pool.give(total)
        for piece in self._partial:
            sum_partial(self._parameters[piece.name], self.updated[piece.start : piece.stop])

    def _take_sums(self) -> list[tuple]:
        """Return (sum over micro-batches [layout.size], where its sum over ranks goes) by user."""
        totals = [self._sums[user].finish() for user in sorted(self._sums)]
        totals = [total for total in totals if total is not None]
        if not totals:
            raise ShardingError(
                "no gradients are pending; call train() or compute_gradients() first"
            )
        parts = [self._reduced(self._site, total) for total in totals]
        parts[0] = self._sum.destination(parts[0])
        return list(zip(totals, parts))

    def _sum_now(self) -> list[tuple]:
        sums = self._take_sums()
        for total, part in sums:
            self._movement.sum(total, part)
        return sums

    def _end_sums(self) -> list[tuple]:
        reducing, self._reducing = self._reducing, None
        for _, _, handle in reducing:
            self._movement.end(handle)
        return [(total, part) for total, part, _ in reducing]

    def give_up(self) -> None:
        """Forget messages of a failed program; they may still write to their buffers."""
        self._reducing = None

    # ---- the reduced gradient --------------------------------------------------------------------

    def put(self, value) -> None:
        """Take `value` as the reduced gradient of what this rank updates; drop() comes first."""
        self._sum.open()
        self._is_reduced = True
        self._sum.keeper.array.fill(0)
        self.updated[...] = value

    def drop(self) -> None:
        """Forget the gradients of the last step and anything accumulated. No communication."""
        for pending in self._sums.values():
            unfinished = pending.finish()
            if unfinished is not None:
                self._pool.give(unfinished)
        if self._is_reduced:
            self._sum.drop()
        self._is_reduced, self._scale = False, 1.0

    @property
    def updated(self):
        """The reduced gradient of what this rank updates, a view. Errors: ShardingError if none."""
        gradient, scale = self.unscaled()
        if scale != 1.0:
            gradient *= gradient.dtype.type(scale)
            self._scale = 1.0
        return gradient

    @property
    def owned(self):
        """The reduced gradient of what this rank owns, a view. Errors: ShardingError if none."""
        first = self._updated.start
        own = self._site.own
        return self.updated[own.start - first : own.stop - first]

    def unscaled(self) -> tuple:
        """Return (view, scale) whose product is `updated`. Errors: ShardingError if none."""
        if not self._is_reduced:
            raise ShardingError(
                "no synchronized gradients; call compute_gradients() or synchronize_gradients() "
                "first"
            )
        return self._sum.keeper.part(self._updated), self._scale

    def squares(self):
        """Return sums of squares of the gradient of this rank's span per NORM_BLOCK elements.

        returns   [layout.shard / NORM_BLOCK] float64, zero beyond the end
        What several tensor ranks hold counts on one of them, and is zero on the others.
        """
        gradient = self._sum.keeper.shard
        if self._uncounted:
            gradient = fresh.copy(gradient)
            for piece in self._uncounted:
                gradient[piece.start : piece.stop] = 0
        squares = kernels.block_squares(gradient, NORM_BLOCK)
        squares *= self._scale**2
        return squares


def _changes_no_digit(scale: float) -> bool:
    """Return whether `scale` is a power of two: applied later, the bits are the same."""
    return frexp(scale)[0] == 0.5


def bind_gradients(parameters, slots, buffer, *, is_empty: bool) -> None:
    """Let the gradient of each parameter be its slot of a flat buffer.

    slots      (slice, shape) of each
    is_empty   the first gradient overwrites what is there
    """
    for (where, shape), parameter in zip(slots, parameters):
        parameter.grad = buffer[where].reshape(shape)
        parameter.grad_is_empty = is_empty
