"""Any module to a safetensors file and back, by the names of its parameters and buffers.

    sk.save_safetensors(model, "net.safetensors")       {"encoder.weight": F32 [16, 4], ...}
    sk.load_safetensors(module, "net.safetensors")      also a file that PyTorch wrote

A parameter that two modules share is written once, under its first name. A file may have it under
each of its names, as PyTorch's state dicts do: then all must be equal.
"""

from pathlib import Path
from typing import Any

import numpy

from ...annotations import FilePath
from ...errors import CheckpointError
from ...files.paths import usable_path
from ...nn.module import Module, first_names_of
from .safetensors import INTEGER_TYPES, NUMPY_TYPES, read_header, write_tensors

_KNOWN = {"i": INTEGER_TYPES, "b": {"BOOL": "?"}}  # types in a file for a kind of dtype


def save_safetensors(model: Module, path: FilePath) -> None:
    """Write state_dict() of a module to a file, which replaces another of this name when whole.

    A sharded model has no weights in its module: take sk.load() of its checkpoint or image.

    Parameters
    ----------
    model
        A module whose values are on this process.
    path
        The file to write.

    Raises
    ------
    TypeError
        If it is no Module.
    OSError
    ShardingError
        If values live on other ranks.
    """
    if not isinstance(model, Module):
        raise TypeError(f"save_safetensors wants an nn.Module; got {type(model).__name__}")
    state = model.state_dict()
    path = Path(usable_path(path))
    shapes = {name: array.shape for name, array in state.items()}
    dtypes = {name: str(array.dtype) for name, array in state.items()}
    write_tensors(path, shapes, dtypes, state.values())


def load_safetensors(
    module: Module, path: FilePath, *, strict: bool = True
) -> dict[str, list[str]]:
    """Copy the tensors of a file into a module's parameters and buffers, by name.

    Parameters
    ----------
    module
        Not sharded yet.
    path
        The file to read.
    strict
        False: names that only one side has are left alone.

    Returns
    -------
    dict[str, list[str]]
        {"missing_names": in the module and not in the file, "unexpected_names": the reverse}.

    Raises
    ------
    FileNotFoundError
    CheckpointError
        On a damaged file, on names if strict or if none is shared, on a tensor of another kind of
        numbers.
    ConfigurationError
        On a number that the dtype of the parameter does not hold.
    ShapeError

    Notes
    -----
    Numbers are converted to the dtype of the parameter: bfloat16 and float16 exactly, float64 with
    rounding. Nothing changes if anything is wrong.
    """
    stored = read_header(Path(usable_path(path)))
    kept = {**module.named_parameters(), **module.named_buffers()}
    first_names = first_names_of(module)
    state: dict[str, Any] = {}
    for other_name, tensor in stored.items():
        name = first_names.get(other_name)
        if name is None:
            state[other_name] = numpy.empty(0)  # load_state_dict says so, if strict
            continue
        known = _KNOWN.get(kept[name].dtype.kind, NUMPY_TYPES)
        if tensor.dtype not in known:
            raise CheckpointError(
                f"{path}: {name} is of type {tensor.dtype}, but that of the module is "
                f"{kept[name].dtype}; wanted one of {', '.join(known)}"
            )
        state[other_name] = tensor.read(None if known is NUMPY_TYPES else known[tensor.dtype])
    return module.load_state_dict(state, strict=strict)
