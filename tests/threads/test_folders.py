"""The folder of a run, or of checkpoints: one writer at a time, and it heals if it is emptied."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path

import numpy
import pytest
from builders import TINY_RUN
from checkpoints import rows, save_boxes

import shardkit as sk
from shardkit import Callback, CheckpointError, ConfigurationError
from shardkit.testing.checkpoint import Candidates, compare, find_checkpoint
from shardkit.testing.comm import read_ledgers
from shardkit.testing.files import OWNER_NAME, Owner, Ownership
from shardkit.testing.task import Language
from shardkit.testing.train import configuration_of, first_settings, resumed, train_run

RunConfiguration = configuration_of(Language)
ROOT = Path(__file__).parents[2]


def with_lines(folder):
    (folder / "one.txt").write_text("".join(f"line {i} of {i * i}\n" for i in range(60)))
    return folder


@pytest.fixture
def folder(tmp_path):
    return with_lines(tmp_path)


def settings_of(folder, **changes):
    given = {
        **TINY_RUN,
        **{"run.folder": str(folder / "run"), "data.path": [str(folder / "one.txt")]},
        **{"run.steps": 8, "run.checkpoint_every": 2, "run.report_every": 1},
        **{name.replace("__", "."): value for name, value in changes.items()},
    }
    return first_settings(RunConfiguration, given)


def run(settings, *, resume=False, num_ranks=2, callbacks=()):
    def on_rank(backend):
        return train_run(settings, backend, resume=resume, callbacks=callbacks)

    return sk.run_ranks(num_ranks, on_rank)[0]


def go_on(folder, steps, **more):
    settings = resumed(stored(folder), {"run.steps": steps})
    return run(settings, resume=True, **more)


def stored(folder):
    from shardkit.testing.train import stored_settings

    return stored_settings(folder / "run")


def content_of(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


# ---- one run ------------------------------------------------------------------------------------


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.thorough(but=1)
def test_a_run_in_the_folder_of_another_is_refused_on_all_ranks_and_touches_nothing(folder, resume):
    if resume:
        run(settings_of(folder, run__steps=2))
    (folder / "run").mkdir(exist_ok=True)
    owned = Ownership.take(folder / "run", "")
    before = content_of(folder)
    messages = []

    def refused(backend):
        with pytest.raises(ConfigurationError) as raised:
            train_run(settings_of(folder), backend, resume=resume)
        messages.append(str(raised.value))

    sk.run_ranks(2, refused)
    assert len(messages) == 2 and len(set(messages)) == 1
    assert messages[0].count(f"process {os.getpid()} on ") == 2
    assert "wait until that one has ended, end one of the two, or choose another" in messages[0]
    assert content_of(folder) == before
    owned.release()
    run(settings_of(folder), resume=resume)
    assert not (folder / "run" / OWNER_NAME).exists()


def test_a_script_is_refused_as_well(folder):
    training = sk.Training(
        sk.nn.Linear(3, 1),
        (numpy.ones((40, 3), "float32"), numpy.ones((40, 1), "float32")),
        folder=folder / "run",
        settings={"run.steps": 2, "batch.sequences": 8, "batch.micro_batch": 4},
        backend=sk.run_ranks(1, lambda backend: backend)[0],
    )
    (folder / "run").mkdir()
    owned = Ownership.take(folder / "run", "")
    with pytest.raises((ConfigurationError, sk.ShardkitError), match="belongs to process"):
        sk.run_ranks(1, lambda backend: training._train(backend, None))
    owned.release()


@pytest.mark.parametrize("fault", ["a wrong start", "a wrong model"])
@pytest.mark.thorough(but=1)
def test_a_run_that_cannot_begin_leaves_the_folder_to_others(folder, fault):
    if fault == "a wrong start":
        wrong, resume = settings_of(folder), True  # there is nothing to go on with
    else:
        wrong, resume = settings_of(folder, model__heads=3), False
    with pytest.raises(ConfigurationError):
        run(wrong, resume=resume)
    assert not (folder / "run" / OWNER_NAME).exists()
    assert resume is False or not (folder / "run").exists()
    run(settings_of(folder))


def test_the_folder_of_a_dead_run_is_taken_over(folder):
    run(settings_of(folder, run__steps=4))
    dead = replace(Owner.this_process("1" * 16), started="1")
    (folder / "run" / OWNER_NAME).write_text(json.dumps(asdict(dead)))
    assert go_on(folder, 6).steps == 6
    assert not (folder / "run" / OWNER_NAME).exists()


class Then(Callback):
    """Does something when the checkpoint of a step is there."""

    def __init__(self, step, do):
        self._step, self._do, self._is_done = step, do, False

    def after_step(self, step, loss):
        if step > self._step and not self._is_done:
            time.sleep(0.2)  # it is written while training goes on

    def after_checkpoint(self, step, folder):
        if step == self._step:
            self._do()
            self._is_done = True


@pytest.mark.thorough
def test_a_run_whose_folder_another_has_taken_ends_at_its_next_save_and_loses_nothing(folder):
    def take_over():
        owner = json.loads((folder / "run" / OWNER_NAME).read_text())
        new = {**owner, "token": "ab" * 8, "run": "other", "process": 1}
        (folder / "run" / OWNER_NAME).write_text(json.dumps(new))

    with pytest.raises(ConfigurationError, match="by now: .* had it before .* this one ends"):
        run(settings_of(folder), callbacks=[Then(4, take_over)])
    assert (folder / "run" / "checkpoints" / "step-00000004").is_dir()
    assert (folder / "run" / OWNER_NAME).exists()  # of the other


# ---- emptied in mid-run --------------------------------------------------------------------------


def remove_all(folder):
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def remove_files(folder):
    for path in folder.rglob("*"):
        if path.is_file():
            path.unlink()


PURGES = {
    # a line of metrics.jsonl may be written before the next look
    "all that is in it": (remove_all, "owner.json, configuration.json, .*checkpoints"),
    "the folder": (shutil.rmtree, "owner.json, configuration.json, .*data/index.json.*checkpoints"),
    "all files": (remove_files, "owner.json, configuration.json, ranks.json, data/index.json"),
    "the data": (lambda run: shutil.rmtree(run / "data"), "data/index.json had gone. .* again, wi"),
    "the settings": (lambda run: (run / "configuration.json").unlink(), "configuration.json had"),
    "the owner": (lambda run: (run / OWNER_NAME).unlink(), "owner.json had gone"),
}


def settings_of_34_steps(folder, is_async, **more):
    more |= {"run__asynchronous_checkpoints": is_async, "optimizer__decay_steps": 34}
    return settings_of(folder, run__checkpoint_every=16, run__report_every=4, **more)


@pytest.fixture(scope="module")
def left_in_peace(tmp_path_factory):
    """Return function (is_async) -> the folder of a run of 34 steps; each is trained once."""

    @cache
    def trained(is_async):
        folder = with_lines(tmp_path_factory.mktemp("whole"))
        run(settings_of_34_steps(folder, is_async, run__steps=34))
        return folder / "run"

    return trained


def warnings_in(text):
    """Its warnings, but for that of ranks that have no core of their own."""
    lines = [line for line in text.splitlines() if "warning" in line]
    return [line for line in lines if "give the job more cores" not in line]


@pytest.mark.strength(1)
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("purge", PURGES)
@pytest.mark.thorough
def test_a_folder_that_is_emptied_in_mid_run_heals_with_one_warning(
    folder, capsys, left_in_peace, purge, is_async
):
    """And the run can be resumed, to the bits of one that was left in peace."""
    whole = left_in_peace(is_async)
    capsys.readouterr()
    deed, words = PURGES[purge]
    purge = Then(16, lambda: deed(folder / "run"))
    run(settings_of_34_steps(folder, is_async, run__steps=32), callbacks=[purge])
    warnings = warnings_in(capsys.readouterr().out)
    assert len(warnings) == 1 and warnings[0].startswith(f"warning: {folder / 'run'} was emptied")
    assert re.search(words, warnings[0]), warnings
    assert go_on(folder, 34).steps == 34
    ours, theirs = (find_checkpoint(path)[0] for path in (folder / "run", whole))
    assert compare(ours, theirs).is_equal
    for name in ("configuration.json", "ranks.json", "metrics.jsonl", "data/index.json"):
        assert (folder / "run" / name).stat().st_size
    assert len(list((folder / "run" / "logs").iterdir())) == 2
    assert read_ledgers(folder / "run" / "ledger").ranks.tolist() == [0, 1]
    assert not (folder / "run" / OWNER_NAME).exists()


def test_a_run_that_is_left_in_peace_warns_of_nothing(folder, capsys):
    run(settings_of(folder, run__keep_checkpoints=1))
    assert not warnings_in("".join(capsys.readouterr()))


# ---- checkpoints ---------------------------------------------------------------------------------

SHAPE = (40, 30)


def save(path, value, step, **how):
    array = numpy.full(SHAPE, value, "float32")
    return save_boxes(path, {"model/a": (array, rows(SHAPE, 2))}, step, **how)


def test_a_save_that_finds_another_writer_is_refused_and_touches_nothing(tmp_path):
    save(tmp_path, 1.0, 1)
    (tmp_path / "step-00000002.tmp").mkdir()
    (tmp_path / "step-00000002.tmp" / "rank-00000.h5").write_text("of the other")
    owned = Ownership.take(tmp_path, "")
    before = content_of(tmp_path)
    with pytest.raises(CheckpointError, match="belongs to process .* both would save there"):
        save(tmp_path, 3.0, 3, keep=1)
    assert content_of(tmp_path) == before
    owned.release()
    save(tmp_path, 3.0, 3, keep=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["newest", "step-00000003"]


SAVING = """
import sys
sys.path.insert(0, "tests")
import numpy
from checkpoints import rows, save_boxes
from shardkit import CheckpointError
folder, value = sys.argv[1], float(sys.argv[2])
array = numpy.full((400, 300), value, "float32")
refused, step = 0, 1
while step <= 20:
    try:
        save_boxes(folder, {"model/a": (array, rows(array.shape, 2))}, step)
        step += 1
    except CheckpointError as error:
        assert "belongs to process" in str(error) and "both would save there" in str(error), error
        refused += 1
print(refused)
"""


@pytest.mark.thorough
def test_two_jobs_that_save_into_one_folder_lose_nothing(tmp_path):
    """Each save is whole, or refused."""
    store = tmp_path / "store"
    command = [sys.executable, "-c", SAVING, store]
    jobs = [
        subprocess.Popen([*command, str(n)], stdout=subprocess.PIPE, text=True, cwd=ROOT)
        for n in (1, 2)
    ]
    refused = [int(job.communicate(timeout=500)[0]) for job in jobs]
    assert sum(refused) > 0  # they did meet
    names = sorted(path.name for path in store.iterdir())
    assert names == ["newest", *(f"step-{step:08d}" for step in range(1, 21))]
    for name in names[1:]:
        checkpoint = sk.run_ranks(1, Candidates.at(store / name).first_valid)[0]
        assert checkpoint.manifest["step"] == int(name[5:])


def test_what_a_user_has_put_into_a_checkpoint_stays_and_is_said(tmp_path):
    save(tmp_path, 1.0, 1)
    (tmp_path / "step-00000001" / "notes.txt").write_text("the best one")
    with pytest.warns(UserWarning, match="stays .*step-00000001.deleted.tmp/notes.txt: not made"):
        save(tmp_path, 2.0, 2, keep=1)
    assert [*tmp_path.glob("*/notes.txt")]
    save(tmp_path, 3.0, 3, keep=1)  # said once
    assert [path.read_text() for path in tmp_path.glob("*/notes.txt")] == ["the best one"]
    assert sk.run_ranks(1, Candidates.at(tmp_path).first_valid)[0].manifest["step"] == 3


@pytest.mark.parametrize("name", ["step-00000001", "step-00000001.tmp", "step-00000001.old"])
def test_a_checkpoint_that_is_a_link_is_unlinked_and_not_followed(tmp_path, name):
    store, elsewhere = tmp_path / "store", tmp_path / "elsewhere"
    save(store, 1.0, 1)
    (store / "step-00000001").rename(elsewhere)
    (store / name).symlink_to(elsewhere)
    before = content_of(elsewhere)
    save(store, 2.0, 2, keep=1)
    assert content_of(elsewhere) == before
    assert sorted(path.name for path in store.iterdir()) == ["newest", "step-00000002"]


@pytest.mark.parametrize("name", ["newest", "newest.tmp", "step-00000002.tmp", "owner.json"])
def test_a_save_writes_through_no_link(tmp_path, name):
    store, victim = tmp_path / "store", tmp_path / "victim"
    save(store, 1.0, 1)
    victim.write_text("precious")
    (store / name).unlink(missing_ok=True)
    (store / name).symlink_to(victim)
    if name == "owner.json":
        with pytest.raises(CheckpointError, match="no ordinary file"):
            save(store, 2.0, 2)
    else:
        save(store, 2.0, 2)
    assert victim.read_text() == "precious"
