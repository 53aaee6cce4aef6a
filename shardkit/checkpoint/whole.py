"""A whole model from a checkpoint, an image or a folder of transformers, ready to predict.

    model = sk.load("runs/demo")                     one process, without MPI and without a mesh
    model.predict(x)

    manifest "model": {"class": "Net", "configuration": {...}, "import": "science.nets:Net"}
        --> from science.nets import Net; Net(**configuration) --> its weights and buffers

The class that is stored is made if it is one of shardkit's own, if this program has imported it, or
if the caller allows it with trust=; otherwise it is named, and nothing of it runs. What is not
importable is given as `factory`.
"""

import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any

from ..annotations import FilePath
from ..errors import CheckpointError, ConfigurationError, ShardkitError
from ..files.notes import tell
from ..files.trust import Trust, is_class_of, known
from ..nn import models
from ..nn.building import at_most
from ..nn.features import input_features
from ..nn.module import Buffer, Module, Parameter
from ..optim.average import AVERAGE
from .choice import Which, checked_choice
from .image import read_image
from .paths import averaged_path, check_averaged
from .sources import find_model

_OWN_ROOM = models.__name__
_OWN_ROOMS = tuple(f"{models.__name__.partition('.')[0]}.{room}." for room in ("nn", "task"))
_OF_CONSTRUCTION = (  # what a constructor may raise about its arguments
    TypeError,
    ValueError,
    ArithmeticError,
    LookupError,
    AttributeError,
    RecursionError,
    MemoryError,
    ShardkitError,
)


def load(
    source: FilePath | bytes,
    factory: Callable[..., Module] | None = None,
    *,
    averaged: bool = False,
    trust: Any = None,
    checkpoint: str | int | None = None,
) -> Module:
    """Return the model of a checkpoint with its weights, on this process. No communication.

    Parameters
    ----------
    source
        A path as load_model takes it, or bytes as serialize() returns them.
    factory
        A class of modules, called with the stored configuration, or a function without arguments;
        None: the stored class.
    averaged
        Take the averages that sk.EMA kept, instead of the weights of the last step.
    trust
        Whose code may run, beside shardkit's classes and those that this program has imported: a
        class, a module, the path of a .py file or of a folder, or a list of these.
    checkpoint
        Of several: "newest"; "best", whose validation had the lowest loss; a step; None: the best
        where the run had a patience, else the newest. A line on standard error says when that is
        not the newest.

    Raises
    ------
    FileNotFoundError
    PermissionError
    ConfigurationError
        On a `trust` that is none of these.
    CheckpointError
        If it is damaged, its class is not trusted or cannot be built, or the model has other names,
        shapes or dtypes than are stored.
    """
    allowed = Trust.of(trust)
    where, description, shapes, read = _opened(source, checked_choice(checkpoint))
    described = description["model"]
    maker = factory or _stored_class(described, where, allowed)
    with at_most(_parts_allowed(shapes)):
        model = _made(described, maker, where, advises_factory=factory is None)
    model.finish(described["configuration"].get("seed", 0) if factory is None else 0)
    group = f"optimizer/{AVERAGE}" if averaged else "model"
    if averaged:
        check_averaged(where, shapes)
    frozen = (description.get("frozen") or ()) if averaged else ()
    kept: dict[str, Parameter | Buffer] = {
        averaged_path(f"model/{name}", frozen) if averaged else f"model/{name}": p
        for name, p in model.named_parameters().items()
    }
    kept |= {f"buffers/{name}": buffer for name, buffer in model.named_buffers().items()}
    shapes = {
        tensor: shape
        for tensor, shape in shapes.items()
        if tensor.startswith((f"{group}/", "buffers/")) or tensor in kept
    }
    _check_names(where, type(model).__name__, kept, shapes)
    for tensor, member in kept.items():
        values = read(tensor)
        if values.dtype != member.dtype:
            raise CheckpointError(
                f"{where} holds {tensor} in {values.dtype}, but that of the model is {member.dtype}"
            )
        member.array = values
    features = input_features(model)
    if features is not None and description["active_features"] is not None:
        features.activate(description["active_features"])
    return model


def _opened(source, which: Which) -> tuple[str, dict, dict, Callable]:
    """Return (name for messages, description, {tensor: shape}, function tensor -> values)."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        tensors, description = read_image(source)
        shapes = {tensor: array.shape for tensor, array in tensors.items()}
        return "the image", description, shapes, tensors.__getitem__
    checkpoint, _, taken = find_model(source, which)
    if which is None and not taken.is_newest:
        tell(f"{taken.text} is loaded; checkpoint= takes another one")
    return str(checkpoint.folder), checkpoint.manifest, checkpoint.shapes, checkpoint.read_whole


def _made(described: dict, maker, where: str, *, advises_factory: bool) -> Module:
    """Build the model. Errors: CheckpointError."""
    name, configuration = described["class"], described["configuration"]
    takes_configuration = inspect.isclass(maker)
    try:
        model = maker(**configuration) if takes_configuration else maker()
    except _OF_CONSTRUCTION as error:
        advice = "; pass factory=, a function that builds the same model" if advises_factory else ""
        raise CheckpointError(
            f"the {name} of {where} cannot be built from its configuration {configuration!r:.200}: "
            f"{error}{advice}"
        ) from error
    if not isinstance(model, Module):
        raise CheckpointError(
            f"the factory for {where} returned a {type(model).__name__}; wanted an nn.Module"
        )
    return model


def _parts_allowed(shapes: dict) -> int:
    """Return how many parameters and buffers may be made: those of a model that ties some."""
    return 100 + 4 * len(shapes)


def _stored_class(described: dict, where: str, trust: Trust) -> type[Module]:
    """Return the stored class, and run nothing of another's. Errors: CheckpointError."""
    name, path = described["class"], described.get("import")
    if path is None:  # a checkpoint of before, or of transformers
        path = f"{_OWN_ROOM}:{name}"
    module, _, qualified = str(path).partition(":")
    found = trust.class_named(path)
    if found is None:
        found = _looked_up(str(path), module, qualified.split("."), where, trust)
    if found is None:
        raise CheckpointError(
            f"{where} holds a {name}, which cannot be imported as {path}; pass factory=, its class "
            "or a function that builds the model"
        )
    if not is_class_of(found, Module):
        raise CheckpointError(f"{where} names {path} as its model, which is no class of modules")
    return found


def _looked_up(path: str, module: str, names: list[str], where: str, trust: Trust) -> Any:
    """Return what stands there in a module that may be imported; None if nothing does."""
    try:
        if module.startswith(_OWN_ROOMS) and module not in sys.modules:
            importlib.import_module(module)
        if module not in sys.modules and trust.module(module) is None:
            raise CheckpointError(
                f"{where} names {path} as the class of its model, and this program has not "
                "imported it, so nothing of it was run. If it is yours, or you trust whoever wrote "
                f"it: import {module} before, or pass trust=, the path of its .py file or folder"
            )
    except ConfigurationError as error:
        raise CheckpointError(f"{where} names {path}: {error}") from error
    except ImportError as error:
        raise CheckpointError(
            f"{where} holds {path}, which cannot be imported: {error}; pass factory=, its class or "
            "a function that builds the model"
        ) from error
    return known(module, names)


def _check_names(where: str, model_name: str, kept: dict, stored: dict) -> None:
    """Raise CheckpointError unless the model's own tensors are stored, and no others."""
    for tensor in _in_one_only(kept, stored):
        here, there = kept.get(tensor), stored.get(tensor)
        raise CheckpointError(
            f"{where} is of another model than this {model_name}: {tensor} is "
            f"{'missing' if there is None else f'of shape {list(there)}'} there and "
            f"{'missing' if here is None else f'of shape {list(here.shape)}'} here"
        )


def _in_one_only(kept: dict, stored: dict) -> Iterator[str]:
    for tensor in sorted(kept.keys() | stored.keys()):
        if tensor not in kept or tensor not in stored or kept[tensor].shape != stored[tensor]:
            yield tensor
