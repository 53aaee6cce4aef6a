"""The folder of a run: whether one may start or continue there, and its stored settings.

configuration.json  checkpoints   a start             --resume
-                   -             begins              refused: there is nothing to continue
there               -             begins anew         refused: there is nothing to continue
there               there         refused: --resume   continues
-                   there         refused: these are weights (from `shardkit convert` or save_model)
                                  and no run; model.start, say, begins with them
"""

import hashlib
import json
from pathlib import Path
from types import NoneType

from ..checkpoint.candidates import steps_in
from ..errors import ConfigurationError, InputError
from ..files.notes import read_note
from ..files.reading import read_json, understood, wanted
from ..files.trust import Trust
from ..files.writing import write_whole
from ..task.load import DEFAULT_TASK, trusted_task
from ..task.task import Task
from .settings import RunConfiguration, configuration_of

_SETTINGS = "configuration.json"


def fallback_place(folder: Path, fallback: str) -> Path:
    """Return where in run.fallback_folder the run of this folder keeps checkpoints."""
    own = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:8]
    return Path(fallback) / f"{folder.resolve().name}-{own}"


def checkpoint_places(folder: Path, fallback: str | None) -> tuple[Path, ...]:
    """Return the folders where a run may have checkpoints; fallback as run.fallback_folder."""
    own = folder / "checkpoints"
    return (own,) if fallback is None else (own, fallback_place(folder, fallback))


def stored_places(folder: Path) -> tuple[Path, ...]:
    """Return the folders where the run in this folder may have checkpoints, by its settings."""
    path = folder / _SETTINGS
    try:
        fallback = _tables(path).get("run", {}).get("fallback_folder")
        fallback = wanted(fallback, (str, NoneType), path, "run.fallback_folder")
    except ConfigurationError:
        fallback = None
    return checkpoint_places(folder, fallback)


def has_checkpoints(folder: Path) -> bool:
    """Return True if a run that was started here can resume from a checkpoint."""
    return any(steps_in(place) for place in stored_places(folder))


def no_run_in(folder: Path) -> ConfigurationError:
    """Return the error that says that there is no run to be used."""
    return ConfigurationError(
        f"{folder} holds no run with a checkpoint; wanted the folder of a run"
    )


def check_folder(folder: Path, resume: bool, task: type[Task] = Task) -> None:
    """Check that a run of this task may start, or resume, in this folder.

    Errors: ConfigurationError.
    """
    is_run = (folder / _SETTINGS).exists()
    if not is_run and (has_checkpoints(folder) or steps_in(folder)):
        how = (
            f"To begin a run with these weights: shardkit train --{task.initial}={folder} "
            "--run.folder=ANOTHER"
            if task.initial
            else "Choose another --run.folder"
        )
        raise ConfigurationError(
            f"{folder} holds checkpoints and no run: there is no {_SETTINGS}. {how}"
        )
    if resume and not (is_run and has_checkpoints(folder)):
        raise ConfigurationError(
            f"there is no run with a checkpoint in {folder} to go on from; start without --resume"
        )
    if not resume and has_checkpoints(folder):
        how = (
            f" (with --{task.initial}={folder}, to begin there with the weights of this one)"
            if task.initial
            else ""
        )
        raise ConfigurationError(
            f"{folder} already holds a run; add --resume to go on with it, or choose another "
            f"--run.folder{how}"
        )


def stored_task(folder: Path) -> str | None:
    """Return the name of the task of the run in this folder; None if no run is there."""
    if not (folder / _SETTINGS).exists():
        return None
    path = folder / _SETTINGS
    return wanted(_tables(path).get("run", {}).get("task", DEFAULT_TASK), str, path, "run.task")


# what a run did that was started before a setting existed, where that is not its default
_BEFORE_THEY_WERE_SETTINGS = {"optimizer.decayed": "all"}


def task_of_run(folder: Path, trust: Trust = Trust()) -> type[Task]:
    """Return the task of the run in this folder, whose code runs only if it is trusted.

    Errors: ConfigurationError that says how to allow it.
    """
    name = stored_task(folder)
    return trusted_task(DEFAULT_TASK if name is None else name, folder, trust)


def stored_settings(
    folder: Path, task: type[Task] | None = None, trust: Trust = Trust()
) -> RunConfiguration:
    """Read the settings of the run in this folder.

    task   that the run is of; None: it is loaded by its name, if it is trusted
    Errors: ConfigurationError if there are none, or if they cannot be read.
    """
    if task is None:
        task = task_of_run(folder, trust)
    check_folder(folder, True, task)
    settings = {
        f"{section}.{key}": value
        for section, table in _tables(folder / _SETTINGS).items()
        for key, value in table.items()
    }
    with understood(folder / _SETTINGS):
        return configuration_of(task)().replace({**_BEFORE_THEY_WERE_SETTINGS, **settings})


def _tables(path: Path) -> dict[str, dict]:
    """Return {section: {key: value}} of a stored configuration. Errors: ConfigurationError."""
    try:
        tables = read_json(path)
        if not all(isinstance(table, dict) for table in tables.values()):
            raise InputError(f"{path} holds no sections", path)
    except (OSError, InputError) as error:
        raise InputError(
            f"cannot resume: {path} cannot be read ({error}); restore it", path
        ) from None
    return tables


def store_settings(folder: Path, settings: RunConfiguration) -> None:
    """Write the settings into the folder, for --resume, unless they are those already.

    So a run goes on while the disk is full.
    """
    text = json.dumps(settings.to_dict(), indent=1)
    if read_note(folder / _SETTINGS) != text:
        write_whole(folder / _SETTINGS, text.encode())
