"""Programs that shardkit starts: none is found, and none runs a file, by way of the working folder.

    squeue, mpiexec      in the folders of PATH that are named from the root
    Python               isolated (-I), with the folders that this program imports from, less the
                         working folder and that of its script

A library beside the data (json.py, numpy.py) is nobody's program: it is not imported.
"""

import json
import os
import shutil
import sys
from pathlib import Path

from ..environment import program_folders

_PACKAGE = Path(__file__).resolve().parents[1]
_START = """\
import importlib.util, json, sys
folders, package, statement = json.loads(sys.argv.pop(1))
sys.path[:] = folders + [folder for folder in sys.path if folder not in folders]
class Package:
    def find_spec(name, path=None, target=None):
        if name == "shardkit":
            return importlib.util.spec_from_file_location(
                name, package + "/__init__.py", submodule_search_locations=[package])
sys.meta_path.insert(0, Package)
exec(statement)
"""


def this_python() -> str:
    """Return the path of the Python that runs this; of one like it where a program embeds it."""
    major, minor = sys.version_info[:2]
    own = [f"{folder}/bin/python{major}.{minor}" for folder in (sys.prefix, sys.base_prefix)]
    found = [path for path in (sys.executable, *own) if os.access(path, os.X_OK)]
    return found[0] if found else sys.executable


def find_program(name: str) -> str | None:
    """Return the path of a program; None if no folder of PATH, named from the root, has it."""
    return shutil.which(name, path=os.pathsep.join(program_folders()))


def python_command(statement: str, *arguments: str) -> list[str]:
    """Return the command of an isolated Python that runs this statement.

    It imports what this program can, by the same folders, and this package from its own place.
    arguments   sys.argv[1:] there
    """
    settings = json.dumps([import_folders(), str(_PACKAGE), statement])
    return [this_python(), "-I", "-c", _START, settings, *arguments]


def import_folders() -> list[str]:
    """Return the folders of sys.path, in order, less the working folder and the script's."""
    left_out = {_real("."), _script_folder()}
    return [each for each in sys.path if os.path.isabs(each) and _real(each) not in left_out]


def _script_folder() -> str | None:
    """Return the folder that Python began sys.path with for a script; None if there is none."""
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    return None if path is None or sys.flags.safe_path else _real(os.path.dirname(path) or ".")


def _real(folder: str) -> str:
    try:
        return os.path.realpath(folder)
    except OSError:  # the working folder was removed
        return os.path.abspath(os.sep)
