"""The gradients of a unit, from the first micro-batch to the sum over data ranks: one half of unit.py.

    micro-batch --open, W, close--> sum over micro-batches --reduce--> sum over data ranks, what the policy keeps of it
                                    one for each user of the unit      (begun ahead: begin_reduce ... reduce)
"""
from ..errors import ShardingError
from .gradient_sum import GradientRunningSum, GradientTree
from .tensor import sum_partial


class Gradients:
    """Mixed into Unit, which has plan, policy, layout and the buffers.

    gradient   the reduced one, [layout.shard] or [layout.size] as the policy keeps it; None: there is none
    """

    def _begin_gradients(self):
        self._sums: dict[int, GradientTree | GradientRunningSum] = {}       # by user
        self._reducing: list | None = None          # [(sum over micro-batches, what was begun)], from begin_reduce to reduce
        self.gradient = None

    def open_gradient(self, user: int):
        """Bind the parameters' gradients to a buffer for one micro-batch. `user` is the unit whose backward writes it.

        Nothing is set to zero first: the first gradient of each parameter overwrites what is there.
        """
        if user not in self._sums:
            kind = GradientTree if self._movement.is_deterministic else GradientRunningSum
            self._sums[user] = kind(self._memory.whole_gradients, self.layout.size)
        buffer, is_empty = self._sums[user].begin()
        buffer[self.layout.length:] = 0
        for name, parameter in self.plan.parameters.items():
            parameter.grad, parameter.grad_is_empty = self._view(buffer, name), is_empty
        return buffer

    def close_gradient(self, user: int, micro_batch: int, buffer):
        """This micro-batch's gradient is complete: add it to the sum."""
        for parameter in self.plan.parameters.values():
            if parameter.grad_is_empty:                     # no operation used it
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
        self.gradient = None

    def begin_reduce(self):
        """Let the gradients travel from now on; reduce() comes next. Collective over the data axis; never blocks for long."""
        self._reducing = [(total, self._movement.begin_sum(total, self._summed_part(total))) for total in self._take_totals()]

    def reduce(self, scale: float):
        """Sum the gradients over the data axis, times `scale`, and keep what the policy keeps.

        Collective over the data axis. Sums in tree order over micro-batches and then ranks, unless deterministic is off.
        Tied weights have one sum per unit that uses them: each is reduced by itself before they are added, so that it
        does not matter whether the users are on one rank or on several.
        Errors: ShardingError if there is nothing to reduce.
        Source: ZeRO (arXiv 1910.02054), gradient partitioning.
        """
        totals = self._end_sums() if self._reducing is not None else self._sum_at_once()
        kept = [self._summed_part(total) for total in totals]
        self._may_be_read = False               # every rank is past its backward
        for part in kept:                       # scaled one by one, as they are on different ranks
            part *= part.dtype.type(scale)
        for other in kept[1:]:
            kept[0] += other
        if self.policy.shard_gradients:
            self._gradient_shard[:] = kept[0]
            self.gradient = self._gradient_shard
        else:
            self.gradient = totals.pop(0)
        for total in totals:
            self._memory.whole_gradients.give(total)
        gradient = self.updated_gradient
        for piece in self._pieces(is_whole=not self.policy.shard_optimizer_state):     # one term each on several tensor ranks
            sum_partial(self.plan.parameters[piece.name], gradient[piece.start:piece.stop])

    def _take_totals(self) -> list:
        """The sums over micro-batches [layout.size] of all users of the unit."""
        totals = [total for total in (self._sums[user].finish() for user in sorted(self._sums)) if total is not None]
        if not totals:
            raise ShardingError("no gradients are pending; call train() or compute_gradients() first")
        return totals

    def _summed_part(self, total):
        """The part of `total` that holds the sum over ranks once it is reduced: all of it, or what this rank owns."""
        return total[self._own] if self.policy.shard_optimizer_state else total

    def _sum_at_once(self) -> list:
        totals = self._take_totals()
        for total in totals:
            self._movement.sum(total, self._summed_part(total))
        return totals

    def _end_sums(self) -> list:
        reducing, self._reducing = self._reducing, None
        for _, begun in reducing:
            self._movement.end(begun)
        return [total for total, _ in reducing]
