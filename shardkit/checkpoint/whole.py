"""A whole model from a checkpoint, an image or a folder of transformers, ready to predict.

    model = sk.load("runs/demo")                     one process, without MPI and without a mesh
    model.predict(x)

    manifest "model": {"class": "Net", "configuration": {...}, "import": "science.nets:Net"}
        --> from science.nets import Net; Net(**configuration) --> its weights and buffers

The class that is stored is made if it is one of shardkit's own, if this program has imported it, or
if the caller allows it with trust=; otherwise it is named, and nothing of it runs. What is not
importable is given as `factory`.
"""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from ..annotations import FilePath
from ..errors import CheckpointError
from ..files.notes import tell
from ..files.reading import FAULTS
from ..files.trust import Trust
from ..nn.building import at_most
from ..nn.features import input_features
from ..nn.models.gpt import GPT
from ..nn.module import Buffer, Module, Parameter
from ..optim.average import AVERAGE
from .attributes import parts_of, take_attributes, warn_of_attributes
from .choice import Which, checked_choice
from .format.values import lost_in, text_of
from .image import read_image
from .names import CodeNames
from .paths import averaged_path, check_averaged
from .sources import find_model
from .values import DataReader

_OWN_ROOM = GPT.__module__.rpartition(".")[0]


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
    FileNotFoundError, PermissionError
    ConfigurationError
        On a `trust` that is none of these.
    CheckpointError
        If it is damaged, its class is not trusted or cannot be built, or the model has other names,
        shapes or dtypes than are stored.
    """
    allowed = Trust.of(trust)
    where, description, shapes, read = _opened(source, checked_choice(checkpoint))
    described = description["model"]
    path = _stored_path(described)
    names = CodeNames(where, allowed, path.partition(":")[0].partition(".")[0])
    maker = names.module_class(path) if factory is None else factory
    with at_most(100 + 4 * len(shapes)):  # parameters and buffers, of a model that ties some
        model = _made(described, maker, names, advises_factory=factory is None)
    model.finish(_seed_of(described) if factory is None else 0)
    group = f"optimizer/{AVERAGE}" if averaged else "model"
    if averaged:
        check_averaged(where, shapes)
    frozen = (description.get("frozen") or ()) if averaged else ()
    kept: dict[str, Parameter | Buffer] = {
        averaged_path(f"model/{name}", frozen) if averaged else f"model/{name}": p
        for name, p in model.named_parameters().items()
    }
    kept |= {f"buffers/{name}": buffer for name, buffer in model.named_buffers().items()}
    kept = {tensor: member for tensor, member in kept.items() if member.size}
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
    stored = described.get("attributes") or {}
    if inspect.isclass(maker):
        take_attributes(model, stored, where, DataReader(names, parts_of(model)))
    else:
        warn_of_attributes(model, stored, where)
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


def _made(described: dict, maker, names: CodeNames, *, advises_factory: bool) -> Module:
    """Build the model. Errors: CheckpointError."""
    where, name, configuration = names.where, described["class"], described["configuration"]
    takes_configuration = inspect.isclass(maker)
    if takes_configuration:
        _check_recorded(described, maker, where)
    try:
        args, named = (
            DataReader(names).arguments(configuration, maker) if takes_configuration else ([], {})
        )
        model = maker(*args, **named)
    except FAULTS as error:
        advice = "; pass factory=, a function that builds the same model" if advises_factory else ""
        raise CheckpointError(
            f"the {name} of {where} cannot be built from its configuration "
            f"{text_of(configuration):.200}: {error}{advice}"
        ) from error
    if not isinstance(model, Module):
        raise CheckpointError(
            f"the factory for {where} returned a {type(model).__name__}; wanted an nn.Module"
        )
    return model


def _check_recorded(described: dict, maker: type, where: str) -> None:
    """Raise CheckpointError if the arguments are not known, or could not be stored."""
    name, configuration = described["class"], described["configuration"]
    advice = "pass factory=, a function without arguments that builds the same model"
    for argument, what in lost_in(configuration):
        raise CheckpointError(
            f"the {name} of {where} was made with {argument} = {what}, which a checkpoint cannot "
            f"hold; {advice}"
        )
    is_known = configuration or "attributes" in described
    if not is_known and inspect.signature(maker).parameters:
        raise CheckpointError(
            f"{where} does not say with which arguments its {name} was made: it was written before "
            f"they were recorded, and its class had no configuration(); {advice}"
        )


def _seed_of(described: dict) -> int:
    seed = described["configuration"].get("seed", 0)
    return seed if type(seed) is int else 0


def _stored_path(described: dict) -> str:
    """Return "module:Class" of the stored model."""
    path = described.get("import")  # None: a checkpoint of before, or of transformers
    return f"{_OWN_ROOM}:{described['class']}" if path is None else str(path)


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
