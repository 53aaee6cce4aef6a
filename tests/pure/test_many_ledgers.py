"""The report of many ranks: right or silent, and linear in the ranks."""

import inspect
import itertools
import math
import pickle
import random
import sys
import time
import tracemalloc
from collections import Counter
from threading import Barrier, Thread

import numpy
import pytest

import shardkit as sk
from shardkit.testing.comm import (
    FEW,
    LEDGER_NAME,
    LEDGER_SLOT_BYTES,
    NO_ROOM_NAME,
    NUM_RECORDS,
    Call,
    CallClock,
    Ledger,
    LedgerPlace,
    LedgerPlaces,
    Progress,
    Turn,
    Watchdog,
    call_clock,
    compact,
    hang_report,
    hang_suspects,
    in_words,
    ranges_text,
    ranks_in,
    read_ledger,
    read_ledgers,
    recorded,
    report_of,
    suspects_of,
)

NOT_KNOWN = "which ranks are missing is not known"
ANY = 2**64 - 1

# ---- ranges --------------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [3, 12, 40, 1000])
def test_ranges_hold_the_ranks_that_were_written(most):
    rng = random.Random(most)
    for _ in range(200):
        ranks = rng.sample(range(most), rng.randrange(most + 1))
        found = ranks_in(ranges_text(ranks), most)
        assert sorted(found.tolist()) == sorted(ranks)


@pytest.mark.parametrize(
    "ranks, text",
    [
        ([], ""),
        ([7], "7"),
        (range(4096), "0-4095"),
        (range(3, 4096, 8), "3-4091/8"),
        ([0, 1, 8, 9, 20], "0-1x2/8,20"),
        ([r for r in range(4096) if r % 8 < 2], "0-1x512/8"),
        ([r for r in range(4096) if r % 8 < 2 and r // 64 % 4 == 3], "192-193x8/8x16/256"),
        (range(8), "0-7"),
        ([5, 9], "5,9"),
        ([2, 1, 0], "0-2"),
    ],
)
def test_groups_of_a_mesh_are_a_few_ranges(ranks, text):
    assert ranges_text(ranks) == text


@pytest.mark.parametrize(
    "text",
    ["x", "1-", "-1", "3-2", "0-9", "1,,2", "0-4/0", "0-4,0-4", "0-99999999999"]
    + ["0-1x", "0-1x2", "0-1x9/1", "0-1x2/9", "0x0/1", "0x999999999/0", "x2/2"],
)
def test_what_is_no_range_is_refused(text):
    with pytest.raises(ValueError, match="range"):
        ranks_in(text, 8)


@pytest.mark.parametrize("axes", [(2, 3, 4), (8, 64), (4096,), (5, 7, 3, 2)])
def test_groups_of_a_mesh_are_kept_in_a_few_bytes_and_are_the_same(axes):
    """Every axis and every two of them, from each rank of a mesh, as ranks in order."""
    every = numpy.arange(math.prod(axes)).reshape(axes)
    for num_axes in (1, 2):
        for chosen in itertools.combinations(range(len(axes)), num_axes):
            size = math.prod(axes[axis] for axis in chosen)
            for row in numpy.moveaxis(every, chosen, range(-num_axes, 0)).reshape(-1, size)[:50]:
                found, ranks = compact(row.tolist()), tuple(row.tolist())
                assert found == ranks and hash(found) == hash(ranks) and list(found) == [*ranks]
                assert [found[n] for n in range(-size, size)] == [*ranks, *ranks]
                assert len(found) == size and found[1:] == ranks[1:]
                if size > FEW:
                    assert len(found.parts) == 1 and compact(found) is found
                    assert pickle.loads(pickle.dumps(found)) == found != ranks[1:]


def test_ranks_without_a_pattern_stay_a_tuple():
    rng = random.Random(3)
    for most in (20, 40, 400):
        ranks = tuple(rng.sample(range(4 * most), most))
        assert compact(ranks) == ranks and isinstance(compact(ranks), tuple)
    seats = [node for node in range(0, 4000, 8) for _ in range(8)][:-3]
    assert compact(seats) == tuple(seats) and len(compact(seats).parts) == 2
    with pytest.raises(IndexError):
        compact(range(99))[99]


@pytest.mark.parametrize(
    "ranks, words",
    [
        ([3], "rank 3"),
        ([0, 2, 5], "ranks 0, 2, 5"),
        (range(4096), "ranks 0-4095 (4096 of them)"),
        (range(0, 4096, 8), "ranks 0, 8, ... 4088 (512 of them)"),
        ([*range(9), 11], "ranks 0-8, 11 (10 of them)"),
        ([n * n for n in range(99)], "ranks 0, 1, ... 9604 (99 of them)"),
    ],
)
def test_ranks_are_told_in_a_few_words(ranks, words):
    assert in_words(ranks) == words


def test_a_rank_keeps_its_groups_in_a_few_bytes():
    """Tuples of the same have 50,000. Some bytes are not traced: Python reuses freed objects."""
    groups = [tuple(ranks) for ranks in (range(4096), range(3, 4096, 8), range(2048))]
    own = tracemalloc.Filter(True, inspect.getfile(compact))  # other threads may allocate meanwhile
    tracemalloc.start()
    kept = [compact(ranks) for ranks in groups]
    traces = tracemalloc.take_snapshot().filter_traces([own]).traces
    tracemalloc.stop()
    assert kept == groups
    assert 0 < sum(trace.size for trace in traces) < 2000


# ---- right or silent -----------------------------------------------------------------------------


class History:
    """What a rank has done, all of it, and the ledger that it wrote meanwhile."""

    def __init__(self, folder, rank, size):
        self.ledger = Ledger(folder, rank, size)
        self.rank, self.made, self.begun = rank, Counter(), Counter()
        self.under_way = None

    def collective(self, group, ranks, how):
        """how: ends, fails, stays."""
        self.made[group] += 1
        number = self.made[group]
        self.ledger.begin("all_reduce", group, ranks, number)
        self.begun[group] = number - (how == "fails")
        self._end(how, (group, ranks, number))

    def wait(self, group, ranks, number, how):
        """For an asynchronous call that began earlier."""
        self.ledger.begin("wait for all_reduce", group, ranks, number)
        self._end(how, (group, ranks, number))

    def message(self, peer, how):
        self.ledger.begin("receive", "world", (peer,), None)
        self._end(how, ("world", (peer,), 0))

    def _end(self, how, call):
        if how == "stays":
            self.under_way = call
        elif how == "fails":
            self.ledger.fail()
        else:
            self.ledger.end()

    def beat(self):
        self.ledger.note_made(lambda: dict(self.begun))


def histories(folder, rng, size, forgets):
    """Return what ranks did that make random calls and end somewhere."""
    groups = {
        f"world/{n}": tuple(sorted(rng.sample(range(size), rng.randrange(1, size + 1))))
        for n in range(4)
    }
    groups["world"] = tuple(range(size))
    ranks = [History(folder, rank, size) for rank in range(size)]
    for history in ranks:
        own = [name for name, ranks_of in groups.items() if history.rank in ranks_of]
        for _ in range(rng.randrange(12)):
            step(rng, history, groups, rng.choice(own), rng.choice(["ends", "ends", "fails"]))
            if forgets and rng.random() < 0.15:
                for _ in range(rng.choice([3, NUM_RECORDS - 1, NUM_RECORDS])):
                    history.message(0, "ends")
            if rng.random() < 0.3:
                history.beat()
        if rng.random() < 0.7:
            step(rng, history, groups, rng.choice(own), "stays")
        history.ledger.close()
    return ranks, groups


def step(rng, history, groups, group, how):
    kind = rng.random()
    if kind < 0.2:
        history.message(rng.randrange(len(groups["world"])), how)
    elif kind < 0.35 and history.begun[group] and how != "fails":
        number = rng.randrange(1, history.begun[group] + 1)
        history.wait(group, groups[group], number, how)
    else:
        history.collective(group, groups[group], how)


def naive_suspects(ranks):
    """Who is missing, by definition, from all that the ranks have done."""
    calls = [history.under_way for history in ranks if history.under_way]
    missing = {
        n for group, of, number in calls if number for n in of if ranks[n].begun[group] < number
    }
    peers = {of[0] for _, of, number in calls if not number}
    idle = {n for n in missing | peers if ranks[n].under_way is None}
    named = sorted(idle or missing)
    if not named:
        return "all ranks are there"
    words = ", ".join(map(str, named))
    return f"rank {words} is missing" if len(named) == 1 else f"ranks {words} are missing"


@pytest.mark.parametrize("size", [1, 2, 3, 6])
def test_who_is_missing_is_who_has_not_made_the_call(tmp_path, size):
    rng = random.Random(size)
    for turn in range(25):
        folder = tmp_path / str(turn)
        ranks, _ = histories(folder, rng, size, forgets=False)
        assert hang_suspects(folder) == naive_suspects(ranks), turn


@pytest.mark.parametrize("size", [2, pytest.param(5, marks=pytest.mark.thorough)])
def test_what_a_ring_has_forgotten_is_right_or_not_known(tmp_path, size):
    rng, num_unknown, num_known = random.Random(size), 0, 0
    for turn in range(30):
        folder = tmp_path / str(turn)
        ranks, groups = histories(folder, rng, size, forgets=True)
        found = read_ledgers(folder)
        for group, of in groups.items():
            begun = found.begun(group, of).tolist()
            truth = [ranks[rank].begun[group] for rank in of]
            assert all(ANY == said or said == true for said, true in zip(begun, truth)), turn
            for number in range(1, max(truth) + 2):
                late = found.late(Call("all_reduce", group, of, number)).tolist()
                assert set(late) <= {n for n, true in zip(of, truth) if true < number}
            num_unknown += begun.count(ANY)
            num_known += len(begun) - begun.count(ANY)
    assert num_known > 5 * num_unknown > 0


def test_calls_that_were_noted_in_time_are_known_although_the_ring_forgot_them(tmp_path):
    waiting, busy = [Ledger(tmp_path, rank, 2) for rank in (0, 1)]
    busy.begin("all_reduce", "world", (0, 1), 1)
    busy.end()
    waiting.begin("all_reduce", "world", (0, 1), 2)
    busy_with_others(busy)
    assert hang_suspects(tmp_path) == NOT_KNOWN
    assert "it is not known if they have come" in hang_report(tmp_path)
    busy.note_made(lambda: {"world": 1, "other": NUM_RECORDS})
    assert hang_suspects(tmp_path) == "rank 1 is missing"
    busy_with_others(busy, NUM_RECORDS + 1)
    assert hang_suspects(tmp_path) == NOT_KNOWN


def busy_with_others(ledger, number=NUM_RECORDS):
    for at in range(number):
        ledger.begin("barrier", "other", (1,), at + 1)
        ledger.end()


def test_a_call_that_ended_after_it_was_noted_may_have_been_forgotten(tmp_path):
    """A compiled call counts when it has ended, and the calls were noted while it was under way."""
    busy = Ledger(tmp_path, 1, 2)
    for number in (1, 2):
        busy.begin("all_reduce", "world", (0, 1), number)
        busy.note_made(lambda: {"world": number - 1})
        busy.end()
    assert read_ledgers(tmp_path).begun("world", (1,)).tolist() == [2]
    busy_with_others(busy)
    assert read_ledgers(tmp_path).begun("world", (1,)).tolist() == [ANY]


def test_a_wait_does_not_tell_that_there_was_no_later_call(tmp_path):
    busy = Ledger(tmp_path, 1, 2)
    for number in (1, 2):
        busy.begin("all_reduce", "world", (0, 1), number)
        busy.end()
    busy_with_others(busy)
    busy.begin("wait for all_reduce", "world", (0, 1), 1)
    assert read_ledgers(tmp_path).begun("world", (1,)).tolist() == [ANY]


def test_a_group_too_irregular_for_a_name_leaves_its_ranks_unknown(tmp_path):
    """A group whose name was dropped once gave "all ranks are there" with 12,798 ranks missing."""
    ranks = (0, *sorted(random.Random(0).sample(range(1, 8000), 4000)))
    ledger = Ledger(tmp_path, 0, 8000)
    ledger.begin("all_reduce", "world/odd", ranks, 1)
    call = read_ledger(ledger.path, ledger.place.slot).under_way
    assert (call.group, call.ranks, call.number_on_group) == ("world/odd", (), 1)
    assert hang_suspects(tmp_path) == NOT_KNOWN
    assert "rank 0 in all_reduce (call 1 on group world/odd)" in hang_report(tmp_path)


def test_a_group_without_a_name_leaves_its_ranks_unknown(tmp_path):
    ledger = Ledger(tmp_path, 0, 3)
    for number in range(3000):
        ledger.begin("barrier", f"group {number} {'x' * 50}", (0, 1, 2), 1)
    assert hang_suspects(tmp_path) == NOT_KNOWN


# ---- many ----------------------------------------------------------------------------------------


PER_NODE = 8


def on_nodes(size, job=0):
    return LedgerPlaces([rank - rank % PER_NODE for rank in range(size)], job)


def simulated(folder, size, *, missing=(1,), tensor=4, places=None):
    """The ledgers of a mesh in which all others wait for some ranks in a call on the world."""
    places = on_nodes(size) if places is None else places
    world = tuple(range(size))
    for rank in range(size):
        first = rank - rank % tensor
        ledger = Ledger(folder, rank, size, place=places.of(rank))
        for group, ranks in (
            (f"world/1.{rank // tensor}", tuple(range(first, first + tensor))),
            (f"world/2.{rank % tensor}", tuple(range(rank % tensor, size, tensor))),
        ):
            ledger.begin("all_reduce", group, ranks, 1, numpy.dtype("float32"), 10)
            ledger.end()
        if rank not in missing:
            ledger.begin("barrier", "world", world, 1)
        ledger.close()


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("num_missing", [1, 12, 500])
def test_ranks_that_are_missing_among_many_are_counted(tmp_path, num_missing):
    missing = range(3, 3 + num_missing)
    simulated(tmp_path, 512, missing=missing)
    found, report = hang_suspects(tmp_path), hang_report(tmp_path)
    named = "rank 3 is missing"
    if num_missing > 8:
        named = f"ranks 3-{missing[-1]} ({num_missing} of them) are missing"
    assert found == named
    assert f"missing: {named.rpartition(' ')[0].rpartition(' ')[0]} of 512 ranks" in report
    assert len(report) < 4000


def test_calls_of_many_groups_are_a_few_lines(tmp_path):
    for rank in range(100):
        ledger = Ledger(tmp_path, rank, 100)
        ledger.begin("barrier", f"world/1.{rank}", (rank, (rank + 1) % 100), 1)
        ledger.close()
    report = hang_report(tmp_path)
    assert "in 84 more calls" in report and len(report) < 6000
    assert hang_suspects(tmp_path) == "ranks 0-99 (100 of them) are missing"


def calls_of_python(function):
    """Return how many functions it calls, those in C too."""
    num_calls = 0

    def note(frame, event, argument):
        nonlocal num_calls
        num_calls += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return num_calls


def test_a_report_costs_no_more_than_linear_in_the_ranks(tmp_path):
    """Calls of functions, and bytes of a ledger's names."""
    costs, names = [], []
    for size in (64, 128, 256):
        folder = tmp_path / str(size)
        simulated(folder, size, missing=range(0, size, 2))
        costs.append(calls_of_python(lambda: (hang_suspects(folder), hang_report(folder))))
        with open(folder / LEDGER_NAME.format(0), "rb") as file:
            content = file.read(1 << 12)
        names.append(sum(len(line) for line in content[128:1500].split(b"\0")[0].split(b"\n")))
    assert costs[2] - costs[1] < 2.1 * (costs[1] - costs[0]), costs
    assert names[2] <= names[0] + 4, names


def test_only_the_ledgers_of_these_ranks_are_read(tmp_path):
    simulated(tmp_path, 16)
    path = tmp_path / LEDGER_NAME.format(8)
    with open(path, "rb+") as file:
        file.seek(LEDGER_SLOT_BYTES)
        file.write(b"damaged")
    for places in (None, on_nodes(16)):
        found = read_ledgers(tmp_path, (3, 4, 9, 99), places)
        assert found.ranks.tolist() == [3, 4]
        with pytest.raises(FileNotFoundError, match="no ledgers"):
            read_ledgers(tmp_path, (9,), places)
    with pytest.raises(sk.CheckpointError, match="not a ledger"):
        read_ledger(path, 1)


@pytest.fixture
def opens(monkeypatch):
    """The files of ledgers that are opened from here on."""
    found, real = [], recorded.opened
    monkeypatch.setattr(
        recorded, "opened", lambda path, **given: found.append(path) or real(path, **given)
    )
    return found


def test_a_rank_that_reports_opens_one_file_of_each_node_once(tmp_path, opens):
    """It says the same as those who open them twice, of 20 that threads read together."""
    simulated(tmp_path, 160, missing=(7,))
    told, progress = [], Progress()
    progress.places.learn(on_nodes(160).nodes, 0)
    watchdog = Watchdog(progress, tmp_path, 0, 160, seconds=lambda: 30.0, abort=told.append)
    progress.begin_collective("barrier", "world", tuple(range(160)))
    watchdog._report()
    progress.end()
    watchdog.close()
    assert sorted(opens) == sorted(tmp_path.glob("*.ledger")) and len(opens) == 20
    assert len(told) == 1 and "rank 7 is missing; the job is ended\nranks" in told[0]
    found = read_ledgers(tmp_path)
    assert hang_suspects(tmp_path) == suspects_of(found, tmp_path)
    assert hang_report(tmp_path, 0.0) == report_of(found, tmp_path, 0.0)


def test_who_waits_for_some_ranks_opens_the_files_of_their_nodes_alone(tmp_path, opens):
    """Ranks in blocks, and dealt out to the nodes in turn; the last node may have fewer."""
    for number, nodes in enumerate(([r - r % 8 for r in range(44)], [r % 5 for r in range(44)])):
        folder, places = tmp_path / str(number), LedgerPlaces(nodes, job=7)
        simulated(folder, 44, places=places)
        assert len(list(folder.iterdir())) == len(set(nodes))
        for ranks in ((3, 4), (40, 43), (2, 12, 22), range(44)):
            opens.clear()
            assert read_ledgers(folder, ranks, places).ranks.tolist() == list(ranks)
            assert len(opens) == len({nodes[rank] for rank in ranks})


# ---- whose they are ------------------------------------------------------------------------------


def wait_in(folder, rank, size, *, job=0, place=None, verb="barrier"):
    """A rank waits in its first call; returns its ledger."""
    ledger = Ledger(folder, rank, size, place=place or LedgerPlace(slot=rank, job=job))
    if verb:
        ledger.begin(verb, "world", tuple(range(size)), 1)
    return ledger


@pytest.mark.parametrize("before, after", [(6, 4), (4, 6), (4, 4)])
def test_a_job_that_is_started_again_is_not_taken_for_the_one_before(tmp_path, before, after):
    """Here the first rank has not begun yet: what it wrote in the earlier job does not count."""
    for rank in range(before):
        wait_in(tmp_path, rank, before, job=1).close()
    for rank in range(1, after):
        wait_in(tmp_path, rank, after, job=2)
    assert read_ledgers(tmp_path).ranks.tolist() == list(range(1, after))
    assert hang_suspects(tmp_path) == "rank 0 is missing"
    assert "rank 0 left no ledger here" in hang_report(tmp_path)
    with pytest.raises(FileNotFoundError):
        read_ledgers(tmp_path, (0,), LedgerPlaces(job=2))


def test_ranks_that_go_on_with_new_numbers_are_those_that_count(tmp_path):
    """Rank 1 of 4 dies; a process keeps the file of its node, and takes another slot there."""
    nodes = [0, 0, 2, 2]
    for rank in range(4):
        wait_in(tmp_path, rank, 4, place=LedgerPlaces(nodes, 1).of(rank))
    living = LedgerPlaces([0, 2, 2], 2)
    for rank in range(3):
        wait_in(tmp_path, rank, 3, place=living.of(rank), verb="" if rank == 1 else "barrier")
    assert len(list(tmp_path.iterdir())) == 2
    assert read_ledgers(tmp_path).ranks.tolist() == [0, 1, 2]
    assert hang_suspects(tmp_path) == "rank 1 is missing"


def test_ranks_may_begin_in_any_order_and_at_once(tmp_path):
    """32 threads make one file; none of them loses what another has written."""
    together = Barrier(32)

    def begin(rank):
        together.wait()
        wait_in(tmp_path, rank, 32)

    threads = [
        Thread(target=begin, args=(rank,)) for rank in random.Random(0).sample(range(32), 32)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [path.name for path in tmp_path.iterdir()] == [LEDGER_NAME.format(0)]
    found = read_ledgers(tmp_path)
    assert found.ranks.tolist() == list(range(32)) and found.is_in_call.all()


def test_a_ledger_whose_file_is_gone_is_lost_also_if_another_rank_has_made_it_again(tmp_path):
    ledgers = [wait_in(tmp_path, rank, 2) for rank in range(2)]
    assert not any(ledger.is_lost for ledger in ledgers)
    ledgers[0].path.unlink()
    wait_in(tmp_path, 0, 2)
    assert all(ledger.is_lost for ledger in ledgers)
    assert hang_suspects(tmp_path) == "rank 1 is missing"
    assert not wait_in(tmp_path, 1, 2).is_lost
    assert hang_suspects(tmp_path) == "all ranks are there"


def test_nothing_is_written_through_a_link_of_the_name(tmp_path):
    other = tmp_path / "other"
    other.write_bytes(b"mine")
    (tmp_path / "ledger").mkdir()
    (tmp_path / "ledger" / LEDGER_NAME.format(0)).symlink_to(other)
    assert wait_in(tmp_path / "ledger", 0, 1).path.stat().st_size
    assert other.read_bytes() == b"mine"


def of_version_3(folder, size):
    """The ledgers that an earlier version wrote: a file of each rank, without the last 16 bytes."""
    for rank in range(size):
        ledger = wait_in(
            folder, rank, size, place=LedgerPlace(rank), verb="" if rank == 1 else "barrier"
        )
        ledger.close()
        content = ledger.path.read_bytes()[:-16]
        ledger.path.unlink()
        (folder / NO_ROOM_NAME.format(rank)).write_bytes(content[:7] + b"\3" + content[8:])


def test_folders_of_an_earlier_version_are_read_until_a_job_begins_there(tmp_path):
    of_version_3(tmp_path, 3)
    assert hang_suspects(tmp_path) == "rank 1 is missing"
    assert "ranks 0, 2 in barrier (call 1 on group world)" in hang_report(tmp_path)
    (tmp_path / "hang").touch()
    (tmp_path / "rank-00001.stacks").write_text("an old stack")
    assert "stacks of rank 1:\n  an old stack" in hang_report(tmp_path)
    (tmp_path / "stacks").mkdir()
    (tmp_path / "stacks" / "rank-00001.stacks").write_text("a new stack")
    assert "stacks of rank 1:\n  a new stack" in hang_report(tmp_path)
    for rank in range(2):
        wait_in(tmp_path, rank, 2)
    assert read_ledgers(tmp_path).rows["world_size"].tolist() == [2, 2]


def test_the_main_thread_comes_first_in_a_report_however_long_the_others_are(tmp_path):
    """A file has it last."""
    for rank in range(2):
        wait_in(tmp_path, rank, 2, verb="barrier" if rank else "")
    (tmp_path / "stacks").mkdir()
    threads = ["Thread 1:\n" + "  File a\n" * 40, "Current thread 2:\n  File main\n"]
    (tmp_path / "stacks" / "rank-00000.stacks").write_text("\n".join(threads))
    report = hang_report(tmp_path)
    assert "stacks of rank 0:\n  Current thread 2:\n    File main\n  Thread 1:\n" in report
    assert "  ... more in rank-00000.stacks" in report


def test_a_folder_that_no_version_can_read_says_why(tmp_path):
    (tmp_path / NO_ROOM_NAME.format(0)).write_bytes(b"sklgr\0\0\2" + bytes(1 << 16))
    with pytest.raises(FileNotFoundError, match="not a ledger of this version of shardkit"):
        read_ledgers(tmp_path)


# ---- who looks -----------------------------------------------------------------------------------


def test_one_rank_of_many_looks_until_it_is_silent(tmp_path):
    turns = [Turn(tmp_path, rank) for rank in range(4)]
    for _ in range(3):
        assert [turn.is_mine("world", 65, 600.0) for turn in turns] == [True, False, False, False]
    assert turns[1].is_mine("another group", 65, 600.0)
    time.sleep(0.06)
    assert [turn.is_mine("world", 65, 0.2) for turn in turns[1:]] == [True, False, False]
    assert [turn.is_mine("world", 65, 600.0) for turn in turns] == [False, True, False, False]
    assert all(Turn(tmp_path, rank).is_mine("world", 64, 600.0) for rank in range(4))
    assert Turn(tmp_path / "missing", 0).is_mine("world", 65, 600.0)


def test_of_many_that_wait_one_reads_the_ledgers(tmp_path, monkeypatch):
    """The others do not count the wait, and the one that reads rests in between."""
    simulated(tmp_path, 80, missing=(7,))
    call, reads = Call("barrier", "world", tuple(range(80)), 1), []
    needed = call_clock.ranks_needed
    monkeypatch.setattr(call_clock, "ranks_needed", lambda *of: reads.append(of) or needed(*of))
    clocks = [CallClock(tmp_path, rank) for rank in range(10)]
    began = time.monotonic() - 100.0
    for _ in range(3):
        counted = [clock.seconds(call, began, 40.0) for clock in clocks]
    assert counted[0] > 40.0 and counted[1:] == [10.0] * 9
    assert len(reads) == 1
