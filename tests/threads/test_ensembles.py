"""sk.Ensemble: trials on groups of ranks, what is recorded of them, and what they say together."""

import threading
from functools import partial

import h5py
import numpy
import pytest

import shardkit as sk
from shardkit import ConfigurationError, MeshError, ShardingError
from shardkit.nn import ops
from shardkit.testing import parallel
from shardkit.testing.checkpoint import compare, find_checkpoint
from shardkit.testing.ensemble import read_record

X = numpy.random.default_rng(0).normal(size=(40, 3)).astype(numpy.float32)
Y = (X[:, :1] * 2 - X[:, 1:2] ** 2).astype(numpy.float32)
SETTINGS = {
    "run.steps": 8,
    "run.validate_every": 2,
    "run.report_every": 2,
    "run.checkpoint_every": 4,
    "run.asynchronous_checkpoints": False,
    "batch.sequences": 12,
    "batch.micro_batch": 2,
    "optimizer.warmup_steps": 0,
}
RATES = [0.003, 0.0001, 0.03, 0.01, 0.001]
TRIALS = [{"run.seed": seed, "optimizer.learning_rate": rate} for seed, rate in enumerate(RATES)]


def training(settings, *, callbacks=(), loss=None, **place):
    model = sk.models.MLP([3, 8, 1], seed=settings["run.seed"])
    given = {**SETTINGS, **settings}
    return sk.Training(model, (X, Y), settings=given, callbacks=callbacks, loss=loss, **place)


def on_ranks(num_ranks, folder, groups, make=training, trials=TRIALS, **options):
    """The trials of an ensemble, as every rank returns them."""

    def run(backend):
        own = {"groups": groups, "folder": folder, "backend": backend, **options}
        return sk.Ensemble(make, trials, **own).run()

    first, *others = sk.run_ranks(num_ranks, run)
    assert all(other == first for other in others)
    return first


def alone(num_ranks, folder, settings):
    sk.run_ranks(
        num_ranks, lambda backend: training(settings, folder=folder, backend=backend).run()
    )


def are_equal(folder, other):
    found = [find_checkpoint(each)[0] for each in (folder, other)]
    return compare(*found, tolerance=0.0).is_equal


def statuses(trials):
    return [trial.status for trial in trials]


class Steps(sk.Callback):
    """Counts the steps of each trial, over all starts of an ensemble."""

    def __init__(self, counts, number, stop_at=None):
        self.counts, self.number, self.stop_at = counts, number, stop_at

    def after_step(self, step, loss):
        taken = self.counts.setdefault(self.number, [])
        taken.append(step)
        if step == self.stop_at:
            raise KeyboardInterrupt  # as a kill, nothing catches it


def counted(counts, stops, settings, *, callbacks, **place):
    number = settings["run.seed"]
    steps = Steps(counts, number, stops.get(number))
    return training(settings, callbacks=[*callbacks, steps], **place)


# ---- trials --------------------------------------------------------------------


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("num_ranks, groups", [(4, 2), (1, 1), (3, 3), (3, 1)])
def test_each_trial_has_the_bits_that_it_has_alone(num_ranks, groups, tmp_path):
    trials = on_ranks(num_ranks, tmp_path / "many", groups, trials=TRIALS[:3])
    assert statuses(trials) == ["finished"] * 3 and [t.step for t in trials] == [8] * 3
    for trial in trials:
        alone(num_ranks // groups, tmp_path / str(trial.number), trial.settings)
        assert are_equal(tmp_path / f"many/trials/{trial.number:04d}", tmp_path / str(trial.number))


def test_the_file_has_results_and_curves(tmp_path):
    trials = on_ranks(2, tmp_path, 2)
    with h5py.File(tmp_path / "sweep.h5") as file:
        assert file["loss"][:].tolist() == [trial.loss for trial in trials]
        assert file["settings/optimizer.learning_rate"][:].tolist() == RATES
        curve = file["trials/0003/validation_loss"][:]
    assert curve[:, 0].tolist() == [2, 4, 6, 8] and curve[-1, 1] == trials[3].loss
    assert read_record(tmp_path).trials == list(trials)


def test_groups_of_other_sizes_are_refused_on_all_ranks(tmp_path):
    with pytest.raises(MeshError, match="3 ranks in 2 groups are 1.5 ranks each.*one of 1, 3"):
        on_ranks(3, tmp_path, 2)


def broken_loss(prediction, y, *, on_rank=None):
    if on_rank is None or threading.current_thread().name == f"rank {on_rank}":
        raise ValueError("no loss here")
    return ops.mean(prediction)


def nan_loss(prediction, y):
    return ops.mean(prediction) * numpy.float32("nan")


FAILURES = {
    "make": (lambda settings, **place: {}["absent"], "KeyError: 'absent'"),
    "settings": (
        lambda settings, **place: training({**settings, "run.stepz": 3}, **place),
        "did you mean run.steps",
    ),
    "another thing": (lambda settings, **place: None, "make returned a NoneType; wanted the sk.T"),
    "no callbacks": (
        lambda settings, *, callbacks, **place: training(settings, **place),
        "make left out the folder or the callbacks",
    ),
    "no ranks": (
        lambda settings, *, backend, **place: training(settings, **place),
        "pass backend=",
    ),
    "a step": (partial(training, loss=broken_loss), "ValueError: no loss here"),
    "a step of a rank": (
        partial(training, loss=partial(broken_loss, on_rank=3)),
        "ValueError: rank 3: no loss here",
    ),
    "NaN": (
        lambda settings, **place: training(
            {**settings, "run.stop_after_bad_steps": 2}, loss=nan_loss, **place
        ),
        "NonFiniteError",
    ),
}


class Started(sk.Callback):
    """Keeps the models of all trials."""

    on_all_ranks = True

    def __init__(self):
        self.models = []

    def at_start(self, run):
        self.models.append(run.model)


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("way", FAILURES)
def test_a_trial_that_fails_is_recorded_and_the_others_go_on(way, tmp_path):
    failing, message = FAILURES[way]
    started = Started()

    def make(settings, *, callbacks, **place):  # trial 1, of the second group: ranks 2 and 3
        made = failing if settings["run.seed"] == 1 else training
        return made(settings, callbacks=[*callbacks, started], **place)

    own = [{**trial, "run.steps": 4} for trial in TRIALS[:3]]
    trials = on_ranks(4, tmp_path, 2, make, own)
    assert len(started.models) >= 4 and all(
        parallel.parts_of(each).is_closed for each in started.models
    )
    assert statuses(trials) == ["finished", "failed", "finished"]
    assert message in trials[1].error, trials[1].error
    again = on_ranks(2, tmp_path, 1, trials=own)
    assert again == trials, "a trial that failed is not run again"
    again = on_ranks(2, tmp_path, 1, trials=own, retry=True)
    assert statuses(again) == ["finished"] * 3 and not again[1].error


@pytest.mark.thorough
def test_what_one_rank_alone_raises_ends_the_ensemble_and_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(parallel.shortage, "PATIENCE_SECONDS", 0.5)

    class Raises(sk.Callback):
        def after_step(self, step, loss):
            raise RuntimeError("on the first rank alone")

    def make(settings, *, callbacks, **place):
        own = [Raises()] if settings["run.seed"] == 1 else []
        return training(settings, callbacks=[*callbacks, *own], **place)

    with pytest.raises(RuntimeError, match="on the first rank alone"):
        on_ranks(2, tmp_path, 1, make)
    assert statuses(read_record(tmp_path).trials[:2]) == ["finished", "waiting"]


# ---- going on --------------------------------------------------------------------


@pytest.mark.thorough
def test_an_ensemble_that_was_killed_repeats_no_step_of_a_finished_trial(tmp_path):
    counts, stops = {}, {3: 6}
    make = partial(counted, counts, stops)
    with pytest.raises(KeyboardInterrupt):
        on_ranks(2, tmp_path / "killed", 1, make)
    assert [t.status for t in read_record(tmp_path / "killed").trials[:4]] == [
        *["finished"] * 3,
        "waiting",
    ]
    stops.clear()
    trials = on_ranks(2, tmp_path / "killed", 1, make)
    assert statuses(trials) == ["finished"] * 5
    assert {number: counts[number] for number in (0, 1, 2, 4)} == dict.fromkeys(
        (0, 1, 2, 4), list(range(1, 9))
    )
    assert counts[3] == [*range(1, 7), *range(5, 9)], "from its last checkpoint"
    alone(2, tmp_path / "3", trials[3].settings)
    assert are_equal(tmp_path / "killed/trials/0003", tmp_path / "3")


def test_trials_may_be_added_and_no_others_are_taken(tmp_path):
    two = on_ranks(1, tmp_path, 1, trials=TRIALS[:2])
    assert on_ranks(1, tmp_path, 1, trials=TRIALS[:3])[:2] == two
    with pytest.raises(ConfigurationError, match="holds another ensemble: trial 0 has settings"):
        on_ranks(1, tmp_path, 1, trials=TRIALS[1:4])
    with pytest.raises(ConfigurationError, match="2 trials, 3 before"):
        on_ranks(1, tmp_path, 1, trials=TRIALS[:2])
    with pytest.raises(ConfigurationError, match="seed = 1, 0 before"):
        on_ranks(1, tmp_path, 1, trials=TRIALS[:3], seed=1)


def test_one_ensemble_has_the_folder(tmp_path):
    told = []

    def make(settings, **place):
        with pytest.raises(ConfigurationError, match="belongs to") as caught:
            on_ranks(1, tmp_path, 1)
        told.append(str(caught.value))
        return training(settings, **place)

    assert statuses(on_ranks(1, tmp_path, 1, make, trials=TRIALS[:1])) == ["finished"] and told


def test_before_run_nothing_is_known(tmp_path):
    ensemble = sk.Ensemble(training, TRIALS, groups=1, folder=tmp_path)
    assert not ensemble.is_complete
    for asked in ("trials", "best"):
        with pytest.raises(ShardingError, match="no trials yet; call run"):
            getattr(ensemble, asked)


# ---- comparisons --------------------------------------------------------------------


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("num_ranks, groups", [(2, 2), (1, 1)])
def test_the_better_half_goes_on_with_the_bits_of_an_undisturbed_training(
    num_ranks, groups, tmp_path
):
    trials = on_ranks(num_ranks, tmp_path / "many", groups, compare_at=(2, 4), keep=0.5)
    reached = {trial.number: (trial.status, trial.step) for trial in trials}
    order = sorted(range(5), key=lambda number: trials[number].losses[0][1])
    assert [reached[number] for number in order[3:]] == [("stopped", 2)] * 2
    assert sorted(reached[number] for number in order[:3]) == [
        ("finished", 8),
        ("finished", 8),
        ("stopped", 4),
    ]
    for number in [number for number in order if reached[number][0] == "finished"]:
        alone(1, tmp_path / str(number), trials[number].settings)
        assert are_equal(tmp_path / f"many/trials/{number:04d}", tmp_path / str(number))


def test_the_worse_go_on_with_the_state_of_the_better(tmp_path):
    own = {"trials": TRIALS[:2], "compare_at": (4,), "exchange": True}
    trials = on_ranks(2, tmp_path / "many", 2, **own)
    assert statuses(trials) == ["finished"] * 2
    worse, better = sorted((0, 1), key=lambda number: trials[number].losses[0][1], reverse=True)
    assert trials[worse].sources == [[4, better]] and trials[better].sources == [[4, better]]

    class Taken(sk.Callback):
        on_all_ranks = True

        def at_start(self, run):
            source = tmp_path / f"many/trials/{better:04d}/checkpoints"
            run.model.load_model(source, checkpoint=4)

    def by_hand(backend):
        folder, settings = tmp_path / "hand", trials[worse].settings
        end = {"optimizer.decay_steps": 8}
        place = {"folder": folder, "backend": backend}
        training({**settings, "run.steps": 4, **end}, **place).run()
        training({**settings, **end}, callbacks=[Taken()], **place).run()

    sk.run_ranks(1, by_hand)
    assert are_equal(tmp_path / f"many/trials/{worse:04d}", tmp_path / "hand")
    assert not are_equal(tmp_path / f"many/trials/{better:04d}", tmp_path / "hand")


# ---- predictions --------------------------------------------------------------------


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("num_ranks, groups", [(4, 2), (1, 1)])
def test_predictions_have_mean_and_spread_over_the_trials(num_ranks, groups, tmp_path):
    def run(backend):
        ensemble = sk.Ensemble(
            training, TRIALS[:3], groups=groups, folder=tmp_path, backend=backend
        )
        ensemble.run()
        with pytest.raises(ShardingError, match="1 trials have finished; a spread wants two"):
            ensemble.predict(X, tmp_path / "out.h5", best=1)
        found = ensemble.predict(X, tmp_path / "out.h5")
        return found, ensemble.predict(X, tmp_path / "two.h5", best=2), ensemble.best

    found, of_two, best = sk.run_ranks(num_ranks, run)[0]
    each = numpy.stack([sk.load(tmp_path / f"trials/000{k}").predict(X) for k in range(3)])
    assert found.keys() == {"prediction_mean", "prediction_spread"}
    numpy.testing.assert_allclose(found["prediction_mean"], each.mean(axis=0), rtol=1e-5, atol=1e-6)
    numpy.testing.assert_allclose(
        found["prediction_spread"], each.std(axis=0, ddof=1), rtol=1e-4, atol=1e-6
    )
    losses = [trial.loss for trial in read_record(tmp_path).trials]
    best_two = sorted(numpy.argsort(losses)[:2])
    assert best.number == int(numpy.argmin(losses))
    numpy.testing.assert_allclose(
        of_two["prediction_mean"], each[best_two].mean(axis=0), rtol=1e-5, atol=1e-6
    )
    left = [path.name for path in tmp_path.glob("trials/*/predictions.h5")]
    assert not left and not list(tmp_path.glob(".shardkit-*"))
