"""The folder of a run: whether one may start or continue there, and its stored settings.

configuration.json  checkpoints   a start             --resume
-                   -             begins              refused: there is nothing to continue
there               -             begins anew         refused: there is nothing to continue
there               there         refused: --resume   continues
-                   there         refused: these are weights (from `shardkit convert` or save_model)
                                  and no run; model.initial begins with them
"""

import json
from pathlib import Path

from ..checkpoint.store import CheckpointStore
from ..errors import ConfigurationError
from .data import write_whole
from .settings import RunConfiguration

_SETTINGS = "configuration.json"


def has_checkpoints(folder: Path) -> bool:
    """Return True if a run that was started here can resume from a checkpoint."""
    return bool(CheckpointStore(folder / "checkpoints").steps())


def check_folder(folder: Path, resume: bool) -> None:
    """Check that a run may start, or resume, in this folder. Errors: ConfigurationError."""
    is_run = (folder / _SETTINGS).exists()
    if not is_run and (has_checkpoints(folder) or CheckpointStore(folder).steps()):
        raise ConfigurationError(
            f"{folder} holds checkpoints and no run: there is no {_SETTINGS}. To begin a run with "
            "these "
            f"weights: shardkit train --model.initial={folder} --run.folder=ANOTHER"
        )
    if resume and not (is_run and has_checkpoints(folder)):
        raise ConfigurationError(
            f"there is no run with a checkpoint in {folder} to go on from; start without --resume"
        )
    if not resume and has_checkpoints(folder):
        raise ConfigurationError(
            f"{folder} already holds a run; add --resume to go on with it, or choose another "
            "--run.folder "
            f"(with --model.initial={folder}, to begin there with the weights of this one)"
        )


def stored_settings(folder: Path) -> RunConfiguration:
    """Read the settings of the run in this folder.

    Errors: ConfigurationError if there are none, or if they cannot be read.
    """
    check_folder(folder, resume=True)
    path = folder / _SETTINGS
    try:
        tables = json.loads(path.read_text(encoding="utf-8"))
        settings = {
            f"{section}.{key}": value
            for section, table in tables.items()
            for key, value in table.items()
        }
    except (OSError, ValueError, AttributeError) as error:
        raise ConfigurationError(
            f"cannot resume: {path} cannot be read ({error}); restore it"
        ) from None
    return RunConfiguration().replace(settings)


def store_settings(folder: Path, settings: RunConfiguration) -> None:
    """Write the settings into the folder, for --resume."""
    write_whole(folder / _SETTINGS, json.dumps(settings.to_dict(), indent=1).encode())
