"""sk.Training, the road of a script of one's own, with its callbacks and trackers."""

import logging
import os
import sys
import types

import h5py
import numpy
import pytest

import shardkit as sk
from shardkit import ConfigurationError
from shardkit.testing.checkpoint import compare, find_checkpoint
from shardkit.testing.nn import RMSE
from shardkit.testing.task import ArraySamples, load_task, parts_of

X = numpy.random.default_rng(0).normal(size=(53, 3)).astype(numpy.float32)
Y = (X[:, :1] * 2 - X[:, 1:2] ** 2).astype(numpy.float32)
SETTINGS = {
    "run.steps": 6,
    "batch.sequences": 8,
    "batch.micro_batch": 2,
    "run.checkpoint_every": 3,
    "run.validate_every": 3,
    "run.report_every": 2,
    "optimizer.decay_steps": 6,
}


def training(folder, backend, **changes):
    own = {"settings": {**SETTINGS, **changes.pop("settings", {})}, **changes}
    model = sk.models.MLP([3, 8, 1])
    return sk.Training(
        model, (X, Y), folder=folder, metrics={"rmse": RMSE()}, backend=backend, **own
    )


def on_ranks(num_ranks, folder, **changes):
    def run(backend):
        trained = training(folder, backend, **changes)
        result = trained.run()
        shapes = trained.predict(X, folder / "out.h5")
        return result, trained.evaluate(), trained.evaluate((X, Y)), shapes

    return sk.run_ranks(num_ranks, run)[0]


class Wandering(sk.Samples):
    """Samples whose reader changes the working folder, as libraries of others may."""

    def __init__(self, folder):
        self._folder, self._reads = folder, 0

    def __len__(self):
        return len(X)

    def read(self, numbers):
        self._reads += 1
        if self._reads == 5:
            os.chdir(self._folder)
        return X[numbers], Y[numbers]

    def fingerprint(self):
        return "X and Y"


def test_a_run_keeps_its_folder_where_the_working_folder_is_changed(tmp_path, monkeypatch):
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)

    def run(backend):
        data = Wandering(tmp_path / "other"), (X, Y)
        model = sk.models.MLP([3, 8, 1])
        made = sk.Training(model, data, folder="run", backend=backend, settings=SETTINGS)
        made.run()
        return os.getcwd(), made.evaluate(checkpoint=3).step

    assert sk.run_ranks(1, run) == [(str(tmp_path / "other"), 3)]
    assert not [*(tmp_path / "other").iterdir()]
    assert len([*(tmp_path / "run" / "checkpoints").glob("step-*")]) == 2


@pytest.mark.thorough
def test_a_script_trains_goes_on_measures_and_writes_the_same_on_any_ranks(tmp_path):
    whole = on_ranks(1, tmp_path / "whole")
    on_ranks(2, tmp_path / "parts", settings={"run.steps": 3})
    parts = on_ranks(4, tmp_path / "parts")
    found = [find_checkpoint(tmp_path / name)[0] for name in ("whole", "parts")]
    assert compare(*found, tolerance=0.0).is_equal and whole[0].steps == 6
    assert whole[1:] == parts[1:], "figures are exact"
    held_out, everything, shapes = whole[1:]
    assert held_out.samples == 5 and everything.samples == 53 and shapes == {"prediction": (53, 1)}
    with (
        h5py.File(tmp_path / "whole" / "out.h5") as ours,
        h5py.File(tmp_path / "parts/out.h5") as b,
    ):
        assert (ours["prediction"][:] == b["prediction"][:]).all()
        error = ((ours["prediction"][:] - Y) ** 2).mean()
    assert everything.loss == pytest.approx(error, rel=1e-5)
    assert everything.metrics["rmse"] == pytest.approx(error**0.5, rel=1e-5)
    with pytest.raises(
        ConfigurationError, match="script with sk.Training; start that script again"
    ):
        load_task("script")


def test_no_validation_improves_and_the_run_ends_early(tmp_path):
    settings = {"run.patience": 1, "run.validate_every": 1, "optimizer.learning_rate": 1e-30}

    def run(backend):
        trained = training(tmp_path, backend, settings=settings)
        result, model = trained.run(), trained.model
        model.train(*sk.split_batch(model.mesh, X[:8], Y[:8]))  # nobody ends this step
        return result.steps, result.is_interrupted

    ((steps, is_interrupted),) = set(sk.run_ranks(2, run))
    assert steps < 6 and not is_interrupted


def test_data_may_be_split_already_or_is_split_without_a_leak():
    parts = parts_of((X, Y))
    assert (len(parts["training"]), len(parts["validation"])) == (48, 5)
    rows = [
        {tuple(row) for row in samples.read(numpy.arange(len(samples)))[0].tolist()}
        for samples in parts.values()
    ]
    assert not rows[0] & rows[1] and len(rows[0] | rows[1]) == 53
    given = parts_of(((X[:40], Y[:40]), ArraySamples(X[40:], Y[40:])))
    assert (len(given["training"]), len(given["validation"])) == (40, 13)


def test_a_dataset_of_hdf5_is_read_in_the_order_asked_for(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"], file["y"] = X, Y
        samples = ArraySamples(file["x"], file["y"])
        numbers = numpy.array([7, 3, 7, 50])
        assert (samples.read(numbers)[0] == X[numbers]).all()
        assert samples.fingerprint() == ArraySamples(X, Y).fingerprint()
    assert ArraySamples(X + 1, Y).fingerprint() != ArraySamples(X, Y).fingerprint()


@pytest.mark.parametrize(
    "given, words",
    [
        ((3, (X, Y)), "a model of type int; wanted an nn.Module"),
        (("no task", (X, Y)), "run.task = 'no task'; wanted language or chat or table"),
        ((sk.models.MLP([3, 1]), X), "data of type ndarray; wanted Samples, a pair"),
        ((sk.models.MLP([3, 1]), (X, Y[:3])), "x has 53 rows, y has 3 rows; wanted the same"),
        ((lambda: sk.models.MLP([3, 1]), None), "data of type NoneType"),
    ],
)
def test_what_cannot_be_trained_is_refused_in_one_sentence(tmp_path, given, words):
    with pytest.raises(ConfigurationError, match=words):
        sk.Training(*given, folder=tmp_path)


def test_wrong_settings_and_other_data_are_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="did you mean run.steps"):
        on_ranks(1, tmp_path / "a", settings={"run.step": 3})
    on_ranks(1, tmp_path / "b", settings={"run.steps": 1})

    def other(backend):
        sk.Training(
            sk.models.MLP([3, 8, 1]), (X + 1, Y), folder=tmp_path / "b", backend=backend
        ).run()

    with pytest.raises(sk.CheckpointError, match="is not the data"):
        sk.run_ranks(1, other)
    with pytest.raises(sk.ShardingError, match="call run"):
        sk.Training(sk.models.MLP([3, 1]), (X, Y), folder=tmp_path).model


# ---- callbacks -----------------------------------------------------------------------------------


class Noted(sk.Callback):
    def __init__(self):
        self.calls = []

    def at_start(self, run):
        self.calls.append(("start", run.model.step_number))

    def after_step(self, step, loss):
        self.calls.append(("step", step))
        assert loss > 0

    def after_report(self, step, values):
        assert {"train_loss", "learning_rate", "samples_per_second"} <= values.keys()
        self.calls.append(("report", step))

    def after_validation(self, step, values):
        assert {"validation_loss", "rmse"} <= values.keys()
        self.calls.append(("validation", step))

    def after_checkpoint(self, step, folder):
        self.calls.append(("checkpoint", step, folder))

    def at_end(self, result):
        self.calls.append(("end", result.steps))


@pytest.mark.parametrize("on_all_ranks", [False, True])
def test_callbacks_are_called_at_each_point_on_one_rank_or_all(tmp_path, on_all_ranks):
    def run(backend):
        noted = Noted()
        noted.on_all_ranks = on_all_ranks
        how = {"run.asynchronous_checkpoints": False}
        training(tmp_path, backend, callbacks=[noted], settings=how).run()
        return noted.calls

    first, second = sk.run_ranks(2, run)
    assert [call[:2] for call in first] == [
        ("start", 0),
        ("step", 1),
        ("step", 2),
        ("report", 2),
        ("step", 3),
        ("validation", 3),
        ("checkpoint", 3),
        ("step", 4),
        ("report", 4),
        ("step", 5),
        ("step", 6),
        ("report", 6),
        ("validation", 6),
        ("checkpoint", 6),
        ("end", 6),
    ]
    assert first[6][2].endswith("step-00000003")
    assert second == (first if on_all_ranks else [])


class Library(types.ModuleType):
    """A tracking library that notes what it is told."""

    def __init__(self, name):
        super().__init__(name)
        self.told = []
        self.id = "abc"
        self.info = types.SimpleNamespace(run_id="abc")

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)

        def note(*arguments, **given):
            self.told.append((name, arguments, given))
            return self

        return note


CURVES = {
    "tensorboard": ("tensorboardX", "add_scalar", "close"),
    "wandb": ("wandb", "log", "finish"),
    "mlflow": ("mlflow", "log_metrics", "end_run"),
}


@pytest.mark.parametrize("name", CURVES)
@pytest.mark.thorough(but=2)
def test_a_tracker_gets_the_curve_and_a_run_that_goes_on_continues_it(tmp_path, monkeypatch, name):
    module, write, end = CURVES[name]
    library = Library(module)
    monkeypatch.setitem(sys.modules, module, library)
    for steps in (3, 6):
        on_ranks(2, tmp_path, settings={"run.steps": steps, "run.track": name})
    calls = [call for call, _, _ in library.told]
    text = str(library.told)
    assert calls.count(end) == 2 and "train_loss" in text and "validation_loss" in text
    steps = [
        given.get("step", arguments[-1] if len(arguments) > 1 else None)
        for call, arguments, given in library.told
    ]
    written = [step for step, call in zip(steps, calls) if call == write]
    assert sorted(set(written)) == [2, 3, 4, 6] and written == sorted(written)
    starts = [
        given for call, _, given in library.told if call in ("init", "start_run", "SummaryWriter")
    ]
    continued = {"tensorboard": ("purge_step", 1, 4), "wandb": ("id", None, "abc")}
    key, *values = continued.get(name, ("run_id", None, "abc"))
    assert [given[key] for given in starts] == values


@pytest.mark.parametrize("name", CURVES)
def test_a_tracker_that_is_not_installed_is_refused_on_all_ranks(tmp_path, monkeypatch, name):
    monkeypatch.setitem(sys.modules, CURVES[name][0], None)
    with pytest.raises(ConfigurationError, match=rf'install "shardkit\[{name}\]", or leave'):
        on_ranks(2, tmp_path, settings={"run.track": name})


class Kept(logging.Handler):
    """A handler that keeps what it is given."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


def test_lines_of_a_run_reach_logging_once_whatever_the_number_of_ranks(tmp_path):
    kept, logger = Kept(), logging.getLogger("shardkit")
    before = logger.level
    logger.addHandler(kept)
    logger.setLevel(logging.INFO)
    try:
        on_ranks(2, tmp_path / "run")
    finally:
        logger.removeHandler(kept)
        logger.setLevel(before)
    assert sum("step 6/6" in line and "checkpoint" in line for line in kept.lines) == 1
