"""Does the MPI library take GPU memory? Tried by processes of their own: one that cannot may crash,
hang or send wrong bytes.

    this process     mpiexec -n 2 python -m shardkit.comm.gpu.probe send:1024 broadcast:1024 ...  <- with a time limit
    the two ranks    each verb at each size, on GPU arrays, by the code that a run uses; a line for
                     each that was right
    this process     the first that is missing is not used, nor at larger sizes; the others go on in
                     a new pair of processes

Sizes stand for the ways in which libraries send: at once, by agreement, in pieces. The pair is on
one node; what two nodes do with GPU memory it cannot see. All ranks of a run use what was right on
every node, or nothing.
"""

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from math import inf
from pathlib import Path

from ...array.device import Device
from ...environment import environment_of_children, gpu_aware_mpi
from ...errors import DeviceError
from ..mpi.launch import find_mpiexec
from .device import gpu_seat

VERBS = ("send", "broadcast", "all_gather", "all_to_all")
SIZE_CLASSES = {
    1 << 10: 8 << 10,
    256 << 10: 4 << 20,
    16 << 20: inf,
}  # bytes tried: what they stand for, up to
LIMIT_SECONDS = 40.0
_PASSED = "passed "


@dataclass(frozen=True)
class Verdict:
    """What may be given to MPI: {verb: bytes up to which}, as pairs; and why it is not all."""

    limits: tuple[tuple[str, float], ...]
    reason: str = ""

    @classmethod
    def nothing(cls, reason: str) -> "Verdict":
        return cls(tuple((verb, 0) for verb in VERBS), reason)

    @classmethod
    def everything(cls) -> "Verdict":
        return cls(tuple((verb, inf) for verb in VERBS))

    def takes(self, verb: str, num_bytes: int) -> bool:
        """True if this verb may have an array of so many bytes."""
        return num_bytes <= dict(self.limits)[verb] > 0

    def takes_all(self, verb: str) -> bool:
        """True if the verb may have arrays of any size."""
        return dict(self.limits)[verb] == inf

    @property
    def takes_anything(self) -> bool:
        return any(limit for _, limit in self.limits)

    def __str__(self):
        if not self.takes_anything:
            return f"no: {self.reason}"
        able = ", ".join(
            f"{verb}{'' if limit == inf else f' up to {limit >> 10} KiB'}"
            for verb, limit in self.limits
            if limit
        )
        return f"yes, {able}" + (f"; not more, since {self.reason}" if self.reason else "")


def agreed_verdict(world) -> Verdict:
    """As SHARDKIT_GPU_AWARE_MPI says, the same on all ranks. One rank of each node may start
    processes. Collective.
    """
    answers = world.all_gather_object(_own_verdict(world))
    answers = [answer for answer in answers if answer is not None]
    limits = tuple((verb, min(dict(answer.limits)[verb] for answer in answers)) for verb in VERBS)
    return Verdict(limits, next((answer.reason for answer in answers if answer.reason), ""))


def _own_verdict(world) -> Verdict | None:
    """Of this rank; None: a neighbor tells."""
    word = gpu_aware_mpi()
    if world.communicator is None:
        return Verdict.nothing("these ranks are no MPI processes")
    if word == "no":
        return Verdict.nothing("SHARDKIT_GPU_AWARE_MPI=no")
    if word == "yes":
        return Verdict.everything()
    return probe() if world.local_rank == 0 else None


def probe(limit_seconds: float = LIMIT_SECONDS) -> Verdict:
    """Try all verbs and sizes, in at most one pair of processes and one more for each verb that
    fails.
    """
    try:
        gpu_seat(0)
    except DeviceError as error:
        return Verdict.nothing(f"no GPU: {error}")
    mpiexec = find_mpiexec()
    if mpiexec is None:
        return Verdict.nothing(
            "no mpiexec beside this Python or in PATH to try it with; SHARDKIT_GPU_AWARE_MPI=yes if the site "
            "says that its MPI takes GPU memory"
        )
    return _try_all(lambda trials: _run(mpiexec, trials, limit_seconds))


def _try_all(run) -> Verdict:
    """run(trials) -> (number that passed, why the next did not): the verdict on all of them."""
    limits, reasons = dict.fromkeys(VERBS, 0), []
    trials = [(verb, size) for size in SIZE_CLASSES for verb in VERBS]
    while trials:
        num_passed, reason = run(trials)
        limits.update({verb: SIZE_CLASSES[size] for verb, size in trials[:num_passed]})
        if num_passed == len(trials):
            break
        failed = trials[num_passed]
        reasons.append(f"{failed[0]} of {failed[1]} bytes {reason}")
        if failed == (VERBS[0], min(SIZE_CLASSES)):  # the least of all
            break
        trials = [trial for trial in trials[num_passed:] if trial[0] != failed[0]]
    return Verdict(tuple(limits.items()), "; ".join(reasons))


def _run(mpiexec: str, trials, limit_seconds: float) -> tuple[int, str]:
    """(number of trials that passed, what became of the next one)."""
    command = [
        mpiexec,
        "-n",
        "2",
        sys.executable,
        "-m",
        __name__,
        *(f"{verb}:{size}" for verb, size in trials),
    ]
    process = subprocess.Popen(
        command,
        env=environment_of_children(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=limit_seconds)
        reason = _end_text(process.returncode, errors)
    except subprocess.TimeoutExpired:
        _kill_session(process)
        output, reason = process.communicate()[0], f"did not end within {limit_seconds:g} s"
    return sum(line.startswith(_PASSED) for line in output.splitlines()), reason


def _kill_session(process) -> None:
    """The launcher and, since they are of its session, its ranks; MPICH's launcher puts ranks into
    groups of their own.
    """
    for pid in _session_members(process.pid):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # it has ended by itself


def _session_members(session: int) -> list[int]:
    """Processes of this session."""
    members = []
    for folder in Path("/proc").iterdir():
        try:
            fields = (
                (folder / "stat").read_text().rpartition(")")[2].split()
                if folder.name.isdigit()
                else []
            )
        except OSError:
            continue  # it has ended meanwhile
        if fields and int(fields[3]) == session:
            members.append(int(folder.name))
    return members


def _end_text(code: int, errors: str) -> str:
    if code in (-signal.SIGSEGV, 128 + signal.SIGSEGV):
        return "crashed (segmentation fault)"
    words = [line.strip() for line in errors.splitlines() if line.strip()]
    return f"ended with exit code {code}" + (f": {words[-1]}" if words else "")


# ---- in the processes of the probe ---------------------------------------------------------------


def _try_here(trials: list[str]) -> None:
    """Do each trial "verb:bytes"; the first that is wrong ends the program. Collective over two
    ranks.
    """
    from ..mpi.backend import MPICommunicationBackend
    from .mpi import MPITransport

    backend = MPICommunicationBackend(timeout=LIMIT_SECONDS)
    backend.initialize()
    xp = Device("cuda", ordinal=backend.local_rank).xp
    backend.gpu_transport = MPITransport(backend, Verdict.everything())
    for trial in trials:
        verb, _, num_bytes = trial.partition(":")
        _TRIALS[verb](backend, xp, int(num_bytes) // 4)
        if all(backend.all_gather_object(True)) and backend.rank == 0:
            print(_PASSED + trial, flush=True)
    backend.shutdown()


def _values(xp, rank: int, size: int):
    return xp.arange(size, dtype="int32") * 3 + rank


def _empty(xp, size: int):
    return xp.full(size, -1, "int32")


def _check(array, expected) -> None:
    if not bool((array == expected).all()):
        raise SystemExit("wrong bytes arrived")


def _try_send(backend, xp, size):
    other, received = 1 - backend.rank, _empty(xp, size)
    handle = backend.irecv(received, other)
    backend.isend(_values(xp, backend.rank, size), other).wait()
    handle.wait()
    _check(received, _values(xp, other, size))


def _try_broadcast(backend, xp, size):
    array = _values(xp, 7, size) if backend.rank == 0 else _empty(xp, size)
    backend.broadcast(array)
    _check(array, _values(xp, 7, size))


def _try_all_gather(backend, xp, size):
    whole = _empty(xp, size)
    backend.all_gather(_values(xp, backend.rank, size // 2), whole)
    for rank in range(2):
        _check(whole[rank * (size // 2) : (rank + 1) * (size // 2)], _values(xp, rank, size // 2))


def _try_all_to_all(backend, xp, size):
    received = _empty(xp, size)
    backend.all_to_all(_values(xp, 100 * backend.rank, size), received)
    half = slice(backend.rank * (size // 2), (backend.rank + 1) * (size // 2))
    for rank in range(2):
        _check(
            received[rank * (size // 2) : (rank + 1) * (size // 2)],
            _values(xp, 100 * rank, size)[half],
        )


_TRIALS = {
    "send": _try_send,
    "broadcast": _try_broadcast,
    "all_gather": _try_all_gather,
    "all_to_all": _try_all_to_all,
}

if __name__ == "__main__":
    _try_here(sys.argv[1:])
