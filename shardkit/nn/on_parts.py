"""Classes of modules that work on parts of samples as on whole ones: each enters itself.

    @nn.partwise
    class Residual(nn.Module):
        def forward(self, x):
            return x + nn.ops.relu(self.conv(x))       between layers nothing crosses rows of a grid

A mesh may cut each sample along one dim: the first of a grid, or the tokens of a text. Layers fetch
what they read of other parts; a forward() of one's own that does nothing along that dim but by its
layers may run on parts as it is. It must not add, average or reorder rows, reshape that dim, or
read how long it is.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from .module import Module

_Entered = TypeVar("_Entered", bound=Callable[..., Any])
_entered: set[Callable[..., Any]] = set()


def partwise(kind: _Entered) -> _Entered:
    """Return the class, whose forward() works on parts of samples from now on: a decorator.

    Parameters
    ----------
    kind
        A class of modules, with a forward() of its own or an inherited one; or a method that takes
        predictions, such as Task.outputs.
    """
    _entered.add(kind)
    return kind


def takes_parts(function: Callable[..., Any]) -> bool:
    """Return whether a function of predictions entered itself."""
    return function in _entered


def is_partwise(module: Module) -> bool:
    """Return whether the forward() of a module is that of a class that entered itself."""
    forward = vars(module).get("forward", type(module).forward)
    modules = [each for each in type(module).__mro__ if issubclass(each, Module)]
    return any(each in _entered and each.forward is forward for each in modules)
