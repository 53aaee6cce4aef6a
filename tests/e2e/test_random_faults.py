"""One rank of a user's own program is struck at a random moment: the job ends soon, and says in one
message who is missing.

A handful of seeds here; more of them, as a table, with
    python tests/e2e/test_random_faults.py FIRST LAST        (seeds; both MPIs in turn)
"""

import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
from e2e.mpi_jobs import (  # noqa: E402
    LIBRARIES,
    fair_seconds,
    run_job,
    seconds_since,
    words_of_shardkit,
)
from e2e.struck_rank import FROM_INSIDE, FROM_OUTSIDE, PHASES, STRATEGIES, TIMEOUT  # noqa: E402

SCRIPT = Path(__file__).with_name("struck_rank.py")
WAYS = (*FROM_INSIDE, *FROM_OUTSIDE)
LATE_SECONDS = 5.0  # beyond the time limit of a call
LONGEST_DELAY = {
    "start": 1.5,
    "constructed": 0.05,
    "initialize": 0.1,
    "build": 0.1,
    "train": 0.5,
    "save": 0.05,
    "close": 0.01,
    "shutdown": 0.01,
    "end": 0.02,
}


@dataclass(frozen=True)
class Case:
    """One job. The library goes with the seed's parity, the rest is drawn."""

    seed: int
    library: str
    how: str
    phase: str
    delay: float
    strategy: str
    num_ranks: int
    ending: str

    @classmethod
    def of_seed(cls, seed: int) -> "Case":
        draw = random.Random(seed)
        how, phase, strategy = draw.choice(WAYS), draw.choice(PHASES), draw.choice(STRATEGIES)
        num_ranks = {"hybrid": 4, "pipeline": 2, "tensor": 2}.get(strategy) or draw.choice((2, 4))
        ending = "shutdown" if phase == "shutdown" else draw.choice(("shutdown", "none"))
        return cls(
            seed,
            LIBRARIES[seed % 2],
            how,
            phase,
            round(draw.uniform(0, LONGEST_DELAY[phase]), 4),
            strategy,
            num_ranks,
            ending,
        )

    def __str__(self):
        return (
            f"{self.seed:5d} {self.library:8s} {self.how:18s} {self.phase:11s} +{self.delay:.4f} "
            f"{self.strategy:8s} "
            f"x{self.num_ranks} {self.ending:8s}"
        )


@dataclass(frozen=True)
class Outcome:
    """How it ended.

    verdict  well are "named", "all there" (or all ranks raised the same error), "harmless" (every
             other rank reached its end), "at its end" (all did, and the job is said to have
             failed), "not struck", and "launcher": that names the rank, or ended the job before the
             rank had initialized its backend, so that nobody watched; "hang", "late", "slow",
             "silent", "twice" and "code 0" are not
    """

    seconds: float
    verdict: str
    words: list[str]
    output: str

    @property
    def is_well(self) -> bool:
        return self.verdict in (
            "named",
            "all there",
            "harmless",
            "at its end",
            "not struck",
            "launcher",
        )


def run(case: Case, folder: Path) -> Outcome:
    """The outcome of a case; the folder is for its files."""
    mark = folder / "struck"
    try:
        done = run_job(
            case.library,
            SCRIPT,
            case.how,
            case.phase,
            case.delay,
            case.strategy,
            case.ending,
            folder,
            num_ranks=case.num_ranks,
            time_limit=400,
        )
    except subprocess.TimeoutExpired as hang:
        seconds = seconds_since(mark) if mark.exists() else 0.0
        return Outcome(
            seconds, "hang" if mark.exists() else "slow", [], f"{hang.stderr}\n{hang.stdout}"
        )
    seconds = seconds_since(mark) if mark.exists() else 0.0
    words, output = words_of_shardkit(done), done.stdout + done.stderr
    is_watched = (folder / "watched").exists()
    verdict = judge(case, done, seconds, words, is_struck=mark.exists(), is_watched=is_watched)
    return Outcome(seconds, verdict, words, output)


def judge(case, done, seconds, words, *, is_struck: bool, is_watched: bool) -> str:
    ended, names_it = (
        done.stdout.count("reached its end"),
        words and re.search(r"\brank 1\b", words[0]),
    )
    if done.returncode == 0:
        expected = case.num_ranks if "rank 1 reached" in done.stdout else case.num_ranks - 1
        return (
            ("harmless" if is_struck else "not struck")
            if ended == expected and (names_it or not words)
            else "code 0"
        )
    if seconds > fair_seconds(TIMEOUT + LATE_SECONDS):
        return "late"
    if len(words) > 1:
        return "twice"
    if names_it:
        return "named"
    if words and (
        "all ranks are there" in words[0] or f"on all {case.num_ranks} ranks" in words[0]
    ):
        return "all there"
    if not words and ended == case.num_ranks:
        return "at its end"
    is_named_by_launcher = re.search(r"process rank 1 with PID|Process name: .*,1\]", done.stderr)
    if not words and is_named_by_launcher:
        return "launcher"
    is_before_all = case.phase == "start" and is_struck and not is_watched
    is_alone = not words or is_named_by_launcher  # words may be of a rank that the launcher ended
    return "launcher" if is_before_all and is_alone else "silent"


def covering_seeds():
    """A few seeds, of few ranks, that have every way, phase, strategy and library among them."""

    def covered(seed):
        case = Case.of_seed(seed)
        return {case.how, case.phase, case.strategy, case.library}

    def gain(seed):
        return len(missing & covered(seed)), -Case.of_seed(seed).num_ranks

    missing, seeds = {*WAYS, *PHASES, *STRATEGIES, *LIBRARIES}, []
    while missing:
        seeds.append(max(range(1000), key=gain))
        missing -= covered(seeds[-1])
    return seeds


@pytest.mark.parametrize("seed", covering_seeds())
def test_a_rank_that_is_struck_at_some_moment_ends_the_job_with_its_name(tmp_path, seed):
    outcome = run(Case.of_seed(seed), tmp_path)
    assert outcome.is_well, (
        f"{Case.of_seed(seed)} {outcome.seconds:.1f} s {outcome.verdict}\n{outcome.output}"
    )


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(300))
def test_three_hundred_faults(tmp_path, seed):
    outcome = run(Case.of_seed(seed), tmp_path)
    print(f"{outcome.seconds:.1f} s {outcome.verdict}")
    assert outcome.is_well, (
        f"{Case.of_seed(seed)} {outcome.seconds:.1f} s {outcome.verdict}\n{outcome.output}"
    )


def test_a_rank_that_is_stopped_under_fault_tolerance_is_ended_with_the_job(tmp_path):
    done = run_job(
        "Open MPI",
        SCRIPT,
        "stop",
        "train",
        0.05,
        "FSDP",
        "none",
        tmp_path,
        num_ranks=3,
        launcher_options=("--with-ft", "ulfm"),
    )
    words = words_of_shardkit(done)
    assert done.returncode != 0 and seconds_since(tmp_path / "struck") < fair_seconds(
        TIMEOUT + LATE_SECONDS
    )
    assert len(words) == 1 and "the job is ended" in words[0], done.stderr


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_job_that_is_killed_leaves_nothing_in_the_temporary_folder(tmp_path, library):
    """The wardens outlive the ranks and remove it; a kill that takes them too leaves it to the next
    job (test_roll.py).
    """
    run_job(
        library,
        SCRIPT,
        "kill",
        "train",
        0.05,
        "DDP",
        "none",
        tmp_path,
        num_ranks=2,
        TMPDIR=str(tmp_path),
    )
    deadline = time.monotonic() + fair_seconds(10.0)
    while list(tmp_path.glob("shardkit-job-*")) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert (tmp_path / "struck").exists() and not list(tmp_path.glob("shardkit-job-*"))


def main(seeds):
    counts = Counter()
    for seed in seeds:
        case = Case.of_seed(seed)
        with tempfile.TemporaryDirectory() as folder:
            began = time.monotonic()
            outcome = run(case, Path(folder))
        counts[outcome.verdict] += 1
        words = outcome.words[0][:150] if outcome.words else ""
        print(
            f"{case} {outcome.seconds:5.1f} of {time.monotonic() - began:5.1f} s  "
            f"{outcome.verdict:10s} {words}",
            flush=True,
        )
        if not outcome.is_well:
            Path(f"/tmp/struck-{seed}.txt").write_text(f"{case}\n{outcome.output}")
    print(dict(counts))


if __name__ == "__main__":
    main(range(int(sys.argv[1]), int(sys.argv[2]) + 1))
