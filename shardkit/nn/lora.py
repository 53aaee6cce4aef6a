r"""LoRA: small matrices that are trained beside weights that keep their values.

    x -----> weight, frozen [out, in] --------> + --> y
      \--> lora_A [rank, in] --> lora_B [out, rank] --^  times alpha / rank

    model = sk.models.GPT(...)
    nn.apply_lora(model, "*.attention.query", "*.attention.value", rank=8, alpha=16)
    ...                                             train it under any policy
    nn.merge_lora(model)                            weight + alpha / rank lora_B lora_A: plain again

The parameters of a layer keep their names, so checkpoints of the plain model open with
load_model(path, only="model", strict=False). lora_B starts at zero: nothing changes at first.
Source: LoRA (arXiv 2106.09685); initial values and scale are those of the library PEFT.
"""

from fnmatch import fnmatchcase
from typing import Any

import numpy

from ..arguments import is_integer, is_number, nearest, require
from ..array import products
from ..array.backend import to_host
from ..errors import ConfigurationError
from .autograd import Tensor
from .buffer import Buffer
from .init import Fill, Uniform
from .layers.basic import DenseLayer, Linear, input_tensor
from .module import Module, Parameter, exchange, members_of
from .ops.elementwise import add, multiply
from .ops.linear import linear

_KINDS = (Linear, DenseLayer)


class LoRALinear(Module):
    """A linear layer with a trained update of low rank: x (weight + scale lora_B lora_A)^T + bias.

    Parameters
    ----------
    layer
        A Linear or DenseLayer, whose parameters and activation it takes over.
    rank, alpha
        Of the update, whose scale is alpha / rank.

    Attributes
    ----------
    lora_A
        [rank, in_features], initially uniform in +-1/sqrt(in_features).
    lora_B
        [out_features, rank], initially 0.
    scale
        Alpha / rank.

    Notes
    -----
    x [..., in_features] -> [..., out_features].
    """

    def __init__(self, layer: Linear, rank: int, alpha: float) -> None:
        self._layer = layer
        self.rank, self.alpha = rank, alpha
        out_features, in_features = layer.weight.shape
        self.lora_A = Parameter((rank, in_features), Uniform(in_features**-0.5), layer.weight.dtype)
        self.lora_B = Parameter((out_features, rank), Fill(0.0), layer.weight.dtype)

    def members(self) -> dict[str, Parameter | Buffer | Module]:
        own = {"lora_A": self.lora_A, "lora_B": self.lora_B}
        return {**members_of(self._layer), **own}

    @property
    def weight(self) -> Parameter:
        return self._layer.weight

    @property
    def bias(self) -> Parameter | None:
        return self._layer.bias

    @property
    def scale(self) -> float:
        return self.alpha / self.rank

    @property
    def activation(self) -> Any:
        """The op after the layer; None: none."""
        return self._layer.activation if isinstance(self._layer, DenseLayer) else None

    def check_input(self, x: Any) -> None:
        self._layer.check_input(x)

    def forward(self, x: Tensor, activation: Any = None) -> Tensor:
        """Apply the layer with its update, and then an op; None: that of the layer."""
        x = input_tensor(x, self.weight.dtype)
        update = low_rank_update(x, self.lora_A, self.lora_B, self.scale)
        y = add(linear(x, self.weight, self.bias), update)
        activation = activation or self.activation
        return y if activation is None else activation(y)

    def merged(self) -> Linear:
        """Return the plain layer, with the update added to its weight."""
        weight, first, second = map(
            to_host, (self.weight.array, self.lora_A.array, self.lora_B.array)
        )
        self.weight.array = updated_weight(weight, first, second, self.scale)
        return self._layer


def updated_weight(weight, lora_A, lora_B, scale: float):
    """Return weight + scale lora_B lora_A as a NumPy array, computed in float64, rounded once."""
    first, second = lora_A.astype("float64"), lora_B.astype("float64")
    return (weight + products.matmul(second, first) * scale).astype(weight.dtype)


def low_rank_update(x, lora_A, lora_B, scale: float):
    """Return what the two matrices add to the output for x [..., in]: [..., out]."""
    return multiply(linear(linear(x, lora_A), lora_B), scale)


def apply_lora(module: Module, *patterns: str, rank: int = 8, alpha: float = 16.0) -> list[str]:
    """Give linear layers an update of low rank, freeze all else, and return their names.

    Parameters
    ----------
    patterns
        Of dotted names of modules, with the wildcards *, ? and [...] of fnmatch; each linear layer
        that matches gets its own lora_A and lora_B.
    alpha
        The update counts alpha / rank.

    Raises
    ------
    ConfigurationError
        For a rank or alpha that is none, a pattern that matches no linear layer, a layer that has
        an update already, or whose weight another layer uses too.
    ShardingError
        If the model is sharded.

    Notes
    -----
    It works in place; if it raises, nothing has changed. Call it before the model is sharded; then
    requires_grad = True thaws what shall be trained too, such as norms.
    """
    require(is_integer(rank, at_least=1), "apply_lora with rank", rank, "an integer from 1 on")
    require(is_number(alpha, above=0), "apply_lora with alpha", alpha, "a number above 0")
    chosen = chosen_layers(module, patterns)
    trained = [p for layer in lora_layers(module).values() for p in (layer.lora_A, layer.lora_B)]
    for parameter in module.parameters():
        if not any(parameter is each for each in trained):
            parameter.requires_grad = False  # the first raises if the model is sharded
    replaced: dict[int, Module] = {}
    for path, layer in chosen.items():
        adapted = LoRALinear(layer, rank, alpha)
        adapted.path_in_model = layer.path_in_model
        for name in ("lora_A", "lora_B"):
            part = getattr(adapted, name)
            part.name = layer.weight.name and layer.weight.name.removesuffix("weight") + name
            part.seed = layer.weight.seed
        replaced[id(layer)] = adapted
    exchange(module, replaced)
    return list(chosen)


def merge_lora(module: Module) -> list[str]:
    """Add each update to its weight, put the plain layers back, and return their names.

    A sharded model has no weights in its module: take sk.load() of its checkpoint. What was frozen
    stays frozen.

    Raises
    ------
    ConfigurationError
        If no layer has an update.
    ShardingError
        If values live on other ranks.
    """
    adapted = lora_layers(module)
    if not adapted:
        raise ConfigurationError(
            f"merge_lora of a {type(module).__name__} without LoRA; call apply_lora first"
        )
    exchange(module, {id(layer): layer.merged() for layer in adapted.values()})
    return list(adapted)


def lora_layers(module: Module) -> dict[str, LoRALinear]:
    """Return {dotted name: layer} of the layers with an update."""
    found = module.named_modules()
    return {path: layer for path, layer in found.items() if isinstance(layer, LoRALinear)}


def update_names(module: Module) -> list[str]:
    """Return the names of the parameters of all updates."""
    return [f"{path}.{part}" for path in lora_layers(module) for part in ("lora_A", "lora_B")]


def chosen_layers(module: Module, patterns) -> dict[str, Linear]:
    """Return {path: linear layer} of what matches. Errors: those of apply_lora."""
    modules = module.named_modules()
    layers: dict[str, Any] = {
        path: layer for path, layer in modules.items() if path and type(layer) in _KINDS
    }
    adapted = lora_layers(module)
    if not patterns:
        raise ConfigurationError(f"apply_lora without a pattern; {_some_of(layers)}")
    for pattern in patterns:
        for path in adapted:
            if fnmatchcase(path, pattern):
                raise ConfigurationError(
                    f"apply_lora: {path} has an update already; merge_lora adds it to the weight"
                )
        if not any(fnmatchcase(path, pattern) for path in layers):
            raise ConfigurationError(
                f"apply_lora: {pattern!r} matches no linear layer of this "
                f"{type(module).__name__}; {_some_of(layers, pattern)}"
            )
    chosen = {
        path: layer
        for path, layer in layers.items()
        if any(fnmatchcase(path, pattern) for pattern in patterns)
    }
    uses = _uses_of_parameters(modules)
    for path, layer in chosen.items():
        if uses[id(layer.weight)] > 1:
            raise ConfigurationError(
                f"apply_lora: the weight of {path} is tied to another layer, which would not have "
                "the update; leave it out"
            )
    return chosen


def _some_of(layers, pattern: str | None = None) -> str:
    near = pattern and nearest(pattern, list(layers))
    if near:
        return f"did you mean {near}?"
    return f"its linear layers are {', '.join(list(layers)[:4]) or 'none'}, ..."


def _uses_of_parameters(modules) -> dict[int, int]:
    """Return {id of a parameter: how many modules hold it}."""
    ids = [
        id(member)
        for module in modules.values()
        for member in members_of(module).values()
        if isinstance(member, Parameter)
    ]
    return {each: int(count) for each, count in zip(*numpy.unique(ids, return_counts=True))}
