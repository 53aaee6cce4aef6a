"""What the planner recommends, the runtime takes: such layouts are built on ranks that are threads,
and train a step.
"""

import random

import pytest
from planned import sharded, train_steps

import shardkit as sk
from shardkit.plan import SHARDKIT, MLPShape, ModelShape, read_cluster, search

SHAPES = [
    ModelShape(4, 24, 4, 24, 12),
    ModelShape(6, 24, 12, 24, 12, kv_heads=3, style="llama", tied=True),
    ModelShape(3, 48, 6, 40, 8, dropout=0.1, hidden=36),
    ModelShape(7, 32, 8, 64, 16, tied=True),
    ModelShape(2, 40, 5, 30, 10, style="llama"),
    MLPShape((12, 40, 48, 40, 3), is_of_classes=True),
]


SWEPT = {(number, devices) for number in range(len(SHAPES)) for devices in (1, 5, 6, 8)} - {
    (0, 1),
    (1, 6),
    (2, 8),
    (4, 5),
}
RUNS = [
    pytest.param(number, devices, marks=[pytest.mark.sweep] * ((number, devices) in SWEPT))
    for number in range(len(SHAPES))
    for devices in (1, 2, 3, 4, 5, 6, 8)
]


@pytest.mark.parametrize("number, devices", RUNS)
def test_every_recommended_layout_trains(number, devices):
    shape, draw = SHAPES[number], random.Random(100 * number + devices)
    found = search(
        shape,
        SHARDKIT,
        read_cluster("cpu-node"),
        devices,
        draw.choice([devices, 2 * devices, 12, 24]),
    )
    chosen = found.rows(99) + draw.sample(
        found.fitting, min(2, len(found.fitting))
    )  # every mesh, and two more
    for layout in dict.fromkeys(candidate.layout for candidate in chosen):
        losses = sk.run_ranks(
            layout.devices,
            lambda backend: train_steps(sharded(backend, layout, shape), layout, shape),
        )
        assert losses[0][0] > 0 and all(of_rank == losses[0] for of_rank in losses), str(layout)
