"""What tells the death of a guest from its end, and what a program that embeds Python lacks."""

import os
import signal
import subprocess
import sys
import time

import pytest

import shardkit as sk
from shardkit.testing.comm import EndOfProcess, Entry, Witness, state_of
from shardkit.testing.files import this_python

LAUNCHER = """
import subprocess, sys
ranks = [subprocess.Popen(["sleep", "60"]) for _ in range(2)]
print(*(rank.pid for rank in ranks), flush=True)
sys.stdin.read()
for rank in ranks:
    rank.kill()
"""


@pytest.fixture
def launched():
    """Two ranks as processes, and the process that started them, which asks how none has ended."""
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    ranks = list(map(int, launcher.stdout.readline().split()))
    yield launcher.pid, *ranks
    launcher.communicate("", timeout=300)


def end(process, number=signal.SIGKILL):
    os.kill(process, number)
    while state_of(process) is not None:
        time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_what_killed_a_process_is_known_before_its_parent_asks(launched, number):
    _, rank, _ = launched
    found = EndOfProcess(rank)
    end(rank, number)
    assert found.status() & 0x7F == number


def test_the_end_of_a_process_that_its_parent_knows_is_told_rightly_or_not_at_all():
    process = subprocess.Popen([sys.executable, "-c", "import sys; sys.exit(3)"])
    found = EndOfProcess(process.pid)
    process.wait()
    assert found.status() in (3 << 8, None)


@pytest.mark.parametrize(
    "number, first, absent, is_told",
    [
        (signal.SIGKILL, False, 1, True),
        (signal.SIGSEGV, False, 1, True),
        (signal.SIGTERM, False, 1, False),  # of a launcher, that ends all
        (signal.SIGKILL, True, 1, False),  # because of the other
        (signal.SIGKILL, False, 2, False),  # one is on another node
    ],
    ids=["killed", "crashed", "ended", "the second", "two nodes"],
)
def test_a_death_is_told_where_ranks_do_not_use_this_library(
    launched, number, first, absent, is_told
):
    launcher, rank, stranger = launched
    witness = Witness(rank, launcher)
    others = dict.fromkeys(range(1, 1 + absent))
    witness.look_round(others)
    if first:
        end(stranger)
    end(rank, number)
    witness.note_end()
    assert witness.saw_kill(others) == is_told


def test_a_rank_that_has_come_to_the_roll_is_no_stranger(launched):
    launcher, rank, other = launched
    witness = Witness(rank, launcher)
    witness.look_round({1: Entry(other), 2: None})
    end(rank)
    witness.note_end()
    assert not witness.saw_kill({1: Entry(other), 2: None})  # who is the third?
    assert witness.saw_kill({1: Entry(other)})


def test_a_program_that_embeds_python_and_finds_none_starts_the_one_of_its_prefix(monkeypatch):
    monkeypatch.setattr(sys, "executable", "")
    found = subprocess.run(
        [this_python(), "-c", "import sys; print(sys.version_info[:2])"],
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert found.stdout.strip() == str(sys.version_info[:2])


@pytest.mark.parametrize("given", ["ignore", "", True, 3])
def test_what_follows_no_failure_is_refused(given):
    with pytest.raises(ValueError, match='wanted "abort", which ends the job, "raise", or None'):
        sk.MPICommunicationBackend(on_failure=given)
