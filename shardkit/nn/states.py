"""What a state dict holds: names beside those of a module, and values as arrays.

{"module.fc.weight": tensor}        of a wrapper of PyTorch: all names begin alike
{"model": {"fc.weight": ...}}       a checkpoint of a script, with the state inside
"""

from collections.abc import Collection, Mapping
from typing import Any

import numpy

from ..array.backend import is_device_array, plain_array, to_host
from ..errors import CheckpointError, ShapeError
from .autograd import array_of


def given_state(state: Any) -> Mapping[str, Any]:
    """Return what load_state_dict was given. Errors: TypeError if it is no dict."""
    if isinstance(state, Mapping):
        return state
    advice = (
        "its state_dict()" if hasattr(state, "state_dict") else "what torch.load() returns, say"
    )
    raise TypeError(
        f"load_state_dict wants {{name: array}}; got {type(state).__name__}: pass {advice}"
    )


def check_names(model_name: str, kept: Mapping, state: Mapping, *, strict: bool) -> None:
    """Raise CheckpointError unless both name the same things, or, if not strict, some the same.

    kept   {name: parameter or buffer}
    """
    missing = [name for name in kept if name not in state]
    unknown = [name for name in state if name not in kept]
    num_shared = len(kept) - len(missing)
    is_right = num_shared or not (kept and state) if not strict else not (missing or unknown)
    if is_right:
        return
    hint = _hint(kept, state, unknown)
    if not hint and num_shared:
        hint = f"; strict=False loads the {num_shared} they share"
    raise CheckpointError(
        f"the state does not fit {model_name}: {len(missing)} names missing {_some(missing)}, "
        f"{len(unknown)} unknown {_some(unknown)}{hint}"
    )


def _hint(kept: Collection, state: Mapping, unknown: list) -> str:
    """Return what to do where the names are there, but somewhere else."""
    for key in unknown:
        inside = state[key]
        if isinstance(inside, Mapping) and any(name in inside for name in kept):
            return f"; they are in {key!r} of it: pass state[{key!r}]"
    before = _prefix(state, kept)
    if before:
        return (
            f"; they are there behind {before!r}, which wrappers put before all names "
            f"(DataParallel, torch.compile): take it off, name.removeprefix({before!r})"
        )
    before = _prefix(kept, state)
    return f"; they are there without {before!r}: put it before each name" if before else ""


def _prefix(longer: Collection, shorter: Collection) -> str:
    """Return what stands before each of the shorter names among the longer ones; "" if nothing."""
    first = next(iter(shorter), "")
    ends = [name for name in longer if isinstance(name, str) and name.endswith(f".{first}")]
    befores = [name.removesuffix(str(first)) for name in ends]
    return next(
        (each for each in befores if all(f"{each}{name}" in longer for name in shorter)), ""
    )


def _some(names: list) -> str:
    """Return the first three names, as text."""
    shown = f"{', '.join(map(str, names[:3]))}{', ...' if len(names) > 3 else ''}"
    return f"({shown})" if names else ""


def array_in_state(name: str, values: Any) -> Any:
    """Return what a state holds as an array: of parameters of PyTorch their values, whose bfloat16
    NumPy cannot read, as float32.

    Errors: ShapeError on what is no array, such as a sparse or quantized tensor.
    """
    values = array_of(values)
    if is_device_array(values):
        return values
    return _array_of_torch(name, values) if hasattr(values, "detach") else plain_array(values, name)


def _array_of_torch(name: str, tensor: Any) -> numpy.ndarray:
    tensor = tensor.detach()
    try:
        return numpy.asarray(tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor)
    except (TypeError, RuntimeError) as fault:
        reason = str(fault).partition("\n")[0]
        raise ShapeError(
            f"{name} of the state is a tensor of {tensor.dtype} that NumPy cannot read "
            f"({reason:.200}); wanted dense floats on the host: tensor.to_dense().float().cpu()"
        ) from None


def are_equal(one: Any, other: Any) -> bool:
    """Return True if two arrays of a state are the same, NaN like NaN."""
    return numpy.array_equal(to_host(one), to_host(other), equal_nan=True)
