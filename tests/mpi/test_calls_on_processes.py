"""A model without blocks() on ranks that are processes and may share memory."""

import numpy
import pytest
from builders import sha256
from called_models import Choosing, UNetLike, batch

import shardkit as sk


def made(strategy, model, backend):
    config = sk.ShardingConfiguration(
        backend, minimum_parameter_group_size=256, micro_batches=2, max_gradient_norm=0.5
    )
    return strategy(model, config)


@pytest.mark.thorough(but=1)
@pytest.mark.mpi(min_size=2)
def test_fsdp_by_calls_has_the_bits_of_ddp(backend):
    hashes = []
    for strategy in (sk.FSDPModel, sk.DDPModel):
        model = made(strategy, UNetLike(), backend)
        for step in range(2):
            model.train(*sk.split_batch(model.mesh, *batch(step)))
        hashes.append(sha256(model.gather_full_parameters()))
        model.close()
    assert all(one == other for one, other in backend.all_gather_object(hashes))


@pytest.mark.mpi(min_size=2)
def test_another_order_of_calls_on_one_rank_is_refused_on_all(backend):
    """Where ranks share the memory of parameters, only the reductions have an order."""
    model = made(sk.FSDPModel, Choosing(), backend)
    model.wrapped_model.order = lambda: [1, 0, 2, 3] if backend.rank == 1 else range(4)
    x, y = sk.split_batch(model.mesh, *batch(0))
    with pytest.raises(sk.ShardingError, match=r"data rank 1 .* layers\.\d\.weight"):
        model.train(x, y)
    model.wrapped_model.order = lambda: range(4)
    loss = model.train(x, y)
    model.close()
    assert all(backend.all_gather_object(bool(numpy.isfinite(loss))))
