"""Loops in machine code: found where it is kept, or else compiled, and called without a layer.

    @compiled                   a loop that Python calls, and other loops
    @inlined                    a formula that loops call (notation.py)

Both compile to exact IEEE arithmetic: nothing is reordered or contracted (no
fastmath), so an element has the same bits wherever it stands, whether it was computed in a vector
or alone. What may be reordered says so (`plus` in scalar.py). Loops get C-contiguous, writable
arrays only: one machine code per kernel and dtype.

The code of a loop for one signature (signatures.py) and target (targets.py) comes from the first of
these that has it. Only what is in none is compiled, and written to the first folder that lets us:
Numba and LLVM are loaded for that alone.

    the package's own     for common loops, made when it was installed (packs.py)
    NUMBA_CACHE_DIR, if it is set
    __pycache__ beside this file
    ~/.cache/shardkit
    a private folder in the temporary one

One process of a node compiles for all others there (workshop.py), and of several nodes that share
a folder one for all: it claims a loop, and the others read what it has written (files/claims.py).
Where no such process can be had, each compiles what it needs. One file of a folder holds one loop
and carries a checksum: a torn file is compiled again. Code is run that is read: only a file that
nobody else can have written is read (files/writers.py).
"""

import functools
import hashlib
import importlib
import os
import stat
import tempfile
import threading
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from ...environment import choose_kernel_folder, compiler_options, kernel_folder
from ...errors import FileError
from ...files.claims import claimed
from ...files.removing import remove_file
from ...files.writers import can_be_trusted, read_trusted
from ...files.writing import write_whole
from ..machine_code import MACHINE_CODE
from . import packs
from .images import ABI, Code, Image, is_layout_known
from .notation import Formula, in_this_process, inlined
from .signatures import signature_of
from .targets import check_that_it_runs_here, target
from .workshop import Workshops, address_of

__all__ = ["Loop", "compiled", "inlined", "named"]

DIGEST_BYTES = 32
LOOPS: dict[str, "Loop"] = {}
_LOCK = threading.RLock()  # one thread finds or compiles code at a time


def compiled(loop) -> "Loop":
    """Return the loop in machine code, which releases the GIL and is kept in a file."""
    found = Loop(loop)
    LOOPS[found.name] = found
    return found


def named(module: str, name: str, loop) -> "Loop":
    """Return a loop that a function has made, under a name of its own."""
    loop.__module__ = module
    loop.__name__ = loop.__qualname__ = name
    return compiled(loop)


class Loop(Formula):
    """A loop of Python, and its machine code for each signature that it was called with.

    name       of the module within the package, and of the loop
    __call__   the code that came last: a call goes there without a frame of Python between, and
               for other types from there to what came before
    """

    __slots__ = ("__call__",)

    def __init__(self, function, folders=None):
        super().__init__(function)
        self.name = f"{function.__module__.removeprefix(packs.PACKAGE + '.')}.{function.__name__}"
        self._folders = folders
        self._home = Path(function.__code__.co_filename).parent
        self.__call__: Callable = self._meet
        self._of_signature: dict[tuple[str, ...], Callable] = {}

    @property
    def signatures(self) -> list[tuple[str, ...]]:
        """The signatures that there is code for in this process."""
        return list(self._of_signature)

    def entry_for(self, signature: tuple[str, ...]) -> Callable:
        """Return the function for arguments of this signature; for others: NotImplemented."""
        with _LOCK:
            if signature not in self._of_signature:
                self._add(signature)
            return self._of_signature[signature]

    def _add(self, signature):
        if can_keep_code():
            check_that_it_runs_here(target())
            code = Code(self.image(signature), self.name)
            self._of_signature[signature] = code.function()
            self.__call__ = code.function(self.__call__)
        else:
            self._of_signature[signature] = self.__call__ = self._in_this_process

    def _meet(self, *arguments):
        """Compute where there was no code for these types before."""
        return self.entry_for(signature_of(arguments))(*arguments)

    @functools.cached_property
    def _in_this_process(self):
        """Numba's function, for a system where code cannot be kept."""
        MACHINE_CODE.begin(self)
        try:
            return in_this_process(self.py_func)
        finally:
            MACHINE_CODE.end(self)

    def image(self, signature: tuple[str, ...]) -> Image:
        """Return the code for a signature: as it was kept, or else compiled, and kept."""
        began = time.perf_counter()
        with MACHINE_CODE.loading(self.name):
            found = self._kept(signature)
        if found is not None:
            MACHINE_CODE.read(time.perf_counter() - began)
            return found
        MACHINE_CODE.begin(self.name)
        found = self.made(signature)
        MACHINE_CODE.end(self.name)
        return found

    def found_or_made(self, signature: tuple[str, ...]) -> Image:
        """Return the code for a signature. Threads may call it."""
        found = self._kept(signature)
        return self.made(signature) if found is None else found

    def keep(self, signature: tuple[str, ...], places: int | None = None) -> Path | None:
        """Keep the code for a signature in a file; return the folder that has it now.

        places   how many of the folders may keep it, the best first; None: all
        None: it was there. Errors: FileError if no folder takes it.
        """
        paths = self._paths(signature)[:places]
        if self._packed(signature) is not None or any(_read(path) is not None for path in paths):
            return None
        content = self.found_or_made(signature).pack()  # the workshop may have written the file
        for path in paths:
            if _read(path) is not None or _write(path.parent, path.name, content):
                return path.parent
        raise _refusal(*(path.parent for path in paths))

    def made(self, signature: tuple[str, ...]) -> Image:
        """Return the code that the workshop of this node compiles, or this process; and keep it.

        Threads may call it.
        """
        content = None
        if LOOPS.get(self.name) is self:  # another process finds the loop by its name
            line = packs.key_of(self.name, signature)
            content = workshops().code(line, self.file_name(signature))
        return self.made_here(signature) if content is None else Image.unpack(content)

    def made_here(self, signature: tuple[str, ...]) -> Image:
        """Return the code that this process compiles, or another meanwhile; and keep it."""
        find = functools.partial(self._kept, signature)
        with claimed(self._paths(signature), find) as found:
            if found is None:
                from .compiling import image_of  # loads Numba and LLVM

                found = image_of(self, signature, target())
                self._keep(signature, found.pack())
        return found

    def _keep(self, signature, content: bytes) -> None:
        for path in self._paths(signature):
            if _write(path.parent, path.name, content):
                break

    def _paths(self, signature) -> list[Path]:
        """Return where the code for a signature may be."""
        name = self.file_name(signature)
        return [folder / name for folder in self._places()]

    def _kept(self, signature) -> Image | None:
        packed = self._packed(signature)
        if packed is not None:
            return Image.unpack(packed)
        for path in self._paths(signature):
            content = _read(path)
            if content is not None:
                return Image.unpack(content)
        return None

    def _packed(self, signature) -> bytes | None:
        """Return the code in the package's own file, which was made without options."""
        if self._folders is not None or compiler_options():
            return None
        return packs.find(self.name, signature, self.sources)

    def _places(self):
        return candidate_folders() if self._folders is None else self._folders

    @functools.cached_property
    def sources(self) -> str:
        """A digest of the files that the loop is made from."""
        return hashlib.sha256((_source_digest() + _digest_of(self._home)).encode()).hexdigest()

    def file_name(self, signature: tuple[str, ...]) -> str:
        """Return a name that differs with sources, types, target, compiler, Python and NumPy."""
        key = repr((self.sources, signature, target().name, _compiler(), ABI))
        name = ".".join(self.name.split(".")[-2:])
        return f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:20]}.kernel"


def loop_named(line: str) -> tuple[Loop, tuple[str, ...]]:
    """Return the loop and the signature that a line names."""
    name, signature = packs.parts_of_key(line)
    for module in ("array.kernels", name.rpartition(".")[0]):  # the first declares all kernels
        importlib.import_module(f"{packs.PACKAGE}.{module}")
    return LOOPS[name], signature


@functools.cache
def can_keep_code() -> bool:
    """Return whether this system runs code as it is kept; else Numba compiles in each process."""
    return target().is_kept and is_layout_known()


@functools.cache
def candidate_folders() -> tuple[Path, ...]:
    """Return the folders where compiled code may be, the best first."""
    chosen = kernel_folder()
    folders = [chosen / "shardkit"] if chosen is not None else []
    folders.append(Path(__file__).parent / "__pycache__")
    home = os.path.expanduser("~")
    if home != "~":  # which it stays where there is no home directory
        folders.append(Path(home) / ".cache" / "shardkit")
    private = Path(tempfile.gettempdir()) / f"shardkit-kernels-{os.getuid()}"
    if _is_private(private):
        folders.append(private)
    return tuple(folder.absolute() for folder in folders)


def workshops() -> Workshops:
    """Return the ways to the process that compiles for those that keep code in the same folders."""
    return _workshops_of(candidate_folders())


@functools.cache
def _workshops_of(folders: tuple[Path, ...]) -> Workshops:
    ground = (_source_digest(), target().name, _compiler(), *map(str, folders))
    return Workshops(address_of(*ground))


def keep_in(folder: Path) -> None:
    """Let this process keep compiled code in this folder, from now on.

    Errors: FileError if it takes none.
    """
    choose_kernel_folder(folder)
    candidate_folders.cache_clear()
    place = candidate_folders()[0]
    if not _write(place, "trial", b""):
        raise _refusal(place)
    remove_file(place / "trial")


def _refusal(*folders: Path) -> FileError:
    return FileError(
        f"compiled kernels can be kept in none of {', '.join(map(str, folders))}; choose a folder "
        "that you can write to and other users cannot: shardkit compile --folder FOLDER"
    )


def _is_private(folder):
    """Return True for a folder that only we can write to; also for one that is made when used."""
    try:
        found = folder.lstat()
    except OSError:
        return not os.path.lexists(folder)
    return stat.S_ISDIR(found.st_mode) and can_be_trusted(found)


@functools.cache
def _compiler() -> str:
    """Return a digest of what Numba and LLVM say of their versions, which are not loaded for it,
    and of their options.

    Others may make other code of the same sources, in folders that environments share.
    """
    versions = map(_version_of, ("numba", "llvmlite"))
    options = map(str.encode, compiler_options())
    return hashlib.sha256(b"\0".join((*versions, *options))).hexdigest()


def _version_of(library: str) -> bytes:
    found = find_spec(library)
    if found is None or found.origin is None:
        return b""
    file = Path(found.origin).with_name("_version.py")
    if file.is_file():
        return file.read_bytes()
    from importlib.metadata import version  # loads much, and reads more

    return version(library).encode()


@functools.cache
def _source_digest() -> str:
    """Return a digest of all files in this folder, whose formulas other folders' loops contain."""
    return _digest_of(Path(__file__).parent)


@functools.cache
def _digest_of(folder: Path) -> str:
    """Return a digest of all files in the folder: a loop contains formulas of its neighbors.

    Of a folder within an archive (zipimport) it is that of the archive.
    """
    sources = sorted(folder.glob("*.py")) or [path for path in folder.parents if path.is_file()]
    assert sources, folder
    return hashlib.sha256(b"\0".join(source.read_bytes() for source in sources)).hexdigest()


def _read(path):
    """Return what _write wrote, or None if there is no file, a part of one, or another's."""
    whole = read_trusted(path)
    if whole is None or whole[:DIGEST_BYTES] != _digest(path.name, whole[DIGEST_BYTES:]):
        return None
    return whole[DIGEST_BYTES:]


def _write(folder, name, content) -> bool:
    """Write the file atomically; return False if the folder is full, cannot be written to, or can
    be by others: then nobody would read it.
    """
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        if not can_be_trusted(folder.stat()):
            return False
        write_whole(folder / name, _digest(name, content) + content, mode=0o644)
    except OSError:
        return False
    return True


def _digest(name: str, content: bytes) -> bytes:
    """Return the checksum of a file under its name: under another it is not whole."""
    return hashlib.sha256(name.encode() + b"\0" + content).digest()
