"""A program ends in every way at every place, whoever finalizes MPI: a good one is left alone and
not spoken of, and one that keeps others waiting is ended with a rank named.

    guarded (no communicator is given)    good    exit code 0 (or the program's own), not a word
                                          bad     ended within the limit + 5 s, and a rank named
    guest (a communicator is given)       as the same program without shardkit; who waits in
                                          shutdown() for one that has left raises, and names it

Some cases here, drawn anew from one seed; all of them, as a table, with
    python tests/e2e/test_endings.py FIRST LAST        (numbers of drawn cases)
"""

import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from itertools import cycle, islice
from pathlib import Path

import pytest

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
from e2e.ending_rank import LIMIT, PLACES, WAYS  # noqa: E402
from e2e.mpi_jobs import fair_seconds, run_job, seconds_since, words_of_shardkit  # noqa: E402

SCRIPT = Path(__file__).with_name("ending_rank.py")
LATE_SECONDS = 5.0  # beyond the limit
BARE_RUNS = 6
# name -> (library, launcher's options, environment)
MPIS = {
    "MPICH": ("MPICH", (), {}),
    "Open MPI": ("Open MPI", (), {"OMPI_MCA_async_mpi_finalize": "0"}),
    "Open MPI async": ("Open MPI", (), {"OMPI_MCA_async_mpi_finalize": "1"}),
    "ULFM": ("Open MPI", ("--with-ft", "ulfm"), {"OMPI_MCA_async_mpi_finalize": "1"}),
}
SHORT = ("return", "exit 0", "daemon thread", "moment")
OWN_CODE = ("exit 3", "exception")
LONG = ("thread", "sleep", "loop")
FOR_EVER = ("thread for ever", "sleep for ever", "loop for ever", "native", "stop")
KINDS = ("bare", "good", "ended", "dead", "left", "bare", "own code", "stopped", "deserted")
DEATHS = ("_exit 0", "kill", "segmentation fault")


@dataclass(frozen=True)
class Case:
    """One job."""

    mpi: str
    first: str
    comm: str
    finalize: str
    shutdown: str
    place: str
    way: str
    num_ranks: int

    @property
    def is_sensible(self) -> bool:
        """False where the program never comes to the place, or for what Python itself hangs in."""
        if self.place == "finalized" and self.finalize != "program":
            return False
        if self.comm != "none" and (self.first == "shardkit" or self.way in FOR_EVER):
            return False  # without shardkit it would hang too
        if self.finalize == "never" and self.first == "shardkit":
            return False
        # Python joins threads before hooks, and may end without those that a hook starts
        return not ("thread" in self.way and "hook" in self.place)

    @property
    def is_free(self) -> bool:
        """True if MPI is finalized at the place, or will not be; or before Python joins threads."""
        return (
            self.place == "finalized"
            or self.finalize == "program"
            and ("hook" in self.place or self.way in ("thread", "thread for ever"))
            or self.place == "early hook"
            and (self.first == "shardkit" or self.finalize == "never")
        )

    @property
    def group_size(self) -> int:
        """Of the ranks that train."""
        return self.num_ranks - (self.num_ranks // 2 if self.comm == "half" else 0)

    @property
    def is_deserted(self) -> bool:
        """True if a guest leaves while the others of its communicator are in shutdown()."""
        leaves = self.place == "trained" and self.way in ("exit 0", *OWN_CODE)
        return leaves and self.shutdown == "shutdown" and self.group_size > 1

    @property
    def wanted(self) -> str:
        """One of the keys of FAULTS, or free for ever."""
        if self.comm != "none":
            return "deserted" if self.is_deserted else "bare"
        if self.way == "stop":
            is_free = self.place == "early hook" and self.finalize == "never"
            return "free for ever" if is_free else "stopped"
        # after the ranks have met, a death is the launcher's to tell: it may be a normal end
        if self.way in DEATHS and (self.is_free or self.place == "early hook"):
            return "free to die"
        if self.is_free and self.way in FOR_EVER:
            return "free for ever"
        if self.way in OWN_CODE and "hook" not in self.place:
            return "failed" if self.place == "trained" else "own code"
        if (self.place, self.way, self.shutdown) == ("trained", "exit 0", "shutdown"):
            return "left"  # the others wait for it in shutdown()
        if self.way in (*SHORT, *OWN_CODE) or self.is_free:
            # an exception in a hook is only printed
            return "bare" if self.finalize == "never" else "good"
        return "dead" if self.way in DEATHS else "ended"

    def __str__(self):
        return (
            f"{self.mpi:14s} {self.first:8s} {self.comm:5s} {self.finalize:7s} {self.shutdown:8s} "
            f"{self.place:10s} {self.way:18s} x{self.num_ranks}"
        )


@cache
def all_cases() -> list[Case]:
    """Every sensible case, on two ranks."""
    cases = [
        Case(mpi, first, comm, finalize, shutdown, place, way, 2)
        for mpi in MPIS
        for first in ("mpi4py", "shardkit")
        for comm in ("none", "world", "half")
        for finalize in ("program", "exit", "never")
        for shutdown in ("shutdown", "open")
        for place in PLACES
        for way in WAYS
    ]
    return [case for case in cases if case.is_sensible and case.wanted != "free for ever"]


def drawn_cases(seed: int, number: int) -> list[Case]:
    """Return cases on 2 to 4 ranks: of each kind and each MPI in turn, the rest is drawn."""
    draw, cases = random.Random(seed), []
    for wanted, mpi in islice(zip(cycle(KINDS), cycle(MPIS)), number):
        among = [case for case in all_cases() if case.wanted == wanted and case.mpi == mpi]
        cases.append(replace(draw.choice(among), num_ranks=draw.choice((2, 2, 3, 4))))
    return cases


@dataclass(frozen=True)
class Outcome:
    """How a job ended; fault: what is wrong with that, or ""."""

    seconds: float
    fault: str
    words: list[str]
    output: str


def start(case: Case, folder: Path, *, time_limit=100.0):
    """Return the finished process."""
    library, options, environment = MPIS[case.mpi]
    (folder / "tmp").mkdir(exist_ok=True)
    return run_job(
        library,
        SCRIPT,
        case.first,
        case.comm,
        case.finalize,
        case.shutdown,
        case.place,
        case.way,
        folder / "mark",
        num_ranks=case.num_ranks,
        launcher_options=options,
        time_limit=time_limit,
        TMPDIR=str(folder / "tmp"),
        **environment,
    )


@cache
def bare(case: Case, number: int) -> tuple[bool, list[str]]:
    """Return (exit code 0?, lines) of the program without shardkit, run for the number-th time:
    where nobody finalizes MPI, the launcher's exit code differs from run to run.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        done = start(replace(case, comm="bare", first="mpi4py", shutdown="open"), Path(folder))
    return done.returncode == 0, ends_of(done)


def ends_of(done) -> list[str]:
    """Return the lines of the ranks that came to their end."""
    return sorted(re.findall("rank . reached its end", done.stdout))


def run(case: Case, folder: Path) -> Outcome:
    """Return the outcome of a case; the folder is for its files."""
    try:
        done = start(case, folder)
    except subprocess.TimeoutExpired as hang:
        return Outcome(100.0, "hang", [], f"{hang.stderr}\n{hang.stdout}")
    words = words_of_shardkit(done)
    seconds = seconds_since(folder / "mark") if (folder / "mark").exists() else 0.0
    fault = FAULTS[case.wanted](case, done, words)
    if not fault and case.wanted in ("ended", "left", "dead", "stopped", "failed"):
        fault = "late" if seconds > fair_seconds(LIMIT + LATE_SECONDS) else ""
    left = list((folder / "tmp").glob("shardkit-job-*"))
    if not fault and case.wanted in ("good", "bare") and done.returncode == 0 and left:
        fault = f"left {left}"
    return Outcome(seconds, fault, words, done.stdout + done.stderr)


def _good(case, done, words):
    if done.returncode:
        return f"exit code {done.returncode}"
    if len(ends_of(done)) != case.num_ranks - (case.way == "exit 0" and "hook" not in case.place):
        return "not all came to their end"
    return "words" if words else ""


def _own_code(case, done, words):
    if not done.returncode:
        return "exit code 0"
    rank = case.num_ranks - 1
    after = "MPI_Finalize" if case.is_free else r"shutdown\(\)"
    if case.shutdown == "open" and not case.is_free:
        allowed = rf"shardkit: (KeyError: 'lost' \(on rank {rank}\)|rank {rank} failed: KeyError)"
    else:
        allowed = f"shardkit: rank {rank} failed after {after}: KeyError"
    return "" if all(re.match(allowed, word) for word in words) else "words"


def _names(case, done, words):
    # a launcher that tolerates deaths takes one for success when the others are through
    is_late = case.is_free or case.place == "early hook"
    if not done.returncode and not (case.mpi == "ULFM" and is_late):
        return "exit code 0"
    if len(words) > 1:
        return "twice"
    return "" if words and f"rank {case.num_ranks - 1}" in words[0] else "not named"


def _deserted(case, done, words):
    last = case.group_size - 1
    told = re.findall(
        rf"CommunicationError: rank \d of {last + 1} waits in shutdown\(\): rank {last} is missing",
        done.stderr,
    )
    # a launcher may end the job before, for an exit code, or for an end without MPI_Finalize
    if not told and (case.finalize != "never" and (case.way == "exit 0" or not done.returncode)):
        return "not named"
    return "exit code 0" if not done.returncode and case.finalize != "never" else ""


def _free_to_die(case, done, words):
    return "words" if words else ""


def _bare(case, done, words):
    is_well, ends = done.returncode == 0, ends_of(done)
    without = (bare(case, number) for number in range(BARE_RUNS))
    if not any(good == is_well and (not good or lines == ends) for good, lines in without):
        return f"exit code {done.returncode}, {ends}; never so without shardkit"
    is_word_of_death = (
        case.way in DEATHS and words and words[0].startswith("shardkit: rank ") and not is_well
    )
    is_word_of_error = case.way == "exception" and not is_well
    return "words" if words and not is_word_of_death and not is_word_of_error else ""


FAULTS = {
    "good": _good,
    "own code": _own_code,
    "failed": _names,
    "ended": _names,
    "left": _names,
    "deserted": _deserted,
    "stopped": _names,
    "dead": _names,
    "free to die": _free_to_die,
    "bare": _bare,
}


# The others have left their hooks, and are in MPI_Finalize: they say so though a backend is open.
STOPPED_IN_A_HOOK = Case("Open MPI", "mpi4py", "none", "exit", "open", "early hook", "stop", 2)


@pytest.mark.parametrize("case", [*drawn_cases(seed=1, number=9), STOPPED_IN_A_HOOK], ids=str)
def test_a_program_ends_as_it_should_whoever_finalizes_mpi(tmp_path, case):
    outcome = run(case, tmp_path)
    assert not outcome.fault, f"{case} {outcome.seconds:.1f} s {outcome.fault}\n{outcome.output}"


@pytest.mark.sweep
@pytest.mark.parametrize("case", drawn_cases(seed=2, number=300), ids=str)
def test_three_hundred_endings(tmp_path, case):
    outcome = run(case, tmp_path)
    assert not outcome.fault, f"{case} {outcome.seconds:.1f} s {outcome.fault}\n{outcome.output}"


def main(numbers):
    counts = Counter()
    cases = drawn_cases(seed=2, number=numbers.stop)
    for number in numbers:
        case = cases[number]
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            began = time.monotonic()
            outcome = run(case, Path(folder))
        counts[case.wanted, outcome.fault or "well"] += 1
        print(
            f"{number:4d} {case} {case.wanted:8s} {outcome.seconds:5.1f} of "
            f"{time.monotonic() - began:5.1f} s  {outcome.fault or 'well'} "
            f"{outcome.words[0][:150] if outcome.words else ''}",
            flush=True,
        )
        if outcome.fault:
            path = Path(tempfile.gettempdir(), f"ending-{number}.txt")
            path.write_text(f"{case}\n{outcome.output}")
    print(dict(counts))


if __name__ == "__main__":
    main(range(int(sys.argv[1]), int(sys.argv[2])))
