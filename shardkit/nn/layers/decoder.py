"""Stacks of Transformer layers, and the layer that reads a memory beside its own sequence."""

import copy
from typing import TYPE_CHECKING, Any

from ..autograd import Tensor
from ..module import Module, ModuleList
from ..ops.shape import transpose
from .attention import MultiheadAttention, TransformerEncoderLayer
from .basic import LayerNorm, check_sizes, input_tensor


class TransformerDecoderLayer(TransformerEncoderLayer):
    """Attention of a sequence to itself, then to a memory, and a feed-forward, each with a norm.

    Parameters
    ----------
    d_model, nhead, *form, **more
        As of TransformerEncoderLayer: dim_feedforward, dropout, activation, layer_norm_eps,
        batch_first, norm_first, window (of the attention of the sequence to itself), and dtype.

    Notes
    -----
    It takes (tgt, memory): [N, T, d_model] and [N, S, d_model] with batch_first.
    """

    if TYPE_CHECKING:
        multihead_attn: MultiheadAttention
        norm3: LayerNorm

    def __init__(self, d_model: int, nhead: int, *form: Any, **more: Any) -> None:
        super().__init__(d_model, nhead, *form, **more)
        dtype = self.linear1.weight.dtype
        parts: dict[str, Module] = {
            "multihead_attn": MultiheadAttention(
                d_model, nhead, self.dropout.p, batch_first=True, dtype=dtype
            ),
            "norm3": LayerNorm(d_model, eps=self.norm1.eps, dtype=dtype),
        }
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(  # type: ignore[override]
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Any = None,
        memory_mask: Any = None,
        tgt_key_padding_mask: Any = None,
        memory_key_padding_mask: Any = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """Compute [N, T, d_model]; the masks are those of MultiheadAttention."""
        x, memory = [input_tensor(each, self.linear1.weight.dtype) for each in (tgt, memory)]
        if not self.batch_first:  # dropout counts samples in dim 0
            x, memory = transpose(x, 0, 1), transpose(memory, 0, 1)
        own = {"attn_mask": tgt_mask, "key_padding_mask": tgt_key_padding_mask}
        own["is_causal"] = tgt_is_causal
        other = {"attn_mask": memory_mask, "key_padding_mask": memory_key_padding_mask}
        other["is_causal"] = memory_is_causal
        if self.norm_first:
            x = x + self._attended(self.norm1(x), own)
            x = x + self._read(self.norm2(x), memory, other)
            x = x + self._fed_forward(self.norm3(x))
        else:
            x = self.norm1(x + self._attended(x, own))
            x = self.norm2(x + self._read(x, memory, other))
            x = self.norm3(x + self._fed_forward(x))
        return x if self.batch_first else transpose(x, 0, 1)

    def _read(self, x, memory, masks):
        y, _ = self.multihead_attn(x, memory, memory, need_weights=False, **masks)
        return self.dropout1(y)  # another call, and so another mask


class _Stack(Module):
    """So many copies of a layer, one after the other, and a norm.

    Parameters
    ----------
    layer
        That is copied; values of its own it has only if it has been called or given some.
    num_layers
        How many.
    norm
        Of the output; None: none.
    """

    def __init__(self, layer: Module, num_layers: int, norm: Module | None = None) -> None:
        check_sizes(type(self).__name__, num_layers=num_layers)
        self.layers = ModuleList(copy.deepcopy(layer) for _ in range(num_layers))
        self.norm = norm

    def forward(self, x: Tensor, *inputs: Tensor, **masks: Any) -> Tensor:
        """Return the output for x [N, S, d_model]; what else is given, each layer gets."""
        for layer in self.layers:
            x = layer(x, *inputs, **masks)
        return x if self.norm is None else self.norm(x)


class TransformerEncoder(_Stack):
    __doc__ = _Stack.__doc__

    def forward(  # type: ignore[override]
        self, x: Tensor, mask: Any = None, **masks: Any
    ) -> Tensor:
        """Return the output for x [N, S, d_model]; each layer gets the masks."""
        return super().forward(x, src_mask=mask, **masks)


class TransformerDecoder(_Stack):
    __doc__ = _Stack.__doc__
