"""Compile loops with Numba, and keep the compiled code.

    @compiled                   a loop that Python calls: kept in a file
    @inlined                    a formula that loops call

Both compile to exact IEEE arithmetic: nothing is reordered or contracted (no
fastmath), so an element has the same bits wherever it stands, whether it was computed in a vector
or alone. What may be reordered says so (`plus` in scalar.py). Loops get C-contiguous, writable
arrays only: one machine code per kernel and dtype.

Compiling takes a few tenths of a second per loop, once per machine: the code is then read from the
first of these folders that has it, and written to the first that lets us.

    NUMBA_CACHE_DIR, if it is set
    __pycache__ beside this file
    ~/.cache/shardkit
    a private folder in the temporary one

If none can be written to, each process compiles what it needs. One file holds one loop for one
signature and kind of CPU, and carries a checksum: ranks that compile at the same time write equal
files, and a torn file is compiled again. Reading one runs what it holds: only a file that nobody
else can have written is read (files/writers.py). (Numba's own cache numbers its files in an index,
which two processes that save different signatures can leave pointing at each other's.)
"""

import functools
import hashlib
import os
import pickle
import stat
import sys
import tempfile
import time
from pathlib import Path

from ...environment import kernel_folder
from ...files.writers import can_be_trusted, read_trusted
from ...files.writing import write_whole
from ..machine_code import MACHINE_CODE

with MACHINE_CODE.loading("Numba"):
    import numba
    from numba.core.compiler import CompileResult
    from numba.core.serialize import dumps

DIGEST_BYTES = 32


def compiled(loop):
    """Return the loop in machine code, which releases the GIL and is kept in a file."""
    dispatcher = inlined(loop)
    dispatcher._cache = CodeFiles(loop)
    return dispatcher


def inlined(formula):
    """Return the formula in machine code; it is kept as a part of the loops that call it.

    Processes compile loops for each other, and link them by qualified names: formulas that differ,
    made by one function, need names of their own.
    """
    return numba.njit(formula, error_model="numpy", nogil=True)


class CodeFiles:
    """The compiled signatures of one loop, in files; its five members are what Numba calls."""

    def __init__(self, loop, folders=None):
        self._name = f"{loop.__module__.rpartition('.')[2]}.{loop.__name__}"
        self._home = Path(loop.__code__.co_filename).parent
        self._folders = candidate_folders() if folders is None else folders

    def __str__(self):
        return self._name

    @property
    def cache_path(self):
        return str(self._folders[0])

    def load_overload(self, signature, target):
        """Return the compiled code for this signature, or None."""
        began = time.perf_counter()
        with MACHINE_CODE.loading(self._name):
            found = self._load(signature, target)
        if found is None:
            MACHINE_CODE.begin(self)
        else:
            MACHINE_CODE.read(time.perf_counter() - began)
        return found

    def _load(self, signature, target):
        target.refresh()
        name = self._file_name(signature, target.codegen())
        for folder in self._folders:
            content = _read(folder / name)
            if content is not None:
                return CompileResult._rebuild(target, *pickle.loads(content))  # runs code
        return None

    def save_overload(self, signature, result):
        """Keep the code in the first folder that can be written to, if there is one."""
        content = dumps(result._reduce())
        name = self._file_name(signature, result.codegen)
        any(_write(folder, name, content) for folder in self._folders)
        MACHINE_CODE.end(self)

    def flush(self):
        """Do nothing: every signature is written when it is compiled."""

    def _file_name(self, signature, codegen):
        """Return a name that differs with sources, signature, CPU, Numba and Python."""
        key = repr(
            (
                _source_digest(),
                _digest_of(self._home),
                signature,
                codegen.magic_tuple(),
                numba.__version__,
                sys.version_info[:2],
            )
        )
        return f"{self._name}-{hashlib.sha256(key.encode()).hexdigest()[:20]}.kernel"


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
    return (*folders, private) if _is_private(private) else tuple(folders)


def _is_private(folder):
    """Return True for a folder that only we can write to; also for one that is made when used."""
    try:
        found = folder.lstat()
    except OSError:
        return not os.path.lexists(folder)
    return stat.S_ISDIR(found.st_mode) and can_be_trusted(found)


@functools.cache
def _source_digest() -> str:
    """Return a digest of all files in this folder, whose formulas other folders' loops contain."""
    return _digest_of(Path(__file__).parent)


@functools.cache
def _digest_of(folder: Path) -> str:
    """Return a digest of all files in the folder: a loop contains formulas of its neighbors."""
    sources = sorted(folder.glob("*.py"))
    return hashlib.sha256(b"\0".join(source.read_bytes() for source in sources)).hexdigest()


def _read(path):
    """Return what _write wrote, or None if there is no file, a part of one, or another's."""
    whole = read_trusted(path)
    if whole is None or whole[:DIGEST_BYTES] != _digest(path.name, whole[DIGEST_BYTES:]):
        return None
    return whole[DIGEST_BYTES:]


def _write(folder, name, content) -> bool:
    """Write the file atomically; return False if the folder is full or cannot be written to."""
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        write_whole(folder / name, _digest(name, content) + content, mode=0o644)
    except OSError:
        return False
    return True


def _digest(name: str, content: bytes) -> bytes:
    """Return the checksum of a file under its name: under another it is not whole."""
    return hashlib.sha256(name.encode() + b"\0" + content).digest()
