"""The file systems: of Python's files, which each rank reads at its start, and of the run folder,
where small temporary files test what checkpoints need of it.
"""

import fcntl
import os
import sysconfig
import tempfile
import time
from pathlib import Path
from shutil import disk_usage

from ..checkpoint.format.hdf5 import try_locking
from ..comm.backend import CommunicationBackend
from ..comm.failure.agreement import agree
from ..files.removing import remove_trial
from ..files.writing import give_name, open_new, write_whole
from .finding import Finding, error, ok, warning

_OF_PYTHON = "purelib", "stdlib"
_BYTES = 16 * 2**20  # written by each rank
_LITTLE_ROOM_BYTES = 2**30
_SLOW_BYTES_PER_SECOND = 5e7
_SLOW_SYNC_SECONDS = 0.5
# beginnings of the names of file systems that nodes share
_SHARED = "nfs lustre gpfs beegfs ceph afs cifs smb panfs pvfs2 orangefs wekafs fhgfs".split()


def check_python_files() -> list[Finding]:
    """Warn where the files that each rank reads at its start lie on what nodes share.

    No communication.
    """
    for folder in (Path(__file__).parents[1], *map(Path, map(sysconfig.get_path, _OF_PYTHON))):
        kind = _file_system(folder.resolve())
        if kind.startswith(tuple(_SHARED)):
            return warning(
                "start",
                f"each rank reads its files of Python from {kind}, in {folder}",
                "for jobs of many ranks, `shardkit render --stage /dev/shm` copies them to the "
                "memory of each node (SLURM)",
            )
    return []


def check_folder(backend: CommunicationBackend, folder: Path) -> list[Finding]:
    """Check that all ranks see the folder, that checkpoints are safe in it, and how fast it is.

    Collective over the backend.
    """
    above = _nearest(folder)
    trial = problem = None
    if backend.rank == 0:
        try:
            trial = Path(tempfile.mkdtemp(prefix=".shardkit-doctor-", dir=above))
        except OSError as caught:
            problem = caught
    trial, problem = backend.broadcast_object((trial, problem), 0)
    if trial is None:
        return error(
            "folder",
            f"{above} cannot be written: {problem.strerror}",
            "choose another --run.folder",
        )
    try:
        return _try_out(backend, above, trial)
    finally:
        backend.barrier()
        if backend.rank == 0:
            remove_trial(trial)


def _nearest(folder: Path) -> Path:
    """Return the folder, or the nearest one above it that exists."""
    folder = folder.absolute()
    return next(path for path in (folder, *folder.parents) if path.is_dir())


def _try_out(backend, above, trial):
    blind = [
        rank for rank, sees in enumerate(backend.all_gather_object(trial.is_dir())) if not sees
    ]
    if blind:
        return error(
            "folder",
            f"{above} on rank 0 is not the folder of rank {', '.join(map(str, blind))}",
            "the run folder must be on a file system that all nodes share",
        )
    findings = backend.broadcast_object(_look(above, trial) if backend.rank == 0 else None, 0)
    seconds = _write_seconds(trial / f"rank-{backend.rank}")
    if agree(backend, seconds is None):
        text = f"{_BYTES >> 20} MiB for each rank could not be written"
        return findings + error("folder", text, "make room, or choose another --run.folder")
    return findings + _judge_speed(backend.all_gather_object(seconds))


def _look(above: Path, trial: Path) -> list[Finding]:
    """Check the kind of the file system, free space, rename and locks. Called on one rank."""
    free = disk_usage(above).free
    text = f"{above} on {_file_system(above)}, {free / 2**30:.1f} GiB free"
    if free > _LITTLE_ROOM_BYTES:
        space = ok("folder", text)
    else:
        space = warning("folder", text, "make room for checkpoints")
    return space + _try_rename(trial) + _try_locks(trial)


def _file_system(folder: Path) -> str:
    """Return the type of the file system as Linux names it; other kernels do not provide it."""
    table = Path("/proc/mounts")
    mounts = (
        [line.split()[1:3] for line in table.read_text("utf-8", "surrogateescape").splitlines()]
        if table.is_file()
        else []
    )
    kinds = [
        kind
        for place, kind in sorted(mounts, key=lambda mount: len(mount[0]))  # the innermost last
        if f"{folder}/".startswith(f"{place.rstrip('/')}/")
    ]
    return kinds[-1] if kinds else "an unknown file system"


def _try_rename(trial: Path) -> list[Finding]:
    """Check that a folder can be renamed and is visible immediately: so a checkpoint appears."""
    (trial / "before").mkdir()
    write_whole(trial / "before" / "file", b"x")
    try:
        give_name(trial / "before", trial / "after")
        holds = (trial / "after" / "file").read_text() == "x" and not (trial / "before").exists()
    except OSError:
        holds = False
    if holds:
        return ok("rename", "a renamed folder is visible immediately")
    return error(
        "rename",
        "a renamed folder is not visible immediately",
        "checkpoints are not safe here; choose another --run.folder",
    )


def _try_locks(trial: Path) -> list[Finding]:
    try:
        with open_new(trial / "lock") as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try_locking(trial / "lock.h5")
    except OSError as problem:
        return warning(
            "locks",
            f"files cannot be locked: {problem.strerror or problem}",
            "set HDF5_USE_FILE_LOCKING=FALSE; no two runs may then share a folder",
        )
    return ok("locks", "files can be locked")


def _write_seconds(path: Path) -> tuple[float, float] | None:
    """Return the seconds to write and sync, and to sync one byte more; None if writing failed."""
    block = os.urandom(2**20)
    began = time.perf_counter()
    try:
        with open_new(path) as file:
            for _ in range(_BYTES >> 20):
                file.write(block)
            os.fsync(file.fileno())
            written = time.perf_counter()
            file.write(b"x")
            file.flush()
            os.fsync(file.fileno())
            return written - began, time.perf_counter() - written
    except OSError:
        return None


def _judge_speed(everyones) -> list[Finding]:
    rate = _BYTES * len(everyones) / max(seconds for seconds, _ in everyones)
    sync = max(seconds for _, seconds in everyones)
    text = (
        f"all ranks together write {rate / 1e6:.0f} MB/s with fsync, which alone takes "
        f"{sync * 1e3:.0f} ms"
    )
    if rate < _SLOW_BYTES_PER_SECOND or sync > _SLOW_SYNC_SECONDS:
        return warning(
            "speed",
            text,
            "checkpoints will take long; use the parallel file system, or save less often",
        )
    return ok("speed", text)
