"""The planner's sizes are those of the model, and its stages those of the runtime."""

import json

import h5py
import numpy
import pytest
from planned import gpt_of, mlp_of, model_of

import shardkit as sk
from shardkit.testing.layout import balanced_stages, merged_blocks
from shardkit.testing.parallel import multiplied_elements, plan_units, stage_ranges
from shardkit.testing.plan import (
    MIXED,
    SHARDKIT,
    MLPShape,
    ModelShape,
    RunLayout,
    read_cluster,
    read_run,
    stage_units,
    step_cost,
    why_not,
)

SHAPES = [
    ModelShape(2, 24, 4, 48, 8),
    ModelShape(3, 32, 4, 50, 8, kv_heads=2, style="llama"),
    ModelShape(1, 24, 12, 36, 8, kv_heads=3, tied=True),
    ModelShape(2, 24, 6, 48, 8, hidden=36, style="llama", tied=True),
    ModelShape(3, 24, 6, 48, 8, window=3, full_layers=(1,)),
]
DENSE = [
    MLPShape((5, 3)),
    MLPShape((20, 64, 100, 70, 3), "relu", is_of_classes=True),
    MLPShape((7, 31, 200, 31, 200, 31, 1), "tanh"),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_counts_are_those_of_the_model(shape):
    model = gpt_of(shape)
    assert shape.parameter_count == model.parameter_count
    assert shape.num_flops_per_item == model.num_flops_per_token
    for block, (_, module) in zip(shape.blocks, model.blocks(), strict=True):
        assert shape.multiplied_elements(block) == multiplied_elements(module)


@pytest.mark.parametrize("shape", DENSE, ids=str)
def test_counts_of_rows_are_those_of_the_mlp(shape):
    model = mlp_of(shape)
    assert shape.parameter_count == model.parameter_count
    assert shape.num_flops_per_item == 6 * sum(map(shape.multiplied_elements, shape.blocks))
    for block, (_, module) in zip(shape.blocks, model.blocks(), strict=True):
        assert shape.multiplied_elements(block) == multiplied_elements(module)
        assert shape.block_elements(block) == module.parameter_count


@pytest.mark.parametrize("tensor", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("shape", SHAPES + DENSE, ids=str)
def test_a_tensor_rank_has_the_elements_that_the_default_plan_leaves_it(shape, tensor):
    reason = why_not(RunLayout(tensor=tensor), shape, SHARDKIT)

    def run(backend):
        model = sk.TensorParallelModel(model_of(shape), sk.ShardingConfiguration(backend))
        owned, sizes = set(), []
        for _, module in model.wrapped_model.blocks():
            new = {id(p): p.size for p in module.named_parameters().values() if id(p) not in owned}
            owned |= set(new)
            sizes.append(sum(new.values()))
        return sizes

    if reason is not None:
        with pytest.raises(sk.ShardkitError):
            sk.run_ranks(tensor, run)
    else:
        assert sk.run_ranks(tensor, run)[0] == [
            shape.block_elements(block, tensor) for block in shape.blocks
        ]


@pytest.mark.parametrize("num_stages", [1, 2, 3, 4])
@pytest.mark.parametrize("shape", SHAPES + DENSE, ids=str)
def test_stages_are_those_of_the_runtime(shape, num_stages):
    units = plan_units(model_of(shape), SHARDKIT.merges_below)
    planned = stage_units(shape, SHARDKIT, num_stages, 1)
    if len(units) < num_stages:
        assert planned is None
    else:
        ranges = stage_ranges(units, num_stages)
        assert [[len(unit) for unit in stage] for stage in planned] == [
            [len(units[at].blocks) for at in run] for run in ranges
        ]


@pytest.mark.parametrize(
    "layers, num_stages, counts",
    [
        (12, 4, [3, 3, 3, 3]),
        (126, 8, [15, 16, 16, 16, 16, 16, 16, 15]),
        (126, 128, [0, *[1] * 126, 0]),
        (9, 4, [2, 3, 3, 1]),
        (5, 8, None),
    ],
)
def test_even_stages_differ_by_what_does_not_divide(layers, num_stages, counts):
    shape = ModelShape(layers, 64, 4, 96, 8)
    stages = stage_units(shape, MIXED, num_stages, 1)
    layout = RunLayout(num_stages, policy="ddp", micro_batches=num_stages)
    assert (stages is None) == (counts is None) == (why_not(layout, shape, MIXED) is not None)
    if stages:
        assert [stage.count(("layer",)) for stage in stages] == counts
        assert stages[0][0] == ("embedding",) and stages[-1][-1] == ("head",)
        assert sum(map(len, stages)) == layers + 2
        cost = step_cost(layout, shape, MIXED, read_cluster("h100-80gb-ndr"))
        assert cost.seconds == pytest.approx(sum(cost.parts.values()))


def test_blocks_are_merged_until_there_are_enough():
    assert merged_blocks([8, 90, 90, 2, 60], 50) == [range(0, 2), range(2, 3), range(3, 5)]
    assert merged_blocks([60, 8], 50) == [range(0, 2)]
    assert merged_blocks([1, 1], 50) == [range(0, 2)]
    assert merged_blocks([50, 50], 50) == [range(0, 1), range(1, 2)]


def test_the_worst_stage_is_as_cheap_as_any_cut_makes_it():
    def cuts(length, parts):
        return (
            [[length]]
            if parts == 1
            else [
                [first, *rest]
                for first in range(1, length - parts + 2)
                for rest in cuts(length - first, parts - 1)
            ]
        )

    costs = [3, 1, 4, 1, 5, 9, 2, 6]
    for parts in range(1, len(costs) + 1):
        best = min(
            max(sum(costs[sum(cut[:at]) : sum(cut[: at + 1])]) for at in range(parts))
            for cut in cuts(len(costs), parts)
        )
        assert (
            max(sum(costs[run.start : run.stop]) for run in balanced_stages(costs, parts)) == best
        )


def test_a_settings_file_of_train_is_a_model(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(
        '[model]\nstyle = "gpt2"\nwidth = 64\nlayers = 3\nheads = 4\nvocabulary_size = 300\n'
        "hidden = 100\n"
        "sequence_length = 16\n[batch]\nsequences = 32\n"
    )
    run = read_run(path)
    shape, settings = run.shape, run.settings
    assert shape == ModelShape(3, 64, 4, 300, 16, hidden=100, style="gpt2")
    assert settings.batch.sequences == 32


@pytest.mark.parametrize(
    "kind, target, outputs", [("regression", ["a", "b"], 2), ("multiclass", ["k"], 4)]
)
def test_a_table_gives_the_ends_of_its_mlp(tmp_path, kind, target, outputs):
    columns = numpy.random.default_rng(0).standard_normal((60, 5)).astype("float32")
    classes = numpy.arange(60) % 4
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        file.update({"x": columns, "a": columns[:, 0], "b": columns[:, 1], "k": classes})
    (tmp_path / "run.toml").write_text(
        f'[run]\ntask = "table"\n[model]\nhidden = [9, 8]\n[batch]\nsequences = 10\n'
        f'[data]\npath = "{tmp_path}/rows.h5"\nfeatures = ["x"]\ntarget = {json.dumps(target)}\n'
        f'kind = "{kind}"\n'
    )
    run = read_run(tmp_path / "run.toml", {"run.steps": 7})
    assert run.shape == MLPShape((5, 9, 8, outputs), is_of_classes=kind == "multiclass")
    assert run.rows == 54 and run.items(10) == 70
    epochs = read_run(tmp_path / "run.toml", {"run.epochs": 2.5})
    assert epochs.items(10) == 2.5 * 54


@pytest.mark.parametrize(
    "text, message",
    [
        (
            '[run]\ntask = "own.py:Net"',
            "planned for language, chat, table, fno, resnet, unet alone",
        ),
        ('[run]\ntask = "table"', "data.path is not given"),
        ("[model]\nwidht = 3", "did you mean model.width"),
        ("[model]\nhidden = -1", "at least 1"),
        ("[model]\nheads = 3", "heads"),
    ],
)
def test_a_model_that_is_none_is_refused(tmp_path, text, message):
    path = tmp_path / "run.toml"
    path.write_text(text)
    with pytest.raises(sk.ConfigurationError, match=message):
        read_run(path)
