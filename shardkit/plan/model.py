"""The sizes of a GPT: its weights, how each is cut over tensor ranks, and their operations, without
any array.

    shape = ModelShape(layers=96, width=12288, heads=96, vocabulary=51200, sequence_length=2048)
    shape.parameter_count                               174,604,...
    shape.block_elements("layer", tensor=8)             of one layer, on one tensor rank

A model is a row of blocks, as in nn.GPT: embedding, layer, layer, ..., head. The tests compare all
of this with nn.GPT and the default tensor plan.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import ceil, prod

from ..nn.models.gpt import GPTSettings
from ..nn.transformer import STYLES, hidden_width
from .shape import Shape, division, hashed_once
from .windows import keys_around, reaches


@dataclass(frozen=True)
class Weight:
    """A parameter by its whole shape, and the dim that is cut over tensor ranks.

    cut    None: every tensor rank holds all of it
    grain  elements of that dim that stay together: the dims of a head
    """

    shape: tuple[int, ...]
    cut: int | None = None
    grain: int = 1

    @property
    def size(self) -> int:
        """Elements of the whole parameter."""
        return prod(self.shape)

    def local_size(self, tensor: int) -> int:
        """Return the elements on the tensor rank that has the most; ranks share a grain if there
        are too few.
        """
        if self.cut is None:
            return self.size
        along = ceil(self.shape[self.cut] / self.grain / tensor) * self.grain
        return self.size // self.shape[self.cut] * along


@hashed_once
@dataclass(frozen=True)
class ModelShape(Shape):
    """A GPT by its sizes; the names are those of nn.GPT.

    hidden       units of a feed-forward; None: the default of nn.GPT
    kv_heads     None: as many as heads
    window       of attention, but in full_layers; None: there is none. A layer counts as the mean
                 of those with a window and those without
    """

    layers: int
    width: int
    heads: int
    vocabulary: int
    sequence_length: int
    kv_heads: int | None = None
    hidden: int | None = None
    style: str = "gpt2"
    tied: bool = False
    dropout: float = 0.0
    window: int | None = None
    full_layers: tuple[int, ...] = ()

    words = "sequences", "tokens"

    def __post_init__(self):
        GPTSettings(
            self.vocabulary,
            self.sequence_length,
            self.width,
            self.layers,
            self.heads,
            self.kv_heads,
            self.style,
            self.tied,
            self.dropout,
            0,
            "float32",
            self.hidden,
            None,
            10000.0,
            window=self.window,
            full_layers=self.full_layers,
        )  # refuses what nn.GPT refuses

    @property
    def num_kv_heads(self) -> int:
        return self.heads if self.kv_heads is None else self.kv_heads

    @property
    def head_dim(self) -> int:
        return self.width // self.heads

    @property
    def message_elements(self) -> int:
        return self.width

    @property
    def shared_elements(self) -> int:
        """Elements of the table, which a tied head uses too."""
        return self.vocabulary * self.width

    def input_elements(self, block):
        return self.width

    def is_recomputed(self, block, splits_backward):
        return block == "layer" or splits_backward and block == "head"

    @property
    def kv_width(self) -> int:
        """Elements of all keys of a token."""
        return self.num_kv_heads * self.head_dim

    @property
    def is_gated(self) -> bool:
        return STYLES[self.style].is_gated

    @property
    def num_hidden(self) -> int:
        """Units of a feed-forward."""
        return hidden_width(self.width, STYLES[self.style]) if self.hidden is None else self.hidden

    @cached_property
    def blocks(self) -> tuple[str, ...]:
        """The kinds of the blocks, in order."""
        return ("embedding", *["layer"] * self.layers, "head")

    def weights(self, block: str) -> list[Weight]:
        """Return the weights of a block of this kind; a tied head has no matrix of its own."""
        return {"embedding": self._embedding, "layer": self._layer, "head": self._head}[block]()

    @lru_cache(maxsize=256)
    def block_elements(self, block: str, tensor: int = 1) -> int:
        """Return the number of parameters of a block on one tensor rank."""
        return sum(weight.local_size(tensor) for weight in self.weights(block))

    @lru_cache(maxsize=256)
    def multiplied_elements(self, block: str, tensor: int = 1) -> int:
        """Return the elements of the matrices that a block multiplies with on one tensor rank.

        A tied matrix counts in the head.
        """
        if block == "embedding":
            return 0
        if block == "head":
            return Weight((self.vocabulary, self.width), 0).local_size(tensor)
        matrices = (weight for weight in self.weights(block) if len(weight.shape) == 2)
        return sum(weight.local_size(tensor) for weight in matrices)

    def _embedding(self) -> list[Weight]:
        table = Weight((self.vocabulary, self.width), 0)
        if STYLES[self.style].is_rotary:
            return [table]
        return [table, Weight((self.sequence_length, self.width))]

    def _head(self) -> list[Weight]:
        return [*self._norm(), *([] if self.tied else [Weight((self.vocabulary, self.width), 0)])]

    def _layer(self) -> list[Weight]:
        width = self.width
        kv_width = self.kv_width
        hidden = self.num_hidden
        head = self.head_dim
        column = [
            (width, head),
            (kv_width, head),
            (kv_width, head),
            *[(hidden, 1)] * (2 if self.is_gated else 1),
        ]
        biases = [
            *(Weight((rows,), 0, grain) for rows, grain in column),
            Weight((width,)),
            Weight((width,)),
        ]
        return [
            *self._norm(),
            *self._norm(),
            *(Weight((rows, width), 0, grain) for rows, grain in column),
            Weight((width, width), 1, head),
            Weight((width, hidden), 1),
            *(biases if STYLES[self.style].has_bias else []),
        ]

    def _norm(self) -> list[Weight]:
        return [Weight((self.width,))] * (1 if self.is_gated else 2)  # RMSNorm has no bias

    @property
    def num_flops_per_item(self) -> int:
        """Operations of forward and backward, as nn.GPT counts them (arXiv 2204.02311, app. B)."""
        positions = sum(weight.size for weight in self._embedding()[1:])
        tables = positions + (0 if self.tied else self.vocabulary * self.width)
        attention = 12 * self.width * sum(reaches(self))
        return 6 * (self.parameter_count - tables) + attention

    def goes_by_heads(self, tensor: int, domain: int, reach: int | None = None) -> bool:
        """Return whether domain ranks exchange heads of attention; else keys go round.

        reach   tokens that a layer sees; None: all
        """
        if max(self.num_kv_heads // tensor, 1) % domain:
            return False
        if reach is None or reach >= self.sequence_length:
            return True
        around = 2 * self.kv_width * sum(keys_around(self.sequence_length, domain, reach))
        of_heads = 4 * (self.width + self.kv_width) * self.sequence_length
        return around * domain**2 >= of_heads * (domain - 1)

    def ring_elements(self, tensor, domain):
        if all(self.goes_by_heads(tensor, domain, reach) for reach in set(reaches(self))):
            return 0.0
        return -(-self.sequence_length // domain) * 2 * self.kv_width / tensor

    def why_not_cut(self, tensor, is_sequence_parallel):
        for what, count in (("heads", self.heads), ("hidden units", self.num_hidden)):
            if count % tensor:
                return division(f"{count} {what}", f"{tensor} tensor ranks", count, tensor)
        if self.vocabulary < tensor:
            return f"{self.vocabulary} vocabulary rows are fewer than {tensor} tensor ranks"
        if self.num_kv_heads % tensor and tensor % self.num_kv_heads:
            return (
                f"{self.num_kv_heads} key heads and {tensor} tensor ranks do not divide each other"
            )
        if is_sequence_parallel and self.sequence_length % tensor:
            length = self.sequence_length
            return division(f"a sequence of {length}", f"{tensor} tensor ranks", length, tensor)
        return None
