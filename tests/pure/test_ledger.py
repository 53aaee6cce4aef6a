"""The ledger of one rank, and the report that is made of all."""

import _thread
import errno
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from math import inf
from pathlib import Path

import numpy
import pytest

import shardkit
import shardkit as sk
from shardkit.testing.comm import (
    LEDGER_NAME,
    NO_ROOM_NAME,
    NUM_RECORDS,
    Call,
    Ledger,
    LedgerPlaces,
    Progress,
    Watchdog,
    handed_over,
    hang_report,
    hang_suspects,
    idle_since,
    ranks_needed,
    read_ledger,
)

RANKS = (0, 1, 2)


def rank_ledger(
    folder, rank, num_calls, *, verb="all_reduce", is_stuck=True, count=10, group="world"
):
    """A ledger of a rank that has made some calls and is stuck in the last, or has left it."""
    ledger = Ledger(folder, rank, len(RANKS))
    for number in range(1, num_calls + 1):
        ledger.begin(verb if number == num_calls else "all_reduce", group, RANKS, number)
        ledger.describe(numpy.dtype("float32"), count)
        if number < num_calls or not is_stuck:
            ledger.end()
    return ledger


def test_what_is_written_is_read_back(tmp_path):
    ledger = rank_ledger(tmp_path, 1, 2, is_stuck=False)
    ledger.begin("isend", "world/1.0", (2,), None)
    ledger.describe(numpy.dtype("int64"), 7)
    found = read_ledger(ledger.path, ledger.place.slot)
    assert (found.rank, found.world_size, found.pid) == (1, 3, os.getpid())
    first, second, message = found.calls
    assert (first.verb, first.group, first.ranks, first.number_on_group) == (
        "all_reduce",
        "world",
        RANKS,
        1,
    )
    assert second.number == 2 and first.began <= first.ended <= second.began
    assert (message.carries, message.ranks, message.number_on_group) == (
        "isend of 7 int64",
        (2,),
        None,
    )
    assert found.under_way == message
    ledger.end()
    assert read_ledger(ledger.path, ledger.place.slot).under_way is None


def test_only_the_last_calls_are_kept(tmp_path):
    calls = read_ledger(rank_ledger(tmp_path, 0, 3 * NUM_RECORDS + 5).path).calls
    assert [call.number for call in calls] == list(range(2 * NUM_RECORDS + 6, 3 * NUM_RECORDS + 6))


def test_a_caller_in_native_code_has_no_place():
    names, found, done = Progress().names, [], threading.Event()

    def ask():
        found.append(names.site(9))
        done.set()

    _thread.start_new_thread(ask, ())
    assert done.wait(500) and found == [0]


def test_names_that_do_not_fit_any_more_are_unknown_and_nothing_breaks(tmp_path):
    ledger = rank_ledger(tmp_path, 0, 1)
    for number in range(3000):
        ledger.begin("barrier", f"group {number} {'x' * 50}", RANKS, 1)
    calls = read_ledger(ledger.path, ledger.place.slot).calls
    assert calls[-1].group == "?" and calls[-1].verb == "barrier"


def test_a_call_is_noted_with_the_place_outside_of_the_room_that_made_it(tmp_path):
    def run(backend):
        backend.keep_ledger(tmp_path)
        backend.all_reduce(numpy.ones(4, "float32"))
        backend.all_gather_object("x")
        return read_ledger(tmp_path / LEDGER_NAME.format(0), backend.rank).calls

    for calls in sk.run_ranks(2, run):
        assert [call.carries for call in calls] == ["all_reduce of 4 float32", "all_gather_object"]
        assert all(
            "test_ledger.py" in call.site and call.site.endswith(" in run") for call in calls
        )
        assert all(call.ended for call in calls)


def test_the_file_of_a_process_that_was_killed_says_where_it_was(tmp_path):
    program = textwrap.dedent(f"""
        import os, signal
        from shardkit.testing.comm import Ledger
        ledger = Ledger({str(tmp_path)!r}, 0, 2)
        ledger.begin("broadcast", "world", (0, 1), 1)
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    assert (
        subprocess.run([sys.executable, "-c", program], timeout=500).returncode == -signal.SIGKILL
    )
    assert read_ledger(tmp_path / LEDGER_NAME.format(0)).under_way.verb == "broadcast"


@pytest.mark.parametrize(
    "spoil",
    [lambda data: b"", lambda data: data[:-1], lambda data: b"x" + data[1:]],
    ids=["empty", "cut", "foreign"],
)
def test_another_file_is_refused(tmp_path, spoil):
    ledger = rank_ledger(tmp_path, 0, 1)
    ledger.close()  # it would write into memory that is gone
    path = ledger.path
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(sk.CheckpointError, match="not a ledger"):
        read_ledger(path)


def test_the_report_names_the_rank_that_has_not_come(tmp_path):
    for rank in (0, 2):
        rank_ledger(tmp_path, rank, 5)
    rank_ledger(tmp_path, 1, 4, is_stuck=False)
    report = hang_report(tmp_path)
    assert "ranks 0, 2 in all_reduce of 10 float32 (call 5 on group world)" in report
    assert "missing: rank 1 of 3 ranks" in report
    assert "rank 1 in no call: last seen" in report and "(call 4 on group world)" in report


def test_the_report_names_the_rank_that_makes_another_call(tmp_path):
    for rank in (0, 2):
        rank_ledger(tmp_path, rank, 5)
    rank_ledger(tmp_path, 1, 5, verb="broadcast")
    report = hang_report(tmp_path)
    assert "rank 1 in broadcast of 10 float32 (call 5 on group world)" in report
    assert "different calls with the same number" in report and "missing" not in report


def test_the_report_tells_another_count_and_a_rank_without_a_ledger(tmp_path):
    rank_ledger(tmp_path, 0, 5)
    rank_ledger(tmp_path, 1, 5, count=11)
    report = hang_report(tmp_path)
    assert "all_reduce of 11 float32" in report and "different calls" in report
    assert "missing: rank 2 of 3" in report and "rank 2 left no ledger here" in report


def test_a_message_that_nobody_sends_is_reported_with_its_peer(tmp_path):
    ledger = rank_ledger(tmp_path, 0, 1, is_stuck=False)
    ledger.begin("receive", "world", (2,), None)
    assert "rank 0 in receive with rank 2" in hang_report(tmp_path)


def test_a_folder_without_ledgers_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="no ledgers"):
        hang_report(tmp_path)


@pytest.mark.parametrize(
    "waited, seconds_left, is_over",
    [(5, 1000, False), (30, 1000, True), (15, 1000, False), (15, 4, True), (5, 4, False)],
)
def test_a_call_has_less_time_when_the_batch_system_is_about_to_kill_the_job(
    tmp_path, waited, seconds_left, is_over
):
    progress = Progress()
    watchdog = Watchdog(
        progress,
        tmp_path,
        0,
        1,
        seconds=lambda: 20.0,
        abort=lambda message: None,
        seconds_left=lambda: seconds_left,
    )
    progress.begin_collective("barrier", "world", (0,))
    progress.began -= waited
    assert watchdog._has_outlived() == is_over
    progress.end()
    watchdog.close()


@pytest.mark.parametrize(
    "begun, suspects",
    [
        ({0: "barrier", 1: None, 2: "barrier"}, "rank 1 is missing"),
        ({0: "barrier", 1: None, 2: None}, "ranks 1, 2 are missing"),
        ({0: "barrier", 1: "barrier", 2: "barrier"}, "all ranks are there"),
        ({0: "barrier"}, "ranks 1, 2 are missing"),
        ({0: "barrier", 1: "message", 2: "barrier"}, "rank 1 is missing"),
    ],
)
def test_those_who_are_missing_are_named_in_a_few_words(tmp_path, begun, suspects):
    for rank, call in begun.items():
        ledger = Ledger(tmp_path, rank, 3)
        if call is not None:
            ledger.begin(
                call,
                "world",
                (2,) if call == "message" else (0, 1, 2),
                None if call == "message" else 1,
            )
        ledger.close()
    assert hang_suspects(tmp_path) == suspects


@pytest.mark.parametrize(
    "verb, ranks, others",
    [
        ("irecv", (1,), "rank 1"),
        ("begin_reduce_scatter", (0, 1, 2), "ranks 0, 1, 2"),
        ("begin_reduce_scatter", (1, 2), "ranks 1, 2"),
    ],
)
def test_who_neither_sends_nor_calls_is_missing_for_who_waits_for_its_messages(
    tmp_path, verb, ranks, others
):
    for rank in (0, 2):
        waiting = rank_ledger(tmp_path, rank, 2, is_stuck=False)
        waiting.begin(f"wait for {verb}", "world", ranks, None)
    rank_ledger(tmp_path, 1, 2, is_stuck=False)
    assert hang_suspects(tmp_path) == "rank 1 is missing"
    assert f"ranks 0, 2 in wait for {verb} with {others} for" in hang_report(tmp_path)


@pytest.mark.parametrize(
    "ran, away, suspects",
    [
        (0.1, None, "all ranks are there"),
        (5.0, None, "rank 1 is missing: its interpreter has not run for 5."),
        (0.1, 5.0, "rank 1 is missing: it runs other code inside of the call for 5."),
        (0.1, 0.5, "all ranks are there"),
        (3.0, None, "all ranks are there"),
    ],
    ids=["runs", "native code", "signal handler", "a moment", "busy machine"],
)
def test_who_cannot_go_on_inside_of_a_call_is_named(tmp_path, monkeypatch, ran, away, suspects):
    """Seconds since the interpreter ran, and since it runs other code; the limit is 8 s."""
    now = time.monotonic()
    for rank in range(3):
        ledger = Ledger(tmp_path, rank, 3)
        ledger.begin("all_reduce", "world", (0, 1, 2), 1)
        with monkeypatch.context() as patch:
            patch.setattr(time, "monotonic", lambda: now - (ran if rank == 1 else 0.1))
            ledger.beat(60.0, 0.0 if away is None or rank != 1 else now - away)
        ledger.close()
    assert hang_suspects(tmp_path, 8.0).startswith(suspects)


def test_what_all_ranks_do_inside_of_a_call_makes_none_of_them_missing(tmp_path):
    for rank in range(2):
        ledger = Ledger(tmp_path, rank, 2)
        ledger.begin("all_reduce", "world", (0, 1), 1)
        ledger.beat(8.0, time.monotonic() - 5.0)
        ledger.close()
    words = hang_suspects(tmp_path, 8.0)
    assert words.startswith("all ranks are there: ranks 0, 1 run other code inside of the call")


def test_why_a_missing_rank_does_not_come_is_said(tmp_path):
    for rank in range(2):
        ledger = Ledger(tmp_path, rank, 2)
        if rank == 0:
            ledger.begin("all_reduce", "world", (0, 1), 1)
        ledger.beat(0.02, 0.0)
        ledger.close()
    time.sleep(0.05)
    assert "rank 1 is missing: its interpreter has not run for 0." in hang_suspects(tmp_path, 0.02)


def test_other_code_inside_of_a_call_is_noticed(tmp_path):
    progress, noticed = Progress(), []
    watchdog = Watchdog(progress, tmp_path, 0, 1, seconds=lambda: 20.0, abort=lambda message: None)

    def look():
        noticed.append(watchdog._is_away())

    def ask():
        thread = threading.Thread(target=look)
        thread.start()
        while thread.is_alive():
            pass

    ask()
    progress.begin_collective("barrier", "world", (0,))
    ask()  # the call is not on the stack of this thread
    progress.end()
    progress.ledger = Listener(ask)
    progress.begin_collective("barrier", "world", (0,))  # calls code of others
    progress.ledger = watchdog.ledger
    watchdog.close()
    assert noticed == [False, False, True]


def test_the_stacks_of_a_hang_cost_no_process_its_life(tmp_path):
    """One rank has closed its watchdog; what has the process id of another knows none."""
    program = textwrap.dedent("""
        import ctypes, sys, time
        from shardkit.testing.comm import Ledger, Progress, Watchdog
        folder, rank, how = sys.argv[1], int(sys.argv[2]), sys.argv[3]
        if how == "of another program":
            Ledger(folder, rank, 5)
        else:
            watchdog = Watchdog(Progress(), folder, rank, 5, seconds=lambda: 60.0, abort=print)
        if how == "closed":
            watchdog.close()
        print("there", flush=True)
        if how == "locked":
            ctypes.PyDLL(None).sleep(600)  # no other thread of this process runs
        time.sleep(600)
    """)
    others = {
        how: subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path), str(rank), how], stdout=subprocess.PIPE
        )
        for rank, how in enumerate(("watched", "locked", "closed", "of another program"), start=1)
    }
    try:
        for process in others.values():
            assert process.stdout.readline() == b"there\n"
        told = []
        progress = Progress()
        watchdog = Watchdog(progress, tmp_path, 0, 5, seconds=lambda: 30.0, abort=told.append)
        assert not list(tmp_path.rglob("*stacks*"))  # no files of ranks in which nothing hangs
        progress.begin_collective("barrier", "world", (0, 1, 2, 3, 4))
        progress.began -= 100.0
        watchdog._look()
        progress.end()
        watchdog.close()
        assert {how: process.poll() for how, process in others.items()} == dict.fromkeys(others)
        assert len(told) == 1 and "ranks 1, 2, 3, 4 are missing" in told[0]
        assert len(list(tmp_path.rglob("*.stacks"))) == 3
        # a handler may crash where the interpreter runs: a signal asks only who keeps its lock
        assert [how for how, other in others.items() if handed_over(other.pid)] == ["locked"]
        for rank in (0, 1, 2):
            assert "Current thread" in (tmp_path / "stacks" / f"rank-{rank:05d}.stacks").read_text()
    finally:
        for process in others.values():
            process.kill()
            process.communicate()


class Listener:
    """What listens to calls in the place of a ledger."""

    is_written_by_loops = False

    def __init__(self, hear):
        self.begin = lambda *call: hear()


def test_a_new_limit_stands_in_the_ledger_at_once(tmp_path):
    """A warden judges by it a rank that is stopped before the watchdog's next beat."""
    progress = Progress(600.0)
    seconds = {"seconds": lambda: progress.timeout, "abort": lambda message: None}
    watchdog = Watchdog(progress, tmp_path, 0, 1, **seconds)
    limits = [read_ledger(watchdog.ledger.path, watchdog.ledger.place.slot).pulse.seconds]
    progress.timeout = 6.0
    limits.append(read_ledger(watchdog.ledger.path, watchdog.ledger.place.slot).pulse.seconds)
    watchdog.close()
    progress.timeout = 7.0
    assert limits == [600.0, 6.0]


@pytest.mark.parametrize("where", ["inside", "outside"])
def test_who_is_stopped_inside_or_outside_of_a_call_is_named(tmp_path, where):
    stopped = subprocess.Popen(
        [
            sys.executable,
            "-c",
            textwrap.dedent(f"""
        import os, signal
        from shardkit.testing.comm import Ledger
        ledger = Ledger({str(tmp_path)!r}, 1, 3)
        if {where!r} == "inside":
            ledger.begin("all_reduce", "world", (0, 1, 2), 3)
        os.kill(os.getpid(), signal.SIGSTOP)"""),
        ]
    )
    try:
        os.waitid(os.P_PID, stopped.pid, os.WSTOPPED | os.WNOWAIT)
        for rank in (0, 2):
            rank_ledger(tmp_path, rank, 3)
        word = {"inside": "stopped", "outside": "missing, and stopped"}[where]
        assert hang_suspects(tmp_path) == f"rank 1 is {word}"
    finally:
        stopped.kill()
        stopped.wait()


def test_a_wait_counts_from_when_the_last_missing_rank_got_on(tmp_path):
    """Rank 0 waits for 1 and 2; both have noted work, and who has not for long is named."""
    rank_ledger(tmp_path, 0, 2)
    workers = [rank_ledger(tmp_path, rank, 1, is_stuck=False) for rank in (1, 2)]
    call = Call("all_reduce", "world", (0, 1, 2), 2)
    assert ranks_needed(tmp_path, call, LedgerPlaces())[1] == -inf
    workers[0].work()
    assert ranks_needed(tmp_path, call, LedgerPlaces())[1] == -inf, "rank 2 has noted nothing"
    time.sleep(0.05)
    between = time.time()
    time.sleep(0.05)
    workers[1].work()
    assert ranks_needed(tmp_path, call, LedgerPlaces())[1] < between
    assert hang_suspects(tmp_path, time.time() - between) == "rank 1 is missing"
    assert idle_since(tmp_path, between) == "rank 1"
    workers[0].work()
    assert between < ranks_needed(tmp_path, call, LedgerPlaces())[1] <= time.time() + 0.01
    assert hang_suspects(tmp_path, time.time() - between) == "ranks 1, 2 are missing"
    assert idle_since(tmp_path, between) == ""


def test_a_ledger_without_room_is_kept_in_memory_and_its_rank_is_not_taken_for_missing(
    tmp_path, monkeypatch, capsys
):
    def full(descriptor, at, num_bytes):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as context:
        context.setattr(os, "posix_fallocate", full)
        without = rank_ledger(tmp_path, 0, 2)
    said = capsys.readouterr().err
    path = tmp_path / LEDGER_NAME.format(0)
    assert without.path is None and said.count(f"{path} cannot be made: No space left") == 1
    assert (tmp_path / NO_ROOM_NAME.format(0)).stat().st_size == 0
    rank_ledger(tmp_path, 1, 2)
    rank_ledger(tmp_path, 2, 1, is_stuck=False)
    assert hang_suspects(tmp_path) == "rank 2 is missing"
    report = hang_report(tmp_path)
    assert "rank 0 left no ledger here" in report and "there was no room" in report
    rank_ledger(tmp_path, 0, 2)
    assert "no room" not in hang_report(tmp_path) and not list(tmp_path.glob("rank-*.ledger"))


def test_the_blocks_of_a_ledger_exist_before_it_is_mapped(tmp_path):
    path = Path(rank_ledger(tmp_path, 0, 1).path)
    found = path.stat()
    assert found.st_blocks * 512 >= found.st_size


def test_memory_of_files_is_mapped_for_writing_in_one_place():
    """Elsewhere it is read only, of no file, or of memory that has no limit but the machine's."""
    allowed = ("ACCESS_READ", "mmap(-1", "files/mapping.py", "comm/node/heap.py")
    package = Path(shardkit.__file__).parent
    found = [
        f"{path.relative_to(package)}: {line.strip()}"
        for path in package.rglob("*.py")
        for line in path.read_text().splitlines()
        if "mmap.mmap(" in line or re.search(r"memmap\(.*[\"'](w\+|r\+)", line)
    ]
    assert len(found) > 3
    assert not [line for line in found if not any(word in line for word in allowed)]
