"""Layers that look along a dim that ranks share: each takes the place of a whole one.

    ids [batch, own]  --CutTokenEmbedding-->  x [batch, own, width]      positions in the whole
                      --CutSelfAttention--->  y [batch, own, width]      keys of all ranks
    x [batch, in, own, ...]  --CutSpectralConv-->  y [batch, out, own, ...]      modes of all ranks

What they know of the cut is an axis with

    group              the ranks that share each sample
    dim                of x, along which they do
    table(x, path)     the spans of that dim, of all ranks (spans.py)

Their members are those of the layer `whole`, so parameters keep their names.
"""

from typing import Any, Protocol

from ...comm.backend import CommunicationBackend
from ...errors import ShardingError
from ...nn.context import current_context
from ...nn.layers.attention import MultiheadAttention
from ...nn.layers.basic import input_tensor
from ...nn.layers.spectral import SpectralConv, check_grid
from ...nn.models.gpt import TokenEmbedding
from ...nn.module import Module, check_input_of, members_of
from ...nn.transformer import SelfAttention
from .attention import cut_attention
from .spans import Table, length_of, positions_of
from .spectra import cut_spectral_convolution

# arguments of MultiheadAttention.forward() behind query, key and value
_REST = ("key_padding_mask", "need_weights", "attn_mask", "average_attn_weights", "is_causal")


class SequenceAxis(Protocol):
    """The ranks that share samples."""

    group: CommunicationBackend
    dim: int

    def table(self, x: Any, path: str | None) -> Table:
        """Return the spans of all ranks of the dim that is cut, for x with this rank's part.

        Collective over the group, if ranks must tell each other how long it is.
        """
        ...


class _CutLayer(Module):
    """A layer that gets this rank's tokens, in the place of one that gets whole sequences."""

    def __init__(self, axis: SequenceAxis, whole: Module):
        self._axis = axis
        self._whole: Any = whole

    def members(self):
        return members_of(self._whole)

    def check_input(self, x):
        check_input_of(self._whole, x)


class CutTokenEmbedding(_CutLayer):
    """A TokenEmbedding of own ids [batch, own], learned positions by their number in the whole."""

    _whole: TokenEmbedding

    def forward(self, ids):
        _refuse_texts(self.path_in_model)
        ids = input_tensor(ids)
        table = self._axis.table(ids, self.path_in_model)
        spans = table[self._axis.group.rank]
        stop = max([stop for _, stop in spans], default=0)
        return self._whole.embedded(ids, stop, lambda xp: xp.asarray(positions_of(spans)))


class CutSelfAttention(_CutLayer):
    """SelfAttention of own tokens to those of all ranks; x [batch, own, width] local."""

    _whole: SelfAttention

    def forward(self, x):
        _refuse_texts(self.path_in_model)
        table = self._axis.table(x, self.path_in_model)
        group = self._axis.group

        def attend(q, k, v, causal):
            return cut_attention(q, k, v, group, table, causal=causal)

        return self._whole.forward(x, attend, table[group.rank])


class CutMultiheadAttention(_CutLayer):
    """MultiheadAttention of own queries to keys of all ranks, each [batch, own, .] local.

    Errors: ShardingError for masks, weights and their dropout.
    """

    _whole: MultiheadAttention

    def forward(self, query, key, value, *given, **form):
        """Compute (y, None); the arguments are those of MultiheadAttention."""
        form |= dict(zip(_REST, given))
        _check(self.path_in_model, self._whole.dropout, form)
        group, path = self._axis.group, self.path_in_model
        table = self._axis.table(query, path)
        key_table = table if key is query else self._axis.table(key, path)

        def attend(q, k, v, mask, is_causal):
            return cut_attention(q, k, v, group, table, key_table, causal=is_causal)

        return self._whole.forward(query, key, value, **form, attend=attend)


class CutSpectralConv(_CutLayer):
    """SpectralConv of a grid of which ranks have even parts: x [batch, in, *grid] local."""

    _whole: SpectralConv

    def check_input(self, x):
        """Do nothing: whether the grid has room for the modes is seen on the whole of it."""

    def forward(self, x):
        axis, whole = self._axis, self._whole
        x = input_tensor(x, whole.weight.dtype)
        length = length_of(axis.table(x, self.path_in_model))
        shape = list(x.shape)
        shape[axis.dim] = length
        check_grid("SpectralConv", shape, whole.weight.global_shape[0], whole.modes)
        form = whole.modes, axis.group, axis.dim - 2, length
        return cut_spectral_convolution(x, whole.weight, *form)


def _check(layer, dropout, form):
    """Raise ShardingError unless attention is all that is asked of a layer."""
    refused = {name: form.get(name) is not None for name in ("key_padding_mask", "attn_mask")}
    refused["need_weights"] = form.get("need_weights", True)
    refused["dropout"] = current_context().training and dropout.p > 0
    names = [name for name, is_given in refused.items() if is_given]
    if names:
        raise ShardingError(
            f"{layer}, a MultiheadAttention with {', '.join(names)}, over a sequence that ranks "
            "share; wanted need_weights=False, is_causal for a mask, and no dropout of weights"
        )


def _refuse_texts(layer):
    """Raise ShardingError where a text is continued token by token."""
    if current_context().texts is not None:
        raise ShardingError(
            f"{layer} of a model whose sequences ranks share cannot continue texts; load its "
            "checkpoint into a model with domain = 1"
        )
