"""What must be the same on all ranks is compared before the first step: a difference is refused on
all of them, and named.

Each case is run with two and three ranks, and differs on the first rank or on the last.
"""

import re
import threading
from pathlib import Path

import h5py
import numpy
import pytest
from builders import TINY_RUN

import shardkit as sk
from shardkit.testing.base import PeerError
from shardkit.testing.comm import alike, collectively, versions
from shardkit.testing.data import Preparation, prepare_tokens
from shardkit.testing.nn import R2, RMSE
from shardkit.testing.task import Language, task_of
from shardkit.testing.train import TrainedRun, configuration_of, first_settings, train_run

X = numpy.random.default_rng(0).normal(size=(48, 4)).astype(numpy.float32)
Y = X.sum(1, keepdims=True)
HELD = X[:9] + 1, Y[:9]
SETTINGS = {"run.steps": 3, "batch.sequences": 12, "batch.micro_batch": 2}
LIMIT = 30  # seconds, after which a rank that waits for others fails the test


@pytest.fixture(params=[2, 3])
def num_ranks(request):
    return request.param


@pytest.fixture(params=["first", "last"])
def odd(request, num_ranks):
    """The rank that differs."""
    return 0 if request.param == "first" else num_ranks - 1


class Rows(sk.Samples):
    """Samples whose fingerprint, length and runs are as they are said."""

    def __init__(self, num=48, mark="rows", run_length=1):
        self.num, self.mark, self.run_length = num, mark, run_length

    def __len__(self):
        if self.num == "broken":
            raise OSError("no file")
        return self.num

    def read(self, numbers):
        return X[numbers % len(X)], Y[numbers % len(X)]

    def fingerprint(self):
        if self.mark == "broken":
            raise OSError("no file")
        return self.mark


class Steps(sk.Callback):
    """Counts the steps of all ranks."""

    on_all_ranks = True

    def __init__(self, taken):
        self.taken = taken

    def after_step(self, step, loss):
        self.taken.append(step)


class Other(sk.Callback):
    on_all_ranks = True


class Weighted(RMSE):
    def __init__(self, weight):
        self.weight = weight


def mlp(width=8, **more):
    return sk.models.MLP([4, width, 1], **more)


def trained_before(value):
    model = mlp()
    model.parameters()[0].array[...] = value
    return model


def raising():
    raise OSError("no file")


def shuffled(seed):
    order = numpy.random.default_rng(seed).permutation(len(X))
    return (X[order[:40]], Y[order[:40]]), (X[order[40:]], Y[order[40:]])


def other_row(arrays):
    x = arrays[0].copy()
    x[0, 0] += 1
    return x, arrays[1]


def with_settings(**changes):
    return {"settings": {**SETTINGS, **{key.replace("__", "."): v for key, v in changes.items()}}}


# {what differs: (usual arguments of Training, those of the odd rank, what the message names)}
DIFFERENCES = {
    "an unseeded split": ({"data": shuffled(1)}, {"data": shuffled(2)}, "fingerprint of the train"),
    "a training row": ({}, {"data": (other_row((X, Y)), HELD)}, "fingerprint of the training"),
    "the dtype of x": ({}, {"data": ((X.astype("float64"), Y), HELD)}, "fingerprint of the train"),
    "the order of rows": ({}, {"data": ((X[::-1], Y[::-1]), HELD)}, "fingerprint of the training"),
    "training rows": ({}, {"data": ((X[:40], Y[:40]), HELD)}, "number of training samples is"),
    "training and validation": ({}, {"data": (HELD, (X, Y))}, "number of training samples is"),
    "a validation row": ({}, {"data": ((X, Y), other_row(HELD))}, "fingerprint of the validation"),
    "validation rows": ({}, {"data": ((X, Y), (X[:8], Y[:8]))}, "number of validation samples is"),
    "a length": ({"data": (Rows(), Rows(9))}, {"data": (Rows(47), Rows(9))}, "training samples is"),
    "a mark": ({"data": (Rows(), Rows(9))}, {"data": (Rows(mark="b"), Rows(9))}, "fingerprint"),
    "runs of samples": (
        {"data": (Rows(), Rows(9))},
        {"data": (Rows(run_length=4), Rows(9))},
        "run_length of the training samples is",
    ),
    "the folder": ({}, {"folder": "elsewhere"}, "run.folder is"),
    "the steps": ({}, with_settings(run__steps=5), "run.steps is"),
    "the seed": ({}, with_settings(run__seed=5), "run.seed is"),
    "the batch": ({}, with_settings(batch__sequences=24), "batch.sequences is"),
    "the micro-batch": ({}, with_settings(batch__micro_batch=1), "batch.micro_batch is"),
    "the learning rate": ({}, with_settings(optimizer__learning_rate=1.0), "learning_rate is"),
    "the rule": ({}, with_settings(optimizer__name="sgd"), "optimizer.name is"),
    "the schedule": ({}, with_settings(optimizer__decay="linear"), "optimizer.decay is"),
    "the mesh": ({}, with_settings(mesh__pipeline=2), "mesh.pipeline is"),
    "the policy": ({}, with_settings(parallel__policy="ddp"), "parallel.policy is"),
    "the patience": ({}, with_settings(run__patience=2), "run.patience is"),
    "the improvement": (
        {},
        with_settings(run__minimum_improvement=0.5),
        "run.minimum_improvement is",
    ),
    "the checkpoints": ({}, with_settings(run__checkpoint_every=1), "checkpoint_every is"),
    "the loss": ({}, {"loss": sk.nn.L1Loss()}, "its loss is"),
    "a constant of the loss": (
        {"loss": sk.nn.HuberLoss(delta=1.0)},
        {"loss": sk.nn.HuberLoss(delta=2.0)},
        "its loss is",
    ),
    "a metric": ({"metrics": {"a": RMSE()}}, {"metrics": {"a": R2()}}, "its metrics is"),
    "a metric's name": ({"metrics": {"a": RMSE()}}, {"metrics": {"b": RMSE()}}, "its metrics is"),
    "a metric's constant": (
        {"metrics": {"a": Weighted(1)}},
        {"metrics": {"a": Weighted(2)}},
        "its metrics is",
    ),
    "no metric": ({"metrics": {"a": RMSE()}}, {"metrics": {}}, "its metrics is"),
    "companions": (
        {"companions": {"tokenizer.json": b"{}"}},
        {"companions": {"tokenizer.json": b"{ }"}},
        "its tokenizer.json is",
    ),
    "the width": ({}, {"task": mlp(9)}, "parameter"),
    "the activation": ({}, {"task": mlp(activation="relu")}, "module"),
    "initial values": (
        {"task": trained_before(0.5)},
        {"task": trained_before(0.25)},
        "parameter .* values checksum",
    ),
    "the seed of the model": ({}, {"task": mlp(seed=7)}, "the model.s seed is"),
    "fewer parameters": ({}, {"task": sk.models.MLP([4, 1])}, "parameter|block"),
    "a callback on all ranks": ({}, {"callbacks": [Other()]}, "callbacks on all ranks is"),
}


def trained(folder, num_ranks, odd, usual, other, begin=None):
    """(error of each rank or None, steps that any rank has taken)."""
    taken = []

    def run(backend):
        given = {**usual, **(other if backend.rank == odd else {})}
        given = {"task": mlp(), "data": ((X, Y), HELD), "folder": "run", **given}
        given["folder"] = folder / given["folder"]
        given["callbacks"] = [Steps(taken), *given.get("callbacks", ())]
        given["settings"] = {**SETTINGS, **given.get("settings", {})}
        try:
            training = sk.Training(given.pop("task"), backend=backend, **given)
            (begin or sk.Training.run)(training)
        except Exception as error:
            return error
        return None

    return sk.run_ranks(num_ranks, run, timeout=LIMIT), taken


def check_refused(errors, kinds, odd, words):
    """All ranks have the same error, which names the odd rank and both values."""
    assert {type(error) for error in errors} <= set(kinds) and len(set(map(str, errors))) == 1, (
        errors
    )
    text = str(errors[0])
    assert f"on rank {odd}" in text or f"rank {odd}:" in text
    assert re.search(words, text), text


@pytest.mark.parametrize("what", DIFFERENCES)
def test_a_difference_is_refused_on_all_ranks_before_the_first_step(what, num_ranks, odd, tmp_path):
    usual, other, words = DIFFERENCES[what]
    errors, taken = trained(tmp_path, num_ranks, odd, usual, other)
    assert not taken, "steps were trained"
    check_refused(errors, [sk.ShardingError], odd, words)
    assert " but " in str(errors[0])  # the other value, and who has it
    assert not list(tmp_path.glob("*/checkpoints/*")) and not list(tmp_path.glob("*/metrics*"))


def test_there_are_more_than_twenty_differences():
    assert len(DIFFERENCES) > 20


VERSIONS = ["shardkit", "numpy", "numba", "Python"]


@pytest.mark.parametrize("what", VERSIONS)
def test_other_software_is_refused(what, num_ranks, odd, tmp_path, monkeypatch):
    name = f"the version of {what}"
    assert name in versions()

    def of_this_rank():
        is_odd = threading.current_thread().name == f"rank {odd}"
        return {**versions(), **({name: "0.0.1"} if is_odd else {})}

    monkeypatch.setattr("shardkit.testing.train.agreement.versions", of_this_rank)
    errors, taken = trained(tmp_path, num_ranks, odd, {}, {})
    assert not taken
    check_refused(errors, [sk.ShardingError], odd, f"{name} is")


# {what one rank raises before the comparison: arguments of Training}
RAISED = {
    "length": {"data": (Rows("broken"), Rows(9))},
    "fingerprint": {"data": (Rows(mark="broken"), Rows(9))},
    "validation": {"data": (Rows(), Rows("broken"))},
    "the file of the model": {"task": raising},
    "a setting": with_settings(run__stepz=3),
    "no samples": {"data": ((X[:0], Y[:0]), HELD)},
}


@pytest.mark.parametrize("what", RAISED)
def test_what_one_rank_raises_before_it_is_raised_on_all(what, num_ranks, odd, tmp_path):
    usual = {} if "data" not in RAISED[what] else {"data": (Rows(), Rows(9))}
    errors, taken = trained(tmp_path, num_ranks, odd, usual, RAISED[what])
    assert not taken and all(errors)
    check_refused(errors, [OSError, FileNotFoundError, sk.ConfigurationError], odd, "")


def test_a_run_that_goes_on_for_one_rank_is_refused(num_ranks, odd, tmp_path):
    assert not any(trained(tmp_path, num_ranks, odd, {}, {})[0])

    def run(backend):
        task = task_of(mlp(), ((X, Y), HELD))
        given = {"run.folder": str(tmp_path / "run"), **SETTINGS, "run.steps": 4}
        settings = first_settings(configuration_of(task), given)
        with pytest.raises(sk.ShardingError) as caught:
            train_run(settings, backend, resume=backend.rank == odd)
        return caught.value

    errors = sk.run_ranks(num_ranks, run, timeout=LIMIT)
    check_refused(errors, [sk.ShardingError], odd, "whether the run goes on is")


# ---- what may differ -----------------------------------------------------------------------------


def test_copies_of_the_data_callbacks_of_one_rank_and_spellings_of_a_folder_are_no_difference(
    tmp_path,
):
    (tmp_path / "sub").mkdir()

    def run(backend):
        path = tmp_path / f"local-{backend.rank}.h5"
        with h5py.File(path, "w") as file:
            file["x"], file["y"] = X, Y
        with h5py.File(path) as file:
            folder = tmp_path / ("sub/../run" if backend.rank else "run")
            callbacks = [] if backend.rank else [sk.Callback()]
            return (
                sk.Training(
                    mlp(),
                    ((file["x"], file["y"]), HELD),
                    folder=folder,
                    settings=SETTINGS,
                    callbacks=callbacks,
                    backend=backend,
                )
                .run()
                .steps
            )

    assert sk.run_ranks(3, run, timeout=LIMIT) == [3] * 3


# ---- measuring, predicting, optimizing, preparing ------------------------------------------------


@pytest.fixture(scope="module")
def language(tmp_path_factory):
    """A folder with two runs of one model, and two texts."""
    folder = tmp_path_factory.mktemp("language")
    for name in ("a", "b"):
        (folder / f"{name}.txt").write_text(f"a text of many lines {name}\n" * 60)
        paths = {"data.path": [str(folder / "a.txt")], "run.folder": str(folder / name)}
        given = {**TINY_RUN, **paths, "run.steps": 1}
        settings = configuration_of(Language)().replace(given)
        sk.run_ranks(1, lambda backend: train_run(settings, backend))
    return folder


# {what differs: (arguments of TrainedRun, data, what the message names)}
OF_RUNS = {
    "the run": ({"folder": "b"}, "a.txt", "run.folder is"),
    "a setting": ({"given": {"parallel.policy": "ddp"}}, "a.txt", "settings is"),
    "averages": ({"averaged": True}, "a.txt", "averaged is"),
    "the samples": ({}, "b.txt", "fingerprint of the given samples"),
    "where they are from": ({}, None, "data is (a path|NoneType)"),
}


@pytest.mark.parametrize("what", OF_RUNS)
def test_a_run_is_measured_alike_by_all_ranks(what, num_ranks, odd, language):
    other, data, words = OF_RUNS[what]

    def run(backend):
        is_odd = backend.rank == odd
        given = {"folder": "a", "given": {}, **(other if is_odd else {})}
        folder = language / given.pop("folder")
        path = data if is_odd else "a.txt"
        with pytest.raises(sk.ShardingError) as caught:
            measured = TrainedRun(folder, given.pop("given"), backend, **given)
            measured.samples(path and str(language / path))
        return caught.value

    check_refused(sk.run_ranks(num_ranks, run, timeout=LIMIT), [sk.ShardingError], odd, words)


def test_ranks_may_give_one_path_as_text_and_as_a_path(language):
    def run(backend):
        measured = TrainedRun(language / "a", {}, backend)
        kind = (str, Path)[backend.rank]
        return len(measured.samples(kind(language / "a.txt")))

    (num_samples,) = set(sk.run_ranks(2, run, timeout=LIMIT))
    assert num_samples > 10


MEASURED = {
    "evaluate samples": (lambda run, odd: run.evaluate(((X + odd, Y))), "fingerprint"),
    "evaluate a number of them": (lambda run, odd: run.evaluate((X[odd:], Y[odd:])), "number of"),
    "predict": (lambda run, odd: run.predict(X + odd, "out.h5"), "fingerprint"),
    "predict into": (lambda run, odd: run.predict(X, f"out-{odd}.h5"), "output is"),
}


@pytest.mark.parametrize("what", MEASURED)
def test_other_samples_are_not_measured(what, num_ranks, odd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    measure, words = MEASURED[what]

    def run(backend):
        given = {"folder": tmp_path / "run", "settings": SETTINGS, "backend": backend}
        training = sk.Training(mlp(), ((X, Y), HELD), **given)
        training.run()
        with pytest.raises(sk.ShardingError) as caught:
            measure(training, int(backend.rank == odd))
        measure(training, 0)
        return caught.value

    check_refused(sk.run_ranks(num_ranks, run, timeout=LIMIT), [sk.ShardingError], odd, words)


OPTIMIZED = {
    "x_train": ({"x_train": X + 1}, {}, "the content of x_train is"),
    "dtype": ({"x_train": X.astype("float64")}, {}, "x_train is float"),
    "a tree": ({"x_train": (X, X + 1)}, {}, "x_train is"),
    "y_train": ({"y_train": Y + 1}, {}, "y_train is"),
    "one value": ({"x_train": other_row((X, Y))[0]}, {}, "x_train is"),
    "x_validation": ({"x_validation": HELD[0] + 1}, {}, "x_validation is"),
    "y_test": ({"x_test": HELD[0], "y_test": HELD[1]}, {}, "x_test is"),
    "epochs": ({"epochs": 3}, {}, "epochs is"),
    "shuffle_seed": ({"shuffle_seed": 3}, {}, "shuffle_seed is"),
    "initial_solution": (
        {"initial_solution": numpy.ones(49, "float32")},
        {},
        "parameter vector is",
    ),
    "patience": ({}, {"patience": 3}, "patience is"),
    "folder": ({}, {"folder": "other"}, "folder is"),
}


@pytest.mark.parametrize("what", OPTIMIZED)
def test_optimize_takes_the_same_on_all_ranks(what, num_ranks, odd, tmp_path):
    data, how, words = OPTIMIZED[what]
    usual = {"x_train": X, "y_train": Y, "x_validation": HELD[0], "y_validation": HELD[1]}
    usual |= {"epochs": 1, "batch_size": 12, "initial_solution": numpy.zeros(49, "float32")}

    def run(backend):
        is_odd = backend.rank == odd
        config = sk.ShardingConfiguration(backend, loss=sk.nn.MSELoss())
        patience = how.get("patience") if is_odd else None
        optimizer = sk.FSDPOptimizer(sk.SGD(lr=0.1), config, model=mlp(), patience=patience)
        folder = tmp_path / (how.get("folder", "run") if is_odd else "run")
        with pytest.raises((sk.ShardingError, sk.ShapeError)) as caught:
            given = sk.OptimizationInputData(**{**usual, **(data if is_odd else {})})
            optimizer.optimize(given, folder=folder)
        assert optimizer.model.step_number == 0
        return caught.value

    errors = sk.run_ranks(num_ranks, run, timeout=LIMIT)
    check_refused(errors, [sk.ShardingError, sk.ShapeError], odd, words)


PREPARED = {
    "output": ({"output": "other.h5"}, "output is"),
    "inputs": ({"inputs": ("b.txt",)}, "inputs is"),
    "tokenizer": ({"tokenizer": None, "train_vocabulary": 300}, "tokenizer is"),
    "field": ({"field": "body"}, "field is"),
}


@pytest.mark.parametrize("what", PREPARED)
def test_prepare_takes_the_same_on_all_ranks(what, num_ranks, odd, tmp_path):
    other, words = PREPARED[what]
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("some text\n" * 30)

    def run(backend):
        given = {"inputs": ("a.txt",), "output": "tokens.h5", "tokenizer": "bytes", "field": None}
        given |= other if backend.rank == odd else {}
        given["inputs"] = tuple(str(tmp_path / name) for name in given["inputs"])
        given["output"] = tmp_path / given["output"]
        with pytest.raises(sk.ShardingError) as caught:
            prepare_tokens(backend, Preparation(**given))
        return caught.value

    errors = sk.run_ranks(num_ranks, run, timeout=LIMIT)
    check_refused(errors, [sk.ShardingError], odd, words)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "b.txt"]


def test_a_long_prompt_that_differs_in_its_middle_is_refused():
    def run(backend):
        model = sk.FSDPModel(
            sk.models.GPT(256, 2048, width=8, layers=1, heads=1), sk.ShardingConfiguration(backend)
        )
        prompt = numpy.zeros(2000, numpy.int64)
        prompt[1000] = backend.rank
        with pytest.raises(sk.ShardingError, match="prompts is"):
            model.generate([prompt], 1)
        return True

    assert all(sk.run_ranks(2, run, timeout=LIMIT))


# ---- the comparison itself -----------------------------------------------------------------------


def test_all_names_that_differ_are_told_and_ranks_are_grouped_by_value():
    def run(backend):
        with pytest.raises(sk.ShardingError) as caught:
            with alike(backend, "do so") as facts:
                facts |= {name: str(backend.rank * (backend.rank > 1)) for name in "abcdefg"}
                facts["same"] = "1"
        return str(caught.value)

    (text,) = set(sk.run_ranks(4, run, timeout=LIMIT))
    assert text == (
        "a is 2 on rank 2, 3 on rank 3, but 0 on ranks 0, 1; do so (also different: b, c, d, e, f "
        "...)"
    )


def test_an_error_in_the_block_is_raised_on_all_ranks():
    def run(backend):
        with pytest.raises(OSError, match="no disk"):
            with alike(backend) as facts:
                facts["rank"] = str(backend.rank)
                if backend.rank == 1:
                    raise OSError("no disk")
        return True

    assert all(sk.run_ranks(3, run, timeout=LIMIT))


class Empty(Exception):
    """An error that is false, as an empty list is."""

    def __len__(self):
        return 0


def test_an_error_that_is_false_is_one():
    def run(backend):
        with pytest.raises((Empty, PeerError)) as caught:
            with collectively(backend):
                if backend.rank == 1:
                    raise Empty
        return caught.type

    assert sk.run_ranks(2, run, timeout=LIMIT) == [PeerError, Empty]
