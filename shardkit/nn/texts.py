"""Texts that a pass of a language model is about, where they are more than one in each row, or
begin before it.

    prompts "a b c", "d e"   one pass over a b c d e   keys, values of 0 1 2 and of 0 1
    then "f" and "g"         one pass over f g         of 3 and of 2

    row  a b c|d e           two whole texts           "d" sees itself alone, "e" sees "d" and "e"

In the first two the new positions of a pass follow one another in an input [1, positions], as if
they were one sample: all layers but attention treat each by itself. Layers find the texts in the
forward context, so that they are no argument of every layer.
"""

from typing import Any

import numpy

from ..array import fresh, kernels
from ..array.backend import xp_of
from ..array.capture import outside_of_graphs
from ..array.dtypes import wide
from ..errors import ShapeError
from .autograd import Tensor
from .context import MARKED_BELOW
from .ops.attention import attention_from, causal_attention
from .ops.rotary import rotary

_MARK = -(1 << 31)  # added to the number of a token that begins a text


class Texts:
    """Keys and values of some texts, in all attention layers of one rank.

    num       texts
    capacity  positions of each; nothing is allocated before the first pass
    lengths   [num] int64: positions held of each text
    """

    def __init__(self, num: int, capacity: int):
        self.capacity = capacity
        self.lengths = numpy.zeros(num, numpy.int64)
        # {attention layer: (keys, values), each [num, kv_heads, capacity, D]}
        self._kept: dict = {}

    def forget(self, row: int) -> None:
        """Hold nothing of this text: its next pass begins with its first position."""
        self.lengths[row] = 0

    def kept(self, layer, k):
        """Return keys and values of a layer, whose new keys are k [1, kv_heads, positions, D]."""
        if layer not in self._kept:
            _, heads, _, head_dim = k.shape
            room = (len(self.lengths), heads, self.capacity, head_dim)
            self._kept[layer] = tuple(xp_of(k).empty(room, k.dtype) for _ in range(2))
        return self._kept[layer]


class TextPass:
    """One pass of a model over new positions of some texts.

    rows       numbers of the texts
    counts     new positions of each, the most first; 1 where texts hold positions already
    stop       all positions are below it
    Errors: ShapeError if they do not fit into the capacity.
    """

    is_continued = True

    def __init__(self, texts: Texts, rows: list[int], counts: list[int]):
        self._texts = texts
        self._rows = rows
        self._counts = counts
        starts = texts.lengths[rows].tolist()
        for start, count in zip(starts, counts):
            if start + count > texts.capacity:
                raise ShapeError(
                    f"{count} positions do not fit behind {start} in a key/value cache of "
                    f"{texts.capacity}"
                )
        runs = [numpy.arange(start, start + count) for start, count in zip(starts, counts)]
        positions = numpy.concatenate(runs)
        self._turns: dict = {}  # {form: tables of rotary positions}, which all layers share
        self._where = numpy.stack([numpy.repeat(rows, counts), positions])
        self.stop = int(positions.max()) + 1
        stops = numpy.cumsum(counts)
        # each text of several new positions is attended alone, all others together
        spans = map(slice, (stops - counts).tolist(), stops.tolist())
        self._long = [span for span, count in zip(spans, counts) if count > 1]
        self._short = slice(self._long[-1].stop if self._long else 0, len(positions))
        self._lasts = slice(-1, None) if len(rows) == 1 else stops - 1
        if not self._long:
            self._lasts = slice(None)

    def where(self, xp):
        """Return the text and the position of each that is new, [2, P] int64 in xp."""
        self._where = fresh.placed(self._where, xp)  # once: all layers ask
        return self._where

    def positions(self, xp):
        """Return the position of each that is new, [P] int64 in xp."""
        return self.where(xp)[1]

    def turned(self, x: Tensor, base: float, scaling) -> Tensor:
        """Return x [1, heads, P, D], turned by its positions as ops.rotary turns it."""
        form = x.shape[3], base, wide(x.dtype), scaling
        if form not in self._turns:
            positions = self.positions(xp_of(x.array))
            self._turns[form] = kernels.rotary_tables(positions, *form)
        return Tensor(kernels.rotary(x.array, *self._turns[form]))

    def read(self, ids: Tensor) -> Tensor:
        """Return the token numbers of what the model was given."""
        return ids

    def asked(self, x: Tensor) -> Tensor:
        """Return the rows of x [1, P, width] whose logits are asked for: the last of each text."""
        lasts = self._lasts
        return x[:, lasts if isinstance(lasts, slice) else fresh.placed(lasts, xp_of(x.array))]

    def attend(self, layer, q: Tensor, k: Tensor, v: Tensor, window: int | None) -> Tensor:
        """Keep k and v, and return the attention of q to all that is held of its text.

        q [1, heads, P, D]; k, v [1, kv_heads, P, D]; returns [1, heads, P, D]
        window   of the layer, or None
        No gradient flows through what is kept.
        """
        arrays = q.array, k.array, v.array
        kept = self._texts.kept(layer, k.array)
        xp = xp_of(k.array)
        texts, positions = self.where(xp)
        for held, new in zip(kept, arrays[1:]):
            held[texts, :, positions] = new[0].swapaxes(0, 1)  # [P, kv_heads, D]
        parts = []
        for one in self._long:
            own_q, own_k, own_v = [Tensor(array[:, :, one]) for array in arrays]
            parts.append(causal_attention(own_q, own_k, own_v, window=window).array)
        short = self._short
        if short.start < short.stop:
            queries = arrays[0][0, :, short].swapaxes(0, 1)  # [P, heads, D]
            seen = texts[short], positions[short] + 1, self.stop
            form = q.shape[3] ** -0.5, window
            y = kernels.attend_to_kept(queries, *kept, *seen, *form)
            parts.append(y.swapaxes(0, 1)[None])  # [1, heads, P, D]
        return Tensor(parts[0] if len(parts) == 1 else xp.concatenate(parts, axis=2))

    def finish(self) -> None:
        """Count the new positions as held: all layers have kept them."""
        self._texts.lengths[self._rows] += self._counts


class WholeTexts:
    """Whole texts that stand one behind the other in rows, each position seeing its own text alone.

    ids     [batch, S] integers on the host: a row begins a text, and so does begin_text(number)
    stop    of the positions of the longest one that there can be
    firsts  [batch, S] int64, where the text of each position begins

    Rotary positions are those in the row: attention depends on their differences alone.
    """

    is_continued = False

    def __init__(self, ids: numpy.ndarray):
        self._places = numpy.arange(ids.shape[1])
        begins = numpy.where(ids < MARKED_BELOW, self._places, 0)
        self.stop = ids.shape[1]
        self.firsts = numpy.maximum.accumulate(begins, axis=1)

    def positions(self, xp):
        """Return the position of each token in its text, [batch, S] int64 in xp."""
        return xp.asarray(self._places - self.firsts)

    def turned(self, x: Tensor, base: float, scaling) -> Tensor:
        """Return x [batch, heads, S, D], turned by its positions in the row."""
        return rotary(x, None, base, scaling)

    def read(self, ids: Tensor) -> Tensor:
        """Return the token numbers of what the model was given."""
        return Tensor(unmarked(ids.array))

    def attend(self, layer, q: Tensor, k: Tensor, v: Tensor, window: int | None) -> Tensor:
        """Return the attention [batch, heads, S, D] of each text to itself."""
        outside_of_graphs("which texts stand in a row differs from batch to batch")
        return attention_from(q, k, v, self.firsts, window)

    def asked(self, x: Tensor) -> Tensor:
        """Return the rows of x [batch, S, width] whose logits are asked for: all."""
        return x


def begin_text(ids: Any) -> Any:
    """Return numbers of tokens, an array or one, marked as the first ones of texts.

    A GPT takes them among others, in rows of several texts. No token that was meant as one, or as
    a place to leave out (-1, -100), is taken for such a mark.
    Errors: TypeError if they are no integers.
    """
    return numpy.asarray(ids).astype(numpy.int64, casting="same_kind") + _MARK


def unmarked(ids: Any) -> Any:
    """Return an array of token numbers, those that begin a text without their mark."""
    return xp_of(ids).where(ids < MARKED_BELOW, ids - _MARK, ids)
