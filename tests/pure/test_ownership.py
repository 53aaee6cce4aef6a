"""A folder has one owner: who lives keeps it, who is gone loses it, and of two takers one wins."""

import errno
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from clean_fork import clean_context

from shardkit import ConfigurationError
from shardkit.testing.files import OWNER_NAME, Owner, Ownership, ownership

ROOT = Path(__file__).parents[2]


def take(folder, **more):
    return Ownership.take(folder, "do something else", **more)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def write_owner(folder, owner, age=0.0):
    """Let somebody own the folder, and have given no sign of life for so long."""
    path = folder / OWNER_NAME
    path.write_text(json.dumps(asdict(owner)))
    os.utime(path, (time.time() - age,) * 2)


@pytest.fixture
def quick(monkeypatch):
    """Signs of life every 50 ms, and patience of half a second."""
    monkeypatch.setattr(ownership, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(ownership, "STALE_SECONDS", 0.5)
    monkeypatch.setattr(ownership, "_POLL_SECONDS", 0.02)


@pytest.fixture
def impatient(monkeypatch, quick):
    """Patience of 50 ms, for owners of whom no sign of life will come."""
    monkeypatch.setattr(ownership, "STALE_SECONDS", 0.05)


def test_who_comes_second_is_refused_with_both_named_and_nothing_is_written(tmp_path):
    owned = take(tmp_path)
    before = names(tmp_path), (tmp_path / OWNER_NAME).read_bytes()
    with pytest.raises(ConfigurationError) as raised:
        take(tmp_path)
    text = str(raised.value)
    here = f"process {os.getpid()} on {platform.node()}, since "
    assert text.startswith(f"{tmp_path} belongs to {here}") and f"and this is {here}" in text
    assert text.endswith("; do something else") and raised.value.exit_code == 2
    assert before == (names(tmp_path), (tmp_path / OWNER_NAME).read_bytes())
    owned.release()
    owned.release()
    assert names(tmp_path) == []
    take(tmp_path).release()


HOLDER = """
import sys
from shardkit.testing.files import Ownership
owned = Ownership.take(sys.argv[1], "")
print("owned", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """A process that owns the folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, tmp_path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert process.stdout.readline() == "owned\n"
    yield process
    process.kill()
    process.communicate()


def test_a_dead_owner_of_this_machine_is_told_at_once_and_a_stopped_one_lives(tmp_path, holder):
    holder.send_signal(signal.SIGSTOP)
    with pytest.raises(ConfigurationError, match=f"process {holder.pid} "):
        take(tmp_path)
    holder.kill()
    os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)  # dead, and not yet waited for
    owned = take(tmp_path, say=pytest.fail)
    assert json.loads((tmp_path / OWNER_NAME).read_text())["process"] == os.getpid()
    assert names(tmp_path) == [OWNER_NAME]
    owned.release()


# An owner that is not what it seems: (what is changed of this process, age of its last sign of life
# in seconds, whether the folder is taken, whether that is known at once)
OWNERS = {
    "another process of its number": ({"started": "1"}, 0, True, True),
    "another boot": ({"boot": "another"}, 0, True, False),
    "another boot, long ago": ({"boot": "another"}, 3600, True, True),
    "another machine of this job": ({"boot": "another", "job": "7", "launch": 1}, 0, True, False),
    "this job before it was queued again": ({"boot": "another", "job": "7"}, 0, True, True),
    "another job": ({"boot": "another", "job": "8"}, 0, True, False),
    "another container": ({"space": "1", "is_locked": True}, 0, True, True),
    "another container without locks": ({"space": "1"}, 0, True, False),
    "the same process": ({}, 3600, False, True),
}


@pytest.mark.parametrize("name", OWNERS)
def test_an_owner_is_gone_or_lives(tmp_path, monkeypatch, impatient, name):
    changes, age, is_taken, at_once = OWNERS[name]
    monkeypatch.setattr(ownership, "batch_job", lambda: ("7", 1))
    usual = {"job": "", "launch": 0}
    other = replace(Owner.this_process("0" * 16), **{**usual, **changes})
    write_owner(tmp_path, other, age or -60)  # however slow this machine is, it is not stale yet
    said = []
    if is_taken:
        take(tmp_path, say=said.append).release()
    else:
        with pytest.raises(ConfigurationError):
            take(tmp_path, say=said.append)
    assert bool(said) != at_once


def test_the_same_job_that_was_not_queued_again_is_another_run(tmp_path, monkeypatch, quick):
    monkeypatch.setattr(ownership, "batch_job", lambda: ("7", 1))
    owned = take(tmp_path)
    other = Owner(**json.loads((tmp_path / OWNER_NAME).read_text()))
    assert (other.job, other.launch) == ("7", 1)
    with pytest.raises(ConfigurationError, match="belongs to job 7, process .* this is job 7, "):
        take(tmp_path)
    owned.release()


def test_a_sign_of_life_from_elsewhere_refuses_and_its_absence_does_not(
    tmp_path, monkeypatch, quick
):
    """Of an owner on another machine, on a file system without locks."""
    monkeypatch.setattr(ownership.fcntl, "flock", lambda *how: (_ for _ in ()).throw(OSError(38)))
    owned = take(tmp_path)
    boot = ownership._text("/proc/sys/kernel/random/boot_id")
    usual = ownership._text
    assert boot
    monkeypatch.setattr(
        ownership, "_text", lambda path: "b" if path.endswith("boot_id") else usual(path)
    )
    said = []
    with pytest.raises(ConfigurationError, match="belongs to process"):
        take(tmp_path, say=said.append)
    assert len(said) == 1 and "waiting up to 0.5 s for a sign of life" in said[0]
    owned._stopped.set()  # its process stands still
    owned._thread.join()
    taken = take(tmp_path)
    with pytest.raises(ConfigurationError, match="by now: .* had it before .* this one ends"):
        owned.check()
    assert not owned.holds()
    owned.release()
    assert taken.holds() and not taken.check()  # it is not taken away by the one before
    taken.release()


def test_an_owner_that_was_locked_elsewhere_lives_while_the_lock_is_held(tmp_path, monkeypatch):
    owned = take(tmp_path)
    usual = ownership._text
    monkeypatch.setattr(
        ownership, "_text", lambda path: "b" if path.endswith("boot_id") else usual(path)
    )
    with pytest.raises(ConfigurationError):  # without a wait
        take(tmp_path, say=pytest.fail)
    owned.release()


def race(folder, number, barrier, links):
    """Try to take the folder, together with others; write down what came of it."""
    if not links:
        ownership.os.link = without_links
    barrier.wait(500)
    try:
        owned = take(folder)
        found = f"won {owned.me.token}"
    except ConfigurationError:
        found = "refused"
    except BaseException as error:
        found = repr(error)
    barrier.wait(500)
    if found.startswith("won") and not owned.holds():
        found = "lost it again"
    (folder.parent / f"{folder.name}-{number}").write_text(found)
    os._exit(0)  # without a release


def without_links(*arguments, **options):
    """os.link on a file system that has none."""
    raise OSError(errno.EPERM, "no links here")


@pytest.mark.parametrize("links", [True, False])
@pytest.mark.thorough
def test_of_several_takers_one_wins(tmp_path, links):
    """Of a free folder, of a dead owner, and of one that died while it took over."""
    context = clean_context()
    dead = replace(Owner.this_process("1" * 16), started="1")
    heir = replace(dead, token="ab" * 8)
    for round_ in range(15):
        folder = tmp_path / str(round_)
        folder.mkdir()
        if round_ % 3:
            write_owner(folder, dead)
        if round_ % 3 == 2:
            claim = folder / f"{OWNER_NAME}.{dead.token}"
            claim.write_text(json.dumps(asdict(heir)))
        barrier = context.Barrier(4)
        takers = [
            context.Process(target=race, args=(folder, number, barrier, links))
            for number in range(4)
        ]
        for taker in takers:
            taker.start()
        for taker in takers:
            taker.join(500)
        found = sorted((tmp_path / f"{round_}-{number}").read_text() for number in range(4))
        assert found[:3] == ["refused"] * 3 and found[3].startswith("won "), (round_, found)
        token = json.loads((folder / OWNER_NAME).read_text())["token"]
        assert found[3] == f"won {token}" and names(folder) == [OWNER_NAME]


def test_a_file_that_was_removed_is_written_again_unless_another_has_come(tmp_path):
    owned = take(tmp_path)
    assert not owned.check()
    (tmp_path / OWNER_NAME).unlink()
    assert owned.check() and not owned.check() and owned.holds()
    with pytest.raises(ConfigurationError, match="belongs to"):
        take(tmp_path)
    (tmp_path / OWNER_NAME).unlink()
    other = take(tmp_path)
    with pytest.raises(ConfigurationError, match="or owner.json was removed; one run goes on"):
        owned.check()
    owned.release()
    assert other.holds() and names(tmp_path) == [OWNER_NAME]
    other.release()


def test_a_run_goes_on_in_another_process(tmp_path, holder):
    """A rank that takes the place of another one, which may still be there."""
    run = json.loads((tmp_path / OWNER_NAME).read_text())["run"]
    owned = take(tmp_path, run=run)
    assert owned.holds()
    owned.release()


DAMAGED = {
    "empty": b"",
    "no JSON": b"{",
    "a list": b"[]",
    "deep": b"[" * 4000,
    "a number as host": json.dumps({**asdict(Owner("0" * 16)), "host": 7}).encode(),
    "no token": json.dumps({**asdict(Owner("x"))}).encode(),
    "a path as token": json.dumps({**asdict(Owner("../../../../etc/p"))}).encode(),
    "control characters": json.dumps({**asdict(Owner("0" * 16)), "host": "\x1b[2J"}).encode(),
    "another field": json.dumps({**asdict(Owner("0" * 16)), "more": 1}).encode(),
    "a time without end": json.dumps({**asdict(Owner("0" * 16)), "since": 1e300}).encode(),
    "NaN": json.dumps({**asdict(Owner("0" * 16)), "since": float("nan")}).encode(),
    "bytes": bytes(range(256)) * 20,
    "much": b" " * 10_000_000,
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_one_of_an_unknown_owner(tmp_path, impatient, name):
    path = tmp_path / OWNER_NAME
    path.write_bytes(DAMAGED[name])
    os.utime(path, (time.time() + 60,) * 2)  # however slow this machine is, it is not stale yet
    said = []
    take(tmp_path, say=said.append).release()
    assert len(said) == 1 and "process 0 on an unknown host" in said[0] and said[0].isprintable()


@pytest.mark.parametrize("kind", ["link", "FIFO", "folder", "socket"])
def test_what_is_no_ordinary_file_is_refused(tmp_path, kind):
    place = tmp_path / OWNER_NAME
    if kind == "link":
        (tmp_path / "victim").write_text("precious")
        place.symlink_to(tmp_path / "victim")
    elif kind == "FIFO":
        os.mkfifo(place)
    elif kind == "folder":
        place.mkdir()
    else:
        os.chdir(tmp_path)
        socket.socket(socket.AF_UNIX).bind(OWNER_NAME)
    with pytest.raises(ConfigurationError, match="is no ordinary file.*remove it"):
        take(tmp_path)
    assert kind != "link" or (tmp_path / "victim").read_text() == "precious"


@pytest.mark.parametrize("length", [1, 2, 150])
def test_owners_that_take_over_in_a_circle_are_gone_like_others(tmp_path, impatient, length):
    tokens = [f"{number:016x}" for number in range(length)]
    for number, token in enumerate(tokens):
        content = json.dumps(asdict(Owner(token)))
        name = OWNER_NAME + (f".{tokens[number - 1]}" if number else "")
        (tmp_path / name).write_text(content)
    (tmp_path / f"{OWNER_NAME}.{tokens[-1]}").write_text(json.dumps(asdict(Owner(tokens[0]))))
    take(tmp_path).release()
    assert names(tmp_path) == []


def test_of_files_that_look_like_those_of_takers_only_theirs_are_removed(tmp_path):
    mine = {f"{OWNER_NAME}.{name}.new" for name in ("bak", "0123", "g" * 16, "0" * 17)}
    for name in mine:
        (tmp_path / name).write_text("mine")
    (tmp_path / f"{OWNER_NAME}.{'0' * 16}.new").write_text("")
    take(tmp_path).release()
    assert names(tmp_path) == sorted(mine)


def test_signs_of_life_are_given(tmp_path, quick):
    owned = take(tmp_path)
    before = (tmp_path / OWNER_NAME).stat().st_mtime_ns
    deadline = time.monotonic() + 400
    while (tmp_path / OWNER_NAME).stat().st_mtime_ns == before:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    owned.release()


@pytest.mark.parametrize(
    "given, job, launch",
    [
        ({}, None, 0),
        ({"SLURM_JOB_ID": "12"}, "12", 0),
        ({"SLURM_JOB_ID": "12", "SLURM_RESTART_COUNT": "2"}, "12", 2_000_000),
        ({"PBS_JOBID": "3.server", "SHARDKIT_LAUNCH": "4"}, "3.server", 4),
        ({"LSB_JOBID": "5"}, "5", 0),
    ],
)
def test_the_batch_job_is_known(monkeypatch, given, job, launch):
    from shardkit.testing.base import batch_job

    for name in (
        "SLURM_JOB_ID",
        "PBS_JOBID",
        "LSB_JOBID",
        "SLURM_RESTART_COUNT",
        "SHARDKIT_LAUNCH",
    ):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert batch_job() == (job, launch)
