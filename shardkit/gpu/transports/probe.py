"""Find out whether the MPI library takes GPU memory, in processes of their own.

One that cannot may crash, hang or send wrong bytes.

    this process     mpiexec -n 2 python -I ... (trials.py) send:1024 broadcast:1024 ...
                     with a time limit
    the two ranks    each verb at each size, on GPU arrays, by the code that a run uses; a line for
                     each that was right
    this process     the first that is missing is not used, nor at larger sizes; the others go on in
                     a new pair of processes

Sizes stand for the ways in which libraries send: eagerly, by agreement, in pieces. The pair is on
one node; what two nodes do with GPU memory it cannot see. All ranks of a run use what was right on
every node, or nothing.
"""

import os
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from math import inf
from pathlib import Path

from ...comm.mpi.launch import find_mpiexec
from ...environment import environment_without_launcher, gpu_aware_mpi
from ...errors import DeviceError
from ...files.programs import python_command
from .device import gpu_seat
from .mpi_support import why_it_takes_none

VERBS = ("send", "broadcast", "all_gather", "all_to_all")
SIZE_CLASSES = {
    1 << 10: 8 << 10,
    256 << 10: 4 << 20,
    16 << 20: inf,
}  # bytes tried: what they stand for, up to
LIMIT_SECONDS = 40.0
KILL_SECONDS = 5.0  # in which killed processes end; what they held is freed first
PASSED = "passed "
TRIALS = f"{__package__}.trials"  # what the processes of the probe run
_RUN_TRIALS = f"import runpy; runpy.run_module({TRIALS!r}, run_name='__main__', alter_sys=True)"


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
        """Return True if this verb may have an array of so many bytes."""
        return num_bytes <= dict(self.limits)[verb] > 0

    def takes_all(self, verb: str) -> bool:
        """Return True if the verb may have arrays of any size."""
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
    """Return the verdict of all ranks, as SHARDKIT_GPU_AWARE_MPI asks. Collective.

    One rank of each node may start processes.
    """
    answers = world.all_gather_object(_own_verdict(world))
    answers = [answer for answer in answers if answer is not None]
    limits = tuple((verb, min(dict(answer.limits)[verb] for answer in answers)) for verb in VERBS)
    return Verdict(limits, next((answer.reason for answer in answers if answer.reason), ""))


def _own_verdict(world) -> Verdict | None:
    """Return this rank's verdict; None: a neighbor has it."""
    word = gpu_aware_mpi()
    if world.communicator is None:
        return Verdict.nothing("these ranks are no MPI processes")
    if word == "no":
        return Verdict.nothing("SHARDKIT_GPU_AWARE_MPI=no")
    if word == "yes":
        return Verdict.everything()
    return _probed() if world.local_rank == 0 else None


@cache
def _probed() -> Verdict:
    """Return what the probe finds, tried once in this process.

    A library that says itself that it takes no GPU memory is not tried.
    """
    try:
        gpu_seat(0)
        denied = why_it_takes_none()
    except DeviceError:
        denied = ""
    return Verdict.nothing(denied) if denied else probe()


def probe(limit_seconds: float = LIMIT_SECONDS) -> Verdict:
    """Try all verbs and sizes; return the verdict.

    In at most one pair of processes and one more for each verb that fails.
    """
    try:
        gpu_seat(0)
    except DeviceError as error:
        return Verdict.nothing(f"no GPU: {error}")
    mpiexec = find_mpiexec()
    if mpiexec is None:
        return Verdict.nothing(
            "no mpiexec beside this Python or in PATH to try it with; SHARDKIT_GPU_AWARE_MPI=yes "
            "if the site says that its MPI takes GPU memory"
        )
    return _try_all(lambda trials: _run(mpiexec, trials, limit_seconds))


def _try_all(run) -> Verdict:
    """Return the verdict; run(trials) -> (number that passed, why the next did not)."""
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
    """Return (number of trials that passed, what became of the next one)."""
    command = [
        mpiexec,
        "-n",
        "2",
        *python_command(_RUN_TRIALS, *(f"{verb}:{size}" for verb, size in trials)),
    ]
    process = subprocess.Popen(
        command,
        env=environment_without_launcher(),
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
        output = process.communicate()[0]
        reason = f"did not end within {limit_seconds:g} s"
    return sum(line.startswith(PASSED) for line in output.splitlines()), reason


def _kill_session(process) -> None:
    """Kill the launcher and, since they are of its session, its ranks, until none is left.

    MPICH's launcher puts ranks into groups of their own.
    """
    deadline = time.monotonic() + KILL_SECONDS
    while (members := _session_members(process.pid)) and time.monotonic() < deadline:
        for pid in members:
            with suppress(ProcessLookupError):  # it has ended by itself
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _session_members(session: int) -> list[int]:
    """Return the processes of this session that have not ended."""
    members = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile
            state, *fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[2]) == session and state not in ("Z", "X"):
                members.append(int(folder.name))
    return members


def _end_text(code: int, errors: str) -> str:
    if code in (-signal.SIGSEGV, 128 + signal.SIGSEGV):
        return "crashed (segmentation fault)"
    words = [line.strip() for line in errors.splitlines() if line.strip()]
    return f"ended with exit code {code}" + (f": {words[-1]}" if words else "")
