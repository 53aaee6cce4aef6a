"""`shardkit plan` as a command: its table, its reasons, its files, its exit codes."""

import json
import re
import shlex
import subprocess
import sys

import h5py
import numpy
import pytest

from shardkit.testing.cli import main
from shardkit.testing.optim import RULES
from shardkit.testing.plan import (
    FOLDER,
    MIXED,
    SHARDKIT,
    ModelShape,
    RunLayout,
    left_out,
    others_software,
    settings_of,
    software_module,
    software_of,
)
from shardkit.testing.task import Language
from shardkit.testing.train import check_batch, configuration_of

RunConfiguration = configuration_of(Language)

MODEL = """
[model]
style = "gpt2"
width = 64
layers = 6
heads = 4
sequence_length = 32
[batch]
sequences = 16
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.toml").write_text(MODEL)
    return tmp_path


def plan(capsys, *arguments, model="model.toml", cluster="cpu-node"):
    """Return (exit code, standard output, standard error)."""
    code = main(["plan", model, cluster, *map(str, arguments)])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_the_table_has_a_row_per_mesh_a_reason_for_each_loser_and_the_totals(capsys):
    code, said, _ = plan(capsys, "--devices", 4, "--tokens", "2e9", "--rows", 3)
    assert code == 0
    rows = [line for line in said.splitlines() if line[:3] in (" 1 ", " 2 ", " 3 ")]
    assert len(rows) == 3 and all("+" in row for row in rows[1:]) and "+" not in rows[0]
    assert "2e+09 tokens are 3,906,250 steps" in said and "device-hours" in said
    assert "run it: mpiexec -n 4 shardkit train model.toml --mesh.pipeline=" in said


def test_where_ranks_share_samples_the_table_and_the_command_say_so(capsys, folder):
    long = MODEL.replace("= 32", "= 4194304").replace("heads = 4", "heads = 1")
    (folder / "long.toml").write_text(long)
    code, said, _ = plan(capsys, "--devices", 32, "--batch", 1, model="long.toml")
    assert code == 0 and " pipeline x data x domain x tensor " in said
    assert " 1 x 1 x 32 x 1 " in said and "--mesh.domain=32" in said
    _, found, _ = plan(capsys, "--devices", 32, "--batch", 1, "--json", model="long.toml")
    assert json.loads(found)["rows"][0]["layout"]["domain"] == 32


def test_a_table_is_planned_in_rows_and_by_shardkit_alone(capsys, folder):
    with h5py.File(folder / "rows.h5", "w") as file:
        file["x"], file["y"] = numpy.ones((80, 6), "f4"), numpy.ones(80, "f4")
    (folder / "table.toml").write_text(
        '[run]\ntask = "table"\n[data]\npath = "rows.h5"\ntarget = ["y"]\n'
        "[model]\nhidden = [64, 64]\n[batch]\nsequences = 16\n"
    )
    code, said, _ = plan(capsys, "--devices", 2, "--script", "job.sh", model="table.toml")
    assert code == 0 and "16 rows in a step" in said and "4.8e+03 rows are 300 steps" in said
    assert "run it: mpiexec -n 2 shardkit train table.toml --mesh" in said
    assert "table.toml" in (folder / "job.sh").read_text()
    code, _, error = plan(capsys, "--devices", 2, "--software", "mixed", model="table.toml")
    assert code == 2 and "cuts layers that are alike" in error


def test_the_recommended_command_line_is_a_configuration_that_the_ranks_fit(capsys):
    for devices in (1, 2, 4, 8):
        _, said, _ = plan(capsys, "--devices", devices)
        words = shlex.split(said.split("run it: ")[1].splitlines()[0])
        assert words[:6] == ["mpiexec", "-n", str(devices), "shardkit", "train", "model.toml"]
        given = dict(word[2:].split("=", 1) for word in words[6:])
        settings = RunConfiguration().replace(
            {key: RunConfiguration.parse(key, text) for key, text in given.items()}
        )
        check_batch(settings, devices)
        assert settings.batch.sequences == 16


@pytest.mark.parametrize(
    "given, bad, wanted",
    [
        ("memory_fraction = 0.80", "memory_fraction = 1.8", "a fraction above 0, at most 1"),
        ("memory_fraction = 0.80", "memory_fraction = 0.0", "a fraction above 0, at most 1"),
        ("bytes_per_second = 3.35e12", "bytes_per_second = nan", "a finite number above 0"),
        ("bytes_per_second = 450e9", "bytes_per_second = 0.0", "a finite number above 0"),
        ("fraction = 0.82", "fraction = 1.01", "a fraction above 0, at most 1"),
        ("memory_bytes = 76e9", "memory_bytes = 0", "a finite number above 0"),
        ("devices = 8", "devices = 0", "an integer, at least 1"),
        ("bfloat16 = 989.4e12", "bfloat16 = nan", "a number above 0 for each dtype"),
        ("0.64, 0.68]", "0.64, 1.68]", "fractions above 0, at most 1"),
        ("0.298, 0.302]", "0.298, nan]", "fractions above 0, at most 1"),
        ("contention = 0.4", "contention = -3", "a finite number, at least 0"),
        ("contention = 0.4", "edges = [2]", "it in [device.products]"),
        ("devices = 8", "levels = 3\ndevices = 8", "tables, each with this head"),
    ],
)
def test_figures_of_hardware_that_cannot_be_are_refused(capsys, folder, given, bad, wanted):
    text = (FOLDER / "h100-80gb-ndr.toml").read_text()
    assert given in text
    (folder / "mine.toml").write_text(text.replace(given, bad, 1))
    code, said, error = plan(capsys, "--devices", 8, cluster="mine.toml")
    assert code == 2 and not said and error.count("\n") == 1
    assert bad.split(" = ")[0] in error and f"wanted {wanted}" in error


@pytest.mark.thorough
def test_the_whole_run_counts_failures_energy_and_money(capsys, folder):
    text = (FOLDER / "h100-80gb-ndr.toml").read_text()
    figures = "failure_hours = 2e4\nrestart_seconds = 600\nprice_per_hour = 2.5\ndevices = 8\n"
    (folder / "mine.toml").write_text(text.replace("devices = 8\n", figures, 1))
    code, said, _ = plan(capsys, "--devices", 64, "--batch", 64, cluster="mine.toml")
    assert code == 0 and "a failure every 312 hours" in said and "restarts of 600 s" in said
    _, found, _ = plan(capsys, "--devices", 64, "--batch", 64, "--json", cluster="mine.toml")
    best = json.loads(found)["rows"][0]
    assert 0.99 < best["useful_share"] < 1
    hours = best["device_hours"] / best["useful_share"]
    assert best["price"] == pytest.approx(2.5 * hours)
    assert best["megawatt_hours"] == pytest.approx(1275e-6 * hours)
    (folder / "mine.toml").write_text(
        text.replace("devices = 8\n", figures.replace("2e4", "1e-9"), 1)
    )
    code, said, _ = plan(capsys, "--devices", 64, "--batch", 64, cluster="mine.toml")
    assert code == 0 and "0.0% of the time goes into steps: inf days" in said
    code, found, _ = plan(capsys, "--devices", 64, "--batch", 64, "--json", cluster="mine.toml")
    assert code == 0 and json.loads(found)["rows"][0]["price"] is None and "Infinity" not in found
    _, said, _ = plan(capsys, "--devices", 4)
    assert "failure" not in said and "energy" not in said and "price" not in said


@pytest.mark.parametrize("size", [32, 3])
def test_a_micro_batch_that_does_not_divide_the_batch_is_refused(capsys, size):
    code, _, error = plan(capsys, "--devices", 2, "--micro-batch", size)
    assert code == 2 and f"micro-batches of {size} samples in a batch of 16" in error


def test_settings_of_a_layout_are_keys_of_a_run():
    layout = RunLayout(2, 2, 2, "zero1", "interleaved", 2, 2, 4, "full", True)
    shape = ModelShape(4, 24, 4, 24, 12)
    settings = RunConfiguration().replace(settings_of(layout, shape, SHARDKIT))
    assert sum(settings.parallel.blocks_per_stage) == 6
    assert settings.parallel.virtual_stages == 2 and settings.parallel.activation_checkpointing
    assert (settings.batch.sequences, settings.batch.micro_batch) == (16, 2)


def test_json_has_what_the_table_says(capsys):
    code, said, _ = plan(capsys, "--devices", 4, "--json", "--rows", 3)
    found = json.loads(said)
    assert code == 0 and len(found["rows"]) == 3 and found["devices"] == 4
    best = found["rows"][0]
    assert best["why"] == "best" and best["seconds"] == pytest.approx(
        sum(best["seconds_by_part"].values())
    )
    assert best["bytes"] == pytest.approx(sum(best["bytes_by_part"].values()))
    assert best["device_hours"] == pytest.approx(best["days"] * 24 * 4)
    assert set(best["layout"]) >= {
        "pipeline",
        "data",
        "tensor",
        "policy",
        "schedule",
        "micro_batch",
        "recomputation",
    }


def test_a_row_is_explained_with_its_timeline(capsys, folder):
    code, said, _ = plan(capsys, "--devices", 8, "--explain", 3)
    assert code == 0 and "gradients until they are reduced" in said and "pipeline bubble" in said
    assert (folder / "plan-3.svg").read_text().startswith(
        "<svg"
    ) and "plan-3.svg: the timeline" in said
    plan(capsys, "--devices", 8, "--explain", 1, "--svg", "mine.svg")
    assert (folder / "mine.svg").exists()


def test_a_row_that_is_not_there_is_refused(capsys):
    code, _, said = plan(capsys, "--devices", 2, "--explain", 99)
    assert code == 2 and "--explain 99" in said


def test_the_job_script_is_for_as_many_nodes_as_the_layout_takes(capsys, folder):
    code, said, _ = plan(
        capsys, "--devices", 256, "--batch", 512, "--script", "job.sh", "--time", "02:00:00"
    )
    script = (folder / "job.sh").read_text()
    assert code == 0 and "sbatch job.sh" in said
    assert "#SBATCH --nodes=2" in script and "02:00:00" in script and "--mesh.pipeline=" in script
    assert subprocess.run(["bash", "-n", "job.sh"], cwd=folder, timeout=500).returncode == 0


def test_a_plan_for_gpus_says_which_way_their_arrays_go(capsys):
    asked = ("--devices", 16, "--parallel.device=cuda")
    _, said, _ = plan(capsys, *asked, cluster="a100-80gb-hdr")
    assert 'gpu_transport "nccl": NCCL, since each rank has a GPU of its own' in said
    _, said, _ = plan(capsys, *asked, "--parallel.gpu_transport=staged", cluster="a100-80gb-hdr")
    assert 'gpu_transport "' not in said
    assert "gpu_transport" not in plan(capsys, "--devices", 4)[1]


def test_ranks_that_do_not_fill_their_nodes_get_no_script(capsys):
    code, _, said = plan(capsys, "--devices", 129, "--batch", 129, "--script", "job.sh")
    assert code == 2 and "take a multiple of 128" in said


@pytest.fixture
def large(folder):
    (folder / "large.toml").write_text(
        '[model]\nstyle = "gpt2"\nwidth = 12288\nlayers = 96\nheads = 96\n'
        "sequence_length = 2048\nvocabulary_size = 51200\n"
    )
    return "large.toml"


def test_where_nothing_fits_it_says_so_and_what_would(capsys, large):
    code, said, _ = plan(
        capsys,
        "--devices",
        16,
        "--batch",
        16,
        "--software",
        "mixed",
        model=large,
        cluster="a100-80gb-hdr",
    )
    assert (
        code == 1
        and "no layout fits" in said
        and "GB would hold it" in said
        and "devices would: pipeline" in said
    )


def test_a_model_of_other_tokens_runs_as_printed_where_its_data_is_named(capsys, folder):
    own = MODEL.replace("width = 64\n", "width = 64\nvocabulary_size = 51200\n")
    (folder / "own.toml").write_text(own)
    code, said, _ = plan(capsys, "--devices", 4, model="own.toml")
    assert code == 0 and "run it, with files of its tokens in data.path: mpiexec -n 4 " in said
    code, _, said = plan(capsys, "--devices", 4, "--script", "job.sh", model="own.toml")
    assert code == 2 and "the model learns from files of its tokens" in said
    (folder / "own.toml").write_text(own + '[data]\npath = ["tokens.h5"]\n')
    code, said, _ = plan(capsys, "--devices", 4, "--script", "job.sh", model="own.toml")
    assert code == 0 and "run it: mpiexec -n 4 shardkit train own.toml" in said
    assert '"own.toml"' in (folder / "job.sh").read_text()


def test_a_task_whose_sizes_nobody_knows_is_not_planned(capsys, folder):
    (folder / "own.toml").write_text('[run]\ntask = "own.py:Net"\n')
    code, _, said = plan(capsys, "--devices", 4, model="own.toml")
    wanted = "run.task = 'own.py:Net': layouts are planned for language, chat, table, fno, "
    assert code == 2 and wanted in said


def planned(capsys, *arguments, cluster="cpu-node"):
    """Return the report of `shardkit plan --json`."""
    code, said, error = plan(capsys, "--devices", 4, "--json", *arguments, cluster=cluster)
    assert code == 0, error
    return json.loads(said)


@pytest.mark.parametrize(
    "name, arrays", [("sgd", 0), ("momentum", 1), ("adam", 2), ("adamw", 2), ("lion", 1)]
)
def test_the_optimizer_of_the_settings_says_how_much_state_there_is(capsys, name, arrays):
    found, adamw = planned(capsys, f"--optimizer.name={name}"), planned(capsys)
    assert found["checkpoint_bytes"] == found["parameter_count"] * 4 * (1 + arrays)
    state, of_adamw = (plan["rows"][0]["bytes_by_part"]["optimizer"] for plan in (found, adamw))
    assert state == of_adamw * arrays / 2 and of_adamw > 0
    update, of_adamw = (plan["rows"][0]["seconds_by_part"]["update"] for plan in (found, adamw))
    assert update < of_adamw if arrays < 2 else update == of_adamw


def test_a_rule_tells_the_plan_how_much_state_it_has(capsys, monkeypatch):
    two = planned(capsys)["rows"][0]["bytes_by_part"]["optimizer"]
    names = (*RULES["adamw"].state_names, "third_moment")
    own_rule = type("ThreeMoments", (RULES["adamw"],), {"state_names": names})
    monkeypatch.setitem(RULES, "adamw", own_rule)
    three = planned(capsys)["rows"][0]["bytes_by_part"]["optimizer"]
    assert three == two * 3 / 2 > 0


def test_every_optimizer_of_the_settings_is_a_rule_and_the_other_way_round():
    field = RunConfiguration.key("optimizer.name")
    assert set(field.metadata["among"]) == set(RULES)


def test_the_masters_of_a_mixed_run_are_state_beside_that_of_the_rule(capsys):
    sgd, adamw = (
        planned(
            capsys,
            f"--optimizer.name={name}",
            "--parallel.compute_dtype=bfloat16",
            cluster="h100-80gb-ndr",
        )
        for name in ("sgd", "adamw")
    )
    assert (sgd["checkpoint_bytes"], adamw["checkpoint_bytes"]) == (
        sgd["parameter_count"] * 4,
        sgd["parameter_count"] * 12,
    )


def test_a_model_of_float64_takes_twice_the_bytes(capsys):
    single, double = planned(capsys), planned(capsys, "--model.dtype=float64")
    assert double["checkpoint_bytes"] == 2 * single["checkpoint_bytes"]
    code, _, said = plan(
        capsys, "--devices", 2, "--model.dtype=float64", "--parallel.compute_dtype=float32"
    )
    assert code == 2 and "parallel.compute_dtype = 'float32'; wanted" in said


# another value than the default of each setting of these sections, and what the plan does with it
COUNTED = {
    "optimizer.name": "sgd",
    "optimizer.ema_decay": 0.999,
    "optimizer.max_gradient_norm": 0.0,
    "parallel.gradient_compression": "float16",
    "model.dtype": "float64",
    "parallel.minimum_parameter_group_size": 70_000,
    "parallel.compute_dtype": "bfloat16",
}
SEARCHED = {
    "parallel.policy": "zero2",
    "parallel.schedule": "zb-v",
    "parallel.virtual_stages": 3,
    "parallel.blocks_per_stage": (4, 4),
    "parallel.shard_ranks": 2,
    "parallel.sequence_parallel": True,
    "parallel.activation_checkpointing": True,
    "mesh.pipeline": 5,
    "mesh.tensor": 5,
    "mesh.domain": 2,
    "parallel.domain_grid": (2, 2),
    "batch.micro_batch": 3,
}
SAID = {
    "parallel.overlap": True,
    "parallel.deterministic": False,
    "parallel.domain_slabs": 4,
    "parallel.stage_balance": "uniform",
    "parallel.compile": True,
    "parallel.frozen": ("blocks.*",),
    "parallel.gpu_transport": "nccl",
    "run.elastic": True,
    "parallel.residual_dtype": "float32",
    "parallel.matmul_precision": "tf32",
    "parallel.convolutions": "direct",
    "parallel.blas": "mkl",
    "parallel.device": "cuda",
    "run.asynchronous_checkpoints": True,
}
WITHOUT_EFFECT = {
    "parallel.initial_loss_scale",
    "parallel.loss_scale_interval",
    "optimizer.learning_rate",
    "optimizer.warmup_steps",
    "optimizer.decay",
    "optimizer.decay_part",
    "optimizer.decay_steps",
    "optimizer.floor",
    "optimizer.weight_decay",
    "optimizer.decayed",
    "optimizer.momentum",
    "optimizer.beta1",
    "optimizer.beta2",
    "batch.sequences",
}


def test_every_setting_of_how_a_run_computes_is_counted_searched_for_or_said():
    sections = ("parallel.", "optimizer.", "mesh.", "batch.")
    assert {name for name in RunConfiguration.keys() if name.startswith(sections)} == {
        name for name in {*COUNTED, *SEARCHED, *SAID, *WITHOUT_EFFECT} if name.startswith(sections)
    }
    layout, shape = RunLayout(data=4, policy="fsdp", micro_batch=2), ModelShape(6, 64, 4, 256, 32)

    def software(**changes):
        settings = RunConfiguration().replace(changes)
        return software_of(software_module.OWN[settings.parallel.compute_dtype], settings)

    for name, value in COUNTED.items():
        assert software(**{name: value}) != software(), name
    for name, value in {**SEARCHED, **SAID}.items():
        settings = RunConfiguration().replace({name: value})
        chosen = settings_of(layout, shape, software())
        lines = left_out(settings, shape, software(), layout, chosen)
        assert any(line.startswith(f"{name} = {value!r} is ") for line in lines), name


def test_what_is_not_counted_is_said(capsys):
    _, said, _ = plan(capsys, "--devices", 4, "--parallel.deterministic=false", "--mesh.pipeline=3")
    assert "- parallel.deterministic = False is not counted: off keeps one sum" in said
    assert "- mesh.pipeline = 3 is searched for: here " in said
    _, said, _ = plan(
        capsys,
        "--devices",
        4,
        "--parallel.minimum_parameter_group_size=9",
        "--software",
        "mixed",
        cluster="a100-80gb-hdr",
    )
    assert "- parallel.minimum_parameter_group_size = 9 is not counted: mixed has its own" in said


@pytest.mark.parametrize("name, arrays", [("sgd", 0), ("lion", 1), ("adamw", 2)])
def test_another_program_hears_the_rule_its_average_and_its_clipping(capsys, name, arrays):
    def software(**changes):
        settings = RunConfiguration().replace({"optimizer.name": name, **changes})
        return others_software(MIXED, settings)

    assert software().state_bytes == 4 + 4 * arrays
    assert software(**{"optimizer.ema_decay": 0.9}).state_bytes == 8 + 4 * arrays
    assert software(**{"optimizer.max_gradient_norm": None}).update_bytes == 26 + 8 * arrays
    assert software(**{"parallel.gradient_compression": "float16"}).wire_bytes == 2
    found = planned(
        capsys, "--software", "mixed", f"--optimizer.name={name}", cluster="a100-80gb-hdr"
    )
    assert found["checkpoint_bytes"] == found["parameter_count"] * (4 + 4 * arrays)


def test_the_values_of_another_program_are_those_of_the_default_rule():
    assert others_software(MIXED, RunConfiguration()) == MIXED


def test_settings_on_the_command_line_count(capsys):
    _, said, _ = plan(capsys, "--devices", 2, "--model.layers=3")
    assert "--model.layers=3" in said
    code, _, said = plan(capsys, "--devices", 2, "--model.layer=3")
    assert code == 2 and "did you mean model.layers" in said


@pytest.mark.thorough
def test_half_floats_of_the_settings_are_planned_for(capsys):
    plain, from_settings, chosen = [
        json.loads(plan(capsys, "--devices", 8, "--json", *more, cluster="a100-80gb-hdr")[1])
        for more in ([], ["--parallel.compute_dtype=bfloat16"], ["--software", "shardkit-bf16"])
    ]
    assert (
        plain["software"] == "shardkit"
        and from_settings["software"] == chosen["software"] == "shardkit-bf16"
    )
    assert (
        from_settings["rows"][0] == chosen["rows"][0]
        and chosen["rows"][0]["bytes"] < plain["rows"][0]["bytes"]
    )
    _, said, _ = plan(
        capsys, "--devices", 8, "--software", "shardkit-fp16", cluster="a100-80gb-hdr"
    )
    assert "--parallel.compute_dtype=float16" in said
    _, said, _ = plan(
        capsys, "--devices", 8, "--parallel.compute_dtype=bfloat16", "--software", "shardkit"
    )
    assert "--parallel.compute_dtype=none" in said
    code, _, said = plan(capsys, "--devices", 8, "--software", "shardkit-bf16")
    assert code == 2 and "no peak for bfloat16" in said


@pytest.mark.parametrize("cluster", ["h100-80gb-ndr", "h200-141gb-ndr"])
def test_float8_is_planned_for_other_programs_where_the_device_has_it(capsys, cluster):
    halves, cast, gathered = [
        planned(capsys, "--software", name, f"--parallel.compute_dtype={dtype}", cluster=cluster)
        for name, dtype in (
            ("mixed", "bfloat16"),
            ("mixed", "float8"),
            ("torchtitan-float8", "float8"),
        )
    ]
    assert halves["software"] == "mixed" and cast["software"] == "mixed-float8"
    assert gathered["software"] == "torchtitan-float8-float8"
    assert cast["checkpoint_bytes"] == halves["checkpoint_bytes"]


@pytest.mark.parametrize(
    "cluster, arguments, message",
    [
        ("a100-80gb-hdr", ("mixed", "float8"), "A100-SXM4-80GB has no peak for float8; it has"),
        ("h100-80gb-ndr", ("shardkit", None), None),
        ("h100-80gb-ndr", (None, "float8"), "wanted one of float32, bfloat16, float16, or --soft"),
        (
            "h100-80gb-ndr",
            ("torchtitan-float8", "bfloat16"),
            "wanted float8, in which torchtitan",
        ),
        ("h100-80gb-ndr", ("mixed", "float32"), "wanted float16, bfloat16, float8, which mixed"),
    ],
)
def test_float8_is_refused_in_one_sentence_where_it_cannot_be(capsys, cluster, arguments, message):
    name, dtype = arguments
    more = ["--software", name] if name else []
    more += [f"--parallel.compute_dtype={dtype}"] if dtype else []
    code, _, said = plan(capsys, "--devices", 8, *more, cluster=cluster)
    if message is None:
        assert code == 0
    else:
        assert code == 2 and message in said and len(said.splitlines()) == 1


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--software", "megatrom"], "that come with shardkit are deepspeed-zero3"),
        (["--devices", "0"], "at least 1"),
        (["--tokens", "many"], "300e9"),
    ],
)
def test_wrong_arguments_are_refused(capsys, arguments, message):
    try:
        code = main(
            [
                "plan",
                "model.toml",
                "cpu-node",
                *(["--devices", "2"] if "--devices" not in arguments else []),
                *arguments,
            ]
        )
    except SystemExit as stopped:
        code = stopped.code
    assert code == 2 and message in capsys.readouterr().err


def test_a_plan_is_fitted_to_the_steps_of_a_file(capsys, folder):
    layouts = [{"data": 4, "micro_batches": 4}, {"data": 2, "tensor": 2, "micro_batches": 8}]
    steps = [{"step": 1, "seconds": 0.01, "layout": {"policy": "zero1", **of}} for of in layouts]
    (folder / "steps.jsonl").write_text("\n".join(map(json.dumps, steps)))
    (folder / "ours.toml").write_text('like = "megatron"\npass_factor = 2\n')
    more = ["--devices", 4, "--software", "ours.toml", "--calibrate", "steps.jsonl"]
    code, said, _ = plan(capsys, *more, cluster="a100-80gb-hdr")
    assert code == 0 and said.startswith("ours.toml has efficiency") and "each of 2 steps" in said
    code, said, error = plan(capsys, *more, "--json", cluster="a100-80gb-hdr")
    assert json.loads(said)["software"] == "ours.toml" and error.startswith(
        "ours.toml has efficiency"
    )
    more = ["--devices", 4, "--calibrate", "steps.txt"]
    code, _, error = plan(capsys, *more, cluster="a100-80gb-hdr")
    assert code == 2 and "steps.txt: there is no" in error and len(error.splitlines()) == 1


@pytest.mark.thorough
def test_a_plan_is_fitted_to_a_run(capsys, folder):
    (folder / "text.txt").write_text("a run of four steps " * 400)
    more = ["--data.path=text.txt", "--run.folder=run", "--run.steps=4", "--run.report_every=1"]
    subprocess.run([sys.executable, "-m", "shardkit", "train", "model.toml", *more], check=True)
    metrics = folder / "run" / "metrics.jsonl"
    text, found = re.subn(r'("tokens_per_second": )[0-9.e+]+', r"\g<1>2e4", metrics.read_text())
    assert found == 4
    metrics.write_text(text)  # the speed of a machine that nothing else keeps busy
    code, said, _ = plan(capsys, "--devices", 2, "--calibrate", "run/metrics.jsonl")
    assert code == 0 and said.startswith("shardkit has efficiency") and "by one step" in said
    other = ("--model.layers=3", "parameters"), ("--model.sequence_length=8", "planned length, 8")
    for setting, wanted in other:
        more = ["--calibrate", "run/metrics.jsonl", setting]
        code, _, error = plan(capsys, "--devices", 2, *more)
        assert code == 2 and wanted in error
