"""Functions and classes that a checkpoint names, looked up where the caller's trust allows it.

    classes of modules      shardkit's, those that the program has imported, those of trust=
    functions, other classes   of shardkit's models, of the program's own files and of the package
                            of the stored class, of trust=; functions of numbers of NumPy and math

What is named is found in the dictionaries of modules; nothing of it runs, but for the import of a
module that is trusted.
"""

import importlib
import sys
from types import BuiltinFunctionType, FunctionType, SimpleNamespace
from typing import Any

import numpy

from ..errors import CheckpointError, ConfigurationError
from ..files.trust import Trust, is_class_of, is_of_the_program, known
from ..nn.loss import Loss
from ..nn.metrics import Metric
from ..nn.module import Module

_OWN = __name__.partition(".")[0]
_OWN_ROOMS = tuple(f"{_OWN}.{room}." for room in ("nn", "task"))
_BUILTINS = (
    *("abs", "bool", "bytes", "complex", "dict", "float", "frozenset", "int", "len", "list"),
    *("max", "min", "object", "pow", "range", "round", "set", "slice", "str", "sum", "tuple"),
)
_MADE = (Module, Loss, Metric)  # bases of what knows how it was made
_CONTAINERS = ("collections:Counter", "collections:OrderedDict", "collections:deque")
_NAMESPACES = ("argparse:Namespace", "types:SimpleNamespace")


class CodeNames:
    """Looks up what one checkpoint names.

    where     the checkpoint, for messages
    trust     what the caller allows
    package   the first name of the module of the stored class, whose functions may be taken too
    """

    def __init__(self, where: str, trust: Trust, package: str = "") -> None:
        self.where, self.trust, self._package = where, trust, package

    def module_class(self, path: str) -> type[Module]:
        """Return the class of modules of this name, "module:Class".

        Errors: CheckpointError if it is not trusted, not there, or no class of modules.
        """
        found = self._class(path, "as the class of its model")
        if not is_class_of(found, Module):
            raise CheckpointError(
                f"{self.where} names {path} as its model, which is no class of modules"
            )
        return found

    def recorded(self, path: str) -> type[Module | Loss | Metric]:
        """Return the class of modules, losses or metrics of this name. Errors: CheckpointError."""
        found = self._class(path, "among the arguments of its model")
        if not _is_recorded(found):
            raise CheckpointError(f"{path} is no class of modules, losses or metrics")
        return found

    def _class(self, path: str, role: str) -> Any:
        """Return what stands there, in a module that was imported or is trusted."""
        own = self.trust.class_named(path)
        module, _, qualified = path.partition(":")
        if own is None and module not in sys.modules and not self._may_import(module):
            raise CheckpointError(
                f"{self.where} names {path} {role}, and this program has not imported it, so "
                "nothing of it was run. If it is yours, or you trust whoever wrote it: import "
                f"{module} before, or pass trust=, the path of its .py file or folder"
            )
        found = _known(module, qualified) if own is None else own
        if found is None:
            name = qualified.rpartition(".")[2] or path
            raise CheckpointError(
                f"{self.where} holds a {name}, which cannot be imported as {path}; pass factory=, "
                "its class or a function that builds the model"
            )
        return found

    def _may_import(self, module: str) -> bool:
        """Return True if the module is imported now, as shardkit's own or a trusted one."""
        try:
            if module.startswith(_OWN_ROOMS):
                importlib.import_module(module)
                return True
            return self.trust.module(module) is not None
        except ConfigurationError as error:
            raise CheckpointError(f"{self.where} names {module}: {error}") from error
        except ImportError as error:
            raise CheckpointError(
                f"{self.where} holds what is of {module}, which cannot be imported: {error}; pass "
                "factory=, its class or a function that builds the model"
            ) from error

    # ---- arguments -------------------------------------------------------------------------------

    def thing(self, path: str, base: type | None = None) -> Any:
        """Return the function or class of this name; with `base`, a class that derives from it.

        Errors: CheckpointError if it is not trusted, not there, or something else.
        """
        module, _, qualified = str(path).partition(":")
        own = self.trust.class_named(path)
        found = self._found(module, qualified) if own is None else own
        if found is None:
            raise CheckpointError(f"there is no {path} here")
        if not self._is_allowed(module, qualified, found):
            raise CheckpointError(
                f"{path} is code that neither is the program's own nor was allowed, so nothing of "
                f"it was run; pass trust={module}, the module, if you trust whoever wrote the file"
            )
        found = found.__func__ if type(found) is staticmethod else found
        kinds = (type, FunctionType, BuiltinFunctionType, numpy.ufunc)
        is_right = issubclass(type(found), kinds)
        if not is_right or base is not None and not is_class_of(found, base):
            raise CheckpointError(f"{path} is no function and no class of the kind that is stored")
        return found

    def _found(self, module: str, qualified: str) -> Any:
        if module not in sys.modules and not self._may_import(module):
            raise CheckpointError(
                f"{module} has {qualified}, and this program has not imported it; import it "
                "before, or pass trust=, the path of its .py file or folder"
            )
        return _known(module, qualified)

    def _is_allowed(self, module: str, qualified: str, found: Any) -> bool:
        top = module.partition(".")[0]
        if top == _OWN:
            return module.startswith(_OWN_ROOMS) or is_class_of(found, Module)
        if top == "numpy":
            return isinstance(found, numpy.ufunc) or is_class_of(found, numpy.generic)
        if module == "builtins":
            return qualified in _BUILTINS
        if module == "math" or f"{module}:{qualified}" in (*_NAMESPACES, *_CONTAINERS):
            return True
        is_own = top == self._package and top not in sys.stdlib_module_names
        is_own = is_own or top == "__main__" or is_of_the_program(module)
        return is_own or _is_recorded(found) or self.trust.module(module) is not None

    def namespace(self, cls: type) -> Any:
        """Return an empty object of a class of the standard library that only holds attributes.

        Errors: CheckpointError on another class.
        """
        name = f"{cls.__module__}:{cls.__qualname__}"
        if name not in _NAMESPACES:
            raise CheckpointError(f"objects of {name} cannot be made from their attributes alone")
        return SimpleNamespace() if cls is SimpleNamespace else object.__new__(cls)


def _known(module: str, qualified: str) -> Any:
    """Return what stands there, as known(). Late names of our own rooms are imported first."""
    name = qualified.partition(".")[0]
    if module.partition(".")[0] == _OWN and name in (known(module, ["__all__"]) or ()):
        getattr(sys.modules[module], name)
    return known(module, qualified.split("."))


def _is_recorded(found: Any) -> bool:
    return any(is_class_of(found, base) for base in _MADE)
