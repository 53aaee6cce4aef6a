"""When a run stops: clocks, patience and signals, without a run."""

import ctypes
import os
import signal
import stat
import time
from math import inf, nan

import pytest

from shardkit.testing.base import allocation_end
from shardkit.testing.comm import StopSignals
from shardkit.testing.parallel import Patience
from shardkit.testing.train import Clock, Run, end_of_slurm_job, stopping


@pytest.fixture
def at(monkeypatch):
    """A function that sets the time, in seconds, for all clocks."""

    def set_time(seconds):
        monkeypatch.setattr(stopping.time, "time", lambda: 1000.0 + seconds)
        monkeypatch.setattr(stopping.time, "monotonic", lambda: seconds)

    set_time(0)
    return set_time


def test_a_clock_keeps_two_saves_the_longest_step_and_the_margin_free(at):
    clock = Clock(1100.0, 10.0)
    clock.note_save(3.0)
    clock.note_save(5.0)
    clock.note_save(1.0)
    for now in (0, 2, 9, 10):  # steps of 2, 7 and 1 seconds
        at(now)
        assert not clock.is_short()
    assert clock.reserve_seconds == 7 + 2 * 5 + 10
    at(72)
    clock.is_short()  # a long step: 62 seconds
    assert clock.reserve_seconds == 62 + 20


@pytest.mark.parametrize("now, is_short", [(0, False), (89, False), (90, True), (200, True)])
def test_time_is_short_when_no_more_than_the_reserve_is_left(at, now, is_short):
    clock = Clock(1100.0, 10.0)
    at(now)
    assert clock.is_short() == is_short


def test_a_limit_that_was_extended_is_found_before_the_run_is_stopped(at):
    answers = [1300.0, 1300.0, None]
    clock = Clock(1100.0, 10.0, lambda: answers.pop(0))
    at(95)
    assert not clock.is_short() and len(answers) == 2
    at(295)
    assert clock.is_short() and clock.is_short() and not answers  # None: nobody knows better


def test_a_job_without_an_end_is_never_short_of_time():
    clock = Clock(None, 1e9)
    assert not clock.is_short() and clock.seconds_left == inf


def test_the_end_is_that_of_the_run_or_of_the_job_script_or_of_slurm(monkeypatch, at):
    monkeypatch.setenv("SHARDKIT_END_TIME", "1500")
    monkeypatch.setenv("SLURM_JOB_END_TIME", "1600")
    assert allocation_end() == 1500.0 and Clock.of_run(Run()).seconds_left == 500
    assert Clock.of_run(Run(time_limit_seconds=30.0)).seconds_left == 30
    monkeypatch.delenv("SHARDKIT_END_TIME")
    assert Clock.of_run(Run()).seconds_left == 600
    monkeypatch.setenv("SLURM_JOB_END_TIME", "soon")
    assert allocation_end() is None


@pytest.mark.parametrize("answer, seconds", [("2026-11-21T10:17:28", None), ("N/A", 0), ("", 0)])
def test_squeue_is_asked_where_the_environment_is_silent(monkeypatch, tmp_path, answer, seconds):
    fake = tmp_path / "squeue"
    fake.write_text(
        f'#!/bin/sh\n[ "$*" = "--noheader --jobs 17 --format=%e" ] && echo "{answer}"\n'
    )
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    expected = time.mktime((2026, 11, 21, 10, 17, 28, 0, 0, -1)) if seconds is None else None
    assert end_of_slurm_job() == expected
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    assert end_of_slurm_job() is None
    monkeypatch.delenv("SLURM_JOB_ID")
    assert end_of_slurm_job() is None


@pytest.mark.parametrize(
    "losses, minimum, waited",
    [
        ([], 0.0, 0),
        ([3.0], 0.0, 0),
        ([3.0, 2.0, 2.0], 0.0, 1),
        ([3.0, 2.0, 2.0, 2.5], 0.0, 2),
        ([3.0, 4.0, 2.9, 3.0], 0.0, 1),
        ([3.0, 2.9, 2.8], 0.5, 2),
        ([3.0, 2.8, 2.6, 2.4], 0.5, 0),
        ([3.0, 2.5], 0.5, 1),  # lower by no more than this
        ([nan, nan], 0.0, 2),
        ([1.0, nan, 0.5], 0.0, 0),
        ([1.0, inf], 0.0, 1),
        ([inf, inf, 1e308], 1e300, 0),
        ([-1.0, -1.5], 0.25, 0),
    ],
    ids=str,
)
def test_patience_is_over_after_so_many_validations_without_improvement(losses, minimum, waited):
    assert Patience(1, losses, minimum).waited == waited
    for patience in range(1, len(losses) + 2):
        assert Patience(patience, losses, minimum).is_over() == (waited >= patience)
    assert not Patience(None, losses, minimum).is_over()


def test_a_signal_is_a_flag_and_the_first_one_is_named():
    signals = StopSignals().listen()
    try:
        assert not signals.is_raised()
        for number in (signal.SIGUSR2, signal.SIGTERM, signal.SIGUSR1):
            os.kill(os.getpid(), number)
        assert signals.is_raised() and signals.name == "SIGUSR2"
        signals.ignore()
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signals.leave()  # tests/conftest.py looks whether all handlers are back


@pytest.mark.parametrize("knows", [True, False])
def test_a_handler_of_a_program_in_c_is_put_back(monkeypatch, knows):
    c = ctypes.CDLL(None)
    c.signal.restype, c.signal.argtypes = ctypes.c_void_p, (ctypes.c_int, ctypes.c_void_p)
    own = ctypes.cast(c.abs, ctypes.c_void_p).value
    before = c.signal(signal.SIGUSR2, own)
    with monkeypatch.context() as patches:
        if not knows:  # it was set before Python began
            known = {signal.SIGINT: signal.getsignal(signal.SIGINT)}
            patches.setattr(signal, "getsignal", known.get)
        signals = StopSignals().listen()
    os.kill(os.getpid(), signal.SIGUSR2)
    assert signals.is_raised()
    signals.leave()
    assert c.signal(signal.SIGUSR2, before) == own
