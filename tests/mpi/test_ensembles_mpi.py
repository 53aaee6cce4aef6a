"""Ensembles on processes: groups, a trial that fails, comparisons and predictions."""

import numpy
import pytest

import shardkit as sk
from shardkit import MeshError
from shardkit.testing.checkpoint import compare, find_checkpoint

pytestmark = pytest.mark.mpi(min_size=2)
X = numpy.random.default_rng(0).normal(size=(40, 3)).astype(numpy.float32)
Y = (X[:, :1] * 2 - X[:, 1:2] ** 2).astype(numpy.float32)
SETTINGS = {"run.steps": 6, "run.validate_every": 2, "batch.sequences": 24, "batch.micro_batch": 2}


def make(settings, **place):
    if settings["run.seed"] == 1:
        raise KeyError("no trial of this seed")
    model = sk.models.MLP([3, 8, 1], seed=settings["run.seed"])
    return sk.Training(model, (X, Y), settings={**SETTINGS, **settings}, **place)


@pytest.fixture
def folder(backend, tmp_path):
    return backend.broadcast_object(tmp_path, 0)


@pytest.mark.thorough
@pytest.mark.parametrize("num_trials", [4, pytest.param(12, marks=pytest.mark.thorough)])
def test_each_trial_on_groups_has_the_bits_that_it_has_alone(backend, folder, num_trials):
    seeds = [{"run.seed": seed} for seed in range(num_trials)]
    sizes = [size for size in (1, 2) if backend.world_size % size == 0]
    if num_trials == 12:  # on two groups
        sizes = [size for size in sizes if 2 * size == backend.world_size]
    for size in sizes:
        own = {"groups": backend.world_size // size, "folder": folder / str(size)}
        ensemble = sk.Ensemble(make, seeds, backend=backend, **own)
        trials = ensemble.run()
        found = ensemble.predict(X, folder / f"{size}.h5")
        statuses = ["finished", "failed", *["finished"] * (num_trials - 2)]
        assert [trial.status for trial in trials] == statuses
        assert found["prediction_spread"].shape == (40, 1) and found["prediction_spread"].min() > 0
        assert ensemble.run() == trials
    equal = None
    if backend.rank == 0:
        good = [0, num_trials // 2, num_trials - 1]  # of a group's first trials, and of its last
        equal = [alone_is_equal(folder, size, seed) for size in sizes for seed in good]
    equal = backend.broadcast_object(equal, 0)
    assert all(equal)


def alone_is_equal(folder, size, seed):
    """Whether the weights of a trial are those of the same training on as many threads."""
    place = folder / f"alone-{size}-{seed}"
    sk.run_ranks(size, lambda ranks: make({"run.seed": seed}, folder=place, backend=ranks).run())
    found = [find_checkpoint(each)[0] for each in (place, folder / f"{size}/trials/{seed:04d}")]
    return compare(*found, tolerance=0.0).is_equal


@pytest.mark.thorough
def test_trials_are_compared_over_all_groups(backend, folder):
    seeds = [{"run.seed": seed} for seed in (0, 2, 3)]
    options = {"groups": backend.world_size, "compare_at": [2, 4], "backend": backend}
    halved = sk.Ensemble(make, seeds, folder=folder / "halved", keep=0.4, **options).run()
    assert sorted(trial.step for trial in halved) == [2, 4, 6]
    shared = sk.Ensemble(make, seeds, folder=folder / "shared", exchange=True, **options).run()
    assert [trial.step for trial in shared] == [6] * 3
    assert any(source != trial.number for trial in shared for _, source in trial.sources)


def test_groups_of_other_sizes_are_refused(backend, folder):
    groups = backend.world_size + 1
    ensemble = sk.Ensemble(make, [{"run.seed": 0}], groups=groups, folder=folder, backend=backend)
    with pytest.raises(MeshError, match=f"{backend.world_size} ranks in {groups} groups"):
        ensemble.run()
