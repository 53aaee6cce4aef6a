"""Which layers work on parts of samples, and how: the table, and its use on an ordinary model.

    Sequential( Conv2d           GELU          Conv2d            Flatten          Linear )
                CutConvolution   as it is      CutConvolution    JoinedParts      as it is
                parts ----------------------------------------> whole ----------> whole

From the first block on each rank has its part of x, until a layer joins the parts. What comes after
is whole, and the same on all ranks that share the sample: one of them counts its loss.

A layer is an entry of LAYERS. A module that calls layers is walked through if it is a chain (a
Sequential, or one that says blocks()), or if its class is partwise: between its layers it does
nothing along the dim that is cut. Any other is refused, and so are layers of tokens, spectra and
patches where several dims of a grid are cut.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ...comm.backend import CommunicationBackend
from ...errors import ShardingError
from ...nn.features import InputFeatures
from ...nn.layers import (
    activation,
    attention,
    basic,
    convolution,
    functions,
    normalization,
    pooling,
    recurrent,
    resampling,
    spectral,
)
from ...nn.layers.basic import Sequential
from ...nn.layers.embedding import EmbeddingBag
from ...nn.lora import LoRALinear
from ...nn.models.gpt import TokenEmbedding
from ...nn.models.lstm import LSTMHead
from ...nn.models.message_passing import Decoder, Encoder, OwnGraph, Step
from ...nn.models.resnet import GridMean, ResNetHead
from ...nn.models.vit import PatchEmbedding, ViTHead
from ...nn.module import Module, ModuleList, blocks_of, exchange, members_of
from ...nn.on_parts import is_partwise
from ...nn.transformer import SelfAttention
from ..tensor.layers import (
    ColumnParallelLinear,
    ColumnParallelRMSNorm,
    Region,
    RowParallelLinear,
)
from ..tensor.lora import ColumnParallelLoRALinear, RowParallelLoRALinear
from ..tensor.sequence import SlicedDropout
from ..tensor.vocabulary import VocabularyParallelEmbedding, VocabularyParallelLinear
from . import graphs, moments, others, patches, sequences, windows
from . import recurrent as in_turn
from .axis import GRID_DIM, CutLayer, DomainAxis
from .slab_group import SlabGroup

Build = Callable[[DomainAxis, Any], CutLayer | None]


@dataclass(frozen=True)
class OnParts:
    """How a layer works on parts.

    build    (axis, layer) -> what takes its place; None: the layer itself
    dim      of x that must be the one that is cut; None: any
    is_last  it computes along the last dim of x, which must not be the one that is cut
    needs    why only one dim of a grid can be cut; "": several can
    """

    build: Build
    dim: int | None = None
    is_last: bool = False
    needs: str = ""


def as_it_is(axis: DomainAxis, layer: Module) -> None:
    """Leave a layer in its place: it computes each row by itself."""


def _flatten(axis, layer) -> CutLayer | None:
    is_behind = layer.start_dim > axis.axes[-1].dim
    return None if is_behind else others.JoinedParts(axis, layer)


def _lstm_head(axis, layer) -> CutLayer | None:
    return in_turn.CutLSTMHead(axis, layer) if layer.readout == "last" else None


def _on_own_nodes(axis, layer) -> CutLayer:
    if isinstance(axis.group, SlabGroup):
        raise ShardingError(
            f"{layer.path_in_model} of a MessagePassing cannot be cut into slabs: the nodes that "
            "it reads are those of a rank; wanted domain_slabs = None"
        )
    if not isinstance(layer.graph, OwnGraph):
        raise ShardingError(
            f"{layer.path_in_model} of a MessagePassing whose samples bring their edges cannot be "
            "cut over domain ranks; wanted senders and receivers of the model's own"
        )
    return graphs.CutBlock(axis, layer)


def _shares(kept, joined):
    """Return a builder for adaptive pools: those with fewer shares than ranks join the parts."""

    def build(axis, layer) -> CutLayer:
        size, ranks = layer.output_size, [each.group.world_size for each in axis.axes]
        sizes = size if isinstance(size, (tuple, list)) else [size] * len(ranks)
        counts = [n if count is None else count for count, n in zip(sizes, ranks)]
        if all([count >= n for count, n in zip(counts, ranks)]):
            return kept(axis, layer)
        if joined is windows.JoinedMaxima and max(counts) > 1:
            wanted = "1, or as many as ranks or more, along each"
            raise ShardingError(
                f"{type(layer).__name__} {layer.path_in_model} with {_by(counts)} shares of what "
                f"{_by(ranks)} domain ranks share; wanted {wanted}"
            )
        return joined(axis, layer)

    return build


POINTWISE = (
    *(activation.ReLU, activation.GELU, activation.SiLU, activation.Mish, activation.Tanh),
    *(activation.Sigmoid, activation.Softplus, activation.ELU, activation.LeakyReLU),
    *(activation.Hardtanh, activation.Identity, basic.Embedding, spectral.ChannelLinear),
    *(functions.SELU, functions.CELU, functions.ReLU6, functions.Hardswish, functions.Hardsigmoid),
    *(functions.LogSigmoid, functions.Softsign, functions.Tanhshrink, functions.Hardshrink),
    *(functions.Softshrink, functions.Threshold),
)
ALONG_LAST = (
    *(InputFeatures, LoRALinear, basic.Linear, basic.DenseLayer),
    *(basic.LayerNorm, basic.RMSNorm),
)
ON_TENSOR_RANKS = (  # in copies of a model that was cut along both axes
    *(ColumnParallelLinear, RowParallelLinear, ColumnParallelRMSNorm, SlicedDropout),
    *(ColumnParallelLoRALinear, RowParallelLoRALinear),
    *(VocabularyParallelEmbedding, VocabularyParallelLinear),
)
_OF_MODES = "its modes are sums over ranks along one dim"
_OF_PATCHES = "its tokens are numbered along whole rows of patches"
LAYERS: dict[type[Module], OnParts] = {
    **dict.fromkeys(POINTWISE, OnParts(as_it_is)),
    **dict.fromkeys(ALONG_LAST, OnParts(as_it_is, is_last=True)),
    **dict.fromkeys(ON_TENSOR_RANKS, OnParts(as_it_is)),
    **dict.fromkeys((activation.Softmax, activation.LogSoftmax), OnParts(others.AlongAnother)),
    basic.Dropout: OnParts(others.CutDropout),
    TokenEmbedding: OnParts(sequences.CutTokenEmbedding, 1),
    SelfAttention: OnParts(sequences.CutSelfAttention, 1),
    attention.MultiheadAttention: OnParts(sequences.CutMultiheadAttention, 1),
    recurrent.Recurrent: OnParts(in_turn.CutRecurrent, 1),
    LSTMHead: OnParts(_lstm_head, 1),
    **dict.fromkeys((Encoder, Step, Decoder), OnParts(_on_own_nodes, 1)),
    spectral.SpectralConv: OnParts(sequences.CutSpectralConv, GRID_DIM, needs=_OF_MODES),
    spectral.Lifting: OnParts(sequences.CutLifting, GRID_DIM, needs=_OF_MODES),
    convolution.ConvNd: OnParts(windows.CutConvolution, GRID_DIM),
    convolution.ConvTransposeNd: OnParts(windows.CutTransposedConvolution, GRID_DIM),
    pooling.MaxPoolNd: OnParts(windows.CutMaximum, GRID_DIM),
    pooling.AvgPoolNd: OnParts(windows.CutSum, GRID_DIM),
    pooling.AdaptiveAvgPool1d: OnParts(_shares(windows.CutSum, windows.JoinedMeans), GRID_DIM),
    pooling.AdaptiveAvgPool2d: OnParts(_shares(windows.CutSum, windows.JoinedMeans), GRID_DIM),
    pooling.AdaptiveAvgPool3d: OnParts(_shares(windows.CutSum, windows.JoinedMeans), GRID_DIM),
    pooling.AdaptiveMaxPool1d: OnParts(_shares(windows.CutMaximum, windows.JoinedMaxima), GRID_DIM),
    pooling.AdaptiveMaxPool2d: OnParts(_shares(windows.CutMaximum, windows.JoinedMaxima), GRID_DIM),
    pooling.AdaptiveMaxPool3d: OnParts(_shares(windows.CutMaximum, windows.JoinedMaxima), GRID_DIM),
    resampling.Upsample: OnParts(windows.CutSum, GRID_DIM),
    normalization.GroupNorm: OnParts(moments.CutGroupNorm, GRID_DIM),
    normalization.TrackedNorm: OnParts(moments.CutTrackedNorm, GRID_DIM),
    PatchEmbedding: OnParts(patches.CutPatchEmbedding, GRID_DIM, needs=_OF_PATCHES),
    ViTHead: OnParts(patches.CutViTHead, 1),
    GridMean: OnParts(windows.JoinedGridMean, GRID_DIM),
    activation.Flatten: OnParts(_flatten),
}
CHAINS = (
    Sequential,
    ResNetHead,
    Region,
)  # their forwards call their members in the order of assignment

# {class: why it cannot be cut}
REASONS: dict[type[Module], str] = {
    EmbeddingBag: "a bag may have its ids in several parts",
}
_UNKNOWN = "what its forward() does along the dim that is cut is not known"


def cut_layers(
    model: Module,
    group: CommunicationBackend | SlabGroup,
    *,
    follows: bool = True,
    lines: tuple[CommunicationBackend, ...] = (),
) -> tuple[DomainAxis, DomainAxis, bool]:
    """Replace the layers of a model that need to know of a cut, in place; return the axes of x and
    of what the model returns, and whether that is whole.

    group     the ranks that share samples, or their slabs
    follows   all layers run on each of them, so that lengths that no layer made are found
    lines     for each dim of a grid that is cut, if several are, ranks that differ along it alone
    A copy of a model that was cut has its axis: its layers note on it what they make.
    Nothing has changed if it raises. No communication.
    Errors: ShardingError, with the path of the layer and what to do, if one cannot be cut.
    """
    cut = [layer for layer in model.named_modules().values() if isinstance(layer, CutLayer)]
    for dim in (_cut_dim(model), 1):
        axis = cut[0].axis if cut else _axis_of(model, group, dim, lines, follows)
        walk = _Walk(axis, model)
        leaves_parts = walk.through("", model, True)
        if walk.says_dim or cut:
            break
    walk.check(model)
    exchange(model, {**walk.replaced})
    return axis, walk.axis, not leaves_parts


def _axis_of(model, group, dim, lines, follows) -> DomainAxis:
    """Return the axis of x. Errors: ShardingError for a grid of ranks where x is no grid."""
    if len(lines) < 2:
        return DomainAxis(group, dim, follows=follows)
    if dim != GRID_DIM:
        path, layer, _ = next(_saying_dim(model), ("", model, 1))
        raise ShardingError(
            f"{_ranks_of(lines)} domain ranks cut samples along {len(lines)} dims of a grid, but "
            f"{_named(path, layer)} is of a model whose samples are cut along dim 1 alone, their "
            f"tokens or nodes; wanted domain_grid = None, or ({group.world_size},)"
        )
    return DomainAxis.of_grid(group, lines, follows=follows)


def _ranks_of(lines) -> str:
    return _by([line.world_size for line in lines])


def _by(numbers) -> str:
    return " x ".join(map(str, numbers))


def _cut_dim(model: Module) -> int:
    """Return the dim of x along which ranks share samples: as its layers say, of which some may
    get whole samples.
    """
    return next(_saying_dim(model), ("", model, 1))[2]


def _saying_dim(model: Module) -> Iterator[tuple[str, Module, int]]:
    """Yield (path, layer, dim) of layers that want one dim to be cut."""
    for path, layer in model.named_modules().items():
        entry = _entry_of(layer)
        if entry is not None and entry.dim is not None:
            yield path, layer, entry.dim


def _entry_of(module: Module) -> OnParts | None:
    """Return how a layer works on parts: by the class that its forward() is of."""
    if "forward" in vars(module):  # one that was put in its place
        return None
    for kind in type(module).__mro__:
        if kind in LAYERS:
            return LAYERS[kind]
        if "forward" in vars(kind):
            return None
    return None


class _Walk:
    """The way of x through the layers of a model.

    axis       of x where the walk is: some layers cut another dim of what they make
    replaced   {id of a layer: what takes its place}
    says_dim   whether a layer that gets parts wants one dim to be cut
    """

    def __init__(self, axis: DomainAxis, model: Module):
        self.axis = self._first = axis
        self._model = model
        self.replaced: dict[int, CutLayer] = {}
        self.says_dim = False
        self._whole: dict[int, str] = {}  # id of a layer that gets whole samples -> its path

    def through(self, path: str, module: Module, is_cut: bool) -> bool:
        """Return whether what leaves the module is cut, if what enters it is."""
        if not is_cut:
            for below, each in module.named_modules().items():
                self._whole[id(each)] = f"{path}.{below}".rstrip(".")
            return False
        dim = self.axis.dim
        leaves_parts = self._through_module(path, module)
        self._first.passed[path] = dim, self.axis.dim if leaves_parts else None
        return leaves_parts

    def _through_module(self, path: str, module: Module) -> bool:
        is_cut = True
        if isinstance(module, CutLayer):  # of a copy of a model that was cut
            self.axis = module.behind
            return module.leaves_parts
        entry = _entry_of(module)
        if getattr(module, "batch_first", True) is False and (entry or is_partwise(module)):
            raise ShardingError(
                f"{_named(path, module)} whose samples lie along dim 1 cannot be cut over domain "
                "ranks; make it with batch_first=True"
            )
        if entry is not None:
            return self._through_layer(path, module, entry)
        if (chain := _chain_of(module)) is not None:
            for name, each in chain:
                is_cut = self.through(_below(path, name), each, is_cut)
            return is_cut
        if type(module) is not ModuleList and not is_partwise(module):
            raise ShardingError(self._refusal(path, module))
        for name, each in _modules_in(module):
            if not self.through(_below(path, name), each, True):
                raise ShardingError(
                    f"{_named(path, module)} joins the parts of samples in its layer {name}, but "
                    "is no chain of layers, so what follows on it is not known; make it a "
                    "Sequential, or its own blocks()"
                )
        return True

    def _refusal(self, path, module) -> str:
        """Return why a module is refused; first comes what is in the model and known why not."""
        for below, layer in self._model.named_modules().items():
            for kind in type(layer).__mro__:
                if kind in REASONS and _entry_of(layer) is None:
                    return (
                        f"{_named(below, layer)} cannot be cut over domain ranks: {REASONS[kind]}; "
                        "use layers of docs/parallel/domain.md, or leave domain at 1"
                    )
        return (
            f"{_named(path, module)} cannot be cut over domain ranks: {_UNKNOWN}; make it a "
            "Sequential of layers, decorate its class with nn.partwise if it does nothing along "
            "that dim but by its layers, or leave domain at 1"
        )

    def _through_layer(self, path, layer, entry) -> bool:
        if entry.dim not in (None, self.axis.dim):
            raise ShardingError(
                f"{_named(path, layer)} can share its x along dim {entry.dim}, but this model's "
                f"samples are cut along dim {self.axis.dim}, as its first layers say"
            )
        self._check_dims(path, layer, entry)
        self.says_dim |= entry.dim is not None
        if entry.is_last:
            self.axis.note_last(_named(path, layer))
        if id(layer) not in self.replaced:
            cut = entry.build(self.axis, layer)
            if cut is None:
                return True
            self.replaced[id(layer)] = cut
        self.axis = self.replaced[id(layer)].behind
        return self.replaced[id(layer)].leaves_parts

    def _check_dims(self, path, layer, entry) -> None:
        """Raise ShardingError unless a layer works where so many dims are cut."""
        ranks = [axis.group.world_size for axis in self.axis.axes]
        num_cut = len(ranks)
        num_dims = getattr(layer, "num_dims", max(getattr(layer, "num_grid_dims", (num_cut,))))
        if num_cut == 1 or not entry.needs and num_dims >= num_cut:
            return
        why = entry.needs or f"its grids have {num_dims} dims"
        raise ShardingError(
            f"{_named(path, layer)} cannot be cut along {num_cut} dims of a grid, by {_by(ranks)} "
            f"domain ranks: {why}; wanted domain_grid = None, which cuts one"
        )

    def check(self, model: Module) -> None:
        """Raise ShardingError if a layer gets parts here and whole samples there."""
        if id(model) in self.replaced:
            raise ShardingError(
                f"a {type(model).__name__} alone cannot be cut; put it into a Sequential"
            )
        for key in self.replaced.keys() & self._whole.keys():
            raise ShardingError(
                f"{self._whole[key]} gets parts of samples in one place and whole ones in another; "
                "use two layers"
            )


def _chain_of(module: Module):
    """Return (name, module) of what runs one after the other; None if it is no chain."""
    kind = type(module)
    if kind.forward is Module.forward and kind.blocks is not Module.blocks:
        return blocks_of(module)
    return (
        _modules_in(module)
        if any(type(module).forward is kind.forward for kind in CHAINS)
        else None
    )


def _modules_in(module: Module) -> list[tuple[str, Module]]:
    members = members_of(module).items()
    return [(name, member) for name, member in members if isinstance(member, Module)]


def _named(path, module) -> str:
    return f"{path or 'the model'}, a {type(module).__name__},"


def _below(path, name) -> str:
    return f"{path}.{name}" if path else name
