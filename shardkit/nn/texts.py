"""What a generating model remembers of the texts that it continues: keys and values of positions.

    prompt "a b c"   one pass over 3 positions     keys, values of 0 1 2
    then "d"         one pass over 1 position      keys, values of 0 1 2 3

Attention layers find the pass that they are part of in the forward context, so that it is no
argument of every layer.
"""

import numpy

from ..array.backend import xp_of
from ..errors import ShapeError
from .autograd import Tensor
from .ops.attention import causal_attention


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
    Errors: ShapeError if they do not fit into the capacity.
    """

    def __init__(self, texts: Texts, rows: list[int], num_positions: int):
        self.rows = rows
        self.num_positions = num_positions
        self.starts = texts.lengths[rows]
        self._texts = texts
        if self.starts.max() + num_positions > texts.capacity:
            raise ShapeError(
                f"{num_positions} positions do not fit behind {self.starts.max()} in a key/value "
                f"cache of {texts.capacity}"
            )

    @property
    def is_aligned(self) -> bool:
        """True if the new positions are the same in all texts."""
        return bool((self.starts == self.starts[0]).all())

    def positions(self):
        """Return the new positions as integers: [S] if all texts have the same, else [rows, 1]."""
        if self.is_aligned:
            return self.starts[0] + numpy.arange(self.num_positions)
        return self.starts[:, None]

    def attend(self, layer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Keep k and v, and return the attention of q to all that is held of its text.

        q [rows, heads, S, D]; k, v [rows, kv_heads, S, D]; returns [rows, heads, S, D]
        No gradient flows through what is kept.
        """
        keys, values = self._texts.kept(layer, k)
        for at, row in enumerate(self.rows):
            new = slice(self.starts[at], self.starts[at] + self.num_positions)
            keys[row, :, new] = k.array[at]
            values[row, :, new] = v.array[at]
        first, last = self.rows[0], self.rows[-1] + 1
        if self.is_aligned and self.rows == list(range(first, last)):
            return self._attend(q, keys[first:last], values[first:last], int(self.starts[0]))
        parts = [
            self._attend(
                Tensor(q.array[at : at + 1]),
                keys[row : row + 1],
                values[row : row + 1],
                int(self.starts[at]),
            ).array
            for at, row in enumerate(self.rows)
        ]
        return Tensor(xp_of(q.array).concatenate(parts))

    def _attend(self, q: Tensor, keys, values, first: int) -> Tensor:
        stop = first + self.num_positions
        held = [Tensor(array[:, :, :stop]) for array in (keys, values)]
        return causal_attention(q, *held, first_query=first)

    def finish(self) -> None:
        """Count the new positions as held: all layers have kept them."""
        self._texts.lengths[self.rows] += self.num_positions
