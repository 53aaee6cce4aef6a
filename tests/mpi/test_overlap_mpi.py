"""Collectives that are begun and ended later, and training with them, where ranks do not all share
memory.
"""

import numpy
import pytest
from builders import sha256, train
from threads.communication_contract import rough, tree

from shardkit import MPICommunicationBackend
from shardkit.testing.comm import (
    begin_all_gather,
    begin_ordered_sum,
)
from shardkit.testing.parallel import overlap_of

pytestmark = pytest.mark.mpi(min_size=2)


@pytest.fixture(scope="module", params=[1, 2], ids=["apart", "two ranks per node"])
def nodes(request, backend):
    """A backend of ranks that do not all share memory."""
    if request.param == 2 and backend.world_size != 4:
        pytest.skip("two nodes of two ranks are four ranks")
    second = MPICommunicationBackend()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHARDKIT_SHARED", "1")
        patch.setenv("SHARDKIT_RANKS_PER_NODE", str(request.param))
        second.initialize()
    assert (second.channel.levels is not None) == (request.param == 2) and not second.shares_memory
    yield second
    second.shutdown()


@pytest.mark.parametrize("shard", [1, 1000, 300_001])
@pytest.mark.thorough(but=2)
def test_what_is_begun_together_ends_in_the_tree_over_all_ranks(nodes, shard):
    """Three at once, which ranks pump at different times; the last is a sum of half as many
    elements, not cut evenly.
    """
    n, rank = nodes.world_size, nodes.rank
    arrays = [rough(r, n * shard, "float32") for r in range(n)]
    total, own = tree(arrays), slice(rank * shard, (rank + 1) * shard)
    scattered, reduced, whole = (
        arrays[rank].copy(),
        arrays[rank][: n * shard // 2].copy(),
        numpy.zeros(n * shard, "float32"),
    )
    scratch = [numpy.empty(n * shard, "float32") for _ in range(2)]
    begun = [
        begin_ordered_sum(nodes, scattered, scattered[own], scratch[0], 0),
        begin_all_gather(nodes, arrays[rank][own].copy(), whole, 2),
        begin_ordered_sum(nodes, reduced, reduced, scratch[1], 4),
    ]
    for _ in range(3 * rank):
        for each in reversed(begun):
            each.pump()
    for each in begun:
        each.end()
        each.end()
    gathered = numpy.concatenate(
        [array[r * shard : (r + 1) * shard] for r, array in enumerate(arrays)]
    )
    same = (
        scattered[own].tobytes() == total[own].tobytes(),
        reduced.tobytes() == total[: reduced.size].tobytes(),
        whole.tobytes() == gathered.tobytes(),
    )
    assert nodes.all_gather_object(same) == [(True, True, True)] * n


@pytest.mark.parametrize("strategy", ["DDP", "ZeRO-2", "FSDP"])
@pytest.mark.thorough(but=1)
def test_steps_with_overlap_end_in_the_bits_of_steps_without(nodes, strategy):
    def bits(overlap):
        model, losses = train(
            strategy, nodes, 4, samples=4 * nodes.world_size, micro_batch=2, overlap=overlap
        )
        parameters = sha256(model.gather_full_parameters())
        model.close()
        return parameters, losses

    assert len({str(bits(overlap)) for overlap in (False, True)}) == 1


@pytest.mark.thorough(but=1)
def test_the_first_steps_are_taken_with_and_without_and_all_ranks_go_on_alike(nodes):
    model, _ = train("FSDP", nodes, 12)
    overlap = overlap_of(model)
    figures = nodes.all_gather_object((overlap.is_settled, overlap.is_on, overlap.medians))
    model.close()
    assert (
        figures == [(True, overlap.is_on, overlap.medians)] * nodes.world_size
        and min(overlap.medians.values()) > 0
    )


def test_where_all_ranks_share_memory_nothing_is_tried(backend):
    if not backend.shares_memory:
        pytest.skip("no shared memory here")
    model, _ = train("FSDP", backend, 1)
    assert overlap_of(model).is_settled and str(overlap_of(model)) == "off"
    model.close()
