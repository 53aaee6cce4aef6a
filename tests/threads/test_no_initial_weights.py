"""A model that goes on from a checkpoint makes no random weights first."""

import numpy
import pytest
from builders import TINY_RUN

import shardkit as sk
from shardkit.nn import init
from shardkit.testing.checkpoint import compare, find_checkpoint
from shardkit.testing.task import Language
from shardkit.testing.train import (
    TrainedRun,
    configuration_of,
    first_settings,
    resumed,
    stored_settings,
    train_run,
)

RUNS = {
    "full": {},
    "tied embeddings": {"model.tied": True},
    "averages": {"optimizer.ema_decay": 0.9},
    "lora": {"model.lora_rank": 2, "model.start": "start"},
    "measured stages": {"mesh.pipeline": 2, "parallel.stage_balance": "measured"},
    "half floats": {"parallel.compute_dtype": "bfloat16"},
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("".join(f"line {i} of {i * i}\n" for i in range(60)))
    return tmp_path


def settings_of(given, name="run", **more):
    paths = {"data.path": ["a.txt"], "run.folder": name}
    return first_settings(configuration_of(Language), {**TINY_RUN, **paths, **given, **more})


def run(settings, *, resume=False):
    sk.run_ranks(2, lambda backend: train_run(settings, backend, resume=resume))


def are_equal(*folders):
    found = [find_checkpoint(path)[0] for path in folders]
    return compare(*found, tolerance=0.0).is_equal


def refuse_to_draw(monkeypatch):
    def drawn(*arguments):
        raise AssertionError("random weights were drawn")

    monkeypatch.setattr(init, "normal", drawn)
    monkeypatch.setattr(init, "uniform", drawn)


@pytest.mark.parametrize("case", RUNS)
@pytest.mark.thorough(but=1)
def test_a_resumed_run_draws_none_and_has_the_bits_of_one_that_never_stopped(
    case, folder, monkeypatch
):
    given = {**RUNS[case], "optimizer.decay_steps": 4}
    if "model.start" in given:
        run(settings_of({}, "start"))
    run(settings_of(given, "whole", **{"run.steps": 4}))
    run(settings_of(given))
    refuse_to_draw(monkeypatch)
    run(resumed(stored_settings(folder / "run"), {"run.steps": 4}), resume=True)
    assert are_equal(folder / "whole", folder / "run")


@pytest.mark.parametrize("averaged", [False, True])
def test_an_evaluation_draws_none(averaged, folder, monkeypatch):
    run(settings_of(RUNS["averages"]))
    refuse_to_draw(monkeypatch)

    def measure(backend):
        trained = TrainedRun(folder / "run", {}, backend, averaged=averaged)
        found = trained.model.get_parameters()
        trained.close()
        return found

    assert numpy.isfinite(sk.run_ranks(2, measure)[0]).all()


def test_a_checkpoint_that_is_damaged_is_passed_over_for_an_older_one(folder, monkeypatch):
    run(settings_of({}, **{"run.checkpoint_every": 1}))
    newest = sorted((folder / "run" / "checkpoints").glob("step-*"))[-1]
    for file in newest.glob("*.h5"):
        file.write_bytes(file.read_bytes()[:-200])
    refuse_to_draw(monkeypatch)
    with pytest.warns(UserWarning, match=newest.name):
        run(resumed(stored_settings(folder / "run"), {"run.steps": 3}), resume=True)
    assert len(sorted((folder / "run" / "checkpoints").glob("step-*"))) >= 2
