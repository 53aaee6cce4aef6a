"""Models of grids in plans: what was seen on small grids holds on others."""

import json
import types
from dataclasses import replace
from math import prod

import h5py
import numpy
import pytest

import shardkit as sk
from shardkit.nn import ForwardContext, Tensor, forward_context
from shardkit.testing.array import HUGE_PAGE_BYTES, Meter, empty, held_bytes
from shardkit.testing.parallel import SampleParts, device_of
from shardkit.testing.plan import (
    SHARDKIT,
    RunLayout,
    block_bytes,
    cuts_of,
    measured_steps,
    memory_of,
    read_cluster,
    read_run,
    search,
    settings_of,
    step_cost,
    why_not,
)
from shardkit.testing.task import described_on

UNET = {"model.width": 8, "model.depth": 2}
CASES = {
    "unet, 2-D": ("unet", (2, 80, 48), (1, 80, 48), UNET),
    "large unet": ("unet", (2, 192, 128), (1, 192, 128), UNET),
    "unet, 3-D": ("unet", (1, 48, 40, 40), (1, 48, 40, 40), {**UNET, "model.depth": 3}),
    "fno": ("fno", (2, 80, 72), (1, 80, 72), {"model.width": 8, "model.modes": (8,)}),
    "resnet": ("resnet", (3, 96, 64), (4,), {"model.width": 8, "data.kind": "regression"}),
}


def planned(folder, name):
    """Return the run of a case, and its task, ready to make the model."""
    task, x, y, changes = CASES[name]
    path = folder / "rows.h5"
    rng = numpy.random.default_rng(0)
    with h5py.File(path, "w") as file:
        file["x"], file["y"] = (rng.standard_normal((5, *each), "float32") for each in (x, y))
    given = {"run.task": task, "data.path": str(path), "data.target": ("y",), **changes}
    run = read_run(None, given)
    task_class = run.settings.task_class
    found = task_class(run.settings).look()
    return run, task_class(run.settings, described_on(x[1:], found))


def cut_over(task, cut, run):
    """Return run(model, x, loss, y, context, groups) of each rank of a grid of them, for a
    micro-batch of one.
    """
    x_shape, y_shape = task.described.x_shape, task.described.y_shape
    rng = numpy.random.default_rng(0)
    x, y = (rng.standard_normal((1, *each), "float32") for each in (x_shape, y_shape))
    domain = prod(cut)
    models = [task.make_model().finish(0) for _ in range(domain)]

    def on_rank(backend):
        model = models[backend.rank]
        loss, own, target, parts, lines = task.loss or model.loss, x, y, None, ()
        if domain > 1:
            if len(cut) > 1:
                lines = sk.Mesh(backend, domain=domain).grid("domain", cut)
            parts = SampleParts(model, backend, loss, lines=lines)
            own, target, loss = parts.part_of_batch(x, y, loss)
        context = ForwardContext(training=True, parts=parts, num_samples=1)
        with forward_context(context):
            return run(model, own, target, loss, (backend, *lines))

    return sk.run_ranks(domain, on_rank)


def kept_bytes(model, x, y, loss, groups):
    """Return what the arena of a rank has in use once a micro-batch went forward."""
    with Meter().in_use() as meter:
        kept, last = [], x
        for number, (_, block) in enumerate(model.blocks()):
            kept += [Tensor(last, requires_grad=number > 0)]
            kept += [block(kept[-1])]
            last = kept[-1].array
        kept[-1] = loss.total(kept[-1], y)
        del last
        return meter.used


def halo_bytes(model, x, y, loss, groups):
    """Return the bytes of halos that a rank sends in a forward and a backward."""
    counted = {id(each.traffic): each.traffic for each in groups}.values()
    before = sum(each.by_verb.get("send", 0) for each in counted)
    loss.total(model(Tensor(x)), y).backward()
    return sum(each.by_verb.get("send", 0) for each in counted) - before


def over(cut, **changes):
    return RunLayout(
        policy="ddp", domain=prod(cut), domain_grid=cut if len(cut) > 1 else None, **changes
    )


@pytest.mark.parametrize("cut", [(1,), (2,), (4,), (2, 2), (1, 3)], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_activations_of_a_size_that_was_not_run_are_kept_as_planned(tmp_path, name, cut):
    run, task = planned(tmp_path, name)
    if why_not(over(cut), run.shape, SHARDKIT):
        pytest.skip("too few rows, or no grid")
    how = over(cut).share(run.shape), 1, "none", False
    kept = [block_bytes(run.shape, SHARDKIT, block, *how).kept for block in run.shape.blocks]
    assert sum(kept) == pytest.approx(max(cut_over(task, cut, kept_bytes)), rel=0.05)


@pytest.mark.parametrize("cut", [(3,), (2, 2), (3, 2)], ids=str)
def test_the_busiest_rank_sends_halos_of_as_many_bytes_as_planned(tmp_path, cut):
    """But for the corners of halos along a second dim."""
    run, task = planned(tmp_path, "large unet")
    assert why_not(over(cut), run.shape, SHARDKIT) is None
    points = over(cut).share(run.shape).edges * run.shape.row_points
    edges = [run.shape.block(name).per_edge for name in run.shape.blocks]
    of_point = sum(each.forward_sent + each.backward_sent + each.weight_sent for each in edges)
    assert points * of_point == pytest.approx(max(cut_over(task, cut, halo_bytes)), rel=0.1)


def test_what_cannot_be_cut_along_two_dims_is_refused_as_the_runtime_does(tmp_path):
    run, _ = planned(tmp_path, "fno")
    assert "cannot be cut along 2 dims" in why_not(over((2, 2)), run.shape, SHARDKIT)
    run, _ = planned(tmp_path, "unet, 2-D")
    assert "1 x 2 x 2 domain ranks" in why_not(over((1, 2, 2)), run.shape, SHARDKIT)
    assert "48 columns of a grid are 12 deep" in why_not(over((1, 13)), run.shape, SHARDKIT)
    for domain in (1, 6):
        wrong = RunLayout(policy="ddp", domain=domain, domain_grid=(2, 2))
        assert f"2 x 2 domain ranks are not {domain}" in why_not(wrong, run.shape, SHARDKIT)


def test_a_measured_step_may_be_of_a_grid_of_ranks(tmp_path):
    run, _ = planned(tmp_path, "unet, 2-D")
    step = {
        "step": 1,
        "seconds": 0.5,
        "layout": {"policy": "ddp", "domain": 4, "domain_grid": [2, 2]},
    }
    (tmp_path / "steps.jsonl").write_text(json.dumps(step))
    assert measured_steps(tmp_path / "steps.jsonl", run.shape) == {over((2, 2)): 0.5}
    step["layout"]["domain_grid"] = "2 x 2"
    (tmp_path / "steps.jsonl").write_text(json.dumps(step))
    with pytest.raises(sk.ConfigurationError, match="domain_grid = '2 x 2'; wanted a list"):
        measured_steps(tmp_path / "steps.jsonl", run.shape)


@pytest.mark.parametrize("grid", [[2, 2], None])
def test_a_run_says_the_grid_of_its_ranks(tmp_path, grid):
    run, _ = planned(tmp_path, "unet, 2-D")
    parallel = dict(policy="ddp", schedule="gpipe", shard_ranks=None, domain_grid=grid)
    parallel |= dict(virtual_stages=None, activation_checkpointing=False, sequence_parallel=False)
    settings = {"model": {}, "parallel": parallel, "batch": {"micro_batch": 1}}
    mesh = {"pipeline": 1, "data": 1, "domain": 4, "tensor": 1}
    ranks = {"mesh": mesh, "micro_batches": 1, "parameter_count": run.shape.parameter_count}
    for name, found in (("configuration", settings), ("ranks", ranks)):
        (tmp_path / f"{name}.json").write_text(json.dumps(found))
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 1, "rows_per_second": 2}))
    found = measured_steps(tmp_path / "metrics.jsonl", run.shape)
    assert found == {replace(over((2, 2) if grid else (4,)), schedule="gpipe"): 0.5}


def test_ranks_cut_two_dims_where_rows_are_too_few_for_all_and_the_settings_say_so(tmp_path):
    run, _ = planned(tmp_path, "unet, 2-D")
    shape = run.shape
    assert why_not(over((24,)), shape, SHARDKIT) is not None
    best = search(shape, SHARDKIT, read_cluster("cpu-node"), 24, 1).best.layout
    assert best.domain == 24 and best.cut == (6, 4)  # 14 x 12 points
    assert "domain 24" in str(best) and "domain grid: 6 x 4" in str(best)
    settings = settings_of(best, shape, SHARDKIT)
    assert settings["mesh.domain"] == 24 and settings["parallel.domain_grid"] == (6, 4)


def test_of_all_cuts_of_two_dims_that_with_the_shortest_halos_is_looked_at(tmp_path):
    run, _ = planned(tmp_path, "large unet")
    row, square = cuts_of(run.shape, 16)
    assert (row, square) == ((16,), (8, 2))  # of two columns each has one neighbor
    found, *others = (over(cut).share(run.shape).edges for cut in (square, row, (4, 4), (2, 8)))
    assert found < min(others)


@pytest.mark.parametrize("name", CASES)
def test_parameters_are_those_of_the_model(tmp_path, name):
    run, task = planned(tmp_path, name)
    assert run.shape.parameter_count == task.make_model().parameter_count
    layout = RunLayout(1, 2, 1, "fsdp")

    def on_rank(backend):
        config = sk.ShardingConfiguration(backend, optimizer=sk.AdamW())
        model = sk.FSDPModel(task.make_model(), config)
        return device_of(model).accounts.table()

    found = sk.run_ranks(2, on_rank)[0]
    memory = memory_of(layout, run.shape, SHARDKIT)
    assert memory.parameters == found["parameters"]


def test_where_rows_are_too_few_deep_in_the_model_the_plan_says_so(tmp_path):
    run, _ = planned(tmp_path, "resnet")
    why = why_not(RunLayout(policy="ddp", domain=4), run.shape, SHARDKIT)
    assert "96 rows of a grid are 3 deep in the ResNet, fewer than 4 domain ranks" in why
    assert why_not(RunLayout(policy="ddp", domain=3), run.shape, SHARDKIT) is None


def test_tensor_ranks_and_stages_that_a_unet_does_not_have_are_refused(tmp_path):
    run, _ = planned(tmp_path, "unet, 2-D")
    assert "no layers that tensor ranks share" in why_not(RunLayout(1, 1, 2), run.shape, SHARDKIT)
    assert "fewer than 2 stages" in why_not(RunLayout(2), run.shape, SHARDKIT)


def test_ranks_share_samples_where_memory_is_short_and_then_send(tmp_path):
    run, _ = planned(tmp_path, "unet, 3-D")
    cluster, shape = read_cluster("cpu-node"), run.shape
    alone = search(shape, SHARDKIT, cluster, 4, 4).best
    assert alone.layout.domain == 1
    layouts = [RunLayout(policy="ddp", micro_batches=4, domain=domain) for domain in (1, 4)]
    one, four = (step_cost(each, shape, SHARDKIT, cluster).seconds for each in layouts)
    assert one / 4 < four < one


def test_a_meter_counts_what_is_alive_and_an_arena_of_its_events_holds_that():
    with Meter().in_use() as meter:
        first = empty(100_000, "float32")
        second = empty(50_000, "float32")
        view = first[1:]
        del first, second
        assert (meter.used, meter.peak, meter.made) == (400_000, 600_000, 600_000)
        del view
    assert meter.used == 0
    counting = types.SimpleNamespace(add=lambda purpose, num_bytes: None)
    device = types.SimpleNamespace(kind="cpu", accounts=counting)
    held, most = held_bytes(meter.events, device)
    assert held == HUGE_PAGE_BYTES and most == pytest.approx(600_000, rel=1e-3)
