"""Trees of arrays between processes: over stages and replicas, and refused on all ranks."""

import numpy
import pytest
from builders import full_gradient, sha256
from tree_models import Trees, distance, tree_batch

import shardkit as sk
from shardkit import ShapeError
from shardkit.nn import as_tensors
from shardkit.testing.base import leaves

pytestmark = pytest.mark.mpi(min_size=2)


def configured(backend, **settings):
    settings = {"optimizer": sk.AdamW(lr=1e-2), "minimum_parameter_group_size": 1, **settings}
    return sk.ShardingConfiguration(backend, **settings)


def test_gradients_equal_the_serial_ones(backend):
    model = Trees("dataclass")
    x, y = tree_batch("dataclass")
    distance(model(as_tensors(x)), y).backward()
    expected = numpy.concatenate([parameter.grad.ravel() for parameter in model.parameters()])
    sharded = sk.FSDPModel(Trees("dataclass"), configured(backend))
    gradient = full_gradient(sharded, *sk.split_batch(sharded.mesh, x, y))
    sharded.close()
    errors = backend.all_gather_object(float(numpy.abs(gradient - expected).max()))
    assert max(errors) < 1e-10 * numpy.abs(expected).max()


@pytest.mark.parametrize("schedule", ["1f1b", "zb-v"])
def test_a_skip_crosses_processes_and_a_wrong_tree_stops_none(backend, on_one_rank, schedule):
    """One stage for each rank; a tree of another structure, then three steps and a prediction."""

    def run(ranks, stages, **settings):
        config = configured(ranks, micro_batches=3, max_gradient_norm=1.0, **settings)
        model = sk.HybridShardedModel(Trees("dict", 8, "float32"), config, stages)
        x, y = tree_batch("dict")
        if stages > 1:
            bad = {**x, "more": x["a"]} if ranks.rank == 1 else x
            with pytest.raises(ShapeError, match="more"):
                model.train(bad, y)
        losses = [model.train(x, y) for _ in range(3)]
        prediction = [leaf.tobytes() for leaf in leaves(model.predict(x))]
        bits = sha256(model.gather_full_parameters())
        model.close()
        return bits, losses, prediction

    alone = on_one_rank(lambda ranks: run(ranks, 1))
    mine = run(backend, backend.world_size, schedule=schedule)
    assert backend.all_gather_object(mine == alone) == [True] * backend.world_size
