"""A run goes on when what it writes beside its checkpoints cannot be written: each file, each way
of failing, at the start, in the middle and at the end; its weights are those of a run left alone.
"""

import errno
import os
import sys
import types

import pytest
from builders import TINY_RUN

import shardkit as sk
from shardkit.testing.checkpoint import compare, find_checkpoint
from shardkit.testing.comm import ledger as ledger_module
from shardkit.testing.files import notes as notes_module
from shardkit.testing.task import Language
from shardkit.testing.train import configuration_of, read_metrics, tracking, train_run

STEPS = 6
FILES = {
    "metrics.jsonl": "metrics.jsonl",
    "the log of rank 0": "logs/rank-00000.log",
    "the log of rank 1": "logs/rank-00001.log",
    "the ranks": "ranks.json",
    "the timeline": "timeline.json",
    "the trace": "traces/steps-2-3.json",
    "the ledger of rank 1": "ledger/node-00000.ledger",
}
FAILURES = [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EACCES]
WHEN = {
    "start": range(0, 2),
    "middle": range(2, 4),
    "end": range(4, 99),
    "always": range(99),
}


class Failing(sk.Callback):
    """Lets one file fail during some steps."""

    def __init__(self, monkeypatch, path, number, steps):
        self._path, self._number, self._steps = str(path), number, steps
        self._step = 0
        for module, name in (
            (notes_module, "open_to_append"),
            (notes_module, "write_whole"),
            (ledger_module, "map_part"),
        ):
            monkeypatch.setattr(module, name, self._door(getattr(module, name)))

    def _door(self, real):
        def door(path, *arguments, **given):
            is_of_rank_0 = arguments[:1] == (0,)  # the start of its ledger in the file of the node
            if str(path) == self._path and self._step in self._steps and not is_of_rank_0:
                raise OSError(self._number, os.strerror(self._number), str(path))
            return real(path, *arguments, **given)

        return door

    def after_step(self, step, loss):
        self._step = step


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "one.txt"
    path.write_text("".join(f"line {i} with the number {i * i}\n" for i in range(60)))
    return path


def trained(folder, corpus, callbacks=(), **changes):
    given = {
        "run.folder": str(folder / "run"),
        "data.path": [str(corpus)],
        "run.steps": STEPS,
        "run.report_every": 1,
        "run.trace_steps": "2..3",
        **{name.replace("__", "."): value for name, value in changes.items()},
    }
    settings = configuration_of(Language)().replace({**TINY_RUN, **given})
    results = sk.run_ranks(2, lambda backend: train_run(settings, backend, callbacks=callbacks))
    assert [result.steps for result in results] == [STEPS, STEPS]
    return folder / "run"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, corpus):
    return find_checkpoint(trained(tmp_path_factory.mktemp("undisturbed"), corpus))[0]


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("name", FILES)
@pytest.mark.thorough(but=2)
def test_a_file_that_cannot_be_written_costs_no_step_and_no_bit(
    tmp_path, corpus, undisturbed, monkeypatch, capsys, name, when
):
    monkeypatch.setattr(notes_module, "RETRY_SECONDS", 0.0)
    path = tmp_path / "run" / FILES[name]
    number = FAILURES[(list(FILES).index(name) + list(WHEN).index(when)) % len(FAILURES)]
    callback = Failing(monkeypatch, path, number, WHEN[when])
    run = trained(tmp_path, corpus, [callback])
    assert compare(undisturbed, find_checkpoint(run)[0], tolerance=0.0).is_equal
    said = capsys.readouterr().err.splitlines()
    warnings = [line for line in said if "cannot be" in line]
    assert len(warnings) <= 1 and all(str(path) in line for line in warnings)
    if when == "always":
        assert len(warnings) == 1 and os.strerror(number) in warnings[0]
    elif "ledger" not in name:
        assert path.exists(), "it was written late"
    steps = [record["step"] for record in read_metrics(run / "metrics.jsonl")]
    if when not in ("end", "always") or "metrics" not in name:
        assert set(range(1, STEPS + 1)) <= set(steps) and steps == sorted(steps)


@pytest.mark.parametrize("number", FAILURES, ids=errno.errorcode.get)
@pytest.mark.thorough(but=2)
def test_each_way_of_failing_is_named(tmp_path, corpus, undisturbed, monkeypatch, capsys, number):
    path = tmp_path / "run" / "metrics.jsonl"
    run = trained(tmp_path, corpus, [Failing(monkeypatch, path, number, WHEN["always"])])
    assert compare(undisturbed, find_checkpoint(run)[0], tolerance=0.0).is_equal
    said = capsys.readouterr().err
    assert said.count(f"{path} cannot be written: {os.strerror(number)}") == 1
    assert said.count(f"{path}: ") == 1 and "never written" in said


@pytest.mark.parametrize("at", ["init", "log", "finish"])
def test_a_tracker_that_fails_ends_no_run(tmp_path, corpus, undisturbed, monkeypatch, capsys, at):
    class Library(types.ModuleType):
        id = "abc"

        def __getattr__(self, name):
            if name.startswith("__"):
                raise AttributeError(name)

            def call(*arguments, **given):
                if name == at:
                    raise RuntimeError("the server is away")
                return self

            return call

    monkeypatch.setitem(sys.modules, "wandb", Library("wandb"))
    run = trained(tmp_path, corpus, run__track="wandb")
    assert compare(undisturbed, find_checkpoint(run)[0], tolerance=0.0).is_equal
    said = capsys.readouterr().err
    assert said.count("cannot be written: RuntimeError: the server is away") == 1


def test_a_tracker_gets_what_it_did_not_take_before(capsys):
    class Library(tracking.Tracker):
        taken, is_away = [], True

        def at_start(self, run):
            pass

        def write(self, step, values):
            if self.is_away:
                raise ConnectionError("away")
            self.taken.append(step)

        def at_end(self, result):
            pass

    library = Library()
    tracker = tracking.Patient("wandb", library)
    tracker.at_start(None)
    for step in (1, 2, 3):
        tracker.after_report(step, {})
    library.is_away = False
    tracker.at_end(None)
    assert library.taken == [1, 2, 3]
    assert "written again" in capsys.readouterr().err
