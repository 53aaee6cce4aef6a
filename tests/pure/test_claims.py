"""One of several processes makes a file, the others read it; nobody waits for ever."""

import multiprocessing
import os
import signal
import stat
import time
from pathlib import Path

import pytest

from shardkit.testing.files import claimed, claims

PROCESSES = multiprocessing.get_context("spawn")
LIMIT_SECONDS = 300  # for a busy machine


def content(path):
    return path.read_text() or None if path.exists() else None  # being written: not there yet


def make(path, made, seconds=0.2):
    """Make the file as a rank does, unless another has; note who did."""
    with claimed([path], lambda: content(path)) as found:
        if found is None:
            time.sleep(seconds)
            (made / str(os.getpid())).touch()
            path.write_text("made")
            found = "made"
    assert found == "made" and path.read_text() == "made"


def take_and_stand(path, is_taken):
    with claimed([path], lambda: content(path)):
        is_taken.set()
        time.sleep(LIMIT_SECONDS)


@pytest.fixture
def made(tmp_path):
    (tmp_path / "made").mkdir()
    return tmp_path / "made"


def ended(processes):
    for process in processes:
        process.join(LIMIT_SECONDS)
    return [process.exitcode for process in processes]


@pytest.mark.thorough
def test_one_of_many_makes_it_and_no_claim_is_left(tmp_path, made):
    path = tmp_path / "folder" / "file"
    processes = [PROCESSES.Process(target=make, args=(path, made)) for _ in range(4)]
    for process in processes:
        process.start()
    assert ended(processes) == [0] * 4
    assert len(list(made.iterdir())) == 1
    assert [each.name for each in path.parent.iterdir()] == ["file"]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.thorough(but=1)
def test_the_work_of_one_that_died_or_stands_still_is_done(tmp_path, made, how, monkeypatch):
    path, is_taken = tmp_path / "file", PROCESSES.Event()
    other = PROCESSES.Process(target=take_and_stand, args=(path, is_taken))
    other.start()
    assert is_taken.wait(LIMIT_SECONDS)
    monkeypatch.setattr(claims, "WAIT_SECONDS", 1.0 if how == signal.SIGSTOP else LIMIT_SECONDS)
    os.kill(other.pid, how)
    make(path, made, 0)
    assert [each.name for each in made.iterdir()] == [str(os.getpid())]
    other.kill()
    other.join()


def test_a_file_that_was_made_between_two_looks_is_not_made_again(tmp_path):
    with claimed([tmp_path / "file"], lambda: "made") as found:
        assert found == "made"
    assert not list(tmp_path.glob("*.claim"))


def no_locks(file, how):
    raise OSError(37, "No locks available")


@pytest.mark.parametrize("what", ["no folder", "no locks", "a link"])
def test_where_nothing_can_be_claimed_each_does_it_by_itself(tmp_path, made, what, monkeypatch):
    path = tmp_path / "file"
    if what == "no locks":
        monkeypatch.setattr(claims.fcntl, "flock", no_locks)
    elif what == "a link":
        Path(f"{path}.claim").symlink_to(tmp_path / "elsewhere")
    places = [Path("/dev/null/folder/file")] if what == "no folder" else [path]
    with claimed(places, lambda: None) as found:
        assert found is None
    assert not (tmp_path / "elsewhere").exists()


def test_the_claim_is_in_the_first_folder_that_takes_it(tmp_path):
    places = [Path("/dev/null/folder/file"), tmp_path / "folder" / "file"]
    with claimed(places, lambda: None):
        (claim,) = (tmp_path / "folder").iterdir()
        assert claim.name == "file.claim" and stat.S_IMODE(claim.stat().st_mode) == 0o600


def test_an_error_in_the_making_gives_the_claim_up(tmp_path):
    with pytest.raises(ValueError), claimed([tmp_path / "file"], lambda: None):
        raise ValueError
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("error", [ValueError, OSError, SystemExit, KeyboardInterrupt])
def test_an_error_while_looking_once_more_gives_the_claim_up(tmp_path, error):
    def find():
        raise error

    with pytest.raises(error), claimed([tmp_path / "file"], find):
        pass
    assert not list(tmp_path.iterdir())
    with claimed([tmp_path / "file"], lambda: None) as found:
        assert found is None
