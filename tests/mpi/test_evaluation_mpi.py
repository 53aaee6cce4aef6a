"""Evaluations under mpiexec: ranks that add other numbers of batches, and one that fails."""

import numpy
import pytest

import shardkit as sk

pytestmark = pytest.mark.mpi
RNG = numpy.random.default_rng(0)
X = RNG.standard_normal((29, 3))
Y = X[:, :1] * 2 + 300


def model_on(backend):
    net = sk.models.MLP([3, 8, 1], seed=1, dtype="float64")
    return sk.FSDPModel(net, sk.ShardingConfiguration(backend))


def figures(model, batches):
    with model.evaluation() as measured:
        for first, stop in batches:
            measured.add(X[first:stop], Y[first:stop])
    return measured.samples, measured.loss, measured.metrics


def test_ranks_add_what_they_have(backend):
    batches = [(0, 9), (9, 9), (9, 10), (10, 29)]
    model = model_on(backend)
    # the last rank has all but the first batch, others nothing
    own = batches[1:] if backend.rank == backend.world_size - 1 else []
    own = batches[:1] + own if backend.rank == 0 else own
    serial = sk.run_ranks(1, lambda alone: figures(model_on(alone), batches))[0]
    assert figures(model, own) == serial and serial[0] == 29
    model.close()


def test_an_error_on_the_last_rank_is_raised_on_all(backend):
    model = model_on(backend)
    with pytest.raises(OSError, match="the file is gone"):
        with model.evaluation() as measured:
            measured.add(X, Y)
            if backend.rank == backend.world_size - 1:
                raise OSError("the file is gone")
            measured.add(X, Y)
    assert model.evaluate(X, Y) == pytest.approx(figures(model, [(0, 29)])[1], rel=1e-14)
    model.close()
