"""The process that compiles for a node: one for all, the same code, and an end with the last."""

import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest

from shardkit.testing.array import (
    Counter,
    Worker,
    Workshop,
    Workshops,
    address_of,
    loop_named,
    workshop,
)
from shardkit.testing.comm import children_of

LINE = "array.cpu.flat._sum_two(float32[1], float32[1], float32[1])"
LIMIT_SECONDS = 300  # for a busy machine

# What nothing else asks for, so that its code is in no other folder.
NEXT = [
    f"array.cpu.flat._copy({one}[1], {other}[1])"
    for one, other in product(("int8", "int16", "uint32", "uint64"), repeat=2)
]
several_cores = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="nothing is compiled ahead on one core"
)


@pytest.fixture
def address(tmp_path, monkeypatch):
    """Where nobody listens but those of one test; code goes to its folder."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "code"))
    return address_of(str(tmp_path))


@pytest.fixture
def opened(address):
    made = Workshop(address)
    yield made
    made.close()


@pytest.fixture
def others(address):
    """Two more customers."""
    made = [Workshop(address), Workshop(address)]
    yield made
    for one in made:
        one.close()


def name_of(line) -> str:
    loop, signature = loop_named(line)
    return loop.file_name(signature)


def code(one, line=LINE):
    return one.code(line, name_of(line))


def is_gone(process: int) -> bool:
    deadline = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


def workers_of(process: int, at_least: int = 1) -> list[int]:
    """Return the workers of a workshop, once there are so many."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while len(found := children_of(process)) < at_least and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(found) >= at_least
    return found


def names_in(folder) -> list[str]:
    return sorted(path.name.partition("-")[0] for path in folder.glob("code/*/*.kernel"))


# ---- its code ------------------------------------------------------------------------------------


COMPILE = f"""
import sys
from shardkit.testing.array import compiling, loop_named, target
sys.stdout.buffer.write(compiling.image_of(*loop_named({LINE!r}), target()).pack())
"""


def test_its_code_is_what_a_new_process_would_compile_and_it_knows_nothing_of_the_job(
    opened, monkeypatch
):
    monkeypatch.setenv("PMI_RANK", "1")
    alone = subprocess.run([sys.executable, "-c", COMPILE], capture_output=True, check=True)
    assert code(opened) == alone.stdout
    first = opened._process.pid
    for process in (first, *workers_of(first)):
        about = Path(f"/proc/{process}")
        variables = about.joinpath("environ").read_bytes().split(b"\0")
        assert not [each for each in variables if each.startswith(b"PMI_")]
        maps = about.joinpath("maps").read_text()
        assert "libmpi" not in maps and "/scipy/" not in maps
        assert about.joinpath("cwd").resolve() == Path("/")
        assert os.getsid(process) != os.getsid(0)  # no signal of the terminal
    assert code(opened) and opened._process.pid == first


def test_what_it_cannot_compile_or_has_from_other_sources_is_left_to_who_asks(opened):
    assert opened.code("array.cpu.flat._sum_two(float32[1])", "") is None
    assert opened.code("no.such.loop(int64)", "") is None
    assert opened.code(LINE, name_of(LINE) + "other") is None
    assert code(opened)


def test_where_no_folder_takes_it_each_loop_is_compiled_once_all_the_same(
    opened, others, monkeypatch
):
    first = "from shardkit.testing.array import compiled; compiled.candidate_folders = lambda: (); "
    monkeypatch.setattr(workshop, "_MAIN", first + workshop._MAIN)
    content = code(opened, NEXT[0])
    workers = workers_of(opened._process.pid)
    for worker in workers:
        os.kill(worker, signal.SIGSTOP)
    assert content and code(others[0], NEXT[0]) == content
    for worker in workers:
        os.kill(worker, signal.SIGCONT)


# ---- one for all ---------------------------------------------------------------------------------

ASKS = """\
import sys
from shardkit.testing.array import Workshop, loop_named
one = Workshop(sys.argv[1].replace("@", chr(0)))
for line in sys.argv[2:]:
    loop, signature = loop_named(line)
    assert one.code(line, loop.file_name(signature))
print(one._process is not None)
"""


@pytest.mark.thorough
def test_many_processes_that_begin_together_start_one_and_compile_each_loop_once(address, tmp_path):
    command = [sys.executable, "-c", ASKS, address.replace("\0", "@"), *NEXT[:2]]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    said = [process.communicate(timeout=LIMIT_SECONDS)[0].strip() for process in processes]
    assert sorted(said) == ["False"] * 3 + ["True"]
    assert names_in(tmp_path) == ["flat._copy"] * 2
    assert not list(tmp_path.glob("code/*/*.claim"))


def test_all_that_wait_for_a_loop_get_what_one_has_compiled(opened, others):
    assert code(opened)
    with ThreadPoolExecutor(3) as threads:
        made = list(threads.map(lambda one: code(one, NEXT[0]), (opened, *others)))
    assert made[0] and made == made[:1] * 3
    assert not any(one._process for one in others)


def test_threads_that_compile_at_a_time_have_a_connection_each_and_the_next_ones_take_those(
    address,
):
    both = Workshops(address)
    for _ in range(2):
        with ThreadPoolExecutor(2) as threads:
            assert all(threads.map(lambda line: both.code(line, name_of(line)), [LINE, LINE]))
        assert all(one.is_open for one in both._idle) and len(both._idle) <= 2
    assert sum(one._process is not None for one in both._idle) == 1
    for one in both._idle:
        one.close()


def test_those_meet_who_have_all_in_common_and_no_others(monkeypatch):
    known = {address_of("a", "b"), address_of("a"), address_of("ab")}
    assert len(known) == 3 and address_of("a", "b") in known
    for owner, name, value in ((os, "getuid", lambda: 12345), (sys, "executable", "/bin/other")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, value)
            assert address_of("a", "b") not in known


# ---- ends ----------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_one_that_was_killed_is_started_anew_by_whoever_asks_next(opened, others):
    assert code(opened) and code(others[0])
    os.kill(opened._process.pid, signal.SIGKILL)
    assert code(others[0]) and code(opened)
    assert others[0]._process is not None


@pytest.mark.thorough
@pytest.mark.parametrize("whom", ["the workshop", "its worker"])
def test_who_waits_while_it_is_killed_asks_again(opened, others, whom, monkeypatch):
    """Every line that is asked for meanwhile stands still: none is answered before the end."""
    assert code(opened)
    master = opened._process.pid
    workers = workers_of(master)
    for worker in workers:
        os.kill(worker, signal.SIGSTOP)
    with ThreadPoolExecutor(2) as threads:
        waiting = [threads.submit(code, one, NEXT[1]) for one in others]
        time.sleep(0.2)
        assert not any(one.done() for one in waiting)
        for victim in workers if whom == "its worker" else [master]:
            os.kill(victim, signal.SIGKILL)
        for worker in workers if whom == "the workshop" else ():
            os.kill(worker, signal.SIGCONT)
        assert all(one.result(LIMIT_SECONDS) for one in waiting)


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("program", ["/dev/null/python", "/bin/true"])
def test_where_none_can_be_started_there_is_no_code(opened, program, monkeypatch):
    for name in ("executable", "prefix", "base_prefix"):  # where a program embeds Python: beside it
        monkeypatch.setattr(sys, name, program)
    assert code(opened) is None


@pytest.mark.thorough
def test_where_the_address_is_taken_and_nobody_listens_there_is_no_code(
    opened, address, monkeypatch
):
    monkeypatch.setattr(workshop, "PATIENCE", 3)
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(address)
        assert code(opened) is None
    assert code(opened)


@pytest.mark.thorough
def test_nobody_is_asked_who_is_another_user(opened, address, monkeypatch):
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(address)
        other.listen()
        monkeypatch.setattr(os, "getuid", lambda: 12345)
        assert opened.code(LINE, "") is None


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_another_user_is_not_answered(opened, address):
    assert code(opened)
    asks = f"""
import os, socket
os.setgid(12345)
os.setuid(12345)
with socket.socket(socket.AF_UNIX) as own:
    own.settimeout({LIMIT_SECONDS})
    try:
        own.connect({address!r})
        print("answered" if own.recv(1) else "not answered")
    except OSError as error:
        print("not answered", error)
"""
    done = subprocess.run(
        [sys.executable, "-S", "-c", asks],
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS + 60,
    )
    assert done.stdout.startswith("not answered") and done.returncode == 0, done.stderr
    assert code(opened)


def test_one_that_takes_too_long_is_given_up(opened, monkeypatch):
    monkeypatch.setattr(workshop.Wire, "receive", too_late)
    assert code(opened) is None and not opened.is_open


def too_late(self):
    raise TimeoutError


def test_an_answer_that_nobody_waited_for_is_not_taken_for_the_next(opened, monkeypatch):
    wanted = code(opened)

    def interrupted(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(workshop.Wire, "receive", interrupted)
        code(opened, "array.cpu.flat._copy(float32[1], float32[1])")
    assert code(opened) == wanted


@pytest.mark.thorough
def test_it_ends_when_nobody_has_asked_for_a_while(opened, monkeypatch):
    module = workshop._MAIN.split()[1].rstrip(";")
    quick = f"import {module} as answers; answers.IDLE_SECONDS = 0.01; answers.main()"
    monkeypatch.setattr(workshop, "_MAIN", quick)
    opened._connect()
    assert is_gone(opened._process.pid)
    monkeypatch.undo()
    assert code(opened)


ENDS_AT_ONCE = """\
import os, sys
from shardkit.testing.array import Workshop
one = Workshop(sys.argv[1].replace('@', chr(0)))
one._connect()
print(one._process.pid, flush=True)
if sys.argv[2] == "later": sys.stdin.read()
os.kill(os.getpid(), 9)
"""


def start_of_one(address, when):
    command = [sys.executable, "-c", ENDS_AT_ONCE, address.replace("\0", "@"), when]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.Popen(command, text=True, **pipes)


@pytest.mark.thorough
def test_it_ends_with_the_process_that_it_compiles_for(address):
    starter = start_of_one(address, "at once")
    said, _ = starter.communicate(timeout=LIMIT_SECONDS)
    assert starter.returncode == -9 and is_gone(int(said))


@pytest.mark.thorough
def test_it_outlives_who_has_started_it_for_the_others(opened, address):
    starter = start_of_one(address, "later")
    process = int(starter.stdout.readline())
    assert code(opened) and opened._process is None
    starter.communicate(timeout=LIMIT_SECONDS)
    assert starter.returncode == -9
    assert code(opened, NEXT[0]) and opened._process is None
    opened.close()
    assert is_gone(process)


# ---- workers -------------------------------------------------------------------------------------


@pytest.fixture
def going_on(monkeypatch):
    """Let lines that nothing else asks for go with every line."""
    module = workshop._MAIN.split()[1].rstrip(";")
    change = f"import {module} as answers; answers.going_with = lambda *_: {NEXT!r}; answers.main()"
    monkeypatch.setattr(workshop, "_MAIN", change)


@pytest.mark.thorough
def test_a_folder_named_from_the_working_folder_is_the_same_there(opened, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NUMBA_CACHE_DIR", "code")
    assert code(opened, NEXT[0])
    assert [path.name for path in tmp_path.glob("code/shardkit/*.kernel")] == [name_of(NEXT[0])]


def test_a_worker_gets_the_loops_of_files_whose_formulas_it_knows():
    flat = LINE, "array.cpu.flat._copy(float64[1], float64[1])"
    node = "comm.node.loops.barrier(int64)", "comm.node.loops.broadcast(int64)"
    orders = [], []
    with socket.socket(socket.AF_UNIX) as listener:
        counter = Counter(listener, cores={0, 1})
        counter.workers += [Worker(SimpleNamespace(send=one.append), 0) for one in orders]
        for lines in ((flat[0], node[0]), (node[1], flat[1])):
            counter.waiting = {line: [] for line in lines}
            counter._give_out()
            for worker in counter.workers:
                worker.line = ""
    assert [[order.decode() for order in one] for one in orders] == [[*flat], [*node]]


@pytest.mark.thorough
@several_cores
def test_what_goes_with_a_loop_is_compiled_meanwhile_and_kept(opened, going_on, tmp_path):
    assert code(opened)
    deadline = time.monotonic() + LIMIT_SECONDS
    missing = {name_of(line) for line in NEXT}
    while missing and time.monotonic() < deadline:
        missing -= {path.name for path in tmp_path.glob("code/*/*.kernel")}
        time.sleep(0.05)
    assert not missing
    assert 1 <= len(children_of(opened._process.pid)) <= len(os.sched_getaffinity(0))


@pytest.mark.thorough(but=1)
@several_cores
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_workers_end_with_the_workshop_and_hold_no_claim(opened, going_on, number, tmp_path):
    assert code(opened)
    workers = workers_of(opened._process.pid)
    os.kill(opened._process.pid, number)
    assert all(map(is_gone, workers)) and len(names_in(tmp_path)) < len(NEXT)
    for left in tmp_path.glob("code/*/*.claim"):  # a signal may come right after it was made
        with left.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.thorough
@several_cores
def test_it_works_on_the_cores_of_those_that_it_compiles_for(opened, others, going_on, tmp_path):
    """On one core nothing is compiled ahead; one more customer brings its cores along."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, [min(cores)])
    try:
        assert code(opened)
        master = opened._process.pid
        (worker,) = workers_of(master)
        assert os.sched_getaffinity(worker) == {min(cores)}
        assert "flat._copy" not in names_in(tmp_path)
    finally:
        os.sched_setaffinity(0, cores)
    assert code(others[0])
    assert os.sched_getaffinity(master) == cores
    assert len(workers_of(master, 2)) == min(len(cores), 2)
