"""The task `table`: runs on files of rows, against definitions, on any mesh."""

import json
import os
import signal

import h5py
import numpy
import pytest
from clean_fork import exit_code
from torch_or_skip import torch

import shardkit as sk
from shardkit import ConfigurationError
from shardkit.testing.checkpoint import compare, find_checkpoint
from shardkit.testing.task import load_task, survey
from shardkit.testing.train import (
    KeptFolder,
    TrainedRun,
    check_output,
    configuration_of,
    evaluate,
    first_settings,
    predict,
    prepare_run,
    resumed,
    stored_settings,
    train_run,
    with_steps,
)

Configuration = configuration_of(load_task("table"))
ROWS = 203
SMALL = {
    "run.task": "table",
    "batch.sequences": 16,
    "batch.micro_batch": 4,
    "run.steps": 6,
    "run.checkpoint_every": 3,
    "run.validate_every": 3,
    "model.hidden": [8],
    "optimizer.warmup_steps": 1,
}


@pytest.fixture
def folder(tmp_path):
    generator = numpy.random.default_rng(5)
    x = generator.normal(3, 10, (ROWS, 4))
    with h5py.File(tmp_path / "t.h5", "w") as file:
        file.create_dataset("x", data=x, chunks=(16, 4))
        file["y"] = 1000 + 50 * x[:, :2] @ [[1.0], [2.0]]
        file["two"] = (x[:, 0] > 3).astype("int8")
        file["three"] = numpy.digitize(x[:, 1], [-5, 10])
        file["w"] = generator.uniform(0.5, 1.5, ROWS)
    return tmp_path


def settings_of(folder, **changes):
    given = {
        "run.folder": str(folder / "run"),
        "data.path": str(folder / "t.h5"),
        "data.features": ["x"],
        "data.target": ["y"],
    }
    changes = {name.replace("__", "."): value for name, value in changes.items()}
    return first_settings(Configuration, {**SMALL, **given, **changes})


def run(settings, *, resume=False, num_ranks=1):
    return sk.run_ranks(num_ranks, lambda backend: train_run(settings, backend, resume=resume))[0]


def records(folder, name):
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)[name] for line in lines if name in json.loads(line)]


KINDS = {
    "regression": ({}, "rmse"),
    "weighted rows": ({"data__weights": "w"}, "rmse"),
    "binary": ({"data__kind": "binary", "data__target": ["two"]}, "accuracy"),
    "balanced classes": (
        {
            "data__kind": "multiclass",
            "data__target": ["three"],
            "data__class_weights": "balanced",
        },
        "macro_f1",
    ),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.thorough(but=2)
def test_a_table_is_learned(kind, folder):
    changes, metric = KINDS[kind]
    rate = {"optimizer__learning_rate": 0.1, "model__activation": "tanh"}
    every = {"run__steps": 40, "run__checkpoint_every": 100, "run__validate_every": 8}
    result = run(settings_of(folder, **every, **rate, **changes))
    assert result.validation_loss < 0.6
    first, *_, last = records(folder, metric)
    if metric == "rmse":  # in the units of the file, whose targets deviate by 1100
        assert 100 < first < 2000 and last < 0.7 * first
    else:
        assert first < last and last > 0.6


def predictions(folder, name="out.h5"):
    with h5py.File(folder / name) as file:
        return {dataset: file[dataset][:] for dataset in file}


def evaluated(folder, num_ranks, data="t.h5", output=None, **given):
    """What one evaluation of all rows finds, and what it writes."""
    given = {name.replace("__", "."): value for name, value in given.items()}

    def measure(backend):
        run = TrainedRun(folder / "run", given, backend)
        figures = evaluate(run, run.samples(str(folder / data)))
        if output:
            samples = run.samples(str(folder / data), has_targets=False)
            predict(run, samples, folder / output)
        run.close()
        return figures

    return sk.run_ranks(num_ranks, measure)[0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.thorough(but=2)
def test_figures_and_predictions_are_those_of_a_serial_float64_model(kind, folder):
    run(settings_of(folder, **KINDS[kind][0]))
    figures = evaluated(folder, 1, output="out.h5")
    described = json.loads((folder / "run" / "data" / "table.json").read_text())
    checkpoint, _ = find_checkpoint(folder / "run")
    weights = {
        name: checkpoint.read_whole(f"model/layers.{name}").astype("float64")
        for name in ("0.weight", "0.bias", "1.weight", "1.bias")
    }
    with h5py.File(folder / "t.h5") as file:
        rows = {name: file[name][:] for name in file}
    x = (rows["x"] - described["x"]["center"]) / described["x"]["scale"]
    hidden = torch.nn.functional.gelu(
        torch.tensor(x @ weights["0.weight"].T + weights["0.bias"]), approximate="tanh"
    ).numpy()
    raw = hidden @ weights["1.weight"].T + weights["1.bias"]
    written = predictions(folder)
    assert figures.samples == ROWS and figures.step == 6
    if metric_of(kind) == "rmse":
        expected = raw * described["y"]["scale"] + described["y"]["center"]
        error = expected - rows["y"]
        assert numpy.allclose(written["prediction"], expected, rtol=1e-5)
        assert figures.metrics["rmse"] == pytest.approx(numpy.sqrt((error**2).mean()), rel=1e-5)
        assert figures.metrics["mae"] == pytest.approx(numpy.abs(error).mean(), rel=1e-5)
        share = 1 - (error**2).sum() / ((rows["y"] - rows["y"].mean()) ** 2).sum()
        assert figures.metrics["r2"] == pytest.approx(share, rel=1e-4)
        weight = rows["w"][:, None] if kind == "weighted rows" else 1.0
        loss = (weight * (error / described["y"]["scale"]) ** 2).mean()
    else:
        logits = raw if kind != "binary" else numpy.concatenate([0 * raw, raw], 1)
        truth = rows["two" if kind == "binary" else "three"].astype(int)
        chances = numpy.exp(logits) / numpy.exp(logits).sum(1, keepdims=True)
        assert numpy.array_equal(written["class"], logits.argmax(1))
        assert numpy.allclose(
            written["probability"], chances[:, 1] if kind == "binary" else chances, rtol=1e-4
        )
        assert figures.metrics["accuracy"] == (logits.argmax(1) == truth).mean()
        weight = numpy.ones(len(truth))
        if kind == "balanced classes":
            counts = numpy.array(described["class_counts"])
            weight = (counts.sum() / len(counts) / counts)[truth]
        loss = -(weight * numpy.log(chances[numpy.arange(ROWS), truth])).mean()
    assert figures.loss == pytest.approx(loss, rel=1e-4)


def metric_of(kind):
    return KINDS[kind][1]


STAGES = {"mesh__pipeline": 2, "parallel__minimum_parameter_group_size": 1}


@pytest.mark.thorough
def test_figures_and_the_file_of_predictions_are_the_same_for_any_number_of_ranks(folder):
    run(settings_of(folder, data__kind="multiclass", data__target=["three"]))
    meshes = {"one": (1, {}), "three": (3, {}), "four": (4, {}), "stages": (2, STAGES)}
    found = {
        name: evaluated(folder, num_ranks, output=f"{name}.h5", **given)
        for name, (num_ranks, given) in meshes.items()
    }
    files = {(folder / f"{name}.h5").read_bytes() for name in meshes}
    assert len(files) == 1 and len(set(map(str, found.values()))) == 1


def die_among_predictions(folder):
    write, places = os.pwrite, []

    def write_or_die(file, content, place):
        places.append(place)
        if len(places) == 20:
            os.kill(os.getpid(), signal.SIGKILL)
        return write(file, content, place)

    os.pwrite = write_or_die
    evaluated(folder, 1, output="out.h5")


def test_a_run_without_its_scaling_says_where_a_copy_is(folder):
    run(settings_of(folder))
    kept = folder / "run" / "data" / "table.json"
    kept.unlink()
    with pytest.raises(ConfigurationError, match="each checkpoint has a copy: bring table.json"):
        evaluated(folder, 1)
    copy = folder / "run" / "checkpoints" / "step-00000006" / "table.json"
    kept.write_bytes(copy.read_bytes())
    evaluated(folder, 1)


NO_PREDICTIONS = {  # (name, content; None: that of the rows, words)
    "the data": ("t.h5", None, "t.h5 is there and holds no predictions"),
    "a text": ("notes", b"mine", "notes is there and holds no predictions"),
    "a table of text": ("new.csv", None, r"written as HDF5; give a name such as new.h5"),
    "a table in capitals": ("OUT.NPY", None, r"written as HDF5; .* OUT.h5"),
}


@pytest.mark.parametrize("case", NO_PREDICTIONS)
def test_predictions_replace_nothing_but_predictions(case, folder):
    name, content, words = NO_PREDICTIONS[case]
    if content is not None:
        (folder / name).write_bytes(content)
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    with pytest.raises(ConfigurationError, match=words):
        check_output(folder / name)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


def test_empty_files_links_and_predictions_of_before_are_replaced(folder):
    (folder / "empty").touch()
    (folder / "link").symlink_to("t.h5")
    with h5py.File(folder / "out.h5", "w") as file:
        file.attrs.update({"task": "TableMLP", "step": 3})
    for name in ("empty", "link", "out.h5", "new.h5"):
        check_output(folder / name)


@pytest.mark.thorough
def test_a_kill_among_the_predictions_leaves_no_half_file_and_the_next_run_writes_it(folder):
    run(settings_of(folder))
    evaluated(folder, 1, output="whole.h5")
    assert exit_code(die_among_predictions, folder) == -signal.SIGKILL
    assert [*folder.glob(".shardkit-*.tmp")] and not (folder / "out.h5").exists()
    evaluated(folder, 3, output="out.h5")
    assert (folder / "out.h5").read_bytes() == (folder / "whole.h5").read_bytes()
    assert not (folder / "out.h5.tmp").exists()


@pytest.mark.parametrize("num_ranks, mesh", [(2, {}), (3, {**STAGES, "mesh__pipeline": 3})])
@pytest.mark.thorough
def test_a_run_that_stopped_in_an_epoch_goes_on_with_the_same_bits(num_ranks, mesh, folder):
    deep = {"model__hidden": [8, 8], "parallel__minimum_parameter_group_size": 1}
    run(settings_of(folder, run__folder=str(folder / "whole"), **deep))
    run(settings_of(folder, run__steps=3, optimizer__decay_steps=6, **deep), num_ranks=4)
    going_on = settings_of(folder, optimizer__decay_steps=6, **{**deep, **mesh})
    run(going_on, resume=True, num_ranks=num_ranks)
    found = [find_checkpoint(folder / name)[0] for name in ("whole", "run")]
    assert compare(*found, tolerance=0.0, model_only=True).is_equal


def test_the_scaling_travels_in_the_checkpoint(folder):
    run(settings_of(folder))
    beside = (folder / "run" / "checkpoints" / "step-00000006" / "table.json").read_bytes()
    assert beside == (folder / "run" / "data" / "table.json").read_bytes()
    assert json.loads(beside)["feature_names"] == ["x[0]", "x[1]", "x[2]", "x[3]"]


WRONG = {
    "no file": ({"data.path": None}, "data.path is not given"),
    "no target": ({"data.target": []}, "data.target is not given"),
    "a missing dataset": ({"data.target": ["why"]}, "t.h5 has no why"),
    "class weights of numbers": ({"data.class_weights": "balanced"}, "is for classes"),
    "three classes as two": (
        {"data.kind": "binary", "data.target": ["three"]},
        "of data.kind = 'binary' they are 0 and 1",
    ),
    "class weights for other classes": (
        {"data.kind": "multiclass", "data.target": ["three"], "data.class_weights": [1.0, 2.0]},
        "has 2 weights, but",
    ),
    "one class": ({"data.kind": "binary", "data.target": ["zero"]}, "are of class 0 in zero"),
    "an empty split": ({"data.path": "one.h5"}, "1 row cannot be split"),
    "classes that are no integers": (
        {"data.kind": "multiclass", "data.target": ["w"]},
        "wanted a class number",
    ),
    "a target among the features": ({"data.features": ["x", "y"]}, "is a feature and a target"),
    "images": ({"data.features": ["image"]}, "a task of your own"),
}


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_wrong_table_is_refused_on_all_ranks_and_leaves_no_checkpoint(case, num_ranks, folder):
    changes, words = WRONG[case]
    with h5py.File(folder / "t.h5", "a") as file:
        file["zero"] = numpy.zeros(ROWS, int)
        file["image"] = numpy.zeros((ROWS, 2, 2))
    with h5py.File(folder / "one.h5", "w") as file:
        file["x"], file["y"] = numpy.ones((1, 4)), numpy.ones((1, 1))
    given = settings_of(folder).replace(changes)
    given = given.replace({"data.path": given.data.path and str(folder / given.data.path)})

    def refused(backend):
        with pytest.raises(ConfigurationError) as error:
            train_run(given, backend)
        return str(error.value)

    for message in sk.run_ranks(num_ranks, refused):
        assert words in message and "\n" not in message, message
    assert not (folder / "run").exists()


OTHER = {
    "a file that is not there": ("none.h5", "No such file"),
    "fewer columns": ("narrow.h5", "trained on"),
    "NaN": ("nan.h5", "row 17, column x[1]: nan"),
    "columns of a table": ("t.csv", "t.csv has no column x[0], which this run was trained on"),
}


@pytest.mark.parametrize("case", OTHER)
def test_other_data_that_does_not_fit_is_refused_and_no_file_is_left(case, folder):
    name, words = OTHER[case]
    x, y = numpy.ones((20, 4)), numpy.ones((20, 1))
    with h5py.File(folder / "narrow.h5", "w") as file:
        file["x"], file["y"] = x[:, :3], y
    (folder / "t.csv").write_text("x,y\n1,2\n")
    x[17, 1] = numpy.nan  # found when the first rows are written
    with h5py.File(folder / "nan.h5", "w") as file:
        file["x"], file["y"] = x, y
    run(settings_of(folder))

    def refused(backend):
        trained = TrainedRun(folder / "run", {}, backend)
        with pytest.raises(ConfigurationError) as error:
            samples = trained.samples(str(folder / name), has_targets=False)
            predict(trained, samples, folder / "out.h5")
        trained.close()
        return str(error.value)

    assert all(words in message for message in sk.run_ranks(2, refused))
    assert not list(folder.glob("out*"))


def test_the_scaling_has_the_same_bits_however_many_ranks_look_at_the_rows(folder, monkeypatch):
    monkeypatch.setattr(survey, "_BLOCK_ELEMENTS", 6 * 20)
    monkeypatch.setattr(survey, "_PIECE_ELEMENTS", 6 * 7)
    looked, found = [], set()
    look = survey.TableSurvey.look
    monkeypatch.setattr(
        survey.TableSurvey, "look", lambda self, n: looked.append(n) or look(self, n)
    )
    for ranks in (1, 2, 3, 4):
        settings = settings_of(folder, run__folder=str(folder / f"run{ranks}"), batch__sequences=48)
        with KeptFolder(folder / f"run{ranks}") as kept:
            sk.run_ranks(ranks, lambda backend: prepare_run(settings, backend, kept, resume=False))
        found.add((folder / f"run{ranks}" / "data" / "table.json").read_bytes())
    assert len(found) == 1 and sorted(looked) == sorted(4 * list(range(max(looked) + 1)))
    task = settings.make_task()
    task.open(folder / "run4")
    for values in task.samples("training").read(numpy.arange(183)):
        assert abs(values.mean(0)).max() < 1e-6 and abs(values.std(0) - 1).max() < 1e-6


def test_a_wrong_row_that_any_rank_finds_stops_the_run_before_it_is_there(folder, monkeypatch):
    monkeypatch.setattr(survey, "_BLOCK_ELEMENTS", 6 * 20)
    with h5py.File(folder / "t.h5", "a") as file:
        rows = numpy.arange(ROWS)
        file["x"][rows[40:200:30], 2] = numpy.nan
    for ranks in (1, 3):
        with pytest.raises(
            ConfigurationError, match=r"row (40|70|100|130|160|190), column x\[2\]: nan"
        ):
            run(settings_of(folder, batch__sequences=48), num_ranks=ranks)
        assert not (folder / "run" / "data").exists()


@pytest.mark.thorough
def test_epochs_are_as_many_steps_as_their_samples_take(folder, capsys):
    """183 rows in batches of 16: 1.5 epochs end in the 18th step."""
    given = {name: value for name, value in SMALL.items() if name != "run.steps"}
    given |= {
        "run.folder": str(folder / "run"),
        "data.path": str(folder / "t.h5"),
        "data.target": ["y"],
        "data.features": ["x"],
        "run.epochs": 1.5,
    }
    settings = first_settings(Configuration, given)
    assert run(settings, num_ranks=2).steps == 18
    assert "16 rows per step; 1.5 epochs are 18 steps;" in " ".join(capsys.readouterr().out.split())
    stored = stored_settings(folder / "run")
    assert (stored.run.steps, stored.run.epochs, stored.optimizer.decay_steps) == (18, 1.5, 18)
    longer = resumed(stored, {"run.epochs": 2})
    assert run(longer, resume=True).steps == 23
    stored = stored_settings(folder / "run")
    assert (stored.run.steps, stored.optimizer.decay_steps) == (23, 18)
    in_steps = resumed(stored, {"run.steps": 24})
    assert in_steps.run.epochs is None and run(in_steps, resume=True).steps == 24
    for refuse in (
        lambda: first_settings(Configuration, {**given, "run.steps": 3}),
        lambda: resumed(stored, {"run.steps": 3, "run.epochs": 1.0}),
    ):
        with pytest.raises(ConfigurationError, match="run.steps = 3 and run.epochs = .* give one"):
            refuse()


@pytest.mark.parametrize(
    "epochs, samples, steps", [(1.1, 10, 11), (1, 1, 1), (0.05, 10, 1), (3.0, 10**9, 3 * 10**9)]
)
def test_epochs_are_counted_exactly(epochs, samples, steps):
    given = {"run.epochs": epochs, "batch.sequences": 1, "batch.micro_batch": 1}
    assert with_steps(first_settings(Configuration, given), samples).run.steps == steps
