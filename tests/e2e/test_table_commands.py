"""A table from training to predictions, as its user meets it: real processes, a CSV file."""

import json

import h5py
import numpy
from test_command_line import shardkit

RUN = ("--task", "table", "--data.target=y", "--run.folder=run", "--run.steps=30")


def test_a_csv_is_trained_on_evaluated_and_predicted(tmp_path):
    x = numpy.random.default_rng(0).normal(size=(150, 3))
    y = x[:, 0] + 2 * x[:, 1] + 3 * x[:, 2] + 5
    rows = numpy.column_stack([x, y])
    numpy.savetxt(tmp_path / "t.csv", rows, delimiter=",", header="a,b,c,y", comments="")
    numpy.savetxt(tmp_path / "new.csv", x[:50], delimiter=",", header="a,b,c", comments="")
    small = ("--batch.sequences=32", "--batch.micro_batch=8", "--model.hidden=[16]")
    trained = shardkit(
        tmp_path,
        "train",
        "--data.path=t.csv",
        "--optimizer.learning_rate=0.02",
        *RUN,
        *small,
        ranks=2,
    )
    assert trained.returncode == 0 and "rmse" in trained.stdout, trained.stderr

    measured = shardkit(tmp_path, "evaluate", "run", "--data", "t.csv", "--json", "figures.json")
    assert measured.returncode == 0, measured.stderr
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["samples"] == 150 and f"rmse {figures['metrics']['rmse']:.6g}" in measured.stdout

    written = shardkit(tmp_path, "predict", "run", "--data", "new.csv", "--output", "o.h5", ranks=3)
    assert written.returncode == 0 and "prediction [50, 1]" in written.stdout, written.stderr
    with h5py.File(tmp_path / "o.h5") as file:
        error = file["prediction"][:, 0] - y[:50]
    assert numpy.sqrt((error**2).mean()) < 2 * figures["metrics"]["rmse"]
    assert sorted(path.name for path in tmp_path.glob("o.h5*")) == ["o.h5"]


def test_a_run_of_text_is_not_predicted_but_generated(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "configuration.json").write_text('{"run": {"task": "language"}}')
    refused = shardkit(tmp_path, "predict", "run", "--output", "o.h5")
    assert refused.returncode == 2 and "use `shardkit generate run`" in refused.stderr
    refused = shardkit(tmp_path, "predict", "nothing", "--output", "o.h5")
    assert refused.returncode == 2 and "nothing holds no run" in refused.stderr
