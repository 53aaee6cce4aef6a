"""The planner's seconds: schedules as they are simulated, collectives by topology, hardware files,
parts that add up.
"""

import random
from dataclasses import replace

import numpy
import pytest

import shardkit as sk
from shardkit.testing.plan import (
    ALL_GATHER,
    ALL_REDUCE,
    LARGE_BYTES,
    MIXED,
    REDUCE_SCATTER,
    SEND,
    SHARDKIT,
    ModelShape,
    PipelineRun,
    RankGroup,
    RunLayout,
    Setting,
    StageSeconds,
    SwitchLevel,
    block_seconds,
    cluster_from,
    collective_seconds,
    known_clusters,
    read_cluster,
    row_of,
    seen_part,
    slowest_of,
    step_cost,
)

SCHEDULES = [
    ("gpipe", 1),
    ("1f1b", 1),
    ("zb-h1", 1),
    ("zb-v", 2),
    ("interleaved", 1),
    ("interleaved", 2),
    ("interleaved", 3),
]
SHAPE = ModelShape(8, 256, 8, 512, 128)


def stage_seconds(num_stages, seed=None):
    """Return stages of equal or random lengths."""
    draw = random.Random(seed)
    return StageSeconds(
        *(
            tuple(
                length * (1 if seed is None else draw.uniform(0.5, 1.5)) for _ in range(num_stages)
            )
            for length in (1.0, 1.25, 0.75)
        )
    )


# ---- pipelines -----------------------------------------------------------------------------------


@pytest.mark.parametrize("transfer_seconds", [0.0, 0.2])
@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize(
    "pipeline, micro_batches", [(1, 1), (1, 3), (2, 4), (3, 3), (3, 7), (4, 8)]
)
@pytest.mark.parametrize("schedule, virtual", SCHEDULES)
def test_a_replay_is_the_simulation(
    schedule, virtual, pipeline, micro_batches, seed, transfer_seconds
):
    seconds = stage_seconds(pipeline * virtual, seed)
    run = PipelineRun(schedule, pipeline, virtual, micro_batches, seconds, transfer_seconds)
    assert run.replayed_whole() == pytest.approx(run.simulated().seconds, rel=1e-12)


@pytest.mark.parametrize("schedule, virtual", SCHEDULES)
def test_a_replay_that_is_continued_is_the_whole_one(schedule, virtual):
    for pipeline, micro_batches in ((2, 40), (3, 35), (4, 64)):
        for seed in (None, 2):
            arguments = (
                schedule,
                pipeline,
                virtual,
                micro_batches,
                stage_seconds(pipeline * virtual, seed),
                0.1,
            )
            run = PipelineRun(*arguments)
            assert run.replayed() == pytest.approx(run.replayed_whole(), rel=0.01)


@pytest.mark.parametrize(
    "schedule, virtual", [("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("interleaved", 3)]
)
def test_the_closed_form_is_exact_for_equal_stages(schedule, virtual):
    for pipeline, micro_batches in ((1, 4), (2, 4), (3, 6), (4, 16), (8, 16)):
        arguments = schedule, pipeline, virtual, micro_batches, stage_seconds(pipeline * virtual)
        run = PipelineRun(*arguments)
        assert run.estimated() == pytest.approx(run.replayed(), rel=1e-9)


@pytest.mark.parametrize("schedule, virtual", SCHEDULES)
def test_the_closed_form_is_near_for_unequal_stages(schedule, virtual):
    for pipeline, micro_batches in ((2, 8), (4, 16), (8, 32)):
        arguments = (
            schedule,
            pipeline,
            virtual,
            micro_batches,
            stage_seconds(pipeline * virtual, 3),
            0.05,
        )
        run = PipelineRun(*arguments)
        assert run.estimated() == pytest.approx(run.replayed(), rel=0.2)


# ---- collectives ---------------------------------------------------------------------------------


def test_a_ring_moves_its_bytes_over_the_slowest_link():
    cluster = read_cluster("a100-80gb-hdr")
    big = 8e9
    inside = collective_seconds(cluster, ALL_REDUCE, big, RankGroup(8, 1))
    assert inside == pytest.approx(2 * big * 7 / 8 / (0.78 * 300e9), rel=0.01)
    alone = collective_seconds(
        cluster, ALL_REDUCE, big, RankGroup(16, 8)
    )  # one rank per node: one port of 25 GB/s
    assert alone == pytest.approx(2 * big * 15 / 16 / (0.8 * 25e9), rel=0.01)
    whole_nodes = collective_seconds(cluster, ALL_REDUCE, big, RankGroup(16, 1))  # all eight ports
    assert whole_nodes == pytest.approx(2 * big * 15 / 16 / (0.8 * 200e9), rel=0.01)
    for operation in (ALL_GATHER, REDUCE_SCATTER):
        assert collective_seconds(cluster, operation, big, RankGroup(8, 1)) == pytest.approx(
            inside / 2, rel=0.01
        )


def test_small_messages_cost_hops_and_a_tree_saves_some():
    cluster = read_cluster("a100-80gb-hdr")
    many, few = (
        collective_seconds(cluster, ALL_REDUCE, 8, RankGroup(size, 8)) for size in (512, 8)
    )
    assert 2 * few < many < 2 * 511 * 14e-6  # logarithmic, not linear
    assert collective_seconds(cluster, ALL_GATHER, 8, RankGroup(512, 8)) == pytest.approx(
        511 * 14e-6, rel=0.01
    )


def test_levels_of_switches_slow_what_leaves_them():
    plain = read_cluster("a100-80gb-hdr")
    island = SwitchLevel(nodes=4, oversubscription=8.0, latency_seconds=1e-6)
    levels = replace(plain, levels=(island,))

    def both(size, stride, num_bytes=8e9):
        group = RankGroup(size, stride)
        return [
            collective_seconds(cluster, ALL_GATHER, num_bytes, group) for cluster in (plain, levels)
        ]

    assert both(32, 1)[0] == both(32, 1)[1]  # inside of the island
    quick, slow = both(8, 32)  # every hop leaves it: an eighth of the bandwidth
    assert slow == pytest.approx(8 * quick, rel=0.01)
    quick, slow = both(64, 1)  # a ring leaves it on one of four nodes: twice the traffic
    assert slow == pytest.approx(2 * quick, rel=0.01)
    quick, slow = both(64, 8, num_bytes=8)
    assert slow - quick == pytest.approx(63 * 1e-6 / 4, rel=1e-3)


def test_nobody_to_talk_to_takes_no_time():
    cluster = read_cluster("cpu-node")
    assert all(
        collective_seconds(cluster, operation, 1e6, RankGroup(1, 4)) == 0
        for operation in (ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, SEND)
    )


MINIMAL = {
    "name": "two cores",
    "devices": 2,
    "inside": {"bytes_per_second": 1e9},
    "between": {"bytes_per_second": 1e9},
    "device": {
        "name": "core",
        "memory_bytes": 1e9,
        "bytes_per_second": 1e10,
        "peak": {"float32": 1e10},
        "products": {"edges": [10, 1000], "fractions": [0.5, 1.0]},
    },
}


def test_a_measured_collective_counts_where_it_was_measured():
    rows = [
        {"operation": "all_reduce", "ranks": 2, "latency_seconds": 1e-3, "bytes_per_second": 1e6}
    ]
    cluster = cluster_from({**MINIMAL, "measured": rows})
    assert collective_seconds(cluster, ALL_REDUCE, 1e6, RankGroup(2, 1)) == pytest.approx(1.001)
    assert (
        collective_seconds(cluster, ALL_REDUCE, 1e6, RankGroup(2, 2)) < 0.1
    )  # between nodes: by the links


def test_a_message_takes_as_long_as_in_the_ring_of_the_nearest_size():
    rows = [
        {"operation": "send", "ranks": n, "latency_seconds": n * 1e-3, "bytes_per_second": 1e6}
        for n in (2, 4)
    ]
    cluster = cluster_from({**MINIMAL, "devices": 8, "measured": rows})
    times = [collective_seconds(cluster, SEND, 1e3, RankGroup(n, 1)) for n in (2, 4, 8)]
    assert times == pytest.approx([3e-3, 5e-3, 5e-3])


def test_what_was_measured_is_made_of_a_latency_and_a_speed():
    row = row_of("send", 2, some=1.5e-3, full=5e-3, some_bytes=LARGE_BYTES // 8)
    assert row["latency_seconds"] == pytest.approx(1e-3)
    assert row["bytes_per_second"] == pytest.approx(LARGE_BYTES / 4e-3)
    noisy = row_of("send", 2, some=4e-3, full=3e-3, some_bytes=16)
    assert noisy["bytes_per_second"] == pytest.approx(LARGE_BYTES / 3e-3)


def test_work_is_slower_and_later_with_the_ranks_that_share_the_node():
    """As measured on the nearest number of ranks; a device alone is as quick as it was alone."""
    rows = [
        {"ranks": 1, "slowdown": 0.8, "lag": 0.0},
        {"ranks": 2, "slowdown": 1.0, "lag": 0.1},
    ]
    shape = ModelShape(2, 64, 4, 128, 32)

    def cost(devices, **more):
        layout = RunLayout(data=devices, policy="ddp", micro_batch=4)
        return step_cost(layout, shape, SHARDKIT, cluster_from({**MINIMAL, **more}))

    assert cost(1, crowding=rows).seconds == pytest.approx(0.8 * cost(1).seconds)
    crowded, plain = cost(2, crowding=rows), cost(2)
    assert crowded.parts["compute"] == pytest.approx(plain.parts["compute"])
    assert crowded.parts["stragglers"] == pytest.approx(0.1 * plain.parts["compute"])


def test_the_runtime_adds_its_seconds_to_each_unit_and_micro_batch():
    shape = ModelShape(2, 64, 4, 128, 32)
    slow = {**MINIMAL, "device": {**MINIMAL["device"], "unit_seconds": 1e-3}}

    def added(micro_batches):
        layout = RunLayout(policy="ddp", micro_batch=1, micro_batches=micro_batches)
        costs = [step_cost(layout, shape, SHARDKIT, cluster_from(t)) for t in (slow, MINIMAL)]
        return costs[0].seconds - costs[1].seconds

    units = 4  # embedding, two layers, head
    assert added(1) == pytest.approx(units * 1e-3) and added(8) == pytest.approx(8 * units * 1e-3)


# ---- hardware files ------------------------------------------------------------------------------


def test_the_files_that_come_with_shardkit_can_be_read():
    named = {"a100-80gb-hdr", "h100-80gb-ndr", "h100-80gb-roce", "h200-141gb-ndr", "cpu-node"}
    assert named <= set(known_clusters())
    assert read_cluster("h100-80gb-roce").levels == (SwitchLevel(384, 7),)
    for name in known_clusters():
        device = read_cluster(name).device
        assert max(device.fractions) < 1 and device.memory_fraction < 1
        assert device.product_seconds(4096, 4096, 4096, "float32") > 0


def test_a_fraction_lies_between_its_neighbors_and_stays_level_beyond_the_ends():
    device = cluster_from(MINIMAL).device
    assert device.fraction(1) == device.fraction(10) == 0.5 and device.fraction(5000) == 1.0
    assert device.fraction(100) == pytest.approx(0.75)


def test_fused_attention_has_a_speed_of_its_own():
    device = read_cluster("a100-80gb-hdr").device
    forward, backward = device.attention_seconds(16, 4096, 128, "bfloat16")
    operations = 4 * 16 * 4096**2 * 128 / 2
    together = 3.5 * operations / (forward + backward)
    assert together == pytest.approx(173e12, rel=0.01)  # arXiv 2307.08691, figure 4
    assert 0.15 < forward / backward < 0.4
    slower = device.attention_seconds(16, 4096, 128, "bfloat16", "triton")
    assert sum(slower) > 1.8 * (forward + backward)
    plain = cluster_from(MINIMAL).device  # without measurements: products that meet no memory
    assert sum(plain.attention_seconds(4, 64, 32, "float32")) < 7 * 4 * 64**2 * 32 / (0.5 * 1e10)


def test_a_window_takes_attention_the_time_of_what_it_hides():
    at = dict(software=SHARDKIT, cluster=read_cluster("a100-80gb-hdr"), micro_batch=1, tensor=1)
    at |= dict(recomputation="none", is_sequence_parallel=False)

    def seconds(**sight):
        shape = ModelShape(4, 1024, 8, 512, 16384, style="llama", **sight)
        found = block_seconds("layer", Setting(shape, **at))
        return found.forward + found.backward + found.weight

    whole, half, all_windows = (
        seconds(),
        seconds(window=512, full_layers=(0, 2)),
        seconds(window=512),
    )
    assert all_windows < 0.6 * whole
    assert half == pytest.approx((whole + all_windows) / 2, rel=0.05)
    assert seconds(window=16384) == seconds(window=10**6) == whole


@pytest.mark.parametrize("reach, length", [(1, 5), (3, 5), (5, 5), (9, 5)])
def test_the_part_of_scores_that_a_window_leaves_is_counted(reach, length):
    shape = ModelShape(4, 16, 2, 32, length, window=reach, full_layers=(1,))
    offset = numpy.arange(length)[:, None] - numpy.arange(length)
    seen, whole = ((0 <= offset) & (offset < reach)).sum(), (0 <= offset).sum()
    assert seen_part(shape) == pytest.approx(3 / 4 * seen / whole + 1 / 4)


def test_a_device_may_be_like_that_of_another_file():
    h100, h200 = (read_cluster(name).device for name in ("h100-80gb-ndr", "h200-141gb-ndr"))
    own = {"name": "H200-SXM-141GB", "memory_bytes": 137e9, "bytes_per_second": 4.8e12}
    assert {**vars(h100), **own} == vars(h200)
    tables = {**MINIMAL, "device": {"like": "h100-80gb-ndr", "memory_fraction": 0.5}}
    device = cluster_from(tables).device
    assert vars(device) == {**vars(h100), "memory_fraction": 0.5}
    with pytest.raises(sk.ConfigurationError, match="like = 'h300'; wanted one of a100"):
        cluster_from({**MINIMAL, "device": {"like": "h300"}})


def test_a_checkpoint_is_written_by_the_nodes_of_the_job():
    """Six nodes of two ports each fill the file system."""
    cluster = read_cluster("a100-80gb-hdr")
    assert [cluster.storage_speed(devices) / 1e9 for devices in (1, 8, 9, 40, 48, 3072)] == [
        *(50, 50, 100, 250, 273, 273)
    ]
    shape = ModelShape(4, 256, 4, 512, 128)
    costs = [step_cost(RunLayout(data=data), shape, MIXED, cluster) for data in (8, 16, 64)]
    seconds = [cost.checkpoint_seconds for cost in costs]
    assert seconds[0] == 2 * seconds[1] and seconds[1] / seconds[2] == pytest.approx(273 / 100)
    assert replace(cluster, storage_bytes_per_second=0.0).storage_speed(8) == 0
    by_network = replace(cluster, node_storage_bytes_per_second=0.0)
    assert by_network.storage_speed(8) == by_network.between.speed < 273e9


@pytest.mark.parametrize(
    "change, message",
    [
        ({"devises": 2}, "unknown key devises; did you mean devices"),
        ({"devices": "two"}, "wanted an integer, at least 1"),
        (
            {"storage_bytes_per_second": float("nan")},
            "storage_bytes_per_second = nan; wanted a finite number",
        ),
        ({"inside": 3}, r"no table \[inside\]"),
        ({"between": {}}, "bytes_per_second missing"),
        ({"levels": [{"nodes": 0}]}, "wanted at least 1"),
        (
            {
                "device": {
                    **MINIMAL["device"],
                    "attention": [
                        {"head_dim": 64, "lengths": [1, 2], "forward": [0.1], "backward": [0.1]}
                    ],
                }
            },
            "forward .*as many of each",
        ),
        (
            {
                "device": {
                    **MINIMAL["device"],
                    "products": {"edges": [10, 5], "fractions": [0.1, 0.2]},
                }
            },
            "ascending",
        ),
    ],
)
def test_a_file_that_is_wrong_is_refused(change, message):
    with pytest.raises(sk.ConfigurationError, match=message):
        cluster_from({**MINIMAL, **change})


def test_a_file_that_is_not_there_names_those_that_are():
    with pytest.raises(sk.ConfigurationError, match="a100-80gb-hdr"):
        read_cluster("a100")


def test_a_dtype_without_a_peak_is_refused():
    with pytest.raises(sk.ConfigurationError, match="no peak for bfloat16"):
        step_cost(RunLayout(), SHAPE, MIXED, cluster_from(MINIMAL))


# ---- a step --------------------------------------------------------------------------------------


@pytest.mark.parametrize("software", [SHARDKIT, MIXED], ids=lambda software: software.name)
@pytest.mark.parametrize(
    "layout",
    [
        RunLayout(),
        RunLayout(1, 4, 1, "fsdp", micro_batches=4),
        RunLayout(2, 2, 2, "zero1", micro_batches=4),
        RunLayout(4, 1, 2, "ddp", "interleaved", 2, micro_batches=8, is_sequence_parallel=True),
        RunLayout(2, 1, 4, "ddp", micro_batches=8, recomputation="full"),
    ],
    ids=str,
)
def test_the_parts_of_a_step_add_up(layout, software):
    cost = step_cost(layout, SHAPE, software, read_cluster("a100-80gb-hdr"))
    assert sum(cost.parts.values()) == pytest.approx(cost.seconds)
    assert min(cost.parts.values()) > -1e-9 * cost.seconds
    estimate = step_cost(layout, SHAPE, software, read_cluster("a100-80gb-hdr"), is_exact=False)
    assert estimate.seconds == pytest.approx(cost.seconds, rel=0.1)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("micro_batches", range(1, 9))
def test_one_rank_has_no_bubble_and_no_remainder_of_rounded_sums(schedule, micro_batches):
    shape = ModelShape(6, 96, 4, 96, 32)
    layout = RunLayout(data=2, schedule=schedule, micro_batches=micro_batches)
    assert step_cost(layout, shape, SHARDKIT, read_cluster("cpu-node")).parts["bubble"] == 0.0


def test_recomputation_costs_time_and_more_data_ranks_save_it():
    def seconds(**changes):
        return step_cost(
            RunLayout(**{"micro_batches": 8, "policy": "ddp", **changes}),
            SHAPE,
            SHARDKIT,
            read_cluster("cpu-node"),
        ).seconds

    assert 1.2 < seconds(recomputation="full") / seconds() < 1.5
    assert seconds(data=4, micro_batches=2) < seconds() / 3


def test_more_ranks_than_cores_take_the_time_of_the_cores():
    alone = cluster_from({**MINIMAL, "cores": 2, "devices": 4})
    one, four = (
        step_cost(
            RunLayout(data=ranks, policy="ddp", micro_batches=8 // ranks), SHAPE, SHARDKIT, alone
        )
        for ranks in (1, 4)
    )
    assert four.parts["compute"] + four.parts["bubble"] > one.seconds / 2 * 0.9


def test_collectives_of_tensor_ranks_are_overlapped_by_choice():
    cluster = read_cluster("a100-80gb-hdr")
    shape = ModelShape(8, 8192, 64, 51200, 2048)
    plain = RunLayout(1, 1, 8, "ddp", micro_batches=4)
    sequence = replace(plain, is_sequence_parallel=True)
    choice = replace(MIXED, name="overlapping", overlaps_tensor=True)
    one, other = (step_cost(sequence, shape, program, cluster) for program in (MIXED, choice))
    assert other.parts["tensor"] < 0.7 * one.parts["tensor"]
    assert one.seconds - other.seconds == pytest.approx(
        one.parts["tensor"] - other.parts["tensor"], rel=0.1
    )
    one, other = (step_cost(plain, shape, program, cluster) for program in (MIXED, choice))
    assert one.seconds == other.seconds  # whole all-reduces have nothing to run beside


def test_fsdp_shows_what_it_does_not_hide_and_a_bubble_stays_a_bubble():
    cluster = read_cluster("a100-80gb-hdr")
    shape = ModelShape(16, 4096, 32, 51200, 2048)

    def cost(tokens, **changes):
        layout = RunLayout(**{"data": 64, "policy": "fsdp", "micro_batch": tokens, **changes})
        return step_cost(layout, shape, MIXED, cluster)

    short, long = cost(1), cost(8)
    assert short.parts["gathers"] > 0.1 * short.seconds  # more to gather than to compute
    assert long.parts["gathers"] + long.parts["reduction"] < 0.25 * long.seconds
    cut = cost(1, data=8, pipeline=8, micro_batches=16)
    whole = cost(1, data=8, pipeline=8, micro_batches=16, policy="ddp")
    assert cut.parts["bubble"] > whole.parts["bubble"] > 0
    assert cut.parts["gathers"] > 0 == whole.parts["gathers"]


def test_zero1_spreads_parameters_behind_the_first_forward():
    cluster = read_cluster("a100-80gb-hdr")
    shape = ModelShape(16, 4096, 32, 51200, 2048)
    layout = RunLayout(data=64, policy="zero1", micro_batch=8)
    behind = step_cost(layout, shape, MIXED, cluster).parts["reduction"]
    waiting = replace(MIXED, name="waits", overlaps_gathers=False)
    assert behind < 0.9 * step_cost(layout, shape, waiting, cluster).parts["reduction"]


def test_a_step_waits_for_the_slowest_of_its_devices():
    assert slowest_of(1) == 0 < slowest_of(8) < slowest_of(512) < 4
    cluster = read_cluster("h100-80gb-ndr")
    parts = {
        devices: step_cost(RunLayout(data=devices, policy="ddp"), SHAPE, MIXED, cluster).parts
        for devices in (1, 8, 64)
    }
    assert parts[1]["stragglers"] == 0 < parts[8]["stragglers"] < parts[64]["stragglers"]
