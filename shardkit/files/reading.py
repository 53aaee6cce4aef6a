"""The one door for files that somebody else wrote: checked before they are believed.

    path --an ordinary file?--> descriptor --size--> bytes, text, JSON, TOML
                                           \\--dtype of a list, shape against size--> arrays

A file is opened once: what was checked and what is read are the same file, also if another takes
its name meanwhile. One that becomes shorter gives an error where it is read. What is mapped into
memory is compared with the size of the file when it is mapped; if the file is cut later, the system
ends whoever touches the lost pages (SIGBUS), so arrays that are small are read and not mapped.

Errors: FileError of the kind that the caller names, with path and field; FileNotFoundError and
PermissionError stay, which the user can mend.
"""

import json
import os
import stat
from collections.abc import Iterable
from contextlib import contextmanager
from math import prod
from typing import Any

import numpy

from ..errors import ConfigurationError, FileError, InputError, ShardkitError

MOST_TABLE_BYTES = 1 << 25  # of JSON and TOML: parsed, they take twenty times as much memory
MOST_DIMS = 32
FAULTS = (  # what code may raise about values that are missing or of another kind
    LookupError,
    TypeError,
    ValueError,
    ArithmeticError,
    AttributeError,
    RecursionError,
    MemoryError,
    ShardkitError,
)
LARGEST = (1 << 63) - 1  # that sizes and offsets of files can be
_READ_BYTES = 1 << 26  # arrays up to here are read, larger ones mapped
_PLAIN = {"b": (1,), "i": (1, 2, 4, 8), "u": (1, 2, 4, 8), "f": (2, 4, 8)}  # kind: bytes of an item


# ---- opening -------------------------------------------------------------------------------------


def open_regular(
    path, *, error: type[FileError] = InputError, follows_links: bool = True, flags: int = 0
) -> int:
    """Return a descriptor to read an ordinary file, not a folder, pipe, socket or device.

    follows_links  False: the file itself, and no link to it
    flags          more of os.open
    Errors: FileNotFoundError, PermissionError; `error` on everything else.
    """
    flags |= os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    flags |= 0 if follows_links else os.O_NOFOLLOW
    try:
        descriptor = os.open(path, flags)
    except (FileNotFoundError, PermissionError):
        raise
    except (OSError, ValueError) as fault:  # ValueError: a NUL in the name
        is_link = not follows_links and os.path.islink(path)
        reason = "it is a link" if is_link else getattr(fault, "strerror", None) or fault
        raise error(f"{path} cannot be opened: {reason}", path) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise error(f"{path} is not an ordinary file", path)
    return descriptor


@contextmanager
def opened(path, *, error: type[FileError] = InputError, follows_links: bool = True):
    """Open an ordinary file as a binary file object. Errors inside that name no file name this."""
    with os.fdopen(open_regular(path, error=error, follows_links=follows_links), "rb") as file:
        try:
            yield file
        except (FileNotFoundError, PermissionError, FileError):
            raise
        except OSError as fault:
            raise error(f"{path} cannot be read: {fault.strerror or fault}", path) from None


def bytes_of(file) -> int:
    """Return the size of an open file."""
    return os.fstat(file.fileno()).st_size


def size_of(path, *, error: type[FileError] = InputError) -> int:
    """Return the size of an ordinary file. Errors: as open_regular."""
    with opened(path, error=error) as file:
        return bytes_of(file)


# ---- whole files ---------------------------------------------------------------------------------


def read_bytes(
    path, most: int, *, error: type[FileError] = InputError, follows_links: bool = True
) -> bytes:
    """Return the content of a file of at most so many bytes. Errors: as open_regular."""
    with opened(path, error=error, follows_links=follows_links) as file:
        num_bytes = bytes_of(file)
        if num_bytes > most:
            raise error(f"{path} has {num_bytes:,} bytes; wanted {most:,} at most", path)
        content = file.read(num_bytes)
    if len(content) < num_bytes:
        raise error(f"{path} became shorter while it was read; try again", path)
    return content


def read_json(
    path, most: int = MOST_TABLE_BYTES, *, error: type[FileError] = InputError
) -> dict[str, Any]:
    """Return the JSON object in a file. Errors: as open_regular, and as parsed_json."""
    return parsed_json(read_bytes(path, most, error=error), path, error=error)


def parsed_json(content: bytes, path, *, error: type[FileError] = InputError) -> dict[str, Any]:
    """Return the JSON object that this content of a file is.

    Errors: `error` if it is none, is nested too deeply, has a name twice, or numbers that are none
    of JSON's.
    """
    with understood(path, error=error):
        found = json.loads(
            content.decode("utf-8"), object_pairs_hook=_without_twins, parse_constant=_no_constant
        )
    if not isinstance(found, dict):
        raise error(
            f"{path} is damaged: it holds no JSON object but a {type(found).__name__}", path
        )
    return found


def _without_twins(pairs) -> dict:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError(f"{first_twin(name for name, _ in pairs)!r:.100} is there twice")
    return found


def first_twin(names: Iterable[str]) -> str | None:
    """Return the first name that was there before; None if each is there once."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def _no_constant(text: str):
    raise ValueError(f"{text} is no number of JSON")


def read_toml(path, *, error: type[FileError] = InputError) -> dict[str, Any]:
    """Return the tables of a TOML file. Errors: as open_regular; `error` if it is none."""
    import tomllib

    content = read_bytes(path, MOST_TABLE_BYTES, error=error)
    try:
        tables = tomllib.loads(content.decode("utf-8"))
        _check_integers(tables)
    except (ValueError, RecursionError) as fault:
        raise error(f"{path} is not TOML: {_said(fault)}", path) from None
    return tables


def _check_integers(tables: dict[str, Any]) -> None:
    """Raise ValueError on an integer of more than 64 bits, which TOML lacks.

    Python reads those in base 16, 8 and 2 of any length, and cannot write them down.
    """
    left: list[Any] = [tables]
    while left:
        value = left.pop()
        if type(value) is int and not -LARGEST - 1 <= value <= LARGEST:
            raise ValueError("an integer has more than 64 bits")
        if isinstance(value, (dict, list)):
            left.extend(value.values() if isinstance(value, dict) else value)


@contextmanager
def understood(path, field: str = "", *, error: type[FileError] = InputError):
    """Take what goes wrong inside for damage of a file: a value that is missing or of another kind.

    Errors: `error` with path and field; what names the file already is left as it is.
    """
    where = f"{field} of {path}" if field else f"{path}"
    try:
        yield
    except FileError:
        raise
    except FAULTS as fault:
        if isinstance(fault, ShardkitError) and str(path) in str(fault):
            raise
        raise error(f"{where} is damaged: {_said(fault)}", path, field) from None


@contextmanager
def named(path, *, error: type[FileError] = InputError):
    """Name a file in what is said of its settings. Errors: `error` for ConfigurationError."""
    try:
        yield
    except ConfigurationError as fault:
        if isinstance(fault, FileError) or str(path) in str(fault):
            raise
        raise error(f"{path}: {fault}", path) from None


@contextmanager
def library(path, field: str = "", *, error: type[FileError] = InputError):
    """Take what a library raises for damage of the file that it reads. Errors: as understood."""
    with understood(path, field, error=error):
        try:
            yield
        except RecursionError:
            raise
        except (OSError, RuntimeError) as fault:
            where = f"{field} of {path}" if field else f"{path}"
            raise error(f"{where} cannot be read: {_said(fault)}", path, field) from None


def _said(fault: BaseException) -> str:
    """Return what an exception says, in one line that is not long."""
    if isinstance(fault, RecursionError):
        return "it is nested too deeply"
    if isinstance(fault, MemoryError):
        return "it asks for more memory than there is"
    text = str(fault).partition("\n")[0]
    if isinstance(fault, KeyError):
        return f"it has no {text}"[:300]
    plain = isinstance(fault, ValueError | ShardkitError)
    return (text if plain else f"{type(fault).__name__}: {text}")[:300]


# ---- values --------------------------------------------------------------------------------------


def wanted(value, kind, path, field: str, *, error: type[FileError] = InputError):
    """Return a value of a file that must be of this kind; bool is no int, and int is a float.

    kind  a type, or several
    Errors: `error` with path and field.
    """
    kinds = kind if isinstance(kind, tuple) else (kind,)
    is_number = float in kinds and type(value) is int and abs(value) <= LARGEST
    if type(value) not in kinds and not is_number:
        names = " or ".join(each.__name__ for each in kinds)
        raise error(f"{path}: {field} = {value!r:.100}; wanted {names}", path, field)
    return value


def wanted_count(
    value, path, field: str, most: int = LARGEST, *, error: type[FileError] = InputError
):
    """Return a value of a file that must be an integer from 0 to `most`. Errors: as wanted."""
    if type(value) is not int or not 0 <= value <= most:
        text = f"{value!r:.100}" if type(value) is not int or abs(value) < 1 << 200 else "a number"
        limit = "" if most == LARGEST else f" to {most:,}"
        raise error(f"{path}: {field} = {text}; wanted an integer from 0{limit}", path, field)
    return value


# ---- arrays --------------------------------------------------------------------------------------


def is_plain(dtype: numpy.dtype) -> bool:
    """Return True for integers, floats and booleans of a usual size: what arrays may hold."""
    return dtype.names is None and dtype.subdtype is None and dtype.itemsize in _sizes(dtype)


def _sizes(dtype: numpy.dtype) -> tuple[int, ...]:
    return _PLAIN.get(dtype.kind, ())


def checked_bytes(
    path,
    dtype: numpy.dtype,
    at: int,
    shape,
    size: int,
    *,
    field: str = "",
    error: type[FileError] = InputError,
) -> int:
    """Return the bytes of an array that begins at byte `at` of a file of this size.

    Errors: `error` unless its dtype is plain, its shape is one, and it lies within the file.
    """
    where = f"{field} of {path}" if field else f"{path}"
    if not is_plain(dtype):
        raise error(f"{where} is of dtype {dtype!s:.100}; wanted numbers", path, field)
    sizes = (*shape, at)
    if len(sizes) > MOST_DIMS + 1 or not all(0 <= number <= LARGEST for number in sizes):
        raise error(f"{where} has shape {sizes[:-1]!s:.100} at byte {at}", path, field)
    num_bytes = prod(shape) * dtype.itemsize
    # of the dimensions beside an empty one too: NumPy multiplies them
    extent = prod(number for number in shape if number) * dtype.itemsize
    if extent > LARGEST or num_bytes and at + num_bytes > size:
        raise error(
            f"{where} is cut short: shape {tuple(shape)!s:.100} of {dtype} at byte {at:,} ends "
            f"behind the {size:,} bytes of the file",
            path,
            field,
        )
    return num_bytes


def mapped(
    path, dtype, at: int, shape, *, field: str = "", error: type[FileError] = InputError
) -> numpy.ndarray:
    """Return an array in a file, mapped into memory, read-only.

    Errors: as open_regular, and as checked_bytes, before any memory is taken.
    """
    return _array(path, dtype, at, shape, field, error, 0)


def loaded(
    path, dtype, at: int, shape, *, field: str = "", error: type[FileError] = InputError
) -> numpy.ndarray:
    """Return an array in a file, read if it is small, and mapped if it is large. As mapped()."""
    return _array(path, dtype, at, shape, field, error, _READ_BYTES)


def _array(path, dtype, at, shape, field, error, most_read):
    dtype = numpy.dtype(dtype)
    with opened(path, error=error) as file:
        size = bytes_of(file)
        num_bytes = checked_bytes(path, dtype, at, shape, size, field=field, error=error)
        if not num_bytes:
            return numpy.empty(shape, dtype)
        if num_bytes > most_read:
            return numpy.memmap(file, dtype, "r", at, tuple(shape))
        file.seek(at)
        content = file.read(num_bytes)
    if len(content) < num_bytes:
        raise error(f"{path} became shorter while it was read; try again", path, field)
    return numpy.frombuffer(content, dtype).reshape(shape)
