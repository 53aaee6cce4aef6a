"""The gradients of a unit, from the first micro-batch to the sum over data ranks: one half of
unit.py.

micro-batch --open, W, close--> sum over micro-batches --reduce--> sum over data ranks, what the
policy keeps of it
                                one for each user of the unit      (begun ahead: begin_reduce ...
                                                                   reduce)
"""

from math import frexp

from ...errors import ShardingError
from ..tensor.layers import is_partial, sum_partial
from .gradient_sum import GradientRunningSum, GradientTree


class Gradients:
    """Mixed into Unit, which has plan, policy, layout and the buffers.

    gradient   the reduced one, [layout.shard] or [layout.size] as the policy keeps it, perhaps not
               scaled yet; or None
    """

    def _begin_gradients(self):
        self._sums: dict[int, GradientTree | GradientRunningSum] = {}  # by user
        self._reducing: list | None = (
            None  # [(*of _take_sums, what was begun)], from begin_reduce to reduce
        )
        self.gradient, self._scale = None, 1.0  # the gradient is the one times the other

    def open_gradient(self, user: int):
        """Bind the parameters' gradients to a buffer for one micro-batch. `user` is the unit whose
        backward writes it.

        Nothing is set to zero first: the first gradient of each parameter overwrites what is there.
        """
        if user not in self._sums:
            kind = GradientTree if self._movement.is_deterministic else GradientRunningSum
            self._sums[user] = kind(self._memory.whole_gradients, self.layout.size)
        buffer, is_empty = self._sums[user].begin()
        buffer[self.layout.length :] = 0
        for name, parameter in self.plan.parameters.items():
            parameter.grad, parameter.grad_is_empty = self._view(buffer, name), is_empty
        return buffer

    def close_gradient(self, user: int, micro_batch: int, buffer):
        """This micro-batch's gradient is complete: add it to the sum."""
        for parameter in self.plan.parameters.values():
            if parameter.grad_is_empty:  # no operation used it
                parameter.grad.fill(0)
            parameter.grad, parameter.grad_is_empty = None, False
        self._sums[user].end(micro_batch, buffer)

    def drop_gradients(self):
        """Forget the gradients of the last step and anything accumulated. No communication."""
        for pending in self._sums.values():
            unfinished = pending.finish()
            if unfinished is not None:
                self._memory.whole_gradients.give(unfinished)
        if self.gradient is not None and not self.policy.shard_gradients:
            self._memory.whole_gradients.give(self.gradient)
        self.gradient, self._scale = None, 1.0

    def begin_reduce(self):
        """Let the gradients travel from now on; reduce() comes next. Collective over the data axis;
        never blocks for long.
        """
        self._reducing = [
            (total, part, self._movement.begin_sum(total, part))
            for total, part in self._take_sums()
        ]

    def reduce(self, scale: float):
        """Sum the gradients over the data axis, times `scale`, and keep what the policy keeps.

        Collective over the data axis. Sums in tree order over micro-batches and then ranks, unless
        deterministic is off. Tied weights have one sum per unit that uses them: each is reduced by
        itself before they are added, so that it does not matter whether the users are on one rank
        or on several.
        Errors: ShardingError if there is nothing to reduce.
        Source: ZeRO (arXiv 1910.02054), gradient partitioning.
        """
        totals, parts = zip(*(self._sum_at_once() if self._reducing is None else self._end_sums()))
        self._may_be_read = False  # every rank is past its backward
        self.gradient = self._gradient_shard if self.policy.shard_gradients else totals[0]
        if len(parts) == 1 and _changes_no_digit(scale):
            self._scale = scale
        else:
            for part in parts:  # scaled one by one, as they are on different ranks
                part *= part.dtype.type(scale)
            first, *others = parts
            for other in others:
                first += other
        for total in totals if self.policy.shard_gradients else totals[1:]:
            self._memory.whole_gradients.give(total)
        for piece in self._pieces(is_whole=not self.policy.shard_optimizer_state):
            if is_partial(
                self.plan.parameters[piece.name]
            ):  # one term each on several tensor ranks
                sum_partial(
                    self.plan.parameters[piece.name],
                    self.updated_gradient[piece.start : piece.stop],
                )

    def _take_sums(self) -> list[tuple]:
        """(sum over micro-batches [layout.size], where its sum over ranks is to be) of all users of
        the unit.

        The latter is all of it, or its part that this rank owns; of the first one the shard that
        the policy keeps, if it does.
        """
        totals = [
            total
            for total in (self._sums[user].finish() for user in sorted(self._sums))
            if total is not None
        ]
        if not totals:
            raise ShardingError(
                "no gradients are pending; call train() or compute_gradients() first"
            )
        if not self.policy.shard_optimizer_state:
            return [(total, total) for total in totals]
        parts = [total[self._own] for total in totals]
        if self.policy.shard_gradients:
            parts[0] = self._gradient_shard
        return list(zip(totals, parts))

    def _sum_at_once(self) -> list[tuple]:
        sums = self._take_sums()
        for total, part in sums:
            self._movement.sum(total, part)
        return sums

    def _end_sums(self) -> list[tuple]:
        reducing, self._reducing = self._reducing, None
        for _, _, begun in reducing:
            self._movement.end(begun)
        return [(total, part) for total, part, _ in reducing]

    @property
    def updated_gradient(self):
        """The reduced gradient of the elements that this rank updates, a view. Errors:
        ShardingError if there is none.
        """
        gradient = self._unscaled_gradient()
        if self._scale != 1.0:
            gradient *= gradient.dtype.type(self._scale)
            self._scale = 1.0
        return gradient

    def _unscaled_gradient(self):
        """The same without the scale that has still to come."""
        if self.gradient is None:
            raise ShardingError(
                "no synchronized gradients; call compute_gradients() or synchronize_gradients() first"
            )
        return self._updated(self.gradient, self.policy.shard_gradients)


def _changes_no_digit(scale: float) -> bool:
    """True for powers of two: multiplied later, together with the factor of clipping, the gradients
    have the same bits.
    """
    return frexp(scale)[0] == 0.5
