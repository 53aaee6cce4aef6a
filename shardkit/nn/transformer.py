r"""The parts of a transformer: attention, feed-forward, and the block that joins them.

    x ---------------------> + --------------------> +---> y           pre-norm residual block
      \-> norm -> attention -^ \-> norm -> mlp ------^

Two families of models differ in a few choices, which are values here:

    gpt2     LayerNorm, biases, learned positions, GELU (Radford et al. 2019)
    llama    RMSNorm, no biases, rotary positions, SwiGLU (arXiv 2302.13971)

Later models differ from llama in their attention layers (SelfAttention), and in where norms stand
(BLOCK_NORMS).

x is [batch, sequence, width]; rows of dim 0 are samples of the batch. Layers infer the number of
heads and hidden units from what their projections return, so a projection that computes only a
slice of them needs no other change.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..annotations import DTypeLike
from ..arguments import is_among, is_number, require
from ..array.backend import is_device_array
from ..errors import ConfigurationError
from ..on_gpu import gpu_part
from .autograd import Tensor, is_grad_enabled
from .context import current_context
from .init import Initializer, Normal
from .layers.basic import Dropout, LayerNorm, Linear, RMSNorm, check_sizes, is_affine
from .module import Module
from .on_parts import partwise
from .ops.activation import gelu, swiglu
from .ops.attention import attention_to_all, causal_attention, require_window
from .ops.rotary import rotary
from .ops.shape import from_stream, permute, reshape, to_stream

WEIGHT_INIT = Normal(0.02)
ROTARY_BASE = 10000.0

# Which projections of an attention layer have a bias: (query, key and value; output).
ATTENTION_BIASES = {"no": (False, False), "qkv": (True, False), "all": (True, True)}
# Where the norms of a block stand: before attention and feed-forward, or after them.
BLOCK_NORMS = ("before", "after")


@dataclass(frozen=True, slots=True)
class Style:
    """The choices in which families of transformers differ."""

    norm: Callable[..., Module]
    has_bias: bool
    is_rotary: bool  # otherwise positions are learned and added to the embedding
    is_gated: bool  # SwiGLU, otherwise GELU

    def make_norm(self, width: int, eps: float | None, dtype) -> Any:
        """Return a norm of this style; eps None: the default of its class."""
        return (
            self.norm(width, dtype=dtype) if eps is None else self.norm(width, eps=eps, dtype=dtype)
        )


STYLES = {
    "gpt2": Style(LayerNorm, has_bias=True, is_rotary=False, is_gated=False),
    "llama": Style(RMSNorm, has_bias=False, is_rotary=True, is_gated=True),
}


class SelfAttention(Module):
    """Attention of each position to itself and those before it, or to all (arXiv 1706.03762).

    Parameters
    ----------
    width, heads
        Of the residual stream, and query heads.
    kv_heads
        Each key and value head serves heads / kv_heads query heads (arXiv 2305.13245); None: as
        many as heads.
    head_dim
        Elements of a head; None: width / heads.
    bias
        Of the projections: one of ATTENTION_BIASES; True: "all", False: "no".
    qk_norm
        RMSNorm of queries and keys before they are turned, one of QK_NORMS: "head" as in Qwen3
        (arXiv 2505.09388), "projection" as in OLMo 2 (arXiv 2501.00656); None: none.
    norm_eps
        Of these norms; None: that of RMSNorm.
    rotary
        Positions turn queries and keys (arXiv 2104.09864); needs an even head dim.
    rotary_base
        Pair i of D/2 turns by rotary_base^(-2i/D) per position.
    rotary_scaling
        Of these rates, see check_scaling.
    is_causal
        A position sees itself and those before it; False: all.
    window
        Of these, positions less than so far away: position i sees i - window < j <= i, or |i - j|
        < window if not causal (arXiv 2004.05150); None: however far.
    dropout
        Probability, on the output.
    init
        Initial values of the other projections.
    output_init
        Initial values of the output projection.
    dtype
        Of the parameters, such as "float32".

    Raises
    ------
    ConfigurationError
        On sizes that do not divide, or a choice that there is not.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        bias: bool | str = True,
        qk_norm: str | None = None,
        norm_eps: float | None = None,
        rotary: bool = False,
        rotary_base: float = ROTARY_BASE,
        rotary_scaling: tuple[float, ...] | None = None,
        is_causal: bool = True,
        window: int | None = None,
        dropout: float = 0.0,
        init: Initializer = WEIGHT_INIT,
        output_init: Initializer = WEIGHT_INIT,
        dtype: DTypeLike = "float32",
    ) -> None:
        kv_heads = heads if kv_heads is None else kv_heads
        check_heads(width, heads, kv_heads, head_dim, is_rotary=rotary)
        check_scaling(rotary_scaling, is_rotary=rotary)
        check_qk_norm(qk_norm)
        require_window("attention", window)
        self.head_dim = width // heads if head_dim is None else head_dim
        self._attend = causal_attention if is_causal else attention_to_all
        self._window = window
        self.rotary = (rotary_base, rotary_scaling) if rotary else None
        q_width = heads * self.head_dim
        kv_width = kv_heads * self.head_dim
        has_bias, output_has_bias = _biases(bias)
        self.query = Linear(width, q_width, bias=has_bias, init=init, dtype=dtype)
        self.key = Linear(width, kv_width, bias=has_bias, init=init, dtype=dtype)
        self.value = Linear(width, kv_width, bias=has_bias, init=init, dtype=dtype)
        self._split = _SPLITS[qk_norm]
        self.query_norm = self.key_norm = None
        if qk_norm is not None:
            eps = {} if norm_eps is None else {"eps": norm_eps}
            is_by_head = qk_norm == "head"
            self.query_norm, self.key_norm = [
                RMSNorm(self.head_dim if is_by_head else size, dtype=dtype, **eps)
                for size in (q_width, kv_width)
            ]
        self.output = Linear(q_width, width, bias=output_has_bias, init=output_init, dtype=dtype)
        self.dropout = Dropout(dropout, sample_dim=0)

    def forward(
        self,
        x: Tensor,
        attend: Callable[..., Tensor] | None = None,
        positions: Any = None,
    ) -> Tensor:
        """Compute [batch, S, width] from x of that shape.

        Parameters
        ----------
        x
            [batch, S, width].
        attend
            Function (q, k, v, causal=..., window=...) -> [batch, heads, S, head_dim] of queries of
            that shape; None: attention to the keys that are there.
        positions
            Of the tokens, as of ops.rotary.
        """
        texts = current_context().texts
        q, k, v = _projected(self, x)  # [batch, heads, S, D], [batch, kv_heads, S, D] twice
        if self.rotary is not None:
            turn = partial(rotary, positions=positions) if texts is None else texts.turned
            base, scaling = self.rotary
            q, k = [turn(each, base=base, scaling=scaling) for each in (q, k)]
        if attend is not None:
            is_causal = self._attend is causal_attention
            y = attend(q, k, v, causal=is_causal, window=self._window)
        elif texts is None:
            y = self._attend(q, k, v, window=self._window)  # [batch, heads, S, head_dim]
        else:
            y = texts.attend(self, q, k, v, self._window)
        return self.dropout(self.output(_side_by_side(y)))


def _projected(layer, x):
    """Return queries, keys and values by head, by one product where a GPU can make it."""
    if is_device_array(x.array):
        at_once = _projected_at_once(layer, x)
        if at_once is not None:
            return at_once
    q = layer._split(layer.query(x), layer.head_dim, layer.query_norm)
    k = layer._split(layer.key(x), layer.head_dim, layer.key_norm)
    return q, k, _by_head(layer.value(x), layer.head_dim)


def _projected_at_once(layer, x):
    """Return what _projected does, by one product; None where it takes three."""
    layers = layer.query, layer.key, layer.value
    if not all(map(is_affine, layers)):
        return None
    by_head = partial(_seen_by_head, head_dim=layer.head_dim)
    has_norms = layer.query_norm is not None
    before_norms = _seen_as_it_is if has_norms else by_head
    parts = gpu_part("joint").joint_linear(
        x,
        [each.weight for each in layers],
        [each.bias for each in layers],
        [before_norms, before_norms, by_head],
        is_dense=has_norms,
    )
    if parts is None or not has_norms:
        return parts
    q, k, v = parts
    q = layer._split(q, layer.head_dim, layer.query_norm)
    return q, layer._split(k, layer.head_dim, layer.key_norm), v


def _seen_by_head(array, head_dim: int):
    """Return a view [batch, heads, S, D] of an array [batch, S, heads * D]."""
    batch, length, width = array.shape
    return array.reshape(batch, length, width // head_dim, head_dim).swapaxes(1, 2)


def _seen_as_it_is(array):
    return array


def _side_by_side(y):
    """Return y [batch, heads, S, D] as [batch, S, heads * D]."""
    batch, num_heads, length, head_dim = y.shape
    shape = batch, length, num_heads * head_dim
    if not is_grad_enabled():
        return Tensor(y.array.swapaxes(1, 2).reshape(shape))
    return reshape(permute(y, (0, 2, 1, 3)), shape)


def _by_head(x, head_dim: int, norm=None):
    """Return x [batch, S, heads * D] as [batch, heads, S, D]."""
    if not is_grad_enabled():
        return Tensor(_seen_by_head(x.array, head_dim))
    x = reshape(x, (*x.shape[:2], x.shape[2] // head_dim, head_dim))
    return permute(x, (0, 2, 1, 3))


def _normalized_by_head(x, head_dim: int, norm):
    """Return x [batch, S, heads * D] as [batch, heads, S, D], each head normalized by itself."""
    x = norm(reshape(x, (*x.shape[:2], x.shape[2] // head_dim, head_dim)))
    return permute(x, (0, 2, 1, 3))


def _normalized_together(x, head_dim: int, norm):
    """Return x [batch, S, heads * D] as [batch, heads, S, D], all heads of a token normalized."""
    return _by_head(norm(x), head_dim)


_SPLITS = {None: _by_head, "head": _normalized_by_head, "projection": _normalized_together}
QK_NORMS = tuple(name for name in _SPLITS if name is not None)


def _biases(bias: bool | str) -> tuple[bool, bool]:
    """Return whether queries, keys and values have a bias, and whether the output has one."""
    name: Any = bias if isinstance(bias, str) else {True: "all", False: "no"}.get(bias, bias)
    require(
        is_among(name, ATTENTION_BIASES),
        "attention with bias",
        bias,
        f"one of {', '.join(ATTENTION_BIASES)}",
    )
    return ATTENTION_BIASES[name]


def check_qk_norm(name: str | None) -> None:
    """Raise ConfigurationError unless there is a norm of queries and keys of this name."""
    require(
        name is None or is_among(name, QK_NORMS),
        "attention with qk_norm",
        name,
        f"none or one of {', '.join(QK_NORMS)}",
    )


def check_heads(
    width: int, heads: int, kv_heads: int, head_dim: int | None = None, is_rotary: bool = False
):
    """Raise ConfigurationError, with the arithmetic, unless width, heads and key heads divide.

    head_dim   None: width / heads
    """
    check_sizes("attention", width=width, heads=heads, kv_heads=kv_heads)
    if head_dim is not None:
        check_sizes("attention", head_dim=head_dim)
    elif width % heads:
        raise ConfigurationError(
            f"width {width} = {heads} heads x {width // heads} + {width % heads}; wanted a width "
            f"that {heads} heads divide, such as {width - width % heads + heads}, or a head_dim"
        )
    if heads % kv_heads:
        raise ConfigurationError(
            f"{heads} heads = {kv_heads} kv_heads x {heads // kv_heads} + {heads % kv_heads}; "
            "wanted kv_heads that divide the heads"
        )
    if is_rotary and (head_dim or width // heads) % 2:
        was = "" if head_dim else f"width {width} / {heads} heads = "
        raise ConfigurationError(
            f"{was}head dim {head_dim or width // heads}, which is odd; rotary positions turn "
            "pairs, so it must be even"
        )


def check_scaling(scaling: Sequence[float] | None, *, is_rotary: bool = True) -> None:
    """Raise ConfigurationError unless this can scale the rates of rotary positions.

    scaling   (factor,): linear; (factor, low, high, length): as in Llama 3.1, whose config.json
              calls them factor, low_freq_factor, high_freq_factor and
              original_max_position_embeddings; None: none
    """
    if scaling is None:
        return
    is_right = (
        isinstance(scaling, (tuple, list))
        and len(scaling) in (1, 4)
        and all(is_number(number, above=0) for number in scaling)
        and (len(scaling) == 1 or scaling[1] < scaling[2])
    )
    wanted = "[factor], or [factor, low, high, length] with low < high, all above 0"
    require(is_right, "rotary_scaling", scaling, wanted)
    require(is_rotary, "rotary_scaling", scaling, "none in a style that learns its positions")


@partwise
class FeedForward(Module):
    """down(gelu(up(x))): each position by itself, with `hidden` units.

    Parameters
    ----------
    width, hidden
        Elements of x, and units inside.
    bias
        Whether the projections have one.
    dropout
        Probability, on the output.
    init, output_init
        Initial values of the projections, and of the one to the output.
    dtype
        Of the parameters, such as "float32".
    """

    def __init__(
        self,
        width: int,
        hidden: int,
        *,
        bias: bool = True,
        dropout: float = 0.0,
        init: Initializer = WEIGHT_INIT,
        output_init: Initializer = WEIGHT_INIT,
        dtype: DTypeLike = "float32",
    ) -> None:
        self.up = Linear(width, hidden, bias=bias, init=init, dtype=dtype)
        self.down = Linear(hidden, width, bias=bias, init=output_init, dtype=dtype)
        self.dropout = Dropout(dropout, sample_dim=0)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.down(self.up(x, gelu)))


@partwise
class GatedFeedForward(FeedForward):
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
        dtype: DTypeLike = "float32",
    ) -> None:
        self.gate = Linear(width, hidden, bias=bias, init=init, dtype=dtype)
        more = {"init": init, "output_init": output_init}
        super().__init__(width, hidden, bias=bias, dropout=dropout, dtype=dtype, **more)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.down(swiglu(self.gate(x), self.up(x))))


def hidden_width(width: int, style: Style) -> int:
    """Return the hidden units of the feed-forward: 4 width, or near 8/3 width for SwiGLU.

    A gated layer has three matrices instead of two: 2/3 of the units, in multiples of 8, give it
    the same number of parameters.
    """
    return 8 * max(round(width / 3), 1) if style.is_gated else 4 * width


@partwise
class TransformerBlock(Module):
    """Two residual branches: attention, then the feed-forward, each with a norm.

    Parameters
    ----------
    width, heads
        Of the residual stream, and query heads.
    style
        A choice that `attention` does not make is that of the style.
    hidden
        Units of the feed-forward; None: hidden_width of the style.
    norms
        "before": x + branch(norm(x)); "after": x + norm(branch(x)) (OLMo 2).
    norm_eps
        Of all norms; None: that of the class of the norm.
    dropout
        Probability, on the outputs of both branches.
    output_init
        Of the projections that add to the residual stream: Normal(0.02 / sqrt(2 * layers)) keeps
        its variance at the start the same for any depth (GPT-2).
    dtype
        Of the parameters, such as "float32".
    attention
        Further arguments of SelfAttention, such as kv_heads.
    """

    has_residual_stream = True  # of ops.shape.to_stream()

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        style: Style = STYLES["gpt2"],
        hidden: int | None = None,
        norms: str = "before",
        norm_eps: float | None = None,
        dropout: float = 0.0,
        output_init: Initializer = WEIGHT_INIT,
        dtype: DTypeLike = "float32",
        **attention: Any,
    ) -> None:
        common: dict[str, Any] = {"dropout": dropout, "output_init": output_init, "dtype": dtype}
        choices: dict[str, Any] = {"bias": style.has_bias, "rotary": style.is_rotary, **attention}
        feed_forward = GatedFeedForward if style.is_gated else FeedForward
        self.attention_norm = style.make_norm(width, norm_eps, dtype)
        self.attention = SelfAttention(width, heads, norm_eps=norm_eps, **choices, **common)
        self.mlp_norm = style.make_norm(width, norm_eps, dtype)
        self.mlp = feed_forward(
            width,
            hidden_width(width, style) if hidden is None else hidden,
            bias=style.has_bias,
            **common,
        )
        self._join = _JOINS[norms]

    def forward(self, x: Tensor) -> Tensor:
        return self._join(self, to_stream(x))


def _with_norms_before(block: TransformerBlock, x):
    branch = block.attention(block.attention_norm(x))
    x, normalized = block.mlp_norm.after_adding(x, to_stream(branch))
    return x + to_stream(block.mlp(normalized))


def _with_norms_after(block: TransformerBlock, x):
    branch = block.attention(from_stream(x, block.attention_norm.weight))
    x = x + to_stream(block.attention_norm(branch))
    branch = block.mlp(from_stream(x, block.mlp_norm.weight))
    return x + to_stream(block.mlp_norm(branch))


_JOINS = dict(zip(BLOCK_NORMS, (_with_norms_before, _with_norms_after)))
