"""Paths of tensors in a checkpoint: what group a tensor is of.

model/NAME    optimizer/STATE/NAME    optimizer/average/NAME    buffers/NAME
"""

from ..errors import CheckpointError
from ..optim.average import AVERAGE

MODEL, OPTIMIZER, BUFFERS = "model/", "optimizer/", "buffers/"


def check_averaged(where, stored) -> None:
    """Raise CheckpointError unless averages of the weights are stored. stored: paths."""
    if AVERAGE not in state_names(stored):
        raise CheckpointError(
            f"{where} holds no averaged weights; sk.EMA(rule) and optimizer.ema_decay keep them"
        )


def averaged_path(tensor: str, frozen=()) -> str:
    """Return where the average of a parameter is stored; other tensors have none, and their own.

    frozen   names of parameters that are their own averages, since they keep their values
    """
    name = tensor.removeprefix(MODEL)
    if not tensor.startswith(MODEL) or name in frozen:
        return tensor
    return f"{OPTIMIZER}{AVERAGE}/{name}"


def is_aged(names: list[str]) -> bool:
    """Return True if any state of these names has an age: all but averages of the weights."""
    return any(name != AVERAGE for name in names)


def model_shapes(shapes: dict) -> dict:
    """Return the shapes of the parameters."""
    return {tensor: shape for tensor, shape in shapes.items() if tensor.startswith(MODEL)}


def state_names(tensors) -> list[str]:
    """Return the names of optimizer state among these paths, in their order."""
    names = (state_of(tensor) for tensor in tensors)
    return list(dict.fromkeys(name for name in names if name is not None))


def state_of(tensor: str) -> str | None:
    """Return first_moment for optimizer/first_moment/NAME, None for a parameter."""
    return tensor.split("/", 2)[1] if tensor.startswith(OPTIMIZER) else None


def without_state(shapes: dict, names: set[str]) -> dict:
    return {tensor: shape for tensor, shape in shapes.items() if state_of(tensor) not in names}


def parameter_of(tensor: str) -> str:
    """Return model/NAME for optimizer/first_moment/NAME."""
    return MODEL + tensor.split("/", 2)[2]


def without_unused_state(stored: dict, shapes: dict) -> dict:
    """Return what is stored without state that a model of these shapes does not keep of its
    parameters: they are frozen, or have another rule.
    """
    return {
        tensor: shape
        for tensor, shape in stored.items()
        if state_of(tensor) is None or tensor in shapes or parameter_of(tensor) not in shapes
    }


def without_buffers(shapes: dict) -> dict:
    return {name: shape for name, shape in shapes.items() if not name.startswith(BUFFERS)}
