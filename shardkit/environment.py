"""Read the environment: the launcher, the batch system, and the variables of SHARDKIT_*.

No other file reads os.environ.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from .errors import ConfigurationError

_WORLD_SIZE_VARIABLES = {"OMPI_COMM_WORLD_SIZE": "Open MPI", "PMI_SIZE": "PMI", "PMIX_SIZE": "PMIx"}
_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
)
_LAUNCHER_PREFIXES = (
    "PMI_",
    "PMIX_",
    "OMPI_COMM_WORLD_",
    "OMPI_UNIVERSE_",
    "PRTE_LAUNCHED",
    "HYDI_",
    "MPI_LOCAL",
    "SLURM_PROCID",
    "SLURM_STEP",
)
_OFF = ("0", "false", "no", "off")
_FOLDERS = "HOME", "NUMBA_CACHE_DIR", "TMPDIR"
_COMPILER_OPTIONS = "BOUNDSCHECK DEBUG DEBUGINFO LOOP_VECTORIZE OPT SLP_VECTORIZE".split()


def _text(variable: str) -> str:
    """Return the value in lower case, without spaces around it; "" if it is not set."""
    return os.environ.get(variable, "").strip().lower()


def _one_of(variable: str, *known: str) -> str:
    """Return the value, the first of these if it is not set. Errors: ConfigurationError."""
    value = _text(variable) or known[0]
    if value not in known:
        wanted = f"{', '.join(known[:-1])} or {known[-1]}"
        raise ConfigurationError(f"{variable} = {value!r}; wanted {wanted}")
    return value


def _number(variable: str) -> int | None:
    text = os.environ.get(variable, "")
    return int(text) if text.isdigit() else None


# ---- the launcher --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Launcher:
    """The program that started this process, as far as the environment shows it.

    name       "Open MPI", "PMI" (MPICH, Intel MPI, Cray, srun --mpi=pmi2), "PMIx", "srun" (without
               any of these), or None
    num_ranks  number of ranks that it started; None without a launcher
    rank       rank of this process among them; 0 without a launcher
    num_tasks  number of tasks that SLURM granted to the whole job; None outside of a job
    socket     file descriptor that connects this process to the launcher (PMI); None if there is
               none
    """

    name: str | None
    num_ranks: int | None
    rank: int
    num_tasks: int | None
    socket: int | None = None


def launcher() -> Launcher:
    """Return what started this process: mpiexec, srun or neither."""
    tasks = _number("SLURM_NTASKS")
    for variable, name in _WORLD_SIZE_VARIABLES.items():
        if _number(variable) is not None:
            rank = _number(variable.replace("SIZE", "RANK")) or 0
            return Launcher(name, _number(variable), rank, tasks, _number("PMI_FD"))
    if _number("SLURM_PROCID") is not None and _number("SLURM_STEP_NUM_TASKS") is not None:
        return Launcher("srun", _number("SLURM_STEP_NUM_TASKS"), _number("SLURM_PROCID"), tasks)
    return Launcher(None, None, 0, tasks)


def launched_ranks() -> int | None:
    """Return how many ranks mpiexec or srun started; None without a launcher."""
    return launcher().num_ranks


def environment_without_launcher() -> dict[str, str]:
    """Return the environment for a process that is no rank of this job, in whatever folder."""
    kept = {
        name: os.path.abspath(value) if name in _FOLDERS and value else value
        for name, value in os.environ.items()
        if not name.startswith(_LAUNCHER_PREFIXES) or "_MCA_" in name
    }
    return {**kept, "PATH": os.pathsep.join(program_folders())}


def program_folders() -> list[str]:
    """Return the folders of PATH that are named from the root: not "" and not "."."""
    path = os.environ.get("PATH", os.defpath)
    return [folder for folder in path.split(os.pathsep) if os.path.isabs(folder)]


def ranks_may_die() -> bool:
    """Return whether Open MPI's mpiexec goes on when a rank dies (--with-ft ulfm)."""
    return _text("OMPI_MCA_mpi_ft_enable") in ("1", "true", "yes")


# ---- the batch system ----------------------------------------------------------------------------


def allocation_end() -> float | None:
    """Return when the batch system ends this job, in Unix seconds; None if it is not set."""
    for name in ("SHARDKIT_END_TIME", "SLURM_JOB_END_TIME"):
        if _number(name) is not None:
            return float(_number(name))
    return None


def slurm_job() -> str | None:
    """Return the number of this process's SLURM job; None outside of a job."""
    return os.environ.get("SLURM_JOB_ID")


def batch_job() -> tuple[str | None, int]:
    """Return the number of this process's batch job, None outside of one, and how often the job was
    queued again, or its ranks launched again (SHARDKIT_LAUNCH, of jobs/launch.sh).
    """
    names = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID")
    job = next(filter(None, map(os.environ.get, names)), None)
    again = (_number("SLURM_RESTART_COUNT") or 0) * 10**6 + (_number("SHARDKIT_LAUNCH") or 0)
    return job, again


def slurm_node() -> str | None:
    """Return SLURM's name of this node; None outside of a job."""
    return os.environ.get("SLURMD_NODENAME")


# ---- the machine ---------------------------------------------------------------------------------


def blas_threads_are_set() -> bool:
    """Return whether the environment sets the number of BLAS threads."""
    return any(os.environ.get(variable) for variable in _THREAD_VARIABLES)


def visible_gpus() -> str | None:
    """Return CUDA_VISIBLE_DEVICES; None if this process may see all GPUs."""
    return os.environ.get("CUDA_VISIBLE_DEVICES")


def wanted_kernels() -> str:
    """Return the target of machine code that SHARDKIT_KERNELS names; "": the best one."""
    return _text("SHARDKIT_KERNELS")


def environment_with_kernels(name: str) -> dict[str, str]:
    """Return the environment for a process that has machine code for this target."""
    return {**os.environ, "SHARDKIT_KERNELS": name}


def is_compiling_wanted() -> bool:
    """Return False if NUMBA_DISABLE_JIT turns Numba's compiler off."""
    return not _number("NUMBA_DISABLE_JIT")


def compiler_options() -> list[str]:
    """Return the variables that are set of those by which Numba makes other code, NAME=VALUE."""
    names = [f"NUMBA_{option}" for option in _COMPILER_OPTIONS]
    return [f"{name}={os.environ[name]}" for name in names if os.environ.get(name)]


def kernel_folder() -> Path | None:
    """Return NUMBA_CACHE_DIR, the folder for compiled kernels; None if it is not set.

    From the environment alone: Numba also takes it from a file in the working folder.
    """
    return Path(os.environ["NUMBA_CACHE_DIR"]) if os.environ.get("NUMBA_CACHE_DIR") else None


def choose_kernel_folder(folder: Path) -> None:
    """Set NUMBA_CACHE_DIR, for this process and those that it starts."""
    os.environ["NUMBA_CACHE_DIR"] = str(folder)


def ranks_per_node() -> int | None:
    """Return SHARDKIT_RANKS_PER_NODE, which divides one machine into several nodes for tests.

    None: nodes are as they are.
    """
    return _number("SHARDKIT_RANKS_PER_NODE") or None


def share_tokenizer_threads(wanted: int | None, share: int) -> None:
    """Set the threads of the library tokenizers, which reads the environment at its first use.

    wanted   what the user asks for; None: RAYON_NUM_THREADS if it is set, or else the share
    share    cores for this process
    """
    threads = wanted or _number("RAYON_NUM_THREADS") or share
    os.environ["RAYON_NUM_THREADS"] = str(threads)
    os.environ["TOKENIZERS_PARALLELISM"] = "true" if threads > 1 else "false"


# ---- what the user wants -------------------------------------------------------------------------


def checked_mode() -> bool:
    """Return whether SHARDKIT_CHECK turns on comparisons between ranks, which cost time."""
    return _text("SHARDKIT_CHECK") not in ("", *_OFF)


def progress_wanted() -> str:
    """Return how a run shows its progress, SHARDKIT_PROGRESS: "auto" (the default), "bar", "lines".

    Errors: ConfigurationError on another value.
    """
    return _one_of("SHARDKIT_PROGRESS", "auto", "bar", "lines")


def is_terminal_plain() -> bool:
    """Return whether NO_COLOR or a dumb TERM asks for plain lines."""
    return bool(os.environ.get("NO_COLOR")) or _text("TERM") in ("dumb", "unknown")


def is_shared_memory_wanted() -> bool:
    """Return False if SHARDKIT_SHARED makes ranks of one node send messages to each other."""
    return _text("SHARDKIT_SHARED") not in _OFF


def start_seconds() -> float:
    """Return the limit for MPI_Init in seconds, SHARDKIT_START_SECONDS; 0: no limit.

    Errors: ConfigurationError if it is no number.
    """
    text = os.environ.get("SHARDKIT_START_SECONDS", "").strip() or "180"
    if not text.replace(".", "", 1).isdigit():
        raise ConfigurationError(
            f"SHARDKIT_START_SECONDS = {text!r}; wanted seconds, or 0 for no limit"
        )
    return float(text)


def gpu_aware_mpi() -> str:
    """Return whether MPI calls take GPU arrays, SHARDKIT_GPU_AWARE_MPI (gpu_transport "mpi").

    "probe"  (the default) separate processes try each verb at several sizes first
    "yes"    the library takes GPU arrays; nothing is tried
    "no"     the library gets none
    Errors: ConfigurationError on another value.
    """
    return _one_of("SHARDKIT_GPU_AWARE_MPI", "probe", "yes", "no")


def mpich_gpu_support() -> str:
    """Return MPICH_GPU_SUPPORT_ENABLED, "1" where Cray's MPICH is to take GPU memory."""
    return os.environ.get("MPICH_GPU_SUPPORT_ENABLED", "").strip()


def line_to_complete() -> str:
    """Return the command line whose end a shell asks argcomplete for; "": none asks."""
    return os.environ.get("COMP_LINE", "") if "_ARGCOMPLETE" in os.environ else ""


def has_hdf5_plugins() -> bool:
    """Return True if the user has said where the HDF5 library finds filters, HDF5_PLUGIN_PATH."""
    return bool(os.environ.get("HDF5_PLUGIN_PATH", "").strip())
