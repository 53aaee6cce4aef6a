"""optimize() in a folder: it goes on after an end, on another mesh, to the same bits; what it
reports; metrics of models.
"""

import os
import shutil
import signal
from collections import Counter

import numpy
import pytest
from builders import sha256
from checkpoints import flip_bit

import shardkit as sk
from shardkit import CheckpointError, StopVoted
from shardkit.testing.parallel import evaluate_set, optimizing

RNG = numpy.random.default_rng(3)
LIMIT = 500  # seconds
X, Y = RNG.normal(size=(24, 5)), RNG.normal(size=(24, 2))
X_HELD, Y_HELD = RNG.normal(size=(7, 5)), RNG.normal(size=(7, 2))


def data(**changes):
    given = {"epochs": 4, "batch_size": 8, "x_validation": X_HELD, "y_validation": Y_HELD}
    return sk.OptimizationInputData(X, Y, **{**given, **changes})


def optimizer_of(backend, *, auto=True, **ends):
    config = sk.ShardingConfiguration(
        backend, minimum_parameter_group_size=1, auto_synchronize_gradients=auto
    )
    model = sk.models.MLP([5, 9, 2], dtype="float64", seed=4)
    return sk.FSDPOptimizer(sk.AdamW(lr=0.03), config, model=model, **ends)


def optimized(num_ranks, *, stop_after=None, given=None, auto=True, **arguments):
    """(fitness history, best score, hash of the best parameters, steps) of each rank; "stopped"
    where rank 0 asked to stop after so many steps of this call.
    """

    def run(backend):
        optimizer = optimizer_of(backend, auto=auto)
        asked = []

        def stop():
            asked.append(1)
            return backend.rank == 0 and stop_after is not None and len(asked) > stop_after

        try:
            result = optimizer.optimize(given or data(), stop=stop, **arguments)
        except SystemExit as end:
            assert end.code == 75
            return "stopped"
        parameters = optimizer.model.gather_full_parameters()
        score = result.best_fitness_score
        return result.fitness_history, score, sha256(parameters), result.iterations

    return sk.run_ranks(num_ranks, run)


@pytest.mark.parametrize("auto", [True, False])
@pytest.mark.thorough
def test_a_stopped_run_goes_on_to_the_bits_of_an_uninterrupted_one(tmp_path, auto):
    (whole,) = set(optimized(2, auto=auto))
    for stop_after in (4, 2, 3):  # in epoch 1, at epoch 2, before the last
        assert set(optimized(2, stop_after=stop_after, auto=auto, folder=tmp_path)) == {"stopped"}
    assert set(optimized(2, auto=auto, folder=tmp_path)) == {whole}
    # a run that is done is read, not trained again
    assert set(optimized(2, stop_after=0, auto=auto, folder=tmp_path)) == {whole}


@pytest.mark.thorough
def test_a_stopped_run_goes_on_on_other_meshes(tmp_path):
    (whole,) = set(optimized(2))
    for ranks, stop_after in ((2, 4), (1, 2), (4, 3)):
        assert set(optimized(ranks, stop_after=stop_after, folder=tmp_path)) == {"stopped"}
    ((history, score, parameters, steps),) = set(optimized(1, folder=tmp_path))
    assert (parameters, steps) == whole[2:]
    # the mean over the validation set rounds as its parts are cut
    numpy.testing.assert_allclose([*history, score], [*whole[0], whole[1]], rtol=1e-13)


def test_more_epochs_can_be_added(tmp_path):
    (whole,) = set(optimized(1, given=data(epochs=6)))
    optimized(1, given=data(epochs=3), folder=tmp_path)
    assert set(optimized(1, given=data(epochs=6), folder=tmp_path)) == {whole}


def test_without_a_folder_a_stop_is_an_error_on_all_ranks():
    def run(backend):
        with pytest.raises(StopVoted):
            optimizer_of(backend).optimize(data(), stop=lambda: backend.rank == 1)

    sk.run_ranks(2, run)


@pytest.mark.parametrize("auto", [True, False])
@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_an_error_of_the_question_whether_to_stop_is_one_of_all_ranks(num_ranks, auto):
    def run(backend):
        optimizer, asked = optimizer_of(backend, auto=auto), []

        def stop():
            asked.append(1)
            if backend.rank == num_ranks - 1 and len(asked) == 3:
                raise ValueError("no such file of wishes")
            return False

        with pytest.raises(ValueError, match="no such file of wishes"):
            optimizer.optimize(data(batch_size=6), stop=stop)
        before = optimizer.model.step_number
        optimizer.zero_gradients()
        optimizer.model.train(*sk.split_batch(optimizer.model.mesh, X, Y))  # nobody is asked now
        return before

    assert sk.run_ranks(num_ranks, run, timeout=LIMIT) == [2] * num_ranks


@pytest.mark.parametrize("auto", [True, False])
def test_to_ask_whether_to_stop_costs_no_message(auto):
    """An epoch sends what its steps and the measuring of its validation set send."""

    def sent(backend, action):
        traffic = backend.traffic
        before = Counter(traffic.calls)
        action()
        return Counter(traffic.calls) - before

    def run(backend):
        def epochs(num):
            optimizer = optimizer_of(backend, auto=auto, patience=9)
            how = {"stop": lambda: False}
            return sent(backend, lambda: optimizer.optimize(data(epochs=num), **how))

        def one_epoch():
            for batch in data().batches(0):
                model.train(*sk.split_batch(model.mesh, X[batch], Y[batch]))
                if not auto:
                    optimizer.step()
            evaluate_set(model, (X_HELD, Y_HELD), 8)

        optimizer = optimizer_of(backend, auto=auto)
        model = optimizer.model
        sent(backend, one_epoch)  # what is sent once
        return epochs(3) - epochs(2), sent(backend, one_epoch)

    for of_an_epoch, wanted in sk.run_ranks(2, run):
        assert of_an_epoch == wanted and wanted["all_reduce"] > 3


def steps_in(folder):
    return sorted(int(path.name[5:]) for path in folder.glob("step-*"))


LOSSES = [3.0, 1.0, 2.0, 4.0, 5.0, 6.0]
NAN = float("nan")


@pytest.fixture
def scripted(monkeypatch):
    """A function that says what all sets measure after each epoch of three steps."""

    def script(losses):
        def measure(model, samples, batch_size, metrics=None):
            return sk.EvaluationResult(losses[model.step_number // 3 - 1], 7)

        monkeypatch.setattr(optimizing, "evaluate_set", measure)

    return script


@pytest.mark.parametrize(
    "losses, best, kept",
    [
        (LOSSES, 6, [6, 15, 18]),
        ([3.0, 3.0, 3.0, 3.0, 3.0, 3.0], 3, [3, 15, 18]),  # the earlier of equal ones
        ([6.0, 5.0, 4.0, 3.0, 2.0, 1.0], 18, [15, 18]),
        ([5.0, 4.0, 1.0, 3.0, 2.0, 0.5], 18, [9, 15, 18]),  # 9: the best one when 15 was saved
        ([NAN, 3.0, NAN, 4.0, 5.0, 6.0], 6, [6, 15, 18]),
        ([NAN] * 6, None, [3, 15, 18]),
    ],
)
def test_the_checkpoint_of_the_best_epoch_stays_beside_the_newest(
    tmp_path, scripted, losses, best, kept
):
    scripted(losses)

    def run(backend):
        optimizer = optimizer_of(backend, patience=9)
        optimizer.optimize(data(epochs=6), folder=tmp_path)
        return optimizer.model.gather_full_parameters()

    at_end = sk.run_ranks(2, run)[0]
    assert steps_in(tmp_path / "checkpoints") == kept
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoints"]

    def load(backend, which):
        model = optimizer_of(backend).model
        taken = model.load_model(tmp_path / "checkpoints", only="model", checkpoint=which)
        return taken["step"], model.gather_full_parameters()

    step, parameters = sk.run_ranks(1, lambda backend: load(backend, best or kept[0]))[0]
    numpy.testing.assert_array_equal(parameters, at_end)
    if best is not None:
        for which in ("best", None):  # None: the best, since there was a patience
            assert sk.run_ranks(1, lambda backend, which=which: load(backend, which))[0][0] == best


@pytest.mark.filterwarnings("ignore:.*passed over")
def test_a_run_whose_last_checkpoint_was_the_best_and_is_damaged_goes_on(tmp_path, scripted):
    scripted([5.0, 4.0, 1.0, 3.0, 2.0, 0.5])
    (whole,) = set(optimized(2, given=data(epochs=6), folder=tmp_path))
    flip_bit(tmp_path / "checkpoints" / "step-00000018" / "rank-00000.h5")
    for ranks in (2, 1):  # from step 15, whose best epoch is that of step 9; then it is read
        assert set(optimized(ranks, given=data(epochs=6), folder=tmp_path)) == {whole}
    assert steps_in(tmp_path / "checkpoints") == [9, 15, 18]


def test_a_folder_in_which_the_best_epoch_lies_apart_goes_on(tmp_path, scripted):
    """So older releases wrote it."""
    scripted(LOSSES)
    (whole,) = set(optimized(2))
    assert set(optimized(2, stop_after=10, folder=tmp_path)) == {"stopped"}
    assert steps_in(tmp_path / "checkpoints") == [6, 9, 10]
    (tmp_path / "best").mkdir()
    shutil.move(tmp_path / "checkpoints" / "step-00000006", tmp_path / "best")
    assert set(optimized(2, folder=tmp_path)) == {whole}
    assert set(optimized(1, folder=tmp_path)) == {whole}


@pytest.mark.parametrize(
    "changes, name",
    [
        ({"batch_size": 12}, "batch_size"),
        ({"shuffle_seed": 1}, "shuffle_seed"),
        ({"x_validation": X_HELD + 1}, "validation set"),
    ],
)
def test_other_data_is_refused_on_all_ranks_and_the_model_stays(tmp_path, changes, name):
    optimized(1, folder=tmp_path, given=data(epochs=1))

    def run(backend):
        optimizer = optimizer_of(backend)
        before = optimizer.model.gather_full_parameters()
        with pytest.raises(CheckpointError, match=name):
            optimizer.optimize(data(**changes), folder=tmp_path)
        numpy.testing.assert_array_equal(optimizer.model.gather_full_parameters(), before)

    sk.run_ranks(2, run)


def test_checkpoints_of_something_else_are_refused(tmp_path):
    def run(backend):
        optimizer = optimizer_of(backend)
        optimizer.model.save_model(tmp_path / "checkpoints")
        with pytest.raises(CheckpointError, match="no optimize"):
            optimizer.optimize(data(), folder=tmp_path)

    sk.run_ranks(2, run)


class Notes(sk.Callback):
    """What was called, on each rank that calls it."""

    def __init__(self):
        self.seen = []

    def at_start(self, run):
        self.seen.append(("start", run.model.step_number, run.folder))

    def after_step(self, step, loss):
        self.seen.append(("step", step, loss > 0))

    def after_validation(self, step, values):
        self.seen.append(("validation", step, sorted(values)))

    def after_checkpoint(self, step, folder):
        self.seen.append(("checkpoint", step, folder.rsplit("/", 1)[-1]))

    def at_end(self, result):
        self.seen.append(("end", result.iterations))


def test_callbacks_hear_of_steps_validations_and_checkpoints(tmp_path):
    def run(backend):
        notes = Notes()
        optimizer_of(backend).optimize(data(epochs=1), folder=tmp_path, callbacks=[notes])
        return notes.seen

    first, second = sk.run_ranks(2, run)
    assert second == []  # rank 0 alone calls it
    assert first == [
        ("start", 0, tmp_path),
        *(("step", step, True) for step in (1, 2, 3)),
        ("validation", 3, ["fitness", "train_loss", "validation_loss"]),
        ("checkpoint", 3, "step-00000003"),
        ("end", 3),
    ]


def test_results_and_metadata_have_the_metrics_of_the_model():
    def run(backend):
        optimizer = optimizer_of(backend)
        result = optimizer.optimize(data(epochs=1, x_test=X[:5], y_test=Y[:5]))
        model = result.best_solution
        part = sk.split_batch(model.mesh, X, Y)
        loss = model.evaluate(*part)
        evaluation = model.get_model_metadata()["evaluation"]
        model.get_feature_importance(*part)
        assert model.get_model_metadata()["evaluation"] == evaluation
        assert evaluation["loss"] == loss and evaluation["step"] == 3
        sets = result.training_result, result.validation_result, result.test_result
        return evaluation["metrics"], [each.metrics for each in sets], model.predict(X)

    results = sk.run_ranks(2, run)
    for metrics, of_sets, prediction in results:
        error = prediction - Y
        expected = {
            "rmse": (error**2).mean() ** 0.5,
            "mae": abs(error).mean(),
            "r2": 1 - ((error**2).sum(0) / ((Y - Y.mean(0)) ** 2).sum(0)).mean(),
        }
        assert metrics == pytest.approx(expected, rel=1e-12)
        assert of_sets[0] == metrics and all(
            figures.keys() == expected.keys() for figures in of_sets
        )
    assert str(results[0][:2]) == str(results[1][:2])


def test_a_classifier_reports_accuracy_and_f1_and_other_metrics_can_be_asked_for():
    y = (X[:, 0] > 0).astype(int) + (X[:, 1] > 1)

    class Largest(sk.Metric):
        def sums(self, prediction, y):
            return numpy.array([float(len(y))])

        def value(self, sums):
            return sums[0]

    def run(backend):
        config = sk.ShardingConfiguration(backend)
        model = sk.DDPModel(
            sk.models.MLP([5, 6, 3], task="classification", dtype="float64"), config
        )
        part = sk.split_batch(model.mesh, X, y)
        model.evaluate(*part)
        own = model.get_model_metadata()["evaluation"]["metrics"]
        model.evaluate(*part, metrics={"rows": Largest()})
        asked = model.get_model_metadata()["evaluation"]["metrics"]
        return own, asked, model.predict(X)

    for own, asked, prediction in sk.run_ranks(3, run):
        assert own["accuracy"] == (prediction.argmax(1) == y).mean() and 0 <= own["macro_f1"] <= 1
        assert asked == {"rows": 24.0}


@pytest.mark.parametrize("first", ["copy", "original"])
def test_whoever_closes_first_leaves_the_mesh_to_the_others(first):
    def run(backend):
        config = sk.ShardingConfiguration(backend)
        model = sk.HybridShardedModel(
            sk.models.MLP([5, 8, 2], dtype="float64"), config, tensor_parallel_size=2
        )
        part = sk.split_batch(model.mesh, X, Y)
        model.train(*part)
        others = [model.deep_copy(), model.with_parameters(model.gather_full_parameters())]
        closed, open_ones = (others, [model]) if first == "copy" else ([model], others)
        for each in closed:
            each.close()
        return [each.train(*part) for each in open_ones for _ in range(2)]

    assert len(set(map(str, sk.run_ranks(4, run)))) == 1


class Kill(sk.Callback):
    """A signal to this process after a step."""

    def after_step(self, step, loss):
        if step == 2:
            os.kill(os.getpid(), signal.SIGUSR1)


def test_a_signal_saves_and_leaves_with_75(tmp_path):
    numbers = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT)
    before = {number: signal.getsignal(number) for number in numbers}
    backend = sk.InMemoryCommunicationBackend(0, 1, "killed")  # ranks as threads get no signals
    try:
        with pytest.raises(SystemExit) as end:
            optimizer_of(backend).optimize(data(), folder=tmp_path, callbacks=[Kill()])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert end.value.code == 75 and (tmp_path / "checkpoints" / "step-00000002").is_dir()
