"""The probability of a text under the classes of each step, whichever way it is spelled out.

    steps       a a - b b      states of "ab":  - a - b -      a state stays, or goes to the next,
    is          a   b                           0 1 2 3 4      or over a blank between two letters

Forward and backward sums over all ways are made at once for all samples, a step at a time (Graves
et al. 2006).
"""

from typing import Any

import numpy

from ...arguments import is_integer
from ...array.backend import to_host, xp_of
from ...errors import ShapeError
from ..autograd import Tensor, record
from .operands import check_floating, check_ids, index_array

_LOWEST = -1e300  # in place of the logarithm of 0, which is subtracted once


def ctc_loss(
    log_probs: Tensor, targets: Any, input_lengths: Any, target_lengths: Any, blank: int = 0
) -> Tensor:
    """Return minus the log probability of each text, [N]; infinite for one that does not fit.

    Parameters
    ----------
    log_probs
        [T, N, classes]: log probabilities of each step.
    targets
        [N, S], padded; or the texts one after the other, 1-D.
    input_lengths, target_lengths
        [N]: steps that count, and classes of each text.
    blank
        The class that stands between two equal ones.

    Raises
    ------
    ShapeError
        If these do not fit together.
    """
    check_floating("ctc_loss", log_probs)
    steps, texts, spelled = _checked(log_probs, targets, input_lengths, target_lengths, blank)
    xp, dtype = xp_of(log_probs.array), log_probs.dtype
    ways = _Ways(xp, log_probs.array.astype("float64"), steps, texts, spelled, blank)
    before = ways.forward()
    total = ways.total(before)  # [N]

    def backward(gradient, wanted):
        is_possible = xp.isfinite(total)
        emitted = xp.maximum(ways.emitted(), _LOWEST)
        shares = before + ways.backward() - emitted
        shares -= xp.where(is_possible, total, 0)[:, None]
        counts = ways.counts & is_possible
        shares = xp.where(counts[:, :, None], xp.exp(shares), 0)
        made = xp.zeros(log_probs.shape, "float64")
        rows = xp.arange(made.shape[1])[:, None]
        for step in range(len(made)):
            xp.add.at(made[step], (rows, ways.letters), shares[step])
        return ((-made * gradient.astype("float64")[:, None]).astype(dtype),)

    return record((-total).astype(dtype), (log_probs,), backward)


def _checked(log_probs, targets, input_lengths, target_lengths, blank):
    """Return steps [N], lengths of texts [N], and texts [N, S] on the host."""
    if log_probs.ndim != 3:
        raise ShapeError(f"ctc_loss of log_probs {log_probs.shape}; wanted [T, N, classes]")
    num_steps, num, classes = log_probs.shape
    given = [to_host(index_array(each)) for each in (targets, input_lengths, target_lengths)]
    targets, steps, texts = given
    if steps.shape != (num,) or texts.shape != (num,):
        raise ShapeError(
            f"ctc_loss with lengths {steps.shape}, {texts.shape}; wanted ({num},) each"
        )
    for counts in (steps, texts):
        if counts.dtype.kind not in "iu" or counts.min(initial=0) < 0:
            raise ShapeError(
                f"ctc_loss with lengths {counts.tolist()}; wanted integers of at least 0"
            )
    if not is_integer(blank) or not 0 <= blank < classes:
        raise ShapeError(f"ctc_loss with blank {blank!r}; wanted a class, 0 to {classes - 1}")
    if targets.ndim == 1:
        targets = _padded(targets, texts, blank)
    fits = targets.ndim == 2 and len(targets) == num
    longest = steps.max(initial=0), texts.max(initial=0)
    if not fits or longest[0] > num_steps or longest[1] > targets.shape[1]:
        raise ShapeError(
            f"ctc_loss of log_probs {log_probs.shape}, targets {targets.shape}, up to "
            f"{longest[0]} steps and {longest[1]} letters; wanted [T, N, classes], [N, S], and "
            "lengths up to T and S"
        )
    check_ids("ctc_loss", targets, classes)
    return steps, texts, targets


def _padded(letters, counts, blank):
    """Return texts that stand one after the other as rows [N, S]."""
    if counts.sum() != letters.size:
        raise ShapeError(
            f"ctc_loss of {letters.size} letters in a row; wanted {counts.sum()}, as many as "
            "target_lengths add up to"
        )
    rows = numpy.full((len(counts), counts.max(initial=0)), blank, "int64")
    for row, end, count in zip(rows, counts.cumsum(), counts):
        row[:count] = letters[end - count : end]
    return rows


class _Ways:
    """All ways to spell texts, as states: a blank before, between and after the letters.

    letters   [N, 2 S + 1], the class of each state
    counts    [T, N], which steps count
    """

    def __init__(self, xp, log_probs, steps, texts, spelled, blank):
        self._xp, self._log_probs = xp, log_probs
        steps, texts, spelled = [xp.asarray(each) for each in (steps, texts, spelled)]
        num_samples, longest = spelled.shape
        letters = xp.full((num_samples, 2 * longest + 1), blank, "int64")
        letters[:, 1::2] = spelled
        self.letters = letters
        numbers = xp.arange(len(log_probs))[:, None]
        self.counts = numbers < steps
        self._is_last_step = numbers == steps - 1
        self._is_nothing = (steps == 0) & (texts == 0)  # no letters in no steps: certain
        places = xp.arange(letters.shape[1])
        ends = 2 * texts[:, None]
        self._last = places == ends  # the blank at the end, or the last letter
        self._last |= (places == ends - 1) & (ends > 0)
        self._skips = xp.zeros(letters.shape, bool)
        after, before = letters[:, 2:], letters[:, :-2]
        self._skips[:, 2:] = (after != blank) & (after != before)

    def emitted(self):
        """Return the log probability of the class of each state at each step: [T, N, states]."""
        shape = len(self._log_probs), *self.letters.shape
        index = self._xp.broadcast_to(self.letters, shape)
        return self._xp.take_along_axis(self._log_probs, index, axis=2)

    def forward(self):
        """Return the log of what all ways to each state have made together, this step too."""
        xp, emitted = self._xp, self.emitted()
        ways = xp.full(emitted.shape, -xp.inf)
        ways[0, :, :2] = emitted[0, :, :2]
        for step in range(1, len(ways)):
            before = ways[step - 1]
            ways[step] = (
                self._sum(before, _moved(xp, before, 1), self._over(before)) + emitted[step]
            )
        return ways

    def _over(self, before):
        """Return what comes to each state over the one before it."""
        return self._xp.where(self._skips, _moved(self._xp, before, 2), -self._xp.inf)

    def backward(self):
        """Return the log of what all ways from each state make together, this step too."""
        xp, emitted = self._xp, self.emitted()
        ways = xp.full(emitted.shape, -xp.inf)
        after = xp.full(emitted.shape[1:], -xp.inf)
        for step in reversed(range(len(ways))):
            skipping = xp.where(self._skips, after, -xp.inf)
            going = self._sum(after, _moved(xp, after, -1), _moved(xp, skipping, -2))
            ending = xp.where(self._last, 0.0, -xp.inf)
            going = xp.where(self._is_last_step[step][:, None], ending, going)
            after = ways[step] = going + emitted[step]
        return ways

    def total(self, before):
        """Return the log probability of each text, [N]."""
        xp = self._xp
        is_end = self._last & self._is_last_step[:, :, None]
        ends = xp.where(is_end, before, -xp.inf)
        total = xp.logaddexp.reduce(ends, axis=(0, 2)) if len(ends) else ends.sum((0, 2))
        return xp.where(self._is_nothing, 0.0, total)

    def _sum(self, *parts):
        total, *others = parts
        for part in others:
            total = self._xp.logaddexp(total, part)
        return total


def _moved(xp, ways, by):
    """Return the states moved by so many places; nothing comes in."""
    out = xp.full(ways.shape, -xp.inf)
    if by > 0:
        out[:, by:] = ways[:, :-by]
    else:
        out[:, :by] = ways[:, -by:]
    return out
