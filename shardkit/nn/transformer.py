r"""The parts of a transformer: attention, feed-forward, and the block that joins them.

    x ---------------------> + --------------------> +---> y           pre-norm residual block
      \-> norm -> attention -^ \-> norm -> mlp ------^

Two families of models differ in a few choices, which are values here:

    gpt2     LayerNorm, biases, learned positions, GELU (Radford et al. 2019)
    llama    RMSNorm, no biases, rotary positions, SwiGLU (arXiv 2302.13971)

x is [batch, sequence, width]; rows of dim 0 are samples of the batch. Layers infer the number of
heads and hidden units from what their projections return, so a projection that computes only a
slice of them needs no other change.
"""

from dataclasses import dataclass

from ..array.backend import xp_of
from ..errors import ConfigurationError, ShapeError
from .autograd import Tensor
from .init import Initializer, Normal
from .layers import Dropout, LayerNorm, Linear, RMSNorm, check_sizes
from .module import Module
from .ops.activation import gelu, swiglu
from .ops.attention import causal_attention, rotary
from .ops.shape import permute, reshape

WEIGHT_INIT = Normal(0.02)
ROTARY_BASE = 10000.0


@dataclass(frozen=True, slots=True)
class Style:
    """The choices in which families of transformers differ."""

    norm: type[Module]
    has_bias: bool
    is_rotary: bool  # otherwise positions are learned and added to the embedding
    is_gated: bool  # SwiGLU, otherwise GELU

    def make_norm(self, width: int, eps: float | None, dtype) -> Module:
        """Return a norm of this style; eps None: the default of its class."""
        return (
            self.norm(width, dtype=dtype) if eps is None else self.norm(width, eps=eps, dtype=dtype)
        )


STYLES = {
    "gpt2": Style(LayerNorm, has_bias=True, is_rotary=False, is_gated=False),
    "llama": Style(RMSNorm, has_bias=False, is_rotary=True, is_gated=True),
}


class KeyValueCache:
    """Keys and values of positions that a layer has seen: a new token costs one position.

    capacity  positions; nothing is allocated before the first append
    """

    def __init__(self, capacity: int):
        self.capacity = capacity
        self.length = 0  # positions held
        self._keys = self._values = None

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Add k, v [batch, kv_heads, S, D], and return all [batch, kv_heads, length, D].

        No gradient flows through a cache. Errors: ShapeError if it is full.
        """
        batch, heads, num_new, head_dim = k.shape
        stop = self.length + num_new
        if stop > self.capacity:
            raise ShapeError(
                f"{num_new} positions do not fit behind {self.length} in a key/value cache of "
                f"{self.capacity}"
            )
        if self._keys is None:
            room = (batch, heads, self.capacity, head_dim)
            self._keys, self._values = [xp_of(k.array).empty(room, k.dtype) for _ in range(2)]
        self._keys[:, :, self.length : stop] = k.array
        self._values[:, :, self.length : stop] = v.array
        self.length = stop
        return Tensor(self._keys[:, :, :stop]), Tensor(self._values[:, :, :stop])


class SelfAttention(Module):
    """Attention of each position to itself and those before it (arXiv 1706.03762).

    width, heads      width = heads * head_dim
    kv_heads          each key and value head serves heads / kv_heads query heads (arXiv
                      2305.13245); None: as many as heads
    rotary            positions turn queries and keys (arXiv 2104.09864); needs an even head_dim
    rotary_base       pair i of D/2 turns by rotary_base^(-2i/D) per position
    output_init       initial values of the output projection
    Errors: ConfigurationError on sizes that do not divide.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        kv_heads: int | None = None,
        bias: bool = True,
        rotary: bool = False,
        rotary_base: float = ROTARY_BASE,
        dropout: float = 0.0,
        init: Initializer = WEIGHT_INIT,
        output_init: Initializer = WEIGHT_INIT,
        dtype="float32",
    ):
        kv_heads = heads if kv_heads is None else kv_heads
        check_heads(width, heads, kv_heads, is_rotary=rotary)
        self.head_dim = width // heads
        self.rotary = rotary
        self.rotary_base = rotary_base
        kv_width = kv_heads * self.head_dim
        self.query = Linear(width, width, bias=bias, init=init, dtype=dtype)
        self.key = Linear(width, kv_width, bias=bias, init=init, dtype=dtype)
        self.value = Linear(width, kv_width, bias=bias, init=init, dtype=dtype)
        self.output = Linear(width, width, bias=bias, init=output_init, dtype=dtype)
        self.dropout = Dropout(dropout)

    def forward(self, x, cache: KeyValueCache | None = None):
        """Compute [batch, S, width] from x of that shape, which follows what is cached."""
        first = 0 if cache is None else cache.length
        q, k, v = [
            self._by_head(projection(x)) for projection in (self.query, self.key, self.value)
        ]
        if self.rotary:
            positions = xp_of(x.array).arange(first, first + x.shape[1])
            q, k = [rotary(each, positions, self.rotary_base) for each in (q, k)]
        if cache is not None:
            k, v = cache.append(k, v)
        y = causal_attention(q, k, v, first_query=first)  # [batch, heads, S, head_dim]
        y = permute(y, (0, 2, 1, 3))  # [batch, S, heads, head_dim]
        y = reshape(y, (*x.shape[:2], y.shape[2] * y.shape[3]))  # [batch, S, heads * head_dim]
        return self.dropout(self.output(y))

    def _by_head(self, x):
        batch, sequence, width = x.shape
        x = reshape(x, (batch, sequence, width // self.head_dim, self.head_dim))
        return permute(x, (0, 2, 1, 3))  # [batch, heads, S, head_dim]


def check_heads(width: int, heads: int, kv_heads: int, *, is_rotary: bool):
    """Raise ConfigurationError, with the arithmetic, unless width, heads and key heads divide."""
    check_sizes("attention", width=width, heads=heads, kv_heads=kv_heads)
    if width % heads:
        raise ConfigurationError(
            f"width {width} = {heads} heads x {width // heads} + {width % heads}; wanted a width "
            f"that {heads} heads divide, such as {width - width % heads + heads}"
        )
    if heads % kv_heads:
        raise ConfigurationError(
            f"{heads} heads = {kv_heads} kv_heads x {heads // kv_heads} + {heads % kv_heads}; "
            "wanted kv_heads that divide the heads"
        )
    if is_rotary and width // heads % 2:
        raise ConfigurationError(
            f"width {width} / {heads} heads = head dim {width // heads}, which is odd; rotary "
            "positions turn pairs, so it must be even"
        )


class FeedForward(Module):
    """down(gelu(up(x))): each position by itself, with `hidden` units."""

    def __init__(
        self,
        width: int,
        hidden: int,
        *,
        bias: bool = True,
        dropout: float = 0.0,
        init: Initializer = WEIGHT_INIT,
        output_init: Initializer = WEIGHT_INIT,
        dtype="float32",
    ):
        self.up = Linear(width, hidden, bias=bias, init=init, dtype=dtype)
        self.down = Linear(hidden, width, bias=bias, init=output_init, dtype=dtype)
        self.dropout = Dropout(dropout)

    def forward(self, x):
        return self.dropout(self.down(self.up(x, gelu)))


class GatedFeedForward(Module):
    """down(silu(gate(x)) * up(x)): SwiGLU (arXiv 2002.05202), with `hidden` units."""

    def __init__(
        self,
        width: int,
        hidden: int,
        *,
        bias: bool = False,
        dropout: float = 0.0,
        init: Initializer = WEIGHT_INIT,
        output_init: Initializer = WEIGHT_INIT,
        dtype="float32",
    ):
        self.gate = Linear(width, hidden, bias=bias, init=init, dtype=dtype)
        self.up = Linear(width, hidden, bias=bias, init=init, dtype=dtype)
        self.down = Linear(hidden, width, bias=bias, init=output_init, dtype=dtype)
        self.dropout = Dropout(dropout)

    def forward(self, x):
        return self.dropout(self.down(swiglu(self.gate(x), self.up(x))))


def hidden_width(width: int, style: Style) -> int:
    """Return the hidden units of the feed-forward: 4 width, or near 8/3 width for SwiGLU.

    A gated layer has three matrices instead of two: 2/3 of the units, in multiples of 8, give it
    the same number of parameters.
    """
    return 8 * max(round(width / 3), 1) if style.is_gated else 4 * width


class TransformerBlock(Module):
    """x + attention(norm(x)), then the same with the feed-forward.

    hidden       units of the feed-forward; None: hidden_width of the style
    norm_eps     of both norms; None: that of the style's norm
    output_init  of the projections that add to the residual stream: Normal(0.02 / sqrt(2 * layers))
                 keeps its variance at the start the same for any depth (GPT-2)
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        kv_heads: int | None = None,
        style: Style = STYLES["gpt2"],
        hidden: int | None = None,
        norm_eps: float | None = None,
        rotary_base: float = ROTARY_BASE,
        dropout: float = 0.0,
        output_init: Initializer = WEIGHT_INIT,
        dtype="float32",
    ):
        common = {
            "bias": style.has_bias,
            "dropout": dropout,
            "output_init": output_init,
            "dtype": dtype,
        }
        feed_forward = GatedFeedForward if style.is_gated else FeedForward
        self.attention_norm = style.make_norm(width, norm_eps, dtype)
        self.attention = SelfAttention(
            width,
            heads,
            kv_heads=kv_heads,
            rotary=style.is_rotary,
            rotary_base=rotary_base,
            **common,
        )
        self.mlp_norm = style.make_norm(width, norm_eps, dtype)
        self.mlp = feed_forward(
            width, hidden_width(width, style) if hidden is None else hidden, **common
        )

    def forward(self, x, cache: KeyValueCache | None = None):
        x, normalized = self.mlp_norm.after_adding(x, self.attention(self.attention_norm(x), cache))
        return x + self.mlp(normalized)
