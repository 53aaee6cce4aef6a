"""The planner's bytes of state are those that the allocator of a running model accounts for, to
5%.
"""

import pytest
from planned import gpt_of, sharded, train_steps

import shardkit as sk
from shardkit.testing.optim import RULES
from shardkit.testing.parallel import device_of, takes_heads
from shardkit.testing.plan import (
    SHARDKIT,
    SHARDKIT_BF16,
    MLPShape,
    ModelShape,
    RunLayout,
    elements_around,
    memory_of,
    rank_memory,
    software_of,
    why_not,
)
from shardkit.testing.task import Language
from shardkit.testing.train import configuration_of

RunConfiguration = configuration_of(Language)

ACCOUNTS = {
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer": "optimizer state",
    "gathered": "gathered parameters",
    "in_flight": "gradients in flight",
}
SHAPE, TIED = ModelShape(6, 64, 4, 64, 32), ModelShape(6, 64, 4, 64, 32, tied=True, style="llama")
DENSE = MLPShape((20, 64, 100, 64, 70, 64, 50, 3))
LAYOUTS = [
    RunLayout(1, 1, 1, "ddp"),
    RunLayout(1, 2, 1, "ddp", micro_batches=2),
    RunLayout(1, 3, 1, "fsdp", "gpipe", micro_batches=2),
    RunLayout(1, 2, 1, "fsdp", micro_batches=3),
    RunLayout(1, 2, 1, "zero2"),
    RunLayout(1, 4, 1, "zero1", "gpipe", micro_batches=2),
    RunLayout(2, 2, 1, "fsdp", micro_batches=4),
    RunLayout(2, 1, 2, "ddp", micro_batches=4, is_sequence_parallel=True),
    RunLayout(4, 1, 1, "ddp", "zb-h1", micro_batches=5),
    RunLayout(2, 2, 1, "zero2", "zb-v", 2, micro_batches=4),
    RunLayout(2, 1, 1, "zero1", "interleaved", 2, micro_batches=5),
    RunLayout(1, 2, 2, "fsdp", micro_batches=2, recomputation="full"),
    RunLayout(1, 2, 1, "fsdp", micro_batches=2, domain=2),
    RunLayout(2, 1, 1, "zero1", micro_batches=4, domain=3),
]


@pytest.mark.parametrize(
    "layout, shape",
    [(layout, SHAPE) for layout in LAYOUTS]
    + [(layout, TIED) for layout in LAYOUTS[::2]]
    + [(layout, DENSE) for layout in LAYOUTS if why_not(layout, DENSE, SHARDKIT) is None],
    ids=str,
)
@pytest.mark.thorough(but=1)
def test_bytes_between_steps_are_those_that_were_planned(layout, shape):
    assert why_not(layout, shape, SHARDKIT) is None

    def run(backend):
        model = sharded(backend, layout, shape)
        train_steps(model, layout, shape, 2)
        return model.mesh.coordinates.pipeline, device_of(model).accounts.table()

    for pipeline, table in sk.run_ranks(layout.devices, run):
        planned = rank_memory(layout, shape, SHARDKIT, pipeline)
        for part in ("parameters", "gradients", "optimizer"):
            assert getattr(planned, part) == table.get(ACCOUNTS[part], 0), (
                f"{part} on pipeline rank {pipeline}"
            )
        ours, theirs = (
            sum(getattr(planned, part) for part in ACCOUNTS),
            sum(table.get(name, 0) for name in ACCOUNTS.values()),
        )
        assert abs(ours / theirs - 1) < 0.05, (
            f"pipeline rank {pipeline}: planned {ours}, accounted {theirs} {table}"
        )


@pytest.mark.parametrize(
    "layout", [LAYOUTS[1], LAYOUTS[3], LAYOUTS[5], LAYOUTS[6], LAYOUTS[7], LAYOUTS[9]], ids=str
)
@pytest.mark.thorough(but=2)
def test_bytes_of_a_model_that_computes_in_bfloat16_are_those_that_were_planned(layout):
    """Master weights beside the moments, half-size parameters in the pool, float32 gradients."""
    pytest.importorskip("ml_dtypes")

    def run(backend):
        model = sharded(backend, layout, SHAPE, compute_dtype="bfloat16")
        train_steps(model, layout, SHAPE, 2)
        return model.mesh.coordinates.pipeline, device_of(model).accounts.table()

    for pipeline, table in sk.run_ranks(layout.devices, run):
        planned = rank_memory(layout, SHAPE, SHARDKIT_BF16, pipeline)
        for part in ("parameters", "gradients", "optimizer"):
            assert getattr(planned, part) == table.get(ACCOUNTS[part], 0), (
                f"{part} on pipeline rank {pipeline}"
            )
        ours, theirs = (
            sum(getattr(planned, part) for part in ACCOUNTS),
            sum(table.get(name, 0) for name in ACCOUNTS.values()),
        )
        assert abs(ours / theirs - 1) < 0.05, (
            f"pipeline rank {pipeline}: planned {ours}, accounted {theirs} {table}"
        )


@pytest.mark.parametrize(
    "changes",
    [
        *({"optimizer.name": name} for name in RULES),
        {"model.dtype": "float64"},
        {"parallel.minimum_parameter_group_size": 70_000},
    ],
    ids=str,
)
@pytest.mark.thorough(but=3)
def test_bytes_under_other_settings_are_those_that_were_planned(changes):
    layout, settings = (
        RunLayout(1, 2, 1, "fsdp", micro_batches=2),
        RunConfiguration().replace(changes),
    )
    rule, software = RULES[settings.optimizer.name], software_of(SHARDKIT, settings)

    def run(backend):
        config = sk.ShardingConfiguration(
            backend,
            optimizer=rule(),
            micro_batches=2,
            max_gradient_norm=1.0,
            minimum_parameter_group_size=settings.parallel.minimum_parameter_group_size,
        )
        model = sk.FSDPModel(gpt_of(SHAPE, dtype=settings.model.dtype), config)
        train_steps(model, layout, SHAPE, 2)
        return device_of(model).accounts.table()

    planned = rank_memory(layout, SHAPE, software, 0)
    for table in sk.run_ranks(2, run):
        for part, account in ACCOUNTS.items():
            assert getattr(planned, part) == pytest.approx(table.get(account, 0), rel=0.05), part
        assert planned.optimizer == table.get("optimizer state", 0)


PEAK_LAYOUTS = [
    RunLayout(policy="ddp", micro_batch=8),
    RunLayout(policy="ddp", micro_batch=8, recomputation="full"),
    RunLayout(1, 2, 1, "fsdp", micro_batch=8),
    RunLayout(1, 1, 2, "ddp", micro_batch=8),
    RunLayout(policy="ddp", micro_batch=8, domain=2),
    RunLayout(1, 1, 2, "ddp", micro_batch=8, domain=2),
    RunLayout(2, 1, 1, "ddp", micro_batch=4, micro_batches=4),
    RunLayout(2, 1, 1, "ddp", "zb-h1", micro_batch=4, micro_batches=4),
]


@pytest.mark.parametrize(
    "layout, style",
    [(layout, "gpt2") for layout in PEAK_LAYOUTS]
    + [(layout, "llama") for layout in PEAK_LAYOUTS[::3]],
    ids=str,
)
@pytest.mark.thorough
def test_the_most_that_is_held_at_once_is_what_was_planned(layout, style):
    """With activations, to 12%: their arena grows in large steps."""
    shape = ModelShape(4, 256, 4, 256, 64, style=style)

    def run(backend):
        model = sharded(backend, layout, shape)
        train_steps(model, layout, shape, 2)
        return device_of(model).accounts.peak_bytes()

    measured = max(sk.run_ranks(layout.devices, run))
    assert memory_of(layout, shape, SHARDKIT).total == pytest.approx(measured, rel=0.12)


@pytest.mark.parametrize(
    "domain, tensor, kv_heads, sight",
    [
        (2, 1, 8, {}),
        (3, 1, 8, {}),
        (4, 1, 4, {}),
        (2, 2, 4, {}),
        (2, 2, 2, {}),
        (5, 1, 1, {}),
        (3, 1, 8, {"window": 5}),
        (3, 1, 4, {"window": 14}),
        (5, 1, 1, {"window": 8}),
        (2, 2, 4, {"window": 4}),
    ],
)
@pytest.mark.thorough(but=2)
def test_ranks_that_share_samples_send_what_was_planned(domain, tensor, kv_heads, sight):
    """The busiest of them; by heads where each has as many key heads, else in a ring."""
    shape = ModelShape(2, 16, 8, 32, 30, kv_heads=kv_heads, style="llama", **sight)
    layout = RunLayout(1, 2, tensor, "ddp", micro_batch=2, micro_batches=2, domain=domain)

    def run(backend):
        model = sharded(backend, layout, shape)
        train_steps(model, layout, shape)
        group = model.mesh.group("domain")
        group.traffic.reset()
        train_steps(model, layout, shape)
        by_verb = group.traffic.by_verb
        is_sent = by_verb.get("send", 0)
        words = 2 * layout.micro_batches * (domain - 1) if tensor == 1 else 0  # on failures
        return by_verb.get("all_to_all", 0) + is_sent - words

    sent = max(sk.run_ranks(layout.devices, run))
    assert shape.goes_by_heads(tensor, domain) is takes_heads(kv_heads // tensor, domain)
    elements = sum(elements_around(shape, tensor, domain))
    assert sent == elements * 4 * shape.layers * layout.micro_batch * layout.micro_batches
