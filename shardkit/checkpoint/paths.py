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


def of_model(tensors: dict) -> dict:
    """Return the entries of the parameters."""
    return {tensor: entry for tensor, entry in tensors.items() if tensor.startswith(MODEL)}


def state_names(tensors) -> list[str]:
    """Return the names of optimizer state among these paths, in their order."""
    names = (state_of(tensor) for tensor in tensors)
    return list(dict.fromkeys(name for name in names if name is not None))


def state_of(tensor: str) -> str | None:
    """Return first_moment for optimizer/first_moment/NAME, None for a parameter."""
    return tensor.split("/", 2)[1] if tensor.startswith(OPTIMIZER) else None


def parameter_of(tensor: str) -> str:
    """Return model/NAME for optimizer/first_moment/NAME."""
    return MODEL + tensor.split("/", 2)[2]
