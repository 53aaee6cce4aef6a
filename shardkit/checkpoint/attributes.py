"""The attributes of modules as data: what arguments of construction do not say of a model.

    net = Net(scale=1.0); net.scale = 3.0      stored: {"": {"scale": 3.0}}
    sk.load: Net(scale=1.0)  -->  scale is 1.0 here and 3.0 there: it is set, or refused if it
                                  cannot be stored

    before the model is cut --+
    after it was cut ---------+--> what of now differs from after, and else what was before
    now ----------------------+

so that neither the mesh nor what sharding does to a module is in it.
"""

import warnings
from collections.abc import Iterator
from types import FunctionType
from typing import Any

from ..errors import CheckpointError, ShardingWarning
from ..nn.kept import MAKING
from ..nn.module import Buffer, Module, ModuleList, Parameter
from .format.values import KIND, lost_in, text_of
from .values import DataReader, DataWriter

_CLASS = "class "  # what is said of the attributes of a class, and of numbers its methods read
_MOST_BYTES = 1 << 14  # of an array that is stored whole
_OWN = __name__.partition(".")[0]
_PLAIN = (bool, int, float, complex, str, bytes, type(None), tuple, list, dict, set, frozenset)


def attributes_of(model: Module) -> dict[str, dict[str, Any]]:
    """Return {path of a module: {attribute: data}}; "class" among them is the module's class.

    Members, which have names and values in a checkpoint, are left out, as is what is private to
    modules of this package.
    """
    writer = DataWriter({id(part): path for path, part in parts_of(model).items()}, _MOST_BYTES)
    found = {}
    for path, module in model.named_modules().items():
        own = {
            name: writer.data_of_any(value)
            for name, value in vars(module).items()
            if not isinstance(value, (Parameter, Buffer, Module)) and _is_told(module, name)
        }
        found[path] = {_CLASS: type(module).__qualname__, **_of_class(module, writer), **own}
    return found


def parts_of(model: Module) -> dict[str, Any]:
    """Return {path: module, parameter or buffer} of all of a model."""
    return {**model.named_modules(), **model.named_parameters(), **model.named_buffers()}


def _is_told(module: Module, name: str) -> bool:
    if name in ("path_in_model", MAKING) or name.startswith("__"):
        return False
    return not (name.startswith("_") and _is_ours(type(module)))


def _is_ours(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == _OWN


def _of_class(module: Module, writer: DataWriter) -> dict[str, Any]:
    """Return plain attributes of its classes and plain globals, which its functions read.

    What __init__ reads shows in what it made.
    """
    classes = [cls for cls in type(module).__mro__[:-1] if not _is_ours(cls)]
    functions = [each for cls in classes for each in _functions_of(cls)]
    read = {name for function in functions for name in function.__code__.co_names}
    found: dict[str, Any] = {}
    for function in functions:
        known = function.__globals__
        for name in read & known.keys():
            if name in function.__code__.co_names and _is_plain(name, known[name]):
                found[f"{_CLASS}global {name}"] = writer.data_of_any(known[name])
    for cls in classes:
        for name in read & vars(cls).keys() - vars(module).keys():
            if _is_plain(name, vars(cls)[name]):
                found.setdefault(_CLASS + name, writer.data_of_any(vars(cls)[name]))
    return dict(sorted(found.items()))


def _functions_of(cls: type) -> Iterator[Any]:
    for name, value in vars(cls).items():
        function = getattr(value, "fget", None) or getattr(value, "__func__", value)
        if name != "__init__" and isinstance(function, FunctionType):
            yield function


def _is_plain(name: str, value: Any) -> bool:
    return type(value) in _PLAIN and not name.startswith("__")


class Attributes:
    """What to store of the attributes of one model that is sharded.

    model   before it is cut
    """

    def __init__(self, model: Module) -> None:
        self._model = model
        self._before = attributes_of(model)
        self._after = self._before

    def follow(self) -> None:
        """Take what the model has now for the same as before: it was cut."""
        self._after = attributes_of(self._model)

    def succeed(self, other: "Attributes") -> None:
        """Go on from what another model has now, of which this one is a copy."""
        self._before = other.now()

    def now(self) -> dict[str, dict[str, Any]]:
        """Return {path: {attribute: data}}: what changed since follow(), and else what was."""
        found = {path: dict(own) for path, own in self._before.items()}
        for path, own in attributes_of(self._model).items():
            after = self._after.get(path, {})
            for name in own.keys() | after.keys():
                if own.get(name) == after.get(name) or path not in found:
                    continue
                if name in own:
                    found[path][name] = own[name]
                else:
                    found[path].pop(name, None)
        return found


def take_attributes(model: Module, stored: dict, where: str, reader: DataReader) -> None:
    """Set the attributes that differ from what is stored.

    Errors: CheckpointError on one that cannot be set; the first of them is named.
    """
    here = attributes_of(model)
    modules = model.named_modules()
    _check_modules(modules, stored, where)
    for path, name, there in _differences(stored, here):
        module = modules[path]
        is_ours = _is_ours(type(module))
        if name.startswith(_CLASS) or any(True for _ in lost_in(there)):
            if name == _CLASS or not is_ours:
                raise _refusal(where, path, name, there, here[path].get(name))
        elif not is_ours or name in here[path] and not _is_object(there):
            try:
                vars(module)[name] = reader.value(there)
            except CheckpointError as error:
                raise _refusal(where, path, name, there, here[path].get(name), error) from error


def _is_object(data: Any) -> bool:
    """Return True for what may have other attributes in another version of this package."""
    return isinstance(data, dict) and data.get(KIND) in ("object", "made")


def _check_modules(modules: dict[str, Module], stored: dict, where: str) -> None:
    """Raise CheckpointError unless there are the same modules, with and without parameters.

    Modules of this package but for lists may have others inside than in an earlier version.
    """
    for path in sorted(modules.keys() ^ stored.keys()) if stored else ():
        parent = modules.get(path.rpartition(".")[0])
        if parent is None or _is_ours(type(parent)) and not isinstance(parent, ModuleList):
            continue
        is_here = path in modules
        raise CheckpointError(
            f"{where} was written {'without' if is_here else 'with'} a module {path}, "
            f"{'which is' if is_here else 'and there is none'} here, and would predict something "
            "else; pass factory=, a function that builds the model as it was"
        )


def warn_of_attributes(model: Module, stored: dict, where: str) -> None:
    """Warn of the first attribute in which a model that a caller built differs."""
    here = attributes_of(model)
    for path, name, there in _differences(stored, here):
        if name == _CLASS or _is_ours(type(model.named_modules()[path])):
            continue
        warnings.warn(
            f"{_difference(where, path, name, there, here[path].get(name))}; the model of factory= "
            "stays as it is",
            ShardingWarning,
            stacklevel=3,
        )
        return


def _differences(stored: dict, here: dict):
    """Yield (path, attribute, data that is stored) of what is stored and not so here."""
    for path, own in stored.items():
        if path not in here:
            continue
        for name, there in own.items():
            is_root = path == "" and name == _CLASS
            if not is_root and here[path].get(name, _ABSENT) != there:
                yield path, name, there


_ABSENT = object()


def _difference(where, path, name, there, here) -> str:
    what = name.removeprefix(_CLASS) or "class"
    kind = "the " if name.startswith(_CLASS) else "the attribute "
    return (
        f"{where} was written with {kind}{what} = {text_of(there):.100} of module "
        f"{path or '(the model)'}, which is {text_of(here):.100} here"
    )


def _refusal(where, path, name, there, here, reason=None) -> CheckpointError:
    why = "" if reason is None else f" ({reason})"
    return CheckpointError(
        f"{_difference(where, path, name, there, here)}, and would predict something else{why}; "
        "pass factory=, a function that builds the model as it was"
    )
