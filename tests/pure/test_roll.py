"""The folder of a job, the roll of its ranks, and what a warden reads in it."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from clean_fork import clean_context

import shardkit
from shardkit.testing.comm import (
    EXIT_HOOKS,
    PREFIX,
    STACKS_FOLDER,
    Attendance,
    Entry,
    JobFolder,
    Ledger,
    Progress,
    Roll,
    Turn,
    Warden,
    Watchdog,
    check_timeout,
    ending,
    job_key,
    note_path,
    note_segments,
    remove_abandoned,
    state_of,
    whom,
)
from shardkit.testing.comm import job_folder as folder_module

HOLDER = """
import sys, time, types
for name, folder in (("shardkit", ""), ("shardkit.comm", "/comm")):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [sys.argv[2] + folder]
from shardkit.testing.comm import JobFolder
folder = JobFolder.open(sys.argv[1])
(folder.path / "roll").touch()
print("held", flush=True)
time.sleep(60)
"""


def held_by_another(path):
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", HOLDER, path, Path(shardkit.__file__).parent],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "held\n"
    return process


def kill(process):
    process.kill()
    process.communicate()


def test_the_folder_of_a_killed_job_is_removed_by_the_next_and_that_of_a_living_one_stays(tmp_path):
    dead, living = (tmp_path / f"{PREFIX}{os.getuid()}-{name}" for name in ("dead", "living"))
    killed, alive = held_by_another(dead), held_by_another(living)
    kill(killed)
    (tmp_path / f"{PREFIX}{os.getuid()}-other").mkdir()  # without a lock: nobody knows whose it is
    (tmp_path / "shardkit-kernels-0").mkdir()
    remove_abandoned(tmp_path)
    kill(alive)
    assert sorted(path.name.rpartition("-")[2] for path in tmp_path.iterdir()) == [
        "0",
        "living",
        "other",
    ]
    assert (living / "roll").exists()


def test_the_last_to_leave_a_folder_removes_it(tmp_path):
    first, last = JobFolder.open(tmp_path / "job"), JobFolder.open(tmp_path / "job")
    first.close()
    assert (tmp_path / "job").exists()
    last.close()
    last.close()
    assert not (tmp_path / "job").exists()


def test_all_that_a_job_makes_in_its_folder_is_removed_with_it(tmp_path, monkeypatch):
    folder = JobFolder.open(tmp_path / "job")
    roll = Roll(folder.path)
    roll.write(0, Entry(os.getpid()))
    assert roll.may_report()
    roll.end()
    told = []
    watchdog = Watchdog(Progress(), folder.path, 0, 2, seconds=lambda: 60.0, abort=told.append)
    (folder.path / STACKS_FOLDER).mkdir()
    (folder.path / STACKS_FOLDER / "rank-00001.stacks").touch()
    assert Turn(folder.path, 0).is_mine("world", 65, 60.0)
    note_path(folder.path, 0, watchdog.ledger.path)
    own = Attendance()
    monkeypatch.setattr(own, "num_ranks", 2)
    own.folder, own._roll = folder.path, roll
    assert own.exchange_within("a note", 0.05) is None
    monkeypatch.setattr(folder_module, "_OF_LIBRARIES", ("",))
    note_segments(folder.path)
    watchdog.close()
    roll.close()
    assert len(list(folder.path.iterdir())) >= 8 and not told
    folder.close()
    assert not (tmp_path / "job").exists()


def test_a_folder_that_nobody_uses_any_more_is_empty_when_it_is_opened_again(tmp_path):
    kill(held_by_another(tmp_path / "job"))
    assert (tmp_path / "job" / "roll").exists()
    folder = JobFolder.open(tmp_path / "job")
    assert [path.name for path in folder.path.iterdir()] == ["alive"]
    folder.close()


@pytest.mark.parametrize("name", ["_check_own", "_has_alone", "_share"])
def test_a_folder_that_another_job_removes_while_it_is_opened_is_made_again(
    tmp_path, monkeypatch, name
):
    """Whatever of its opening that comes before."""
    path = tmp_path / "job"
    usual, removals = getattr(folder_module, name), [1, 1]

    def removed_before(*arguments):
        if removals:
            removals.pop()
            shutil.rmtree(path)
        return usual(*arguments)

    monkeypatch.setattr(folder_module, name, removed_before)
    folder = JobFolder.open(path)
    assert path.is_dir() and not removals
    folder.close()
    assert not path.exists()


def test_a_folder_that_is_always_removed_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(folder_module, "_share", lambda lock: shutil.rmtree(tmp_path / "job"))
    with pytest.raises(FileNotFoundError):
        JobFolder.open(tmp_path / "job")


def test_a_link_to_somebody_elses_folder_is_refused(tmp_path):
    (tmp_path / "victim").mkdir()
    (tmp_path / "job").symlink_to(tmp_path / "victim")
    with pytest.raises(PermissionError, match="remove it, or set TMPDIR"):
        JobFolder.open(tmp_path / "job")


def test_shared_memory_that_a_killed_job_left_goes_with_its_folder_unless_it_is_anothers(
    tmp_path, monkeypatch
):
    from shardkit.testing.comm import job_folder as module

    monkeypatch.setattr(module, "SHARED_MEMORY", tmp_path)
    names = ["mpich_shm_1", "mpich_shm_2", "mine"]
    for name in names:
        (tmp_path / name).touch()
    job = JobFolder.open(tmp_path / "job")
    inodes = {name: (tmp_path / name).stat().st_ino for name in names}
    inodes["mpich_shm_2"] += 1_000_000  # the name was used again
    (job.path / "segments-7").write_text(
        "".join(f"{inode} {name}\n" for name, inode in inodes.items())
    )
    note_segments(job.path)  # this process has none
    job.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "mpich_shm_2"]


def test_an_entry_comes_back_as_it_was_written_and_one_that_was_not_written_is_none(tmp_path):
    roll = Roll(tmp_path)
    entry = Entry(
        123,
        4,
        is_waiting=True,
        has_left=True,
        survives=True,
        since=1.5,
        seconds=6.0,
        doing="initialize()",
    )
    roll.write(2, entry)
    assert [roll.read(rank) for rank in range(4)] == [None, None, entry, None]
    roll.close()


def test_one_process_of_a_node_has_the_word(tmp_path):
    first, second = Roll(tmp_path), Roll(tmp_path)
    assert [first.may_report(), second.may_report(), first.may_report()] == [True, False, False]
    assert not first.is_ended()
    second.end()
    assert first.is_ended()
    first.close()
    second.close()


def waits(number=2, **changes):
    return Entry(
        **{
            "process": os.getpid(),
            "number": number,
            "is_waiting": True,
            "doing": "initialize()",
            **changes,
        }
    )


def dead_process():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@pytest.mark.parametrize(
    "others, words",
    [
        ({1: waits(), 2: waits()}, "all ranks are there"),
        (
            {1: waits(1, is_waiting=False, doing="its own code after MPI_Init"), 2: waits()},
            "rank 1 is missing, its own code after MPI_Init (process",
        ),
        ({1: None, 2: waits()}, "all 2 ranks of this node are there"),
        ({1: None, 2: waits(1, is_waiting=False)}, "rank 2 is missing, initialize() (process"),
        ({1: waits(), 2: waits(1, has_left=True)}, "rank 2 is missing, at the end of its program"),
        ({1: waits(3), 2: waits(3)}, "rank 0 itself is the one that all wait for"),
    ],
)
def test_whoever_has_not_come_is_named(others, words):
    assert whom(0, waits(), others).startswith(words)


@pytest.mark.parametrize(
    "others, words",
    [
        (
            {1: None, 2: waits(1)},
            "rank 1 is missing, which has not come to MPI_Init, or is on another node",
        ),
        ({1: None, 2: None}, "of the 2 other ranks none has come to MPI_Init on this node"),
    ],
)
def test_at_the_start_nobody_knows_whether_a_rank_is_on_another_node(others, words):
    assert whom(0, waits(1, doing="MPI_Init"), others) == words


def test_whoever_has_died_is_named_and_so_is_whoever_is_stopped():
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    os.kill(sleeper.pid, 19)
    while state_of(sleeper.pid) != "T":
        time.sleep(0.01)
    words = whom(0, waits(), {1: waits(1, process=dead_process()), 2: waits(process=sleeper.pid)})
    own = whom(2, waits(process=sleeper.pid), {0: waits(), 1: waits()})
    kill(sleeper)
    assert (
        "rank 1 is missing, which has died" in words
        and "rank 2 is missing, stopped in initialize()" in words
    )
    assert own == "rank 2 itself is stopped"


def test_at_the_end_of_the_program_those_are_missing_who_have_not_left():
    own = waits(has_left=True, doing="MPI_Finalize")
    words = whom(
        0,
        own,
        {
            1: waits(9, has_left=True),
            2: waits(9, is_waiting=False, doing="its own code after shutdown()"),
        },
    )
    assert words.startswith("rank 2 is missing, its own code after shutdown()")


def test_before_mpi_finalize_those_are_missing_who_still_run_exit_hooks(tmp_path):
    own, other = (
        waits(has_left=True, may_end=True, doing=doing) for doing in ("MPI_Finalize", EXIT_HOOKS)
    )
    roll = Roll(tmp_path)
    roll.write(1, other)
    assert not Warden(roll, 0, 2, 1, os.getppid(), "", {})._are_gone(own)  # it will come
    roll.write(1, waits(has_left=True, process=dead_process()))
    assert Warden(roll, 0, 2, 1, os.getppid(), "", {})._are_gone(own)
    roll.close()
    assert whom(0, own, {1: other}).startswith("rank 1 is missing, in its exit hooks")
    assert whom(1, other, {0: own}) == "rank 1 itself is the one that all wait for"


def test_ranks_of_one_launcher_have_one_key_and_a_rank_alone_its_own():
    def keys():
        with clean_context().Pool(1) as rank:
            return rank.map(job_key, [2, 1])

    first, second = keys(), keys()
    assert first[0] == second[0] and first[1] != second[1]


def test_a_call_that_an_exception_ended_is_not_one_that_the_rank_made():
    progress = Progress()
    progress.begin_collective("barrier", "world", (0, 1))
    progress.end()
    progress.begin_collective("all_reduce", "world", (0, 1))
    assert progress.calls_made() == {"world": 1}  # it is in it
    progress.fail()
    assert progress.calls_made() == {"world": 1} and progress.current is None
    progress.begin_collective("all_reduce", "world", (0, 1))
    progress.end()
    assert progress.calls_made() == {"world": 3}


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), "6", True, None])
def test_a_time_limit_that_is_none_is_refused(seconds):
    with pytest.raises(ValueError, match="wanted seconds > 0, or math.inf for none"):
        check_timeout(seconds)


@pytest.mark.parametrize(
    "changes, is_reported, is_ended",
    [
        ({}, True, True),
        ({"may_end": True}, False, False),
        ({"may_end": True, "is_waiting": True, "has_left": True}, False, False),
        ({"is_guest": True}, True, False),
        ({"survives": True}, False, False),
        ({"has_left": True, "is_waiting": True}, True, True),
    ],
    ids=["guarded", "free", "in MPI_Finalize", "guest", "survived", "at its end"],
)
def test_the_end_of_a_process_is_a_death_where_others_need_it(
    tmp_path, capfd, changes, is_reported, is_ended
):
    roll = Roll(tmp_path)
    roll.write(0, Entry(dead_process(), doing="its own code", **changes))
    roll.write(1, Entry(os.getpid(), doing="its own code"))
    warden = Warden(roll, 0, 2, 1, os.getppid(), "", {})
    warden._hold_launcher = lambda: None
    warden._name_death()
    assert ("rank 0 died" in capfd.readouterr().err) == is_reported
    assert roll.is_ended() == is_ended
    roll.close()


@pytest.mark.parametrize(
    "own, other, num_ranks, is_launcher_alive, is_reported",
    [
        ({}, {}, 2, True, True),
        ({}, {"may_end": True, "is_guest": True}, 2, True, True),  # its backend was being made
        ({}, {"has_left": True}, 2, True, False),
        ({}, {}, 3, True, False),
        ({}, {}, 2, False, False),
        ({"is_guest": True}, {}, 2, True, False),
    ],
    ids=["guarded", "at its start", "one left", "two nodes", "launcher ended", "guest"],
)
def test_the_first_that_looks_speaks_when_the_launcher_has_killed_all(
    tmp_path, capfd, own, other, num_ranks, is_launcher_alive, is_reported
):
    roll = Roll(tmp_path)
    roll.write(0, Entry(dead_process(), doing="its own code", **own))
    roll.write(1, Entry(dead_process(), doing="its own code", **other))
    launcher = os.getpid() if is_launcher_alive else dead_process()
    for rank in (0, 1):
        warden = Warden(roll, rank, num_ranks, 1, launcher, "", {})
        warden._name_death()
    assert ("rank 0 died" in capfd.readouterr().err) == is_reported
    roll.close()


def test_a_guest_that_does_not_see_all_ranks_names_no_death(tmp_path, capfd):
    """One of the others may have ended the job."""
    roll = Roll(tmp_path)
    roll.write(0, Entry(dead_process(), is_guest=True))
    Warden(roll, 0, 2, 1, os.getppid(), "", {})._name_death()
    assert capfd.readouterr().err == "" and not roll.is_ended()
    roll.close()


@pytest.mark.parametrize(
    "ran, began, is_ended",
    [(11.0, 12.0, True), (11.0, 10.0, False), (0.5, 12.0, False), (11.0, None, False)],
    ids=["stuck", "not yet", "its interpreter runs", "in no call"],
)
def test_a_rank_whose_interpreter_is_stuck_in_a_call_is_ended_by_its_warden(
    tmp_path, monkeypatch, ran, began, is_ended
):
    """Seconds since the interpreter ran and since the call began; the limit is 8 s."""
    now = time.monotonic()
    with monkeypatch.context() as patch:
        ledger = Ledger(tmp_path / "other", 5, 8)
        patch.setattr(time, "monotonic", lambda: now - (began or 1.0))
        ledger.begin("barrier", "world", (0, 1), 1)
        if began is None:
            ledger.end()
        patch.setattr(time, "monotonic", lambda: now - ran)
        ledger.beat(8.0, 0.0)
    note_path(tmp_path, 1, ledger.path, ledger.start)
    roll, said = Roll(tmp_path), []
    warden = Warden(roll, 1, 2, os.getpid(), os.getppid(), "", {})
    warden._end_job = said.append
    assert warden._is_ended_as_stuck(Entry(os.getpid())) == is_ended == bool(said)
    assert not said or "has not run for 11 s, native code holds its lock" in said[0]
    note_path(tmp_path, 1, None)
    assert not warden._is_ended_as_stuck(Entry(os.getpid()))
    ledger.close()
    roll.close()


@pytest.mark.thorough
def test_the_last_words_of_an_interpreter_come_after_all_exit_hooks(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(LAST_WORDS)
    done = subprocess.run(
        [sys.executable, program, tmp_path], capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 3 and done.stdout == "its exit hooks\n", done.stderr
    roll = Roll(tmp_path)
    assert roll.read(0).doing == "MPI_Finalize"
    roll.close()


LAST_WORDS = """
import atexit, os, sys, threading, time
from shardkit.testing.comm import ending
from shardkit.testing.comm import Entry, Roll
roll = Roll(sys.argv[1])
roll.write(0, Entry(os.getpid(), doing="its exit hooks"))
atexit.register(lambda: print(roll.read(0).doing))
ending.LastWords(roll.writer(0, Entry(os.getpid(), doing="MPI_Finalize")))
ending.wait = lambda: time.sleep(3600)  # what is still in use of the module, and so keeps its names
threading.Thread(target=exec, args=("wait()", vars(ending)), daemon=True).start()
sys.excepthook = ending.ending
sys.exit(3)
"""


STOPS_AT_THE_END = """
import os, signal
from shardkit.testing.comm import attendance
here = attendance()
here.open("", {}, survives=False)
here.has_started()
here.leave("MPI_Finalize", 0.3)
here.close()
os.kill(os.getpid(), signal.SIGSTOP)
"""


@pytest.mark.thorough
def test_a_rank_that_is_stopped_when_mpi_is_finalized_is_ended_by_its_warden(tmp_path):
    environment = {**os.environ, "PMI_RANK": "1", "PMI_SIZE": "2", "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", STOPS_AT_THE_END],
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert (
        done.returncode == -9
        and "shardkit: rank 1 of 2 has been stopped for 0.3 s at the end" in done.stderr
    )


def test_what_is_called_at_the_end_of_mpi_may_remove_itself_and_others(monkeypatch):
    end, made = ending.Ending(), []

    def first():
        made.append("first")

    def second():
        made.append("second")
        end.remove(second)
        end.remove(first)

    def third():
        made.append("third")
        end.remove(third)

    for call in (first, second, third):
        end.add(call)
    for name in ("_begin", "_await_finalize"):
        monkeypatch.setattr(end, name, lambda: None)
    end._finalize_begins()
    assert made == ["third", "second"]
