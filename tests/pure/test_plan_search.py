"""The search: complete, quick, and plain about what it did not take."""

from dataclasses import replace

import pytest
from published_runs import gpt

from shardkit.testing.layout import divisors
from shardkit.testing.plan import (
    MIXED,
    SHARDKIT,
    ModelShape,
    RunLayout,
    cluster_from,
    memory_of,
    rank_memory,
    read_cluster,
    search,
    search_module,
    step_cost,
    why_not,
)
from shardkit.testing.schedule import ORDERS, draw_text, one_f_one_b, order, unit_timeline

SHAPE = ModelShape(6, 96, 6, 96, 32)
CPU = read_cluster("cpu-node")


@pytest.fixture
def replays(monkeypatch):
    """The layouts whose schedules a search has replayed, which is what takes it long."""
    layouts = []

    def counted(layout, *arguments, is_exact=True):
        layouts.extend([layout] * is_exact)
        return step_cost(layout, *arguments, is_exact=is_exact)

    monkeypatch.setattr(search_module, "step_cost", counted)
    return layouts


@pytest.mark.thorough
def test_few_of_the_layouts_of_a_trillion_parameters_are_replayed(replays):
    found = search(gpt(128, 25600, 160), MIXED, read_cluster("a100-80gb-hdr"), 3072, 1536)
    assert found.considered > 5000 and 16 <= len(replays) <= 100
    assert found.best.layout.devices == 3072
    assert (
        found.best.layout.tensor == 8 and found.best.layout.pipeline >= 8
    )  # what such runs are known to take


@pytest.mark.parametrize("devices, sequences", [(1024, 1024), (16384, 2048)])
@pytest.mark.thorough
def test_a_model_of_126_layers_is_planned_with_pipelines(devices, sequences, replays):
    """The sizes of Llama 3 405B (arXiv 2407.21783)."""
    shape = ModelShape(
        126, 16384, 128, 128256, 8192, kv_heads=8, hidden=53248, style="llama", tied=False
    )
    found = search(shape, MIXED, read_cluster("h100-80gb-roce"), devices, sequences)
    assert 16 <= len(replays) <= 100
    firsts = [row.layout for row in found.rows(3)]
    assert any(layout.pipeline in (8, 16) for layout in firsts)


def test_as_few_layers_are_computed_again_as_fit():
    shape, cluster = gpt(24, 4096, 32), read_cluster("a100-80gb-hdr")
    found = search(shape, MIXED, cluster, 8, 64, micro_batch=4)
    part = [row for row in found.fitting if row.layout.recomputed]
    assert part and all(row.layout.recomputation == "full" for row in part)
    for row in part:
        fewer = replace(row.layout, recomputed=row.layout.recomputed - 1)
        if fewer.recomputed == 0:
            fewer = replace(row.layout, recomputation="none", recomputed=None)
        assert memory_of(fewer, shape, MIXED).total > cluster.device.memory_bytes


@pytest.mark.parametrize("pipeline, virtual", [(1, 1), (2, 1), (2, 3), (3, 4)])
def test_layers_computed_again_trade_memory_for_time(pipeline, virtual):
    """The first layers of each rank; all of them are what None means."""
    shape, cluster = gpt(12, 256, 4), read_cluster("a100-80gb-hdr")
    schedule = "interleaved" if virtual > 1 else "1f1b"
    whole = RunLayout(pipeline, 1, 1, "ddp", schedule, virtual, 2, 6, "full")
    figures = []
    for count in range(1, 12 // pipeline + 1):
        layout = replace(whole, recomputed=count)
        assert why_not(layout, shape, MIXED) is None and f"{count} layer" in str(layout)
        cost = step_cost(layout, shape, MIXED, cluster)
        assert cost.seconds == pytest.approx(sum(cost.parts.values()))
        figures.append((cost.seconds, -memory_of(layout, shape, MIXED).total))
    assert figures == sorted(figures)
    none = replace(whole, recomputation="none")
    assert step_cost(none, shape, MIXED, cluster).seconds < figures[0][0] < figures[-1][0]
    assert figures[-1] == (
        step_cost(whole, shape, MIXED, cluster).seconds,
        -memory_of(whole, shape, MIXED).total,
    )


def test_a_part_of_the_layers_is_refused_where_it_does_not_apply():
    layout = RunLayout(policy="ddp", recomputation="full", recomputed=1)
    assert why_not(layout, SHAPE, MIXED) is None
    assert "no part of its layers" in why_not(layout, SHAPE, SHARDKIT)
    assert "no part" in why_not(replace(layout, recomputation="none"), SHAPE, MIXED)
    assert "at least 1" in why_not(replace(layout, recomputed=0), SHAPE, MIXED)
    assert "no recomputation selective" in why_not(
        RunLayout(policy="ddp", recomputation="selective"), SHAPE, MIXED
    )


def test_an_order_of_ones_own_is_planned_by_what_its_decorator_says(monkeypatch):
    name = "1f1b backwards"
    monkeypatch.setitem(ORDERS, name, None)  # undone when the test ends
    del ORDERS[name]

    @order(name, rank_of=lambda stage, ranks: ranks - 1 - stage, delays_weights=True)
    def one_f_one_b_backwards(stages, micro_batches):
        return {
            stages - 1 - rank: line for rank, line in one_f_one_b(stages, micro_batches).items()
        }

    software = replace(SHARDKIT, schedules=("1f1b", name))
    layout = RunLayout(3, policy="ddp", schedule=name, micro_batches=6)
    plain = replace(layout, schedule="1f1b")
    assert step_cost(layout, SHAPE, software, CPU) == step_cost(plain, SHAPE, software, CPU)
    assert [rank_memory(layout, SHAPE, software, rank).activations for rank in (2, 1, 0)] >= [
        rank_memory(plain, SHAPE, software, rank).activations for rank in (0, 1, 2)
    ]
    found = search(SHAPE, software, CPU, devices=3, batch=6)
    assert name in {row.layout.schedule for row in found.fitting}
    assert "rank 2   F0" in draw_text(unit_timeline(name, 3, 4))


@pytest.mark.parametrize("devices, batch", [(1, 4), (4, 8), (6, 12), (8, 24)])
def test_no_layout_that_fits_is_quicker_than_the_best(devices, batch):
    found = search(SHAPE, SHARDKIT, CPU, devices, batch)
    others = 0
    for tensor in divisors(devices):
        for pipeline in divisors(devices // tensor):
            data = devices // tensor // pipeline
            for policy in SHARDKIT.policies:
                for schedule, virtual in (
                    ("1f1b", 1),
                    ("gpipe", 1),
                    ("zb-h1", 1),
                    ("zb-v", 2),
                    ("interleaved", 2),
                ):
                    for size in divisors(batch // data) if batch % data == 0 else ():
                        layout = RunLayout(
                            pipeline,
                            data,
                            tensor,
                            policy,
                            schedule,
                            virtual,
                            size,
                            batch // data // size,
                        )
                        if why_not(layout, SHAPE, SHARDKIT) is None:
                            others += 1
                            assert (
                                step_cost(layout, SHAPE, SHARDKIT, CPU).seconds
                                > 0.93 * found.best.cost.seconds
                            ), str(layout)
    assert others > 3


def test_every_layout_that_is_recommended_uses_all_devices_and_the_whole_batch_and_fits():
    found = search(SHAPE, SHARDKIT, CPU, 8, 24)
    assert len(found.fitting) > 50
    for candidate in found.fitting:
        layout = candidate.layout
        assert (
            layout.devices == 8 and layout.batch == 24 and why_not(layout, SHAPE, SHARDKIT) is None
        )
        assert candidate.memory == memory_of(layout, SHAPE, SHARDKIT) and candidate.fits


def test_rows_are_the_best_of_each_mesh_in_order_and_say_why_they_lost():
    found = search(SHAPE, SHARDKIT, CPU, 8, 24)
    rows = found.rows(10)
    assert rows[0] is found.best and found.why_it_lost(rows[0]) == "best"
    assert len({row.layout.mesh for row in rows}) == len(rows) > 4
    assert [row.cost.seconds for row in rows] == sorted(row.cost.seconds for row in rows)
    assert all(found.why_it_lost(row).startswith("+") for row in rows[1:])


def small(memory_bytes):
    """Return a node of eight cores with this much memory each."""
    return cluster_from(
        {
            "name": "small",
            "devices": 8,
            "inside": {"bytes_per_second": 2e9},
            "between": {"bytes_per_second": 1e9},
            "device": {
                "name": "core",
                "memory_bytes": memory_bytes,
                "bytes_per_second": 5e9,
                "peak": {"float32": 5e10},
                "products": {"edges": [100], "fractions": [0.8]},
            },
        }
    )


def test_recomputation_is_taken_where_nothing_fits_without_it():
    shape = ModelShape(12, 64, 4, 64, 256)
    plenty = search(shape, SHARDKIT, small(4e9), 1, 16)
    assert plenty.best.layout.recomputation == "none"
    least = memory_of(
        RunLayout(policy="ddp", schedule="gpipe", micro_batches=1, micro_batch=16), shape, SHARDKIT
    ).total
    tight = search(shape, SHARDKIT, small(0.55 * least), 1, 16, micro_batch=16)
    assert tight.best.layout.recomputation == "full"
    assert not tight.what_would_fit()


@pytest.mark.thorough
def test_where_nothing_fits_it_says_how_far_it_is_and_what_would():
    shape = ModelShape(12, 256, 8, 512, 64)
    found = search(shape, SHARDKIT, small(60e6), 2, 64)
    assert found.best is None and not found.rows(5)
    text = "\n".join(found.what_would_fit())
    assert (
        "GB per device, 0.06 are there" in text
        and "would hold it" in text
        and "devices would: pipeline" in text
    )
    number = int(text.split(" devices would")[0].split()[-1])
    assert search(shape, SHARDKIT, small(60e6), number, 64).best is not None
    nowhere = "\n".join(search(shape, SHARDKIT, small(1e6), 2, 64).what_would_fit())
    assert "would not help" in nowhere


def test_where_everything_is_refused_it_says_why():
    found = search(ModelShape(1, 96, 6, 96, 6), SHARDKIT, CPU, 7, 7 * 2 + 1)
    assert found.best is None
    assert "refuses all" in found.what_would_fit()[0]


def test_ranks_share_samples_where_a_sample_does_not_fit_otherwise():
    """One head, so that tensor ranks cannot cut the sequence either."""
    shape = ModelShape(2, 64, 1, 64, 4096)
    assert search(shape, SHARDKIT, small(4e9), 4, 4).best.layout.domain == 1
    alone = search(shape, SHARDKIT, small(1e6), 4, 4)
    least = min(c.memory.total for c in alone.too_large if c.layout.domain == 1)
    found = search(shape, SHARDKIT, small(0.7 * least), 4, 4)
    assert {candidate.layout.domain for candidate in found.fitting} <= {2, 4}
    best = found.best
    assert best.fits and best.memory.activations < 0.6 * least
    assert "domain" in str(best.layout)
    cost, half = [step_cost(replace(best.layout, domain=n), shape, SHARDKIT, CPU) for n in (1, 2)]
    assert half.seconds < cost.seconds


@pytest.mark.parametrize(
    "changes, why",
    [
        ({"domain": 40}, "32 tokens of a sample on 40 domain ranks"),
        ({"domain": 2, "tensor": 2, "is_sequence_parallel": True}, "sequence parallelism"),
    ],
)
def test_samples_that_cannot_be_shared_are_refused_with_the_reason(changes, why):
    assert why in why_not(RunLayout(**changes), SHAPE, SHARDKIT)
    assert "shares no samples" in why_not(RunLayout(domain=2), SHAPE, MIXED)
