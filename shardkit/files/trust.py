"""Whose code may run: a file that somebody else wrote names a class, and does not get it imported.

    checkpoint  "import": "science.nets:Net"  --+
    run folder  "task": "my_model.py:Surrogate" +--> imported by this program already?  that class
                                                +--> named by the caller (trust=...)?   is imported
                                                +--> otherwise                        named, refused

What is named is looked up without running anything: in the dictionaries of modules and classes, and
on the disk for the file that an import would find.
"""

import importlib
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.machinery import PathFinder, SourceFileLoader
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from threading import RLock
from types import ModuleType
from typing import Any

from ..annotations import FilePath
from ..errors import ConfigurationError
from .paths import usable_path

_IMPORTING: dict[Path, Any] = {}  # file -> the lock of its import

_SOURCE = ".py"
LIBRARIES = (  # that shardkit imports where they are installed
    *("shardkit", "numpy", "scipy", "mpi4py", "h5py", "numba", "llvmlite", "rich", "threadpoolctl"),
    *("xxhash", "ml_dtypes", "cupy", "pyarrow", "tokenizers", "tensorboardX", "wandb", "mlflow"),
    *("optuna", "argcomplete"),
)


@dataclass(frozen=True)
class Trust:
    """What the caller allows beside what its program has imported.

    classes   classes themselves
    modules   names of modules, which stand for all below them
    paths     of files, and of folders for all files below them; resolved
    """

    classes: tuple[type, ...] = ()
    modules: tuple[str, ...] = ()
    paths: tuple[Path, ...] = ()

    @classmethod
    def of(cls, given: Any) -> "Trust":
        """Return the trust in a class, a module, a path, or several of these; None: in nothing.

        Errors: ConfigurationError on anything else, and on a path where nothing is.
        """
        several = given if isinstance(given, (list, tuple, set, frozenset)) else [given]
        each = [one for one in several if one is not None]
        for one in each:
            if not isinstance(one, (type, ModuleType, str, os.PathLike)):
                raise ConfigurationError(
                    f"trust = {one!r:.100}; wanted a class, a module, the path of a .py file or of "
                    "a folder, or a list of these"
                )
        paths = [
            Path(usable_path(one)).resolve() for one in each if isinstance(one, (str, os.PathLike))
        ]
        for path in paths:
            if not (path.is_dir() or path.is_file() and path.suffix == _SOURCE):
                raise ConfigurationError(
                    f"trust: {path} is neither a .py file nor a folder; wanted the file whose code "
                    "may run, or a folder of such files"
                )
        return cls(
            tuple(one for one in each if isinstance(one, type)),
            tuple(one.__name__ for one in each if isinstance(one, ModuleType)),
            tuple(paths),
        )

    def covers(self, path: FilePath) -> bool:
        """Return True if this file, or a folder that it is in, is trusted."""
        path = Path(path).resolve()
        return any(path == own or own in path.parents for own in self.paths)

    def class_named(self, name: str) -> type | None:
        """Return the trusted class with this name, "module:Class"."""
        return next((own for own in self.classes if name_of(own) == name), None)

    def module(self, name: str) -> ModuleType | None:
        """Return the module of this name, imported if it is trusted; None if it is not.

        Errors: ConfigurationError if another module would be imported in its place; whatever its
        code raises.
        """
        if any(name == own or name.startswith(f"{own}.") for own in self.modules):
            return importlib.import_module(name)
        root = self._root_of(name)
        return None if root is None else _imported_below(root, name)

    def _root_of(self, module: str) -> Path | None:
        """Return the folder that Python has to look in to find a trusted file by this name."""
        parts = module.split(".")
        if not all(part.isidentifier() for part in parts):
            return None
        above = [root for path in self.paths for root in (path, *path.parents)[: len(parts) + 1]]
        for root in [*above, *map(Path, [*sys.path, *_beside().folders])]:
            file = _file_of(root, parts)
            if file is not None and self.covers(file):
                return root.resolve()
        return None


def name_of(cls: type) -> str:
    """Return "module:Class"."""
    return f"{cls.__module__}:{cls.__qualname__}"


def known(module: str, names: Iterable[str]) -> Any:
    """Return what stands under dotted names in a module that is imported; None if there is none.

    Runs no code: neither __getattr__ of a module, nor properties.
    """
    found: Any = sys.modules.get(module)
    for name in names:
        if not issubclass(type(found), (ModuleType, type)):
            return None
        found = _members(found).get(name)
    return found


def _members(found: ModuleType | type) -> Any:
    """Return the dictionary of a module or a class, whatever its own class says."""
    owner: Any = type if issubclass(type(found), type) else ModuleType
    return owner.__dict__["__dict__"].__get__(found)


def is_class_of(found: Any, base: type) -> bool:
    """Return True for a class that derives from `base`, whatever its metaclass says."""
    return issubclass(type(found), type) and base in type.__dict__["__mro__"].__get__(found)


def is_of_the_program(module: str) -> bool:
    """Return True for an imported module whose file is neither installed nor Python's own."""
    top = module.partition(".")[0]
    file = _members(sys.modules[module]).get("__file__") if module in sys.modules else None
    if not isinstance(file, str) or top in sys.stdlib_module_names or top in LIBRARIES:
        return False
    return not {"site-packages", "dist-packages"} & set(Path(file).parts)


def import_file(path: Path) -> ModuleType:
    """Run a Python file as a module of the file's name; a second call returns the same.

    Modules beside it are found behind those that are installed, so that none of them takes the
    place of a library. Errors: ConfigurationError if another module has the name; whatever it
    raises.
    """
    path = path.resolve()
    with _IMPORTING.setdefault(path, RLock()):  # ranks may be threads: one runs it, all get it
        return _imported(path, path.stem)


def _imported(path: Path, name: str) -> ModuleType:
    there = sys.modules.get(name)
    if there is not None and getattr(there, "__file__", None) == str(path):
        return there
    if there is not None or name in sys.stdlib_module_names:
        raise ConfigurationError(f"a module {name!r} is loaded already; rename the file")
    find_also_in(path.parent)
    spec = spec_from_file_location(name, path, loader=SourceFileLoader(name, str(path)))
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


def find_also_in(folder: FilePath) -> None:
    """Let imports find modules in this folder that are nowhere else."""
    _beside().add(str(Path(folder).resolve()))


class Beside:
    """Finds modules of the user's own, after all other finders: no library, installed or not."""

    def __init__(self) -> None:
        self.folders: list[str] = []

    def add(self, folder: str) -> None:
        """Look in this folder too, behind the others."""
        if folder not in self.folders:
            self.folders.append(folder)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return the spec of a module in one of the folders, or None: what importlib calls."""
        if path is not None or name in sys.stdlib_module_names or name in LIBRARIES:
            return None
        return PathFinder.find_spec(name, self.folders)


def _beside() -> Beside:
    """Return the finder of this process, which importlib keeps."""
    for finder in sys.meta_path:
        if isinstance(finder, Beside):
            return finder
    own = Beside()
    sys.meta_path.append(own)
    return own


def _imported_below(root: Path, name: str) -> ModuleType:
    find_also_in(root)
    top = name.partition(".")[0]
    there = sys.modules.get(top)
    spec = find_spec(top) if there is None else there.__spec__
    places = [spec.origin, *(spec.submodule_search_locations or ())] if spec is not None else []
    others = [place for place in places if place and root not in Path(place).resolve().parents]
    if spec is None or others:
        raise ConfigurationError(
            f"{name} of {root} is trusted, but import {top} would run {(others or ['it'])[0]}; put "
            f"{root} first in PYTHONPATH, or rename the file"
        )
    return importlib.import_module(name)


def _file_of(root: Path, parts: list[str]) -> Path | None:
    """Return the file of the module root.part.part, if there is one."""
    base = root.joinpath(*parts)
    files = (base / "__init__.py", base.with_name(base.name + _SOURCE))
    return next((file for file in files if file.is_file()), None)
