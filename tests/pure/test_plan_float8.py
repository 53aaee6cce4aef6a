"""Products in float8: their speed, their casts, and what travels in it."""

from dataclasses import replace

import pytest

from shardkit.testing.plan import (
    MIXED,
    ModelShape,
    RunLayout,
    Setting,
    block_seconds,
    in_float8,
    read_cluster,
    step_cost,
)

H100 = read_cluster("h100-80gb-ndr")
SHAPE = ModelShape(8, 8192, 64, 51200, 4096)
CAST = in_float8(MIXED)


def layer(software, shape=SHAPE, tensor=1, sequence=False, cluster=H100):
    at = Setting(shape, software, cluster, 1, tensor, "none", sequence)
    block = block_seconds("layer", at)
    return block.forward + block.backward + block.weight


def test_a_product_of_as_many_more_operations_as_the_peak_is_higher_takes_as_long():
    device = H100.device
    halves = device.product_seconds(8192, 8192, 8192, "bfloat16")
    ratio = device.peak["float8"] / device.peak["bfloat16"]
    cast = device.product_seconds(8192 * ratio, 8192, 8192, "float8", operand_bytes=1)
    assert cast == pytest.approx(halves, rel=1e-9)
    same = device.product_seconds(8192, 8192, 8192, "float8", operand_bytes=1)
    assert halves / ratio < same < 0.6 * halves


def test_a_product_bound_by_memory_reads_operands_of_one_byte():
    device = H100.device
    moved = device.product_seconds(4, 65536, 65536, "float8", operand_bytes=1)
    read = 4 * 65536 + 65536**2 + 2 * 4 * 65536
    assert moved == pytest.approx(device.pass_seconds(read))


def test_casts_take_back_a_part_of_what_the_products_save():
    free = replace(CAST, cast_bytes=0.0)
    assert layer(free) < layer(CAST) < layer(MIXED)
    inputs = (3 + 4) * 8192 * 4096  # of attention, its output, the feed-forward; its hidden units
    gradients = (3 + 1 + 4 + 1) * 8192 * 4096  # of q, k, v; output; hidden units; result
    elements = inputs + gradients + 2 * 12 * 8192**2  # the matrices forward and backward
    expected = H100.device.pass_seconds(6.0 * elements)
    assert layer(CAST) - layer(free) == pytest.approx(expected, rel=1e-9)


def test_small_layers_lose_by_casts():
    small = ModelShape(8, 256, 4, 51200, 256)
    assert layer(CAST, small) > layer(MIXED, small)


def test_attention_and_the_head_stay_in_halves():
    long = ModelShape(8, 1024, 16, 51200, 65536)
    assert layer(CAST, long) > 0.9 * layer(MIXED, long)
    heads = [
        block_seconds("head", Setting(SHAPE, software, H100, 1, 1, "none", False))
        for software in (MIXED, CAST)
    ]
    assert heads[0] == heads[1]


def test_tensor_ranks_gather_cast_inputs():
    slow = replace(H100, inside=replace(H100.inside, bytes_per_second=1e9, latency_seconds=0.0))
    whole = [layer(software, tensor=8, sequence=True, cluster=slow) for software in (MIXED, CAST)]
    # of 4 reduce-scatters and 6 all-gathers of 2 bytes, 6 take 1
    assert whole[1] / whole[0] == pytest.approx((4 * 2 + 6 * 1) / (10 * 2), rel=0.02)


def test_parameters_may_travel_in_float8():
    layout = RunLayout(data=64, policy="fsdp", micro_batch=1)
    gather8 = in_float8(replace(MIXED, gather_bytes=1))
    slow = replace(H100, between=replace(H100.between, bytes_per_second=4e9))
    parts = [step_cost(layout, SHAPE, software, slow).parts for software in (CAST, gather8)]
    layers = SHAPE.layers * SHAPE.block_elements("layer")
    others = SHAPE.parameter_count - layers
    travel = (layers + 2 * others) / (2 * SHAPE.parameter_count)
    total = [part["gathers"] + part["reduction"] for part in parts]
    assert total[1] < total[0] and parts[1]["gathers"] < (travel + 0.1) * parts[0]["gathers"]
    kept = replace(layout, policy="ddp")
    assert step_cost(kept, SHAPE, gather8, H100).parts["gathers"] == 0.0
