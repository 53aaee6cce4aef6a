"""The process that compiles for this one: the same code, nothing of MPI, and an end of its own."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import pytest

from shardkit.testing.array import (
    Workshop,
    Workshops,
    compiling,
    loop_named,
    target,
    workshop,
)
from shardkit.testing.comm import children_of

LINE = "array.cpu.flat._sum_two(float32[1], float32[1], float32[1])"
LIMIT_SECONDS = 300  # for a busy machine


@pytest.fixture
def opened():
    made = Workshop()
    yield made
    made.close()


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


def test_its_code_is_what_this_process_would_compile_and_it_knows_nothing_of_the_job(
    opened, monkeypatch
):
    monkeypatch.setenv("PMI_RANK", "1")
    loop, signature = loop_named(LINE)
    assert opened.code(LINE) == compiling.image_of(loop, signature, target()).pack()
    about = Path(f"/proc/{opened._process.pid}")
    variables = about.joinpath("environ").read_bytes().split(b"\0")
    assert not [each for each in variables if each.startswith(b"PMI_")]
    assert "libmpi" not in about.joinpath("maps").read_text()
    assert about.joinpath("cwd").resolve() == Path("/")
    assert os.getsid(opened._process.pid) != os.getsid(0)  # no signal of the terminal
    first = opened._process.pid
    assert opened.code(LINE) and opened._process.pid == first


@pytest.mark.thorough
def test_what_it_cannot_compile_is_said_and_it_goes_on(opened):
    assert opened.code("array.cpu.flat._sum_two(float32[1])") is None
    assert opened.code("no.such.loop(int64)") is None
    assert opened.code(LINE)


@pytest.mark.thorough
def test_one_that_was_killed_is_started_anew(opened):
    assert opened.code(LINE)
    os.kill(opened._process.pid, signal.SIGKILL)
    assert opened.code(LINE)


@pytest.mark.parametrize("program", ["/dev/null/python", "/bin/true"])
def test_where_none_can_be_started_there_is_no_code(opened, program, monkeypatch):
    monkeypatch.setattr(sys, "executable", program)
    assert opened.code(LINE) is None


def test_one_that_takes_too_long_is_ended(opened, monkeypatch):
    monkeypatch.setattr(workshop, "LONGEST_SECONDS", 0.0)
    assert opened.code(LINE) is None and not opened.is_open


def test_an_answer_that_nobody_waited_for_is_not_taken_for_the_next(opened, monkeypatch):
    wanted = opened.code(LINE)

    def interrupted(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(workshop.select, "select", interrupted)
        opened.code("array.cpu.flat._copy(float32[1], float32[1])")
    assert opened.code(LINE) == wanted


@pytest.mark.thorough
def test_it_ends_when_it_has_nothing_to_do(opened, monkeypatch):
    module = workshop._MAIN.split()[1].rstrip(";")
    quick = f"import {module} as answers; answers.IDLE_SECONDS = 0.01; answers.main()"
    monkeypatch.setattr(workshop, "_MAIN", quick)
    assert opened._start() and is_gone(opened._process.pid)
    monkeypatch.undo()
    assert opened.code(LINE)


ENDS_AT_ONCE = f"""\
import os
from shardkit.testing.array import Workshop
WORKSHOP = Workshop()
assert WORKSHOP._start()
WORKSHOP._process.stdin.write(b"{LINE}\\n")
WORKSHOP._process.stdin.flush()
print(WORKSHOP._process.pid, flush=True)
os.kill(os.getpid(), 9)
"""


def test_it_ends_with_the_process_that_it_compiles_for():
    done = subprocess.run(
        [sys.executable, "-c", ENDS_AT_ONCE], capture_output=True, timeout=LIMIT_SECONDS
    )
    assert done.returncode == -9
    assert is_gone(int(done.stdout))


@pytest.mark.thorough
def test_threads_that_compile_at_a_time_have_a_process_each_and_the_next_ones_take_those():
    both = Workshops()
    assert not both.is_open
    for _ in range(2):
        with ThreadPoolExecutor(2) as threads:
            assert all(threads.map(both.code, [LINE, LINE]))
        assert both.is_open and len(both._idle) <= 2
    for one in both._idle:
        one.close()
    assert not both.is_open


# What nothing else asks for, so that its code is in no other folder.
NEXT = [
    f"array.cpu.flat._copy({one}[1], {other}[1])"
    for one, other in product(("int8", "int16", "uint32", "uint64"), repeat=2)
]
several_cores = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="nothing is compiled ahead on one core"
)


def names_in(folder) -> list[str]:
    return sorted(path.name.partition("-")[0] for path in folder.glob("*/*.kernel"))


@several_cores
def test_what_goes_with_a_loop_is_compiled_meanwhile_and_kept(opened, tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    for _ in range(2):
        assert opened.code(LINE, NEXT[:1]) and opened.code(LINE, NEXT[:2])
    deadline = time.monotonic() + LIMIT_SECONDS
    while names_in(tmp_path) != ["flat._copy"] * 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert names_in(tmp_path) == ["flat._copy"] * 2
    loop, signature = loop_named(NEXT[0])
    assert loop._file_name(signature) in {path.name for path in tmp_path.glob("*/*")}


@several_cores
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_who_works_ahead_ends_with_the_process_and_leaves_no_claim(
    opened, number, tmp_path, monkeypatch
):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    assert opened.code(LINE, NEXT)
    (ahead,) = children_of(opened._process.pid)
    os.kill(opened._process.pid, number)
    assert is_gone(ahead) and len(names_in(tmp_path)) < len(NEXT)
    assert not list(tmp_path.glob("*/*.claim"))


def test_nothing_is_compiled_ahead_on_one_core(opened, tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, [min(cores)])
    try:
        assert opened.code(LINE, NEXT) and opened.code(LINE)
    finally:
        os.sched_setaffinity(0, cores)
    assert not children_of(opened._process.pid) and not names_in(tmp_path)
