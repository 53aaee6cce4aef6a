"""A run that goes on continues its curve in the real libraries, offline; each is skipped where it
is not installed. tests/threads/test_scripts.py has what they are told.
"""

import json
from types import SimpleNamespace

import pytest

from shardkit.testing.task import load_task
from shardkit.testing.train import configuration_of, make_tracker


def write_twice(name, folder):
    """Steps 1 to 3, then step 3 again and step 4, from the checkpoint of step 2."""
    settings = configuration_of(load_task("table"))()
    for start, steps in ((0, (1, 2, 3)), (2, (3, 4))):
        tracker = make_tracker(name, folder, settings)
        tracker.at_start(SimpleNamespace(model=SimpleNamespace(step_number=start), folder=folder))
        for step in steps:
            tracker.after_report(step, {"train_loss": start + step / 2})
        tracker.at_end(None)


def test_tensorboard_shows_each_step_once(tmp_path):
    pytest.importorskip("tensorboardX")
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    write_twice("tensorboard", tmp_path)
    read = events.EventAccumulator(str(tmp_path / "tensorboard"))
    read.Reload()
    found = [(event.step, event.value) for event in read.Scalars("train_loss")]
    assert found == [(1, 0.5), (2, 1.0), (3, 3.5), (4, 4.0)]


def test_mlflow_has_one_run_with_its_settings(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    write_twice("mlflow", tmp_path)
    number = json.loads((tmp_path / "tracking.json").read_text())["id"]
    client = mlflow.tracking.MlflowClient()
    found = [(each.step, each.value) for each in client.get_metric_history(number, "train_loss")]
    assert found[-2:] == [(3, 3.5), (4, 4.0)] and {step for step, _ in found} == {1, 2, 3, 4}
    assert client.get_run(number).data.params["run.steps"] == "300"


def test_wandb_writes_offline_under_one_name(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    write_twice("wandb", tmp_path)
    number = json.loads((tmp_path / "tracking.json").read_text())["id"]
    assert list((tmp_path / "wandb").glob(f"offline-run-*-{number}/run-{number}.wandb"))
