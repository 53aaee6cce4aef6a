"""HSDP in plans: memory and time of groups of data ranks."""

from dataclasses import replace

import pytest

from shardkit.testing.plan import (
    MIXED,
    SHARDKIT,
    ModelShape,
    RunLayout,
    memory_of,
    read_cluster,
    search,
    step_cost,
    why_not,
)

SHAPE = ModelShape(24, 2048, 16, 51200, 2048)
CLUSTER = read_cluster("h100-80gb-ndr")  # 8 devices on a node
BOTH = pytest.mark.parametrize("software", [SHARDKIT, MIXED], ids=lambda program: program.name)


def layout(policy, data, shard_ranks=None, **more):
    return RunLayout(data=data, policy=policy, shard_ranks=shard_ranks, micro_batches=2, **more)


@BOTH
def test_a_group_keeps_what_fsdp_keeps_on_as_many_ranks(software):
    hsdp = memory_of(layout("hsdp", 32, 8), SHAPE, software)
    assert hsdp == memory_of(layout("fsdp", 8), SHAPE, software)
    assert hsdp.state > 3.9 * memory_of(layout("fsdp", 32), SHAPE, software).state


@BOTH
def test_one_group_of_all_ranks_is_fsdp(software):
    hsdp, fsdp = layout("hsdp", 32, 32), layout("fsdp", 32)
    cost = step_cost(fsdp, SHAPE, software, CLUSTER)
    assert step_cost(hsdp, SHAPE, software, CLUSTER).parts == cost.parts
    assert memory_of(hsdp, SHAPE, software) == memory_of(fsdp, SHAPE, software)


def test_gathers_stay_on_the_node_and_the_sum_between_nodes_takes_the_network():
    slow = replace(CLUSTER.between, bytes_per_second=CLUSTER.between.bytes_per_second / 8)
    far = replace(CLUSTER, between=slow)
    software = replace(MIXED, overlaps_gathers=False, overlaps_reductions=False)

    def parts(policy, cluster, shard_ranks=None):
        return step_cost(layout(policy, 32, shard_ranks), SHAPE, software, cluster).parts

    assert parts("hsdp", far, 8)["gathers"] == parts("hsdp", CLUSTER, 8)["gathers"]
    assert parts("fsdp", far)["gathers"] > 2 * parts("fsdp", CLUSTER)["gathers"]
    assert parts("hsdp", far, 8)["reduction"] > parts("hsdp", CLUSTER, 8)["reduction"]
    wide = replace(CLUSTER.inside, bytes_per_second=CLUSTER.inside.bytes_per_second / 2)
    near = replace(CLUSTER, inside=wide)
    assert parts("hsdp", near, 8)["gathers"] > parts("hsdp", CLUSTER, 8)["gathers"]


def test_the_search_groups_the_data_ranks_of_a_node():
    found = search(SHAPE, MIXED, CLUSTER, 32, 64)
    of_groups = {
        (candidate.layout.tensor, candidate.layout.shard_ranks)
        for candidate in found.fitting
        if candidate.layout.policy == "hsdp"
    }
    assert of_groups == {(1, 8), (2, 4), (4, 2)}
    assert "hsdp of 8" in str(layout("hsdp", 32, 8))


@BOTH
def test_groups_that_the_runtime_refuses_are_refused(software):
    refused = [layout("hsdp", 8), layout("hsdp", 8, 3), layout("fsdp", 8, 4)]
    assert all(why_not(one, SHAPE, software) for one in refused)
    assert why_not(layout("hsdp", 8, 4), SHAPE, software) is None
    order = why_not(layout("hsdp", 12, 3), SHAPE, software)  # no branch of the tree of sums
    assert (order is not None) == software.sums_in_tree
