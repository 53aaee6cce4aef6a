"""Paths and words as users give them, and as this process can use them.

    --run.folder=~/runs/a        /home/ada/runs/a     the shell leaves a ~ behind = as it is
    --output=~bob/out.h5         /home/bob/out.h5
    ./~                          a file of that name here

Where the locale has no character of a name (LC_ALL=C), Python has its bytes in the place of it. A
path from a settings file gets them too, so that it can be opened there; a word that is no path gets
its characters back. Variables such as $SCRATCH are the shell's alone.
"""

import os
from pathlib import Path
from typing import Any

from ..errors import ConfigurationError


def usable_path(path: Any) -> Any:
    """Return a path that this process can open, whose ~ or ~user is the home folder; anything else
    as it is.

    Errors: ConfigurationError if that folder is not known.
    """
    text = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(text, str) or text.isascii() and not text.startswith("~"):
        return path
    found = _expressed(_with_home(text))
    if found == text:
        return path
    return Path(found) if isinstance(path, os.PathLike) else found


def suffix_of(path: Path) -> str:
    """Return what the name of a file ends in, in lower case: .csv of TABLE.CSV."""
    return path.suffix.lower()


def lasting_path(path: Any) -> Any:
    """Return a usable path that stays what it is when the working folder is changed; what is no
    path as it is.
    """
    found = usable_path(path)
    return os.path.abspath(found) if isinstance(found, (str, os.PathLike)) and found else found


def _with_home(text: str) -> str:
    found = os.path.expanduser(text)
    if found.startswith("~"):
        user = text.partition("/")[0]
        raise ConfigurationError(
            f"{text}: the home folder {user} is not known here; write the path from the root, or "
            f"./{text} if a file here has that name"
        )
    return found


def _expressed(text: str) -> str:
    """Return the text in the characters that names of files have in this process."""
    try:
        os.fsencode(text)
        if not _has_bytes(text):
            return text
    except UnicodeEncodeError:
        pass
    return os.fsdecode(text.encode("utf-8", "surrogateescape"))


def spelled_out(word: str) -> str:
    """Return a word of the command line with its characters, where Python has bytes of UTF-8."""
    if not _has_bytes(word):
        return word
    try:
        return word.encode("utf-8", "surrogateescape").decode("utf-8")
    except UnicodeDecodeError:
        return word


def _has_bytes(text: str) -> bool:
    return any("\udc80" <= character <= "\udcff" for character in text)
