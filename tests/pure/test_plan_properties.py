"""What holds for every plan: nothing is slower with anything twice as fast, and the parts of a step
add up to it. Random searches: two, four with --all, 500 with --all -m sweep.
"""

import random
from dataclasses import replace

import pytest

from shardkit.testing.plan import (
    ModelShape,
    known_programs,
    read_cluster,
    search,
    software_named,
    step_cost,
)

CLUSTERS = ["a100-80gb-hdr", "h100-80gb-ndr", "h200-141gb-ndr"]
SEEDS = [
    pytest.param(
        seed, marks=[pytest.mark.thorough] * (seed >= 2) + [pytest.mark.sweep] * (seed >= 4)
    )
    for seed in range(500)
]
ROUNDING = 1e-9


def drawn(seed):
    """Return the arguments of a random search."""
    draw = random.Random(seed)
    heads = draw.choice([4, 8, 16, 32])
    shape = ModelShape(
        draw.choice([2, 6, 12, 24, 31, 48]),
        heads * draw.choice([32, 64, 128]),
        heads,
        draw.choice([512, 32000, 50257, 51200]),
        draw.choice([128, 512, 2048, 8192]),
        tied=draw.random() < 0.5,
        style=draw.choice(["gpt2", "llama"]),
    )
    software = software_named(draw.choice(known_programs()))
    names = CLUSTERS + ["cpu-node"] * (software.dtype == "float32")
    cluster = read_cluster(draw.choice(names))
    devices = draw.choice([1, 2, 4, 8, 16, 32, 64, 128])
    return shape, software, cluster, devices, devices * draw.choice([1, 2, 4, 8])


def quicker(cluster):
    """Yield (what, the cluster with it twice as fast)."""
    device = cluster.device
    peak = {dtype: 2 * speed for dtype, speed in device.peak.items()}
    yield "products", replace(cluster, device=replace(device, peak=peak))
    memory = 2 * device.bytes_per_second
    yield "memory", replace(cluster, device=replace(device, bytes_per_second=memory))
    calls = device.call_seconds / 2
    yield "calls", replace(cluster, device=replace(device, call_seconds=calls))
    whole = replace(device, peak=peak, bytes_per_second=memory, call_seconds=calls)
    yield "device", replace(cluster, device=whole)
    for name in ("inside", "between"):
        link = getattr(cluster, name)
        wide = replace(link, bytes_per_second=2 * link.bytes_per_second)
        yield name, replace(cluster, **{name: wide})
        near = replace(link, latency_seconds=link.latency_seconds / 2)
        yield f"latency {name}", replace(cluster, **{name: near})


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.thorough(but=1)
def test_nothing_is_slower_with_anything_twice_as_fast(seed):
    shape, software, cluster, devices, batch = drawn(seed)
    found = search(shape, software, cluster, devices, batch)
    for what, better in quicker(cluster):
        again = search(shape, software, better, devices, batch)
        assert len(again.fitting) == len(found.fitting)
        if found.best:
            limit = found.best.cost.seconds * (1 + ROUNDING)
            assert again.best.cost.seconds <= limit, f"{what}: {again.best.layout}"
        for row in found.rows(5):
            seconds = step_cost(row.layout, shape, software, better).seconds
            assert seconds <= row.cost.seconds * (1 + ROUNDING), f"{what}: {row.layout}"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.thorough(but=1)
def test_parts_add_up_to_the_step(seed):
    found = search(*drawn(seed))
    for candidate in found.fitting:
        cost = candidate.cost
        assert sum(cost.parts.values()) == pytest.approx(cost.seconds), str(candidate.layout)
        assert min(cost.parts.values()) >= -ROUNDING * cost.seconds, str(candidate.layout)
