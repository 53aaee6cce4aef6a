"""From the name of a task to its class: a built-in one, or one of the user's own.

    language                    built in
    my_model.py:Surrogate       a class in a file
    my_package.models:Surrogate a class in a module that Python can import

What stands under the name is a class derived from Task, or a function that returns one:

    def surrogate(settings, width=64):      width is the setting --task.width

Its file is run once on every rank; modules beside it are found behind those that are installed. A
name that the user gives is run; one that stands in a file needs to be trusted (trusted_task).
"""

import importlib
import inspect
import shlex
import sys
from dataclasses import make_dataclass
from functools import cache
from pathlib import Path

from ..arguments import nearest
from ..errors import ConfigurationError
from ..files.paths import usable_path
from ..files.trust import Trust, find_also_in, import_file, is_class_of, known
from ..nn.module import Module
from ..settings import as_section
from .task import OWN_SECTION, Task

BUILT_IN = {  # name: (module of this room, class)
    "language": ("language", "Language"),
    "chat": ("chat", "Chat"),
    "table": ("table", "TableMLP"),
    "fno": ("architectures", "FNOTask"),
    "lstm": ("architectures", "LSTMTask"),
    "message_passing": ("architectures", "MessagePassingTask"),
    "resnet": ("images", "ResNetTask"),
    "unet": ("images", "UNetTask"),
    "vit": ("images", "ViTTask"),
}
DEFAULT_TASK = "language"
SCRIPT = "script"  # the task of a run that a script of the user's own makes, with sk.Training


def absolute_task(name: str) -> str:
    """Return the name of a task with the path of its file from the root."""
    place, colon, attribute = usable_path(name).rpartition(":")
    return f"{Path(place).resolve()}:{attribute}" if colon and place.endswith(".py") else name


def load_task(name: str) -> type[Task]:
    """Return the class of the task of this name.

    Errors: ConfigurationError in one sentence if there is none, or its file raises.
    """
    if name in BUILT_IN:
        module, attribute = BUILT_IN[name]
        return getattr(importlib.import_module(f".{module}", __package__), attribute)
    if name == SCRIPT:
        raise ConfigurationError(
            "this run was made by a script with sk.Training; start that script again, which goes "
            "on with the run"
        )
    place, attribute = _parts_of(name)
    module = _run_file(name, Path(place)) if place.endswith(".py") else _import(name, place)
    return _as_task(name, attribute, module)


def on_frame(task: type[Task], frame) -> type[Task]:
    """Return a task of tables on the rows of a frame that a script has in memory.

    Errors: ConfigurationError on another task.
    """
    tables = importlib.import_module(".table", __package__)
    return tables.on_frame(task, frame)


def trusted_task(name: str, where: Path, trust: Trust) -> type[Task]:
    """Return the class of the task that a file in the folder `where` names.

    It is built in, or this program has imported it, or `trust` allows its file.
    Errors: ConfigurationError that says how to allow it; nothing of it is run then.
    """
    if name in BUILT_IN or name == SCRIPT:
        return load_task(name)
    place, attribute = _parts_of(name)
    is_file = place.endswith(".py")
    found = known(Path(place).stem if is_file else place, [attribute])
    if is_class_of(found, Task) and (not is_file or _is_of_file(Path(place))):
        return found
    if is_file and trust.covers(place):
        return load_task(name)
    try:
        module = None if is_file else trust.module(place)
    except (Exception, SystemExit) as error:
        raise ConfigurationError(_import_error(name, error, None)) from error
    if module is not None:
        return _as_task(name, attribute, module)
    what = "file" if is_file else "module"
    option = f"--task {shlex.quote(name)}"
    raise ConfigurationError(
        f"the run in {where} is of the task {name!r}, which is code in a {what} that you have not "
        f"named, so nothing of it was run. If you trust it, add {option} or --trust "
        f"{shlex.quote(place) if is_file else 'FOLDER'}; in Python, import it before"
    )


def _parts_of(name: str) -> tuple[str, str]:
    """Return (file or module, attribute) of a task's name. Errors: ConfigurationError."""
    place, colon, attribute = usable_path(name).rpartition(":")
    if not colon or not place or not attribute.isidentifier():
        near = nearest(name, BUILT_IN)
        raise ConfigurationError(
            f"run.task = {name!r}; wanted {' or '.join(BUILT_IN)}, or file.py:Name of a task of "
            f"your own{f'; did you mean {near}?' if near else ''}"
        )
    return place, attribute


def _is_of_file(path: Path) -> bool:
    """Return True if the module of this name was imported from this file."""
    return getattr(sys.modules.get(path.stem), "__file__", None) == str(path.resolve())


def _run_file(name: str, path: Path):
    """Return the module of a file; the same one for the same file."""
    path = path.resolve()
    if not path.is_file():
        raise ConfigurationError(f"run.task = {name!r}: there is no file {path}")
    try:
        return import_file(path)
    except ConfigurationError as error:
        raise ConfigurationError(f"run.task = {name!r}: {error}") from error
    except (Exception, SystemExit) as error:
        raise ConfigurationError(_import_error(name, error, path)) from error


def _import(name: str, module: str):
    """Import a module of the user's own; whatever it raises is an error of the setting."""
    find_also_in(".")
    try:
        return importlib.import_module(module)
    except (Exception, SystemExit) as error:
        raise ConfigurationError(_import_error(name, error, None)) from error


def _import_error(name: str, error: BaseException, path: Path | None) -> str:
    """Return what importing a task raised, as one sentence, and where in its file."""
    at = error.__traceback__
    line = None
    while path is not None and at is not None:
        if at.tb_frame.f_code.co_filename == str(path):
            line = at.tb_lineno
        at = at.tb_next
    place = "" if line is None else f" (line {line} of {path})"
    return f"run.task = {name!r}: importing it raised {type(error).__name__}: {error}{place}"


def _as_task(name: str, attribute: str, module) -> type[Task]:
    """Return what stands under this name in a module, if it is a task that can be made."""
    if not hasattr(module, attribute):
        near = nearest(attribute, [key for key in vars(module) if not key.startswith("_")])
        raise ConfigurationError(
            f"run.task = {name!r}: {module.__name__} has no {attribute}"
            f"{f'; did you mean {near}?' if near else ''}"
        )
    found = getattr(module, attribute)
    if not isinstance(found, type) and callable(found):
        return _task_of_function(name, found)
    if not (isinstance(found, type) and issubclass(found, Task)):
        raise ConfigurationError(
            f"run.task = {name!r}: {attribute} is {_described(found)}; wanted a class derived "
            "from shardkit.Task, or a function that returns a Task"
            + ("; a model alone has no data: make_model() of a Task returns it" * _is_model(found))
        )
    missing = sorted(found.__abstractmethods__)
    if missing:
        raise ConfigurationError(
            f"run.task = {name!r}: {attribute} does not define {', '.join(missing)}"
        )
    return found


def _is_model(found) -> bool:
    return isinstance(found, Module) or isinstance(found, type) and issubclass(found, Module)


def _described(found) -> str:
    return f"the class {found.__name__}" if isinstance(found, type) else f"a {type(found).__name__}"


@cache
def _task_of_function(name: str, function) -> type[Task]:
    """Return a class whose making calls the function: (settings, width=64) -> a Task.

    Its parameters after the first are the settings of the section [task].
    """
    first, *own = inspect.signature(function).parameters.values()
    fields = [
        (each.name, type(each.default) if each.annotation is each.empty else each.annotation)
        for each in own
    ]
    without = [each.name for each in own if each.default is each.empty]
    if without:
        raise ConfigurationError(
            f"run.task = {name!r}: {without[0]} of {function.__name__} has no default; the "
            f"parameters after {first.name} are settings, so give it one"
        )
    defaults = {each.name: each.default for each in own}
    section = as_section(
        make_dataclass("Settings", fields, namespace=defaults, frozen=True, kw_only=True)
    )

    def make(cls, settings):
        made = function(settings, **vars(getattr(settings, OWN_SECTION)))
        if not isinstance(made, Task):
            raise ConfigurationError(
                f"run.task = {name!r}: {function.__name__} returned {_described(made)}; wanted a "
                "Task"
            )
        return made

    return type(function.__name__, (Task,), {"Settings": section, "__new__": make})
