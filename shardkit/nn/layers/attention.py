r"""Attention between sequences, with PyTorch's names: what it reads, and the layer around it.

    query [N, S, E] --in_proj--> q [N, heads, S, D] -\
    key   [N, T, .] --in_proj--> k                    > softmax(q k^T / sqrt(D) + mask) v
    value [N, T, .] --in_proj--> v                   -/         --out_proj--> y [N, S, E]

Masks are True where nothing is read, in the two arguments of forward(), as in PyTorch;
ops.scaled_dot_product_attention, as there, wants True where a key is seen.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy

from ...annotations import DTypeLike
from ...array.backend import xp_of
from ...errors import ConfigurationError, ShapeError
from ..autograd import Tensor
from ..context import current_context
from ..init import Fill, Normal, Uniform
from ..module import Module, Parameter
from ..on_parts import partwise
from ..ops.activation import erf_gelu, relu
from ..ops.attention import (
    attention_weights,
    packed_attention,
    require_window,
    scaled_dot_product_attention,
)
from ..ops.elementwise import add, where
from ..ops.linear import embedding, linear, linear_rows, matmul
from ..ops.reduction import mean
from ..ops.shape import cast, getitem, permute, reshape, squeeze, transpose, unsqueeze
from .basic import Dropout, LayerNorm, Linear, check_sizes, input_tensor


class MultiheadAttention(Module):
    """(query, key, value) -> (y [N, S, E], weights [N, S, T] or None) (arXiv 1706.03762).

    Parameters
    ----------
    embed_dim, num_heads
        E, and the heads that divide it.
    dropout
        Probability that a weight is dropped in training.
    bias
        Of all projections.
    kdim, vdim
        Features of key and value, if not E; then there is a weight for each.
    batch_first
        Inputs are [N, S, E] instead of [S, N, E].
    window
        Of one sequence, S = T: query i sees keys less than so far from it, i - window < j <= i if
        causal, else |i - j| < window (arXiv 2004.05150); None: however far.
    dtype
        Of the parameters, such as "float32".

    Raises
    ------
    ConfigurationError
        On sizes that do not fit.

    Notes
    -----
    Parameters: in_proj_weight [3 E, E], or q_proj_weight [E, E], k_proj_weight [E, kdim],
    v_proj_weight [E, vdim]; in_proj_bias [3 E]; out_proj.weight [E, E], out_proj.bias [E].
    """

    in_proj_weight: Parameter  # where query, key and value have one width; else one for each

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        *,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        window: int | None = None,
        dtype: DTypeLike = "float32",
    ) -> None:
        given = {"kdim": kdim, "vdim": vdim}
        widths = {name: embed_dim if size is None else size for name, size in given.items()}
        check_sizes("MultiheadAttention", embed_dim=embed_dim, num_heads=num_heads, **widths)
        if embed_dim % num_heads:
            raise ConfigurationError(
                f"MultiheadAttention with embed_dim {embed_dim} = {num_heads} heads x "
                f"{embed_dim // num_heads} + {embed_dim % num_heads}; wanted heads that divide it"
            )
        require_window("MultiheadAttention", window)
        self._window = window
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.widths = (embed_dim, *widths.values())
        self.batch_first = batch_first
        self.is_packed = set(self.widths) == {embed_dim}
        names = ["in_proj_weight"] if self.is_packed else list(_SEPARATE)
        for name, width in zip(names, self.widths):
            rows = 3 * embed_dim if self.is_packed else embed_dim
            bound = math.sqrt(6 / (rows + width))
            setattr(self, name, Parameter((rows, width), Uniform(bound), dtype))
        self.in_proj_bias = Parameter((3 * embed_dim,), Fill(0.0), dtype) if bias else None
        self.out_proj = Linear(embed_dim, embed_dim, bias=bias, dtype=dtype)
        self.dropout = Dropout(dropout, sample_dim=0)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Any = None,
        need_weights: bool = True,
        attn_mask: Any = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
        attend: Callable[..., Tensor] = scaled_dot_product_attention,
    ) -> tuple[Tensor, Tensor | None]:
        """Compute y and the weights.

        Parameters
        ----------
        query, key, value
            [N, S, E], [N, T, kdim], [N, T, vdim]; [S, N, E], ... without batch_first; without N for
            one sample.
        key_padding_mask
            [N, T] (or [T]), True for keys that are left out; or numbers to be added.
        need_weights
            Return the weights, the mean over heads or [N, heads, S, T]; False: None, which without
            a mask and dropout saves their memory.
        attn_mask
            [S, T], [heads, S, T], [N heads, S, T] or [N or 1, heads or 1, S, T]: True where a query
            does not see a key; or numbers that are added to the scores, such as a relative position
            bias; a Tensor if they take a gradient.
        is_causal
            Query i sees keys 0 .. i, with attn_mask or without it.
        attend
            What computes attention whose weights are not asked for, nor dropped.

        Notes
        -----
        A query that sees no key gets out_proj.bias, and weights of 0 (PyTorch with need_weights:
        NaN).
        """
        query, key, value = _inputs(self, query, key, value)
        is_single = query.ndim == 2
        if is_single:
            query, key, value = _each(lambda x: unsqueeze(x, 0), query, key, value)
        elif not self.batch_first:
            query, key, value = _each(lambda x: transpose(x, 0, 1), query, key, value)
        _check(self, query, key, value)
        mask = _joined_mask(attn_mask, key_padding_mask, query, key, self.num_heads)
        drops = current_context().training and self.dropout.p > 0
        weights: Any = None
        if (
            query is key is value
            and self.is_packed
            and not (need_weights or drops)
            and mask is None
            and attend is scaled_dot_product_attention
        ):
            qkv = linear(query, self.in_proj_weight, self.in_proj_bias)
            y = packed_attention(qkv, self.num_heads, is_causal, self._window)
        else:
            q, k, v = _projected(self, query, key, value)  # [N, heads, S, D]
            form: dict[str, Any] = {"is_causal": is_causal, "window": self._window}
            if need_weights or drops:
                weights = self.dropout(attention_weights(q, k, mask, **form))
                y = matmul(weights, v)
            else:
                y = attend(q, k, v, mask, **form)
            y = reshape(permute(y, (0, 2, 1, 3)), query.shape)
        y = self.out_proj(y)
        if not need_weights:
            weights = None
        elif average_attn_weights:
            weights = mean(weights, 1)
        if is_single:
            return squeeze(y, 0), None if weights is None else squeeze(weights, 0)
        return (y if self.batch_first else transpose(y, 0, 1)), weights


def _inputs(layer, *inputs):
    """Return Tensors of the layer's dtype; inputs that are one object stay one."""
    return _each(lambda x: input_tensor(x, layer.out_proj.weight.dtype), *inputs)


def _check(layer, query, key, value):
    """Raise ShapeError unless the three fit together and the layer."""
    fits = (
        query.ndim == key.ndim == value.ndim == 3
        and query.shape[0] == key.shape[0]
        and key.shape[:2] == value.shape[:2]
        and (query.shape[2], key.shape[2], value.shape[2]) == layer.widths
    )
    if not fits:
        order = "[N, S, .]" if layer.batch_first else "[S, N, .]"
        raise ShapeError(
            f"MultiheadAttention of query {query.shape}, key {key.shape}, value {value.shape} "
            f"(by sample); wanted {order} of {layer.widths} features, key and value of one "
            "length"
        )


def _projected(layer, *inputs):
    """Return q, k, v, each [N, heads, its length, D]."""
    query, key, value = inputs
    size = layer.embed_dim
    if layer.is_packed and query is key is value:
        qkv = linear(query, layer.in_proj_weight, layer.in_proj_bias)
        qkv = reshape(qkv, (*query.shape[:2], 3, layer.num_heads, size // layer.num_heads))
        qkv = permute(qkv, (2, 0, 3, 1, 4))
        return [getitem(qkv, number) for number in range(3)]
    projected = []
    for number, x in enumerate(inputs):
        own = slice(number * size, (number + 1) * size)
        weight = layer.in_proj_weight if layer.is_packed else getattr(layer, _SEPARATE[number])
        rows = own if layer.is_packed else slice(None)
        y = linear_rows(x, weight, layer.in_proj_bias, rows, own)
        y = reshape(y, (*x.shape[:2], layer.num_heads, size // layer.num_heads))
        projected.append(permute(y, (0, 2, 1, 3)))
    return projected


_SEPARATE = ("q_proj_weight", "k_proj_weight", "v_proj_weight")


def _each(change, *inputs):
    """Return the changed inputs; those that were one object are one again."""
    changed = {}
    for x in inputs:
        if id(x) not in changed:
            changed[id(x)] = change(x)
    return [changed[id(x)] for x in inputs]


def _joined_mask(attn_mask, padding, query, key, heads):
    """Return both masks as one, True where a key is seen, or numbers to be added; None: none.

    query, key  [N, S, any], [N, T, any]
    Errors: ShapeError.
    """
    samples, length = query.shape[:2]
    xp = xp_of(key.array)
    mask = _seen(attn_mask, key.dtype, xp)
    if mask is not None:
        shapes = [(length, key.shape[1]), (heads, length, key.shape[1])]
        if mask.ndim == 3 and mask.shape == (samples * heads, *shapes[0]):
            mask = reshape(mask, (samples, *shapes[1]))
        is_known = mask.ndim == 4 or mask.shape in shapes
        if not is_known:
            raise ShapeError(
                f"MultiheadAttention with attn_mask {mask.shape}; wanted {shapes[0]}, {shapes[1]} "
                f"or {(samples * heads, *shapes[0])}"
            )
    padding = _seen(padding, key.dtype, xp)
    if padding is None:
        return mask
    if padding.ndim == 1 and samples == 1:
        padding = unsqueeze(padding, 0)
    if padding.shape != (samples, key.shape[1]):
        raise ShapeError(
            f"MultiheadAttention with key_padding_mask {padding.shape}; wanted "
            f"{(samples, key.shape[1])}"
        )
    return _both(mask, reshape(padding, (samples, 1, 1, key.shape[1])))


def _seen(mask, dtype, xp):
    """Return a mask as a Tensor: booleans turned to True where a key is seen, or numbers."""
    if mask is None:
        return None
    mask = mask if isinstance(mask, Tensor) else Tensor(xp.asarray(mask))
    if mask.dtype == bool:
        return Tensor(~mask.array)
    if mask.dtype.kind not in "fV":
        raise ShapeError(f"MultiheadAttention with a mask of {mask.dtype}; wanted bool or floats")
    return mask if mask.dtype == dtype else cast(mask, dtype)


def _both(a, b):
    """Return the mask that two masks make together."""
    if a is None:
        return b
    if a.dtype == b.dtype == bool:
        return Tensor(a.array & b.array)
    if a.dtype == bool:
        return where(a, b, -math.inf)
    return where(b, a, -math.inf) if b.dtype == bool else add(a, b)


class RelativePositionBias(Module):
    """A number for each head and each offset between two points of a grid (arXiv 2103.14030).

    Parameters
    ----------
    num_heads
        Of the attention that it is added to.
    grid
        Points along each dimension: an int for a sequence, or a tuple.
    dtype
        Of the parameters, such as "float32".

    Notes
    -----
    weight [product of (2 size - 1), num_heads]: offsets in C order, from -(size - 1) on. It returns
    [num_heads, L, L] for the L points in C order, query before key: an attn_mask.
    """

    def __init__(
        self, num_heads: int, grid: Sequence[int], *, dtype: DTypeLike = "float32"
    ) -> None:
        grid = (grid,) if isinstance(grid, int) else tuple(grid)
        sizes = {f"grid[{dim}]": size for dim, size in enumerate(grid)}
        check_sizes("RelativePositionBias", num_heads=num_heads, **sizes)
        self.grid = grid
        offsets = [2 * size - 1 for size in grid]
        self.weight = Parameter((math.prod(offsets), num_heads), Normal(0.02), dtype)
        points = numpy.indices(grid).reshape(len(grid), -1)  # [dims, L]
        ids: Any = 0
        for at, size, num_offsets in zip(points, grid, offsets):
            ids = ids * num_offsets + (at[None, :] - at[:, None] + size - 1)
        self._ids = ids  # [L, L]

    def forward(self) -> Tensor:
        return permute(embedding(self.weight, self._ids), (2, 0, 1))


ACTIVATIONS = {"relu": relu, "gelu": erf_gelu}


@partwise
class TransformerEncoderLayer(Module):
    """Attention of a sequence to itself and a feed-forward, each with a norm and a residual branch.

    Parameters
    ----------
    d_model, nhead
        Features, and heads of the attention.
    dim_feedforward
        Hidden units.
    dropout
        Of the weights, after the activation, and after both branches.
    activation
        "relu", "gelu" (by erf), or an op of one Tensor.
    layer_norm_eps
        Of both norms.
    batch_first
        x is [N, S, d_model].
    norm_first
        Norms stand before the branches instead of after the sums.
    window
        Of the attention of the sequence to itself, as of MultiheadAttention.
    dtype
        Of the parameters, such as "float32".

    Notes
    -----
    x is [N, S, d_model] with batch_first, else [S, N, d_model].
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Any = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        *,
        window: int | None = None,
        dtype: DTypeLike = "float32",
    ) -> None:
        if not callable(activation) and activation not in ACTIVATIONS:
            raise ConfigurationError(
                f"TransformerEncoderLayer with activation {activation!r}; wanted one of "
                f"{', '.join(ACTIVATIONS)}, or an op"
            )
        self.self_attn = MultiheadAttention(
            d_model, nhead, dropout, batch_first=True, window=window, dtype=dtype
        )
        self.linear1 = Linear(d_model, dim_feedforward, dtype=dtype)
        self.dropout = Dropout(dropout, sample_dim=0)
        self.linear2 = Linear(dim_feedforward, d_model, dtype=dtype)
        self.norm1 = LayerNorm(d_model, eps=layer_norm_eps, dtype=dtype)
        self.norm2 = LayerNorm(d_model, eps=layer_norm_eps, dtype=dtype)
        self.dropout1 = Dropout(dropout, sample_dim=0)
        self.dropout2 = Dropout(dropout, sample_dim=0)
        self.batch_first = batch_first
        self.norm_first = norm_first
        self._activation = ACTIVATIONS.get(activation, activation)

    def forward(
        self,
        src: Tensor,
        src_mask: Any = None,
        src_key_padding_mask: Any = None,
        is_causal: bool = False,
    ) -> Tensor:
        """Compute [N, S, d_model]; the masks are those of MultiheadAttention."""
        x = input_tensor(src, self.linear1.weight.dtype)
        x = x if self.batch_first else transpose(x, 0, 1)  # dropout counts samples in dim 0
        masks = {"attn_mask": src_mask, "key_padding_mask": src_key_padding_mask}
        masks["is_causal"] = is_causal
        if self.norm_first:
            x = x + self._attended(self.norm1(x), masks)
            x = x + self._fed_forward(self.norm2(x))
        else:
            x = self.norm1(x + self._attended(x, masks))
            x = self.norm2(x + self._fed_forward(x))
        return x if self.batch_first else transpose(x, 0, 1)

    def _attended(self, x, masks):
        return self.dropout1(self.self_attn(x, x, x, need_weights=False, **masks)[0])

    def _fed_forward(self, x):
        hidden = self.dropout(self.linear1(x, self._activation))
        return self.dropout2(self.linear2(hidden))
