"""Names of PyTorch that a Module answers to, though they are no methods of it: attributes of these
names stay free for a model's own.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from ..errors import ConfigurationError
from ..habits import raise_own_error, refuse
from .buffer import Buffer
from .context import current_context
from .freezing import set_trained


def _train(module: Any, mode: bool = True) -> Any:
    """Return the module for mode=False, which it is always in; True is refused."""
    if mode:
        raise ConfigurationError(
            f"train() of a {type(module).__name__}: a module has no mode; train(x, y) of a sharded "
            "model trains, and by hand a forward pass in training is one inside `with "
            "nn.forward_context(nn.ForwardContext(training=True, step=step)):`"
        )
    return module


def _apply(module, function):
    for each in reversed(module.named_modules().values()):  # what is inside comes first
        function(each)
    return module


def _zero_grad(module, set_to_none: bool = True) -> None:
    for parameter in module.parameters():
        parameter.grad = None


def _requires_grad(module, requires_grad: bool = True):
    set_trained(module.parameters(), requires_grad)
    return module


def _register_buffer(module, name: str, value: Any, persistent: bool = True) -> None:
    """Keep an array as a Buffer; persistent=False: as an array, in no checkpoint."""
    if persistent and value is not None:
        value = Buffer(value)
    setattr(module, name, value)


METHODS: dict[str, Callable[..., Any]] = {
    "eval": lambda module: module,
    "train": _train,
    "modules": lambda module: list(module.named_modules().values()),
    "buffers": lambda module: list(module.named_buffers().values()),
    "get_submodule": lambda module, path: module.named_modules()[path],
    "get_parameter": lambda module, path: module.named_parameters()[path],
    "apply": _apply,
    "zero_grad": _zero_grad,
    "requires_grad_": _requires_grad,
    "register_buffer": _register_buffer,
    "register_parameter": setattr,
    "register_module": setattr,
    "add_module": setattr,
}


def habit_of(module: Any, name: str, children: Callable[[Any], dict]) -> Any:
    """Return what PyTorch's name of a module's attribute means. Errors: AttributeError."""
    raise_own_error(module, name)
    if name == "training":
        return current_context().training
    if name == "named_children":
        return partial(children, module)
    if name == "children":
        return lambda: list(children(module).values())
    if name in METHODS:
        return partial(METHODS[name], module)
    refuse("Module", module, name)
