"""model.evaluation(): the figures of all samples, whichever ranks and batches they come in; feature
importance alike; and errors, of which all ranks learn.
"""

import numpy
import pytest

import shardkit as sk
from shardkit import Metric, nn
from shardkit.testing.nn import MAE

RNG = numpy.random.default_rng(7)
SAMPLES = 41
X = RNG.standard_normal((SAMPLES, 3))
X = X[numpy.argsort(X[:, 0])]  # in an order, as the rows of files often are
MESHES = [(1, 1, 1), (2, 1, 1), (3, 1, 1), (4, 1, 1), (4, 2, 1), (4, 1, 2), (2, 2, 1), (2, 1, 2)]
KINDS = {
    "regression": (X[:, :1] * 2 + 300, nn.MSELoss),
    "classes": ((X[:, 0] > 0.3).astype(int) + (X[:, 1] > 0), nn.CrossEntropyLoss),
    "ignored": (numpy.where(X[:, 2] > 0, -100, (X[:, 0] > 0) * 1), nn.CrossEntropyLoss),
    "weights": ((X[:, 0] > 0) * 1, lambda: nn.CrossEntropyLoss([0.1, 0.7, 0.3])),
    "per sample": (X[:, :1] * 2, nn.RelativeL2Loss),
}


def model_of(backend, mesh, kind, dtype="float64", policy="fsdp"):
    y, loss = KINDS[kind]
    num_ranks, pipeline, tensor = mesh
    task = "regression" if y.ndim == 2 else "classification"
    net = sk.models.MLP([3, 8, 8, 1 if y.ndim == 2 else 3], task=task, seed=1, dtype=dtype)
    config = sk.ShardingConfiguration(
        backend,
        loss=loss(),
        optimizer=sk.AdamW(lr=0.05),
        micro_batches=2,
        minimum_parameter_group_size=16,
    )
    return sk.HybridShardedModel(net, config, pipeline, tensor, policy=policy)


def divided(rng, replicas):
    """Return uneven batches (first, stop) for each replica, some empty: all samples."""
    cuts = sorted(rng.integers(0, SAMPLES + 1, rng.integers(0, 9)).tolist())
    batches = list(zip([0, *cuts], [*cuts, SAMPLES]))
    owners = rng.integers(0, replicas, len(batches))
    return [[b for b, owner in zip(batches, owners) if owner == r] for r in range(replicas)]


def figures(mesh, kind, batches=None, metrics=None, **settings):
    """Return loss, metrics, number of samples and what the metadata say, the same on all ranks."""
    y = KINDS[kind][0]

    def run(backend):
        model = model_of(backend, mesh, kind, **settings)
        with model.evaluation(metrics) as measured:
            for first, stop in batches[model.mesh.coordinates.data] if batches else [(0, SAMPLES)]:
                if first == stop and first % 2:
                    measured.add(None, None)
                else:
                    measured.add(X[first:stop], y[first:stop])
        noted = model.get_model_metadata()["evaluation"]
        assert noted["loss"] == measured.loss and noted["metrics"] == measured.metrics
        return measured.loss, measured.metrics, measured.samples

    results = sk.run_ranks(mesh[0], run)
    assert all(result == results[0] for result in results)
    return results[0]


@pytest.mark.strength(1)
@pytest.mark.parametrize("metrics", [None, {}], ids=["its metrics", "no metrics"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.thorough
def test_figures_do_not_depend_on_ranks_and_batches(kind, metrics):
    rng = numpy.random.default_rng(0)
    loss, of_metrics, samples = figures(MESHES[0], kind, metrics=metrics)
    assert samples == SAMPLES and numpy.isfinite([loss, *of_metrics.values()]).all()
    for turn, mesh in enumerate(MESHES):
        replicas = mesh[0] // mesh[1] // mesh[2]
        batches = divided(rng, replicas)
        other = figures(mesh, kind, batches, metrics, policy=("fsdp", "ddp")[turn % 2])
        assert other[2] == SAMPLES
        assert other[0] == pytest.approx(loss, rel=1e-13)
        assert other[1] == pytest.approx(of_metrics, rel=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_batches_have_figures_of_the_same_bits_on_any_ranks(kind):
    batches = [(0, 7), (7, 8), (8, 30), (30, 30), (30, 41)]
    whole = figures((1, 1, 1), kind, [batches], dtype="float32")
    for mesh in ((2, 1, 1), (3, 1, 1), (4, 2, 1)):
        replicas = mesh[0] // mesh[1]
        parts = [batches[r::replicas] for r in range(replicas)]
        assert figures(mesh, kind, parts, dtype="float32") == whole


def test_an_evaluation_of_nothing_is_nan():
    for batches in ([[], []], [[(3, 3)], [(5, 5), (5, 5)]]):
        loss, metrics, samples = figures_of_nothing(batches)
        assert numpy.isnan([loss, *metrics.values()]).all() and samples == 0


def figures_of_nothing(batches):
    def run(backend):
        model = model_of(backend, (2, 1, 1), "regression")
        with model.evaluation() as measured:
            for first, stop in batches[backend.rank]:
                measured.add(X[first:stop], KINDS["regression"][0][first:stop])
        return measured.loss, measured.metrics, measured.samples

    return sk.run_ranks(2, run)[0]


def test_a_rank_without_samples_can_be_evaluated():
    def run(backend):
        model = model_of(backend, (2, 1, 1), "regression")
        stop = SAMPLES if backend.rank else 0
        return model.evaluate(X[:stop], KINDS["regression"][0][:stop])

    assert sk.run_ranks(2, run) == pytest.approx([figures(MESHES[0], "regression")[0]] * 2)


class Failing(Metric):
    """A metric that fails where a rank has many samples."""

    def sums(self, prediction, y):
        if len(y) > 5:
            raise KeyError("no such class")
        return MAE().sums(prediction, y)

    def value(self, sums):
        return MAE().value(sums)


def add_wrong_shape(measured, x, y):
    measured.add(x[:, :2], y)


def add_lengths(measured, x, y):
    measured.add(x, y[:-1])


def add_only_x(measured, x, y):
    measured.add(x, None)


def raise_own(measured, x, y):
    raise OSError("the file is gone")


WRONG = {
    "shape": (add_wrong_shape, sk.ShapeError, "rank 1: "),
    "lengths": (add_lengths, sk.ShapeError, "rank 1: "),
    "only x": (add_only_x, (sk.ShapeError, TypeError), "rank 1: "),
    "own": (raise_own, OSError, "rank 1: the file is gone"),
}


@pytest.mark.parametrize("others", ["in a round", "at the end"])
@pytest.mark.parametrize("name", WRONG)
def test_an_error_on_one_rank_is_raised_on_all(name, others):
    act, kind, message = WRONG[name]

    def run(backend):
        model = model_of(backend, (3, 1, 1), "regression")
        y = KINDS["regression"][0]
        with pytest.raises(kind, match=message):
            with model.evaluation() as measured:
                measured.add(X[:4], y[:4])
                if backend.rank == 1:
                    act(measured, X[:4], y[:4])
                elif others == "in a round":
                    measured.add(X[:4], y[:4])
        assert model.get_model_metadata()["evaluation"] is None
        return model.evaluate(X[:4], y[:4])  # the ranks are in step

    assert len(set(sk.run_ranks(3, run))) == 1


def test_what_a_metric_raises_on_one_rank_is_raised_on_all():
    def run(backend):
        model, y = model_of(backend, (2, 1, 1), "regression"), KINDS["regression"][0]
        stop = 4 + 4 * backend.rank
        with pytest.raises(KeyError if backend.rank else sk.CommunicationError, match="no such"):
            with model.evaluation({"failing": Failing()}) as measured:
                measured.add(X[:stop], y[:stop])
        return model.evaluate(X[:4], y[:4])

    assert len(set(sk.run_ranks(2, run))) == 1


def test_peers_of_a_replica_that_pass_other_parts_are_refused():
    def run(backend):
        model, y = model_of(backend, (4, 2, 1), "regression"), KINDS["regression"][0]
        with pytest.raises(sk.ShardingError, match="only one of ranks 0 and"):
            with model.evaluation() as measured:
                stop = 0 if backend.rank == 0 else 5
                measured.add(X[:stop], y[:stop])
        with pytest.raises(sk.ShardingError, match="in the block"):
            measured.add(X, y)

    sk.run_ranks(4, run)


def test_ranks_that_measure_other_things_are_refused():
    def run(backend):
        model = model_of(backend, (2, 1, 1), "regression")
        with pytest.raises(sk.ShardingError, match="missing on rank 1|metrics"):
            model.evaluation({"mae": MAE()} if backend.rank == 0 else {})

    sk.run_ranks(2, run)


# ---- importance ----------------------------------------------------------------------------------


def importance(mesh, cuts=None, policy="fsdp"):
    y = KINDS["regression"][0] - 300

    def run(backend):
        model = model_of(backend, mesh, "regression", policy=policy)
        for _ in range(20):
            model.train(*sk.split_batch(model.mesh, X[-24:], y[-24:]))
        replica, replicas = model.mesh.coordinates.data, model.mesh.size("data")
        ends = cuts or [SAMPLES * (r + 1) // replicas for r in range(replicas)]
        own = slice(([0, *ends])[replica], ends[replica])
        return model.get_feature_importance(X[own], y[own])

    results = sk.run_ranks(mesh[0], run)
    assert all(result == results[0] for result in results)
    return results[0]


@pytest.mark.thorough
def test_importance_is_that_of_all_samples_however_they_are_divided():
    whole = importance((1, 1, 1))
    assert whole["feature_0"] > 0.1
    for mesh in MESHES[1:]:
        assert importance(mesh) == pytest.approx(whole, rel=1e-9, abs=1e-12)
    for cuts in ([0, 20, 41], [41, 41, 41], [1, 2, 41], [40, 40, 41]):
        assert importance((3, 1, 1), cuts, "ddp") == pytest.approx(whole, rel=1e-9, abs=1e-12)


def test_importance_of_no_samples_is_refused_on_all_ranks():
    def run(backend):
        model = model_of(backend, (2, 1, 1), "regression")
        with pytest.raises(sk.FeatureError, match="no rank has any"):
            model.get_feature_importance(X[:0], KINDS["regression"][0][:0])

    sk.run_ranks(2, run)
