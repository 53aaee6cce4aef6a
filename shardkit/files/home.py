"""Paths that begin with ~, the home folder: the shell leaves them as they are behind an = sign.

    --run.folder=~/runs/a    /home/ada/runs/a
    --output=~bob/out.h5     /home/bob/out.h5
    ./~                      a file of that name here

Variables such as $SCRATCH are the shell's alone.
"""

import os
from typing import Any

from ..errors import ConfigurationError


def from_home(path: Any) -> Any:
    """Return a path whose ~ or ~user is the home folder; anything else as it is.

    Errors: ConfigurationError if that folder is not known.
    """
    text = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(text, str) or not text.startswith("~"):
        return path
    found = os.path.expanduser(text)
    if found.startswith("~"):
        user = text.partition("/")[0]
        raise ConfigurationError(
            f"{text}: the home folder {user} is not known here; write the path from the root, or "
            f"./{text} if a file here has that name"
        )
    return type(path)(found) if isinstance(path, os.PathLike) else found
