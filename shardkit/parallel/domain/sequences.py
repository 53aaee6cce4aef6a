"""Layers that look along a dim that ranks share: each takes the place of a whole one.

    ids [batch, own]  --CutTokenEmbedding-->  x [batch, own, width]      positions in the whole
                      --CutSelfAttention--->  y [batch, own, width]      keys of all ranks
    x [batch, in, own, ...]  --CutSpectralConv-->  y [batch, out, own, ...]      modes of all ranks

They compute by the forward() of the class whose place they take, told of other positions and of
another attention.
"""

from ...errors import ShapeError, ShardingError
from ...nn.context import current_context
from ...nn.layers.attention import MultiheadAttention
from ...nn.layers.basic import input_tensor
from ...nn.layers.spectral import SpectralConv, check_grid
from ...nn.models.gpt import TokenEmbedding, are_marked
from ...nn.ops.attention import check_one_sequence
from ...nn.ops.modes import Slab
from ...nn.transformer import SelfAttention
from .axis import GRID_DIM, CutLayer, DomainAxis
from .others import CutDropout
from .spans import length_of, positions_of
from .spectra import cut_spectral_convolution
from .ways import cut_attention

# arguments of MultiheadAttention.forward() behind query, key and value
_REST = ("key_padding_mask", "need_weights", "attn_mask", "average_attn_weights", "is_causal")


class CutTokenEmbedding(CutLayer):
    """A TokenEmbedding of own ids [batch, own], learned positions by their number in the whole."""

    def __init__(self, axis: DomainAxis, whole: TokenEmbedding):
        super().__init__(axis, whole)
        self.dropout = CutDropout(axis, whole.dropout)

    def check_input(self, x):
        """Raise ShapeError also where several texts stand in a row: no rank has all of it."""
        super().check_input(x)
        if are_marked(x):
            raise ShapeError(
                f"{self.path_in_model} of rows with several texts, whose sequences ranks share; "
                "wanted one text in each row (data.packing = false), or domain = 1"
            )

    def forward(self, ids):
        _refuse_texts(self.path_in_model)
        ids = input_tensor(ids)
        table = self.axis.table(ids, self.path_in_model)
        own = positions_of(table[self.axis.group.rank])
        return self.takes_place_of.embedded(self, ids, length_of(table), lambda xp: xp.asarray(own))


class CutSelfAttention(CutLayer):
    """SelfAttention of own tokens to those of all ranks; x [batch, own, width] local."""

    def __init__(self, axis: DomainAxis, whole: SelfAttention):
        super().__init__(axis, whole)
        self.dropout = CutDropout(axis, whole.dropout)

    def forward(self, x):
        _refuse_texts(self.path_in_model)
        table = self.axis.table(x, self.path_in_model)
        group = self.axis.group

        def attend(q, k, v, **form):
            return cut_attention(q, k, v, group, table, **form)

        return self.takes_place_of.forward(self, x, attend, table[group.rank])


class CutMultiheadAttention(CutLayer):
    """MultiheadAttention of own queries to keys of all ranks, each [batch, own, .] local.

    Errors: ShardingError for dropout of weights; in forward() for masks, and weights.
    """

    def __init__(self, axis: DomainAxis, whole: MultiheadAttention):
        super().__init__(axis, whole)
        if whole.dropout.p > 0:
            raise ShardingError(
                f"{whole.path_in_model}, a MultiheadAttention with dropout = {whole.dropout.p} of "
                "its weights, over a sequence that ranks share; wanted dropout = 0"
            )

    def forward(self, query, key, value, *given, **form):
        """Compute (y, None); the arguments are those of MultiheadAttention."""
        form |= dict(zip(_REST, given))
        _check(self.path_in_model, form)
        group, path = self.axis.group, self.path_in_model
        table = self.axis.table(query, path)
        key_table = table if key is query else self.axis.table(key, path)

        def attend(q, k, v, mask, is_causal, window):
            check_one_sequence(length_of(table), length_of(key_table), window)
            return cut_attention(q, k, v, group, table, key_table, causal=is_causal, window=window)

        return self.takes_place_of.forward(self, query, key, value, **form, attend=attend)


class CutSpectralConv(CutLayer):
    """SpectralConv of a grid of which ranks have even parts: x [batch, in, *grid] local."""

    _whole: SpectralConv

    def check_input(self, x):
        """Do nothing: whether the grid has room for the modes is seen on the whole of it."""

    def forward(self, x):
        axis, whole = self.axis, self._whole
        x = input_tensor(x, whole.weight.dtype)
        in_channels = whole.weight.global_shape[0]
        length = _checked_length(axis, x, self.path_in_model, in_channels, whole.modes)
        form = whole.modes, axis.group, axis.dim - GRID_DIM, length
        return cut_spectral_convolution(x, whole.weight, *form)


class CutLifting(CutLayer):
    """The first layer of an FNO: coordinates are those of the whole grid."""

    def check_input(self, x):
        """Do nothing: whether the grid has room for the modes is seen on the whole of it."""

    def forward(self, x):
        axis = self.axis
        x = input_tensor(x, self.map.weight.dtype)
        length = _checked_length(axis, x, self.path_in_model, self.in_channels, self.modes)
        start, _ = axis.own_span(length)
        return self.takes_place_of.forward(self, x, Slab(axis.dim - GRID_DIM, start, length))


def _checked_length(axis, x, path, in_channels, modes):
    """Return the length of the dim that is cut. Errors: ShapeError if the grid is too small."""
    length = length_of(axis.table(x, path))
    shape = list(x.shape)
    shape[axis.dim] = length
    check_grid(path, shape, in_channels, modes)
    return length


def _check(layer, form):
    """Raise ShardingError unless attention is all that is asked of a layer."""
    refused = {name: form.get(name) is not None for name in ("key_padding_mask", "attn_mask")}
    refused["need_weights"] = form.get("need_weights", True)
    names = [name for name, is_given in refused.items() if is_given]
    if names:
        raise ShardingError(
            f"{layer}, a MultiheadAttention with {', '.join(names)}, over a sequence that ranks "
            "share; wanted need_weights=False, and is_causal for a mask"
        )


def _refuse_texts(layer):
    """Raise ShardingError where a text is continued token by token."""
    if current_context().texts is not None:
        raise ShardingError(
            f"{layer} of a model whose sequences ranks share cannot continue texts; load its "
            "checkpoint into a model with domain = 1"
        )
