"""What counts of the time that a call waits: not the loading of code, nor the lack of a core."""

import os
import socket
import subprocess
import sys
import time

import pytest

from shardkit.testing.array import MACHINE_CODE
from shardkit.testing.comm import (
    MOST_SECONDS,
    Call,
    CallClock,
    FairClock,
    Ledger,
    OnCores,
    children_of,
    cores,
    hang_suspects,
    on_cores,
    read_ledger,
)

LIMIT = 8.0


@pytest.fixture
def watch(monkeypatch):
    """function (seconds, {process: (ran, waited[, switches])}): let this much time pass."""

    class Machine:
        now, seconds = 100.0, {}

        def passes(self, seconds, of_processes):
            self.now += seconds
            for process, (ran, waited, *switches) in of_processes.items():
                before = self.seconds.get(process, OnCores(0.0, 0.0, 0))
                passed = OnCores(ran, waited, *(switches or [0]))
                self.seconds[process] = OnCores(*map(sum, zip(before, passed)))

    machine = Machine()
    monkeypatch.setattr(cores.time, "monotonic", lambda: machine.now)
    monkeypatch.setattr(cores, "on_cores", machine.seconds.get)
    machine.passes(0.0, {1: (0.0, 0.0), 2: (5.0, 50.0)})
    return machine


@pytest.mark.parametrize(
    "of_processes, counted",
    [
        ({1: (10.0, 0.0)}, 10.0),  # it runs
        ({1: (0.0, 0.0)}, 10.0),  # it sleeps, or is stopped
        ({1: (5.0, 5.0)}, 10.0),  # it shares its core with another one
        ({1: (2.5, 7.5)}, 10.0),  # with three others
        ({1: (0.5, 9.5)}, 2.0),  # with nineteen: what it ran, and three times as much
        ({1: (0.0, 10.0)}, 0.0),
        ({1: (0.5, 9.5, 200)}, 2.0),  # with nineteen, which take turns every 2.5 ms
        ({1: (0.5, 9.5, 50_000)}, 10.0),  # it gives its core away whenever it has one
        ({1: (5.0, 5.0, 500), 2: (0.1, 9.9, 5000)}, 10.0),  # one runs, one gives way to it
        ({1: (0.5, 9.5, 200), 2: (0.1, 9.9, 5000)}, 2.0),  # and there one is late
        ({1: (0.0, 0.0), 2: (0.5, 9.5)}, 2.0),  # one of two is late
        ({3: (0.0, 10.0)}, 10.0),  # not seen before, so not known
    ],
)
def test_the_wait_for_a_core_counts_as_far_as_the_machine_is_shared_fairly(
    watch, of_processes, counted
):
    clock = FairClock(100.0)
    clock.count([1, 2])
    watch.passes(10.0, of_processes)
    assert clock.count(of_processes) == pytest.approx(counted)


def test_what_is_prepared_counts_when_it_is_done(watch):
    clock = FairClock(100.0)
    watch.passes(3.0, {})
    assert clock.count([], until_fair=102.0) == 1.0
    watch.passes(3.0, {})
    assert clock.count([], until_fair=1e9) == 1.0
    watch.passes(3.0, {})
    assert clock.count([], until_fair=102.0) == 4.0


@pytest.mark.parametrize(
    "ran, waited, counted",
    [
        (10.0, 0.0, 0.0),  # it compiles
        (1.0, 9.0, 0.0),  # it would if it had a core
        (0.1, 0.2, 9.7),  # it sleeps: native code that it has loaded hangs
    ],
)
def test_who_prepares_code_is_excused_while_it_wants_a_core(watch, ran, waited, counted):
    clock = FairClock(100.0)
    assert clock.count([1], preparing=[1]) == 0.0  # seen for the first time, so not known
    watch.passes(10.0, {1: (ran, waited)})
    assert clock.count([1], preparing=[1]) == pytest.approx(counted)


def test_a_clock_lets_no_more_pass_than_it_may(watch):
    clock = FairClock(100.0)
    watch.passes(MOST_SECONDS + 7.0, {})
    assert clock.count([], until_fair=1e9) == pytest.approx(7.0)


# how a process spends its time -> is it starved on a core that it shares with three others?
WAYS = {"pass": True, "os.sched_yield()": False}


@pytest.mark.thorough
@pytest.mark.parametrize("way", WAYS)
def test_a_process_that_wants_a_core_is_told_from_one_that_gives_it_away(way):
    if on_cores(os.getpid()) is None:
        pytest.skip("this system does not tell for how long a process waits for a core")
    one_core = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\nwhile True: "
    programs = [one_core + way, *[one_core + "pass"] * 5]
    busy = [subprocess.Popen([sys.executable, "-c", program]) for program in programs]
    try:
        deadline = time.monotonic() + 400
        while time.monotonic() < deadline:
            before = on_cores(busy[0].pid)
            time.sleep(1.0)
            seen = on_cores(busy[0].pid) - before
            if before.ran > 0.01 and seen.waited > 0.7 and (seen.starved > 0) == WAYS[way]:
                break
        else:
            pytest.fail(f"one of six processes on one core had {seen} of it in a second")
        assert {process.pid for process in busy} <= set(children_of(os.getpid()))
    finally:
        for process in busy:
            process.kill()
            process.communicate()


# ---- ledgers -------------------------------------------------------------------------------------


def ledger_of(folder, rank, num_calls):
    ledger = Ledger(folder, rank, 2)
    for number in range(1, num_calls + 1):
        ledger.begin("barrier", "world", (0, 1), number)
    return ledger


def waited_by(folder, seconds, number=3):
    """The seconds that count for a barrier that has lasted so long on rank 0."""
    call = Call("barrier", "world", (0, 1), number)
    return CallClock(folder).seconds(call, time.monotonic() - seconds, LIMIT)


def test_who_compiles_before_it_comes_lets_nobody_wait(tmp_path):
    waiting, missing = ledger_of(tmp_path, 0, 3), ledger_of(tmp_path, 1, 2)
    assert waited_by(tmp_path, 20.0) == pytest.approx(20.0, abs=1.0)
    missing.note_code("compiling all_reduce")
    assert waited_by(tmp_path, 20.0) == pytest.approx(0.0, abs=1.0)
    missing.note_code("")
    assert waited_by(tmp_path, 20.0) == pytest.approx(0.0, abs=1.0)
    time.sleep(0.1)
    assert waited_by(tmp_path, 20.0) >= 0.1
    waiting.note_code("compiling barrier")  # it has come, and so does not keep the others waiting
    assert 0.1 <= waited_by(tmp_path, 20.0) < 5.0
    missing.begin("barrier", "world", (0, 1), 3)  # now all are there, and one of them compiles
    assert waited_by(tmp_path, 20.0) == pytest.approx(0.0, abs=1.0)


def test_nobody_is_asked_before_a_part_of_the_limit_is_over(tmp_path):
    assert waited_by(tmp_path / "missing", 1.0) == pytest.approx(1.0, abs=0.5)


def test_the_code_that_a_rank_compiles_is_in_its_ledger_and_in_the_report(
    tmp_path, own_code, monkeypatch
):
    ledger_of(tmp_path, 0, 3)
    code = own_code
    monkeypatch.setattr("shardkit.testing.comm.ledger.MACHINE_CODE", code)
    missing = ledger_of(tmp_path, 1, 2)
    missing.end()
    code.begin("all_reduce")
    code.begin("inner")
    assert read_ledger(missing.path, missing.place.slot).code == "compiling all_reduce"
    assert hang_suspects(tmp_path) == "rank 1 is missing, rank 1 is compiling all_reduce since 0 s"
    code.end("inner")
    assert read_ledger(missing.path, missing.place.slot).code == "compiling all_reduce"
    code.end("all_reduce")
    found = read_ledger(missing.path, missing.place.slot)
    assert found.code == "" and abs(found.since - time.time()) < 60
    with code.loading("Numba"):
        assert read_ledger(missing.path, missing.place.slot).code == "loading Numba"
        missing.close()
    assert not list(code.listeners) and found.host == socket.gethostname()


def test_a_ledger_that_begins_while_code_is_loaded_says_so(tmp_path):
    with MACHINE_CODE.loading("Numba"):
        ledger = ledger_of(tmp_path, 0, 1)
    assert read_ledger(ledger.path, ledger.place.slot).since > 0
    ledger.close()
