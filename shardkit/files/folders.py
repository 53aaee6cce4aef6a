"""What lies below a folder: all of it, or an error; nothing is passed over without a word.

corpus/a.txt               a file
corpus/more -> /data/more  a link to a folder: its files too
corpus/b.txt -> gone.txt   an error, as is a folder that may not be read, or a link to one above
corpus/.git                hidden: folders of such names are not opened
"""

import os
from collections.abc import Iterator
from pathlib import Path

from ..errors import FileError, InputError


def files_below(
    folder: Path, *, hidden: str = ".", error: type[FileError] = InputError
) -> Iterator[Path]:
    """Yield what is no folder below a folder, one folder after the other.

    hidden   first characters of the names of what is hidden: of folders nothing is yielded
    Errors: OSError on a folder that cannot be read; `error` on a link that leads nowhere or round.
    """
    yield from _below(folder, (), hidden, error)


def _below(folder: Path, above: tuple[str, ...], hidden: str, error) -> Iterator[Path]:
    here = os.path.realpath(folder)
    if here in above:
        raise error(f"{folder} is a link to a folder that it is in; remove it", folder)
    with os.scandir(folder) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        path = folder / entry.name
        is_seen = entry.name[0] not in hidden
        if not entry.is_dir():
            if is_seen:
                _check_target(path, error)
            yield path
        elif is_seen:
            yield from _below(path, (*above, here), hidden, error)


def _check_target(path: Path, error) -> None:
    """Raise `error` on a link that leads nowhere."""
    if path.is_symlink() and not path.exists():
        raise error(
            f"{path} is a link to {os.readlink(path)}, which is not there; mend or remove it", path
        )
