"""Pack what a rank reads at its start, to be handed on to the memory of each node (jobs/launch.sh).

    python -P -m shardkit.files.packing FILE       FILE: a tar with site-packages/ and stdlib/
    export PYTHONPATH=$THERE/site-packages:$THERE/stdlib:$THERE/stdlib/lib-dynload

site-packages   shardkit and the installed packages that it requires, without their tests
stdlib          Python's own library

So of 4,096 ranks none looks for a module on the file system that all nodes share. What is not
packed, such as packages of the user's own, is found where it always was.
"""

import re
import sys
import sysconfig
import tarfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from ..errors import ConfigurationError
from .writing import whole_file

_OWN = str(__package__).partition(".")[0]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_EXTRA = re.compile(r"\bextra\s*==")
_TESTS = {"test", "tests"}
# parts of the standard library that no rank reads, and folders of packages that lie in it
_NOT_READ = _TESTS | {"dist-packages", "ensurepip", "idlelib", "site-packages", "turtledemo"}


def pack(path: str) -> None:
    """Write the archive. Errors: ConfigurationError if shardkit is not installed; OSError."""
    with whole_file(Path(path)) as file, tarfile.open(fileobj=file, mode="w") as archive:
        for source, name in packed():
            archive.add(source, name, recursive=False)


def packed() -> Iterator[tuple[Path, str]]:
    """Yield (file, its name in the archive), each name once."""
    names = set()
    for source, name in (*_of_packages(), *_of_python()):
        if name not in names and source.is_file():
            names.add(name)
            yield source.resolve(), name


def required() -> list[str]:
    """Return the names of the installed packages that shardkit requires, itself first.

    Errors: ConfigurationError if shardkit is not installed.
    """
    found = {_OWN: None}
    for name in (todo := [_OWN]):
        for text in _requirements(name):
            if not _EXTRA.search(text) and (match := _NAME.match(text)):
                todo += [match[0]] * (match[0] not in found)
                found[match[0]] = None
    return list(found)


def _requirements(package: str) -> list[str]:
    try:
        return metadata.requires(package) or []
    except metadata.PackageNotFoundError:
        if package == _OWN:
            raise ConfigurationError(
                f"{_OWN} is not installed for {sys.executable}, so what it requires is not known; "
                "pip install it, or leave --stage out"
            ) from None
        return []  # required on other systems


def _of_packages() -> Iterator[tuple[Path, str]]:
    own = Path(__file__).parents[1]
    for source in _walk(own, _TESTS):  # which may stand in a checkout
        yield source, f"site-packages/{_OWN}/{source.relative_to(own).as_posix()}"
    for package in required():
        try:
            listed = metadata.files(package) or []
        except metadata.PackageNotFoundError:
            continue
        for file in listed:
            if not _TESTS & set(file.parts) and ".." not in file.parts:
                yield Path(str(file.locate())), f"site-packages/{file.as_posix()}"


def _of_python() -> Iterator[tuple[Path, str]]:
    for folder in dict.fromkeys(map(sysconfig.get_path, ("stdlib", "platstdlib"))):
        for source in _walk(Path(folder), _NOT_READ):
            yield source, f"stdlib/{source.relative_to(folder).as_posix()}"


def _walk(folder: Path, left_out: set[str]) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.name in left_out or path.name.startswith("config-"):  # to build Python's programs
            continue
        if path.is_dir():
            yield from _walk(path, left_out)
        else:
            yield path


if __name__ == "__main__":
    try:
        pack(sys.argv[1])
    except (ConfigurationError, OSError) as error:
        raise SystemExit(f"{_OWN}: {error}") from None
