"""The registry of styles: the ways in which a tensor plan cuts a module over the ranks of an axis.
A style enters it with a decorator on the function that builds the layer.

    @style("row", takes=LINEAR, dim=1, cuts=("weight",), counted="input features")
    def _row(axis, module, parts, enters): ...
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...nn.layers.basic import DenseLayer, Dropout, Embedding, Linear, RMSNorm
from ...nn.lora import LoRALinear
from ...nn.module import Module
from .dropouts import DROPOUTS
from .layers import ColumnParallelLinear, ColumnParallelRMSNorm, Region, RowParallelLinear
from .lora import ColumnParallelLoRALinear, RowParallelLoRALinear
from .sequence import SlicedDropout
from .vocabulary import VocabularyParallelEmbedding, VocabularyParallelLinear

LINEAR = (Linear, DenseLayer)


@dataclass(frozen=True, slots=True)
class TensorStyle:
    """How a plan cuts a module.

    build       (axis, module, {id of a parameter: this rank's part}, does x enter here?) -> the
                layer that takes the module's place
    takes       the classes of modules that it cuts; none: it cuts no parameter, and any module
                becomes a region that x enters once
    dim         of the weight that is cut
    cuts        names of the parameters that are cut
    counted     what the weight is cut between
    leaves_cut  classes of modules whose outputs stay cut, for a loss that takes such
    is_uneven   the ranks need not divide what is counted: the first ones get one more
    terms       names of the parameters that are whole, but used for this rank's part only: their
                gradients are terms of a sum
    """

    build: Callable[..., Module]
    takes: Sequence[type] = ()
    dim: int = 0
    cuts: tuple[str, ...] = ()
    counted: str = ""
    leaves_cut: tuple[type, ...] = ()
    is_uneven: bool = False
    terms: tuple[str, ...] = ()

    @property
    def is_region(self) -> bool:
        return not self.takes


STYLES: dict[str, TensorStyle] = {}


def style(name: str, **particulars) -> Callable[[Callable], Callable]:
    """Enter the decorated builder as the style of this name; the rest are fields of TensorStyle."""

    def enter(build: Callable[..., Module]) -> Callable[..., Module]:
        assert name not in STYLES, f"two styles are named {name}"
        STYLES[name] = TensorStyle(build, **particulars)
        return build

    return enter


@style(
    "column",
    takes=(*LINEAR, LoRALinear),
    cuts=("weight", "bias", "lora_B"),
    terms=("lora_A",),
    counted="output features",
)
def _column(axis, module, parts, enters, kind=ColumnParallelLinear) -> Module:
    weight, bias = parts[id(module.weight)], parts.get(id(module.bias))
    choices = {"enters": enters, "activation": _activation_of(module)}
    if isinstance(module, LoRALinear):
        update = module.lora_A, parts[id(module.lora_B)], module.scale
        return ColumnParallelLoRALinear(axis, weight, bias, *update, **choices)
    return kind(axis, weight, bias, **choices)


@style(
    "row",
    takes=(*LINEAR, LoRALinear),
    dim=1,
    cuts=("weight", "lora_A"),
    terms=("lora_B",),
    counted="input features",
)
def _row(axis, module, parts, enters) -> Module:
    weight, activation = parts[id(module.weight)], _activation_of(module)
    if isinstance(module, LoRALinear):
        update = parts[id(module.lora_A)], module.lora_B, module.scale
        return RowParallelLoRALinear(axis, weight, module.bias, *update, activation=activation)
    return RowParallelLinear(axis, weight, module.bias, activation=activation)


def _activation_of(module):
    return module.activation if isinstance(module, (DenseLayer, LoRALinear)) else None


@style(
    "vocabulary",
    takes=(*LINEAR, Embedding),
    cuts=("weight", "bias"),
    counted="vocabulary rows",
    leaves_cut=LINEAR,
    is_uneven=True,
)
def _vocabulary(axis, module, parts, enters) -> Module:
    if isinstance(module, Embedding):
        return VocabularyParallelEmbedding(axis, parts[id(module.weight)])
    return _column(axis, module, parts, enters, VocabularyParallelLinear)


@style("column_norm", takes=(RMSNorm,), cuts=("weight",), counted="features")
def _column_norm(axis, module, parts, enters) -> Module:
    return ColumnParallelRMSNorm(axis, parts[id(module.weight)], module.eps)


@style("head_norm", takes=(RMSNorm,), terms=("weight",))
def _head_norm(axis, module, parts, enters) -> Module:
    return module


@style("column_dropout", takes=DROPOUTS)
def _column_dropout(axis, module, parts, enters) -> Module:
    return SlicedDropout(axis, module, dim=-1)


@style("head_dropout", takes=(Dropout,))
def _head_dropout(axis, module, parts, enters) -> Module:
    return SlicedDropout(axis, module, dim=1)


@style("whole_dropout", takes=DROPOUTS)
def _whole_dropout(axis, module, parts, enters) -> Module:
    return module


@style("region")
def _region(axis, module, parts, enters) -> Module:
    return Region(axis, module)
