"""Texts that a pass of a language model is about, where they are more than one in each row, or
begin before it.

    prompt "a b c"   one pass over 3 positions     keys, values of 0 1 2
    then "d"         one pass over 1 position      keys, values of 0 1 2 3

    row  a b c|d e   two whole texts               "d" sees itself alone, "e" sees "d" and "e"

Layers find them in the forward context, so that they are no argument of every layer.
"""

from typing import Any

import numpy

from ..array.backend import xp_of
from ..array.graphs import outside_of_graphs
from ..errors import ShapeError
from .autograd import Tensor
from .ops.attention import attention_from, causal_attention


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

    def prompt(self, rows: list[int], num_positions: int) -> "TextPass":
        """Return a pass over the first positions of these texts; what is held of them goes."""
        self.lengths[rows] = 0
        return TextPass(self, rows, num_positions)

    def next(self, rows: list[int]) -> "TextPass":
        """Return a pass over one position more of each of these texts."""
        return TextPass(self, rows, 1)

    def kept(self, layer, k: Tensor):
        """Return keys and values of a layer, whose new keys are k [batch, kv_heads, S, D]."""
        if layer not in self._kept:
            _, heads, _, head_dim = k.shape
            room = (len(self.lengths), heads, self.capacity, head_dim)
            self._kept[layer] = tuple(xp_of(k.array).empty(room, k.dtype) for _ in range(2))
        return self._kept[layer]


class TextPass:
    """One pass of a model over new positions of some texts.

    rows           numbers of the texts
    num_positions  new ones of each text; 1 where texts hold positions already
    starts         [rows] int64: position of each text's first new one
    stop           behind the last new position of any text
    is_aligned     the new positions are the same in all texts
    angles         the positions that turn queries and keys; None: those in the row
    Errors: ShapeError if they do not fit into the capacity.
    """

    def __init__(self, texts: Texts, rows: list[int], num_positions: int):
        self.rows = rows
        self.num_positions = num_positions
        self.starts = texts.lengths[rows]
        self._texts = texts
        first = int(self.starts[0])
        last = int(self.starts.max())
        if last + num_positions > texts.capacity:
            raise ShapeError(
                f"{num_positions} positions do not fit behind {last} in a key/value cache of "
                f"{texts.capacity}"
            )
        self.stop = last + num_positions
        self.is_aligned = bool((self.starts == first).all())
        if self.is_aligned:
            self._positions = numpy.arange(first, first + num_positions)
        else:
            self._positions = self.starts[:, None]
        self.angles = self._positions
        self._groups = self._attended_together()

    def _attended_together(self) -> list[tuple[slice, slice, int]]:
        """Return (rows of the pass, texts, position of the first new one) of each product."""
        first, stop = self.rows[0], self.rows[-1] + 1
        if self.is_aligned and self.rows == list(range(first, stop)):
            return [(slice(0, len(self.rows)), slice(first, stop), int(self.starts[0]))]
        return [
            (slice(at, at + 1), slice(row, row + 1), start)
            for at, (row, start) in enumerate(zip(self.rows, self.starts.tolist()))
        ]

    def positions(self):
        """Return the new positions as integers: [S] if all texts have the same, else [rows, 1]."""
        return self._positions

    def read(self, ids: Tensor) -> Tensor:
        """Return the token numbers of what the model was given."""
        return ids

    def asked(self, x: Tensor) -> Tensor:
        """Return the rows of x [rows, S, width] whose logits are asked for: of the last ones."""
        return x[:, -1:]

    def attend(self, layer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Keep k and v, and return the attention of q to all that is held of its text.

        q [rows, heads, S, D]; k, v [rows, kv_heads, S, D]; returns [rows, heads, S, D]
        No gradient flows through what is kept.
        """
        kept = self._texts.kept(layer, k)
        parts = []
        for rows, texts, start in self._groups:
            stop = start + self.num_positions
            for held, new in zip(kept, (k, v)):
                held[texts, :, start:stop] = new.array[rows]
            keys, values = (Tensor(held[texts, :, :stop]) for held in kept)
            parts.append(causal_attention(Tensor(q.array[rows]), keys, values, first_query=start))
        if len(parts) == 1:
            return parts[0]
        return Tensor(xp_of(q.array).concatenate([part.array for part in parts]))

    def finish(self) -> None:
        """Count the new positions as held: all layers have kept them."""
        self._texts.lengths[self.rows] += self.num_positions


class WholeTexts:
    """Whole texts that stand one behind the other in rows, each position seeing its own text alone.

    ids     [batch, S] integers on the host: a row begins a text, and so does each ~number
    stop    of the positions of the longest one that there can be
    firsts  [batch, S] int64, where the text of each position begins

    Rotary positions are those in the row: attention depends on their differences alone.
    """

    is_aligned, angles = True, None

    def __init__(self, ids: numpy.ndarray):
        self._places = numpy.arange(ids.shape[1])
        begins = numpy.where(ids < 0, self._places, 0)
        self.stop = ids.shape[1]
        self.firsts = numpy.maximum.accumulate(begins, axis=1)

    def positions(self):
        """Return the position of each token in its text, [batch, S] int64."""
        return self._places - self.firsts

    def read(self, ids: Tensor) -> Tensor:
        """Return the token numbers of what the model was given."""
        return Tensor(unmarked(ids.array))

    def attend(self, layer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return the attention [batch, heads, S, D] of each text to itself."""
        outside_of_graphs("which texts stand in a row differs from batch to batch")
        return attention_from(q, k, v, self.firsts)

    def asked(self, x: Tensor) -> Tensor:
        """Return the rows of x [batch, S, width] whose logits are asked for: all."""
        return x


def unmarked(ids: Any) -> Any:
    """Return an array of token numbers, those that begin a text without their mark."""
    return xp_of(ids).where(ids < 0, ~ids, ids)
