"""`shardkit plan` as a command: its table, its reasons, its files, its exit codes."""
import json
import shlex
import subprocess

import pytest

from shardkit.__main__ import main
from shardkit.config import RunConfiguration, parse_override
from shardkit.plan import Layout
from shardkit.plan.command import settings_of
from shardkit.train.loop import check_batch

MODEL = '[model]\nstyle = "gpt2"\nwidth = 64\nlayers = 6\nheads = 4\nsequence_length = 32\n[batch]\nsequences = 16\n'


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.toml").write_text(MODEL)
    return tmp_path


def plan(capsys, *arguments, model="model.toml", cluster="cpu-node"):
    """(exit code, standard output, standard error)."""
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


def test_the_recommended_command_line_is_a_configuration_that_the_ranks_fit(capsys):
    for devices in (1, 2, 4, 8):
        _, said, _ = plan(capsys, "--devices", devices)
        words = shlex.split(said.split("run it: ")[1].splitlines()[0])
        assert words[:6] == ["mpiexec", "-n", str(devices), "shardkit", "train", "model.toml"]
        given = dict(word[2:].split("=", 1) for word in words[6:])
        settings = RunConfiguration().replace({key: parse_override(key, text) for key, text in given.items()})
        check_batch(settings, devices)
        assert settings.batch.sequences == 16


def test_settings_of_a_layout_are_keys_of_a_run():
    layout = Layout(2, 2, 2, "zero1", "interleaved", 2, 2, 4, "full", True)
    settings = RunConfiguration().replace(settings_of(layout))
    assert settings.parallel.virtual_stages == 2 and settings.parallel.activation_checkpointing
    assert (settings.batch.sequences, settings.batch.micro_batch) == (16, 2)


def test_json_has_what_the_table_says(capsys):
    code, said, _ = plan(capsys, "--devices", 4, "--json", "--rows", 3)
    found = json.loads(said)
    assert code == 0 and len(found["rows"]) == 3 and found["devices"] == 4
    best = found["rows"][0]
    assert best["why"] == "best" and best["seconds"] == pytest.approx(sum(best["seconds_by_part"].values()))
    assert best["bytes"] == pytest.approx(sum(best["bytes_by_part"].values()))
    assert best["device_hours"] == pytest.approx(best["days"] * 24 * 4)
    assert set(best["layout"]) >= {"pipeline", "data", "tensor", "policy", "schedule", "micro_batch", "recomputation"}


def test_a_row_is_explained_with_its_timeline(capsys, folder):
    code, said, _ = plan(capsys, "--devices", 8, "--explain", 3)
    assert code == 0 and "gradients until they are reduced" in said and "pipeline bubble" in said
    assert (folder / "plan-3.svg").read_text().startswith("<svg") and "plan-3.svg: the timeline" in said
    plan(capsys, "--devices", 8, "--explain", 1, "--svg", "mine.svg")
    assert (folder / "mine.svg").exists()


def test_a_row_that_is_not_there_is_refused(capsys):
    code, _, said = plan(capsys, "--devices", 2, "--explain", 99)
    assert code == 2 and "--explain 99" in said


def test_the_job_script_is_for_as_many_nodes_as_the_layout_takes(capsys, folder):
    code, said, _ = plan(capsys, "--devices", 256, "--batch", 512, "--script", "job.sh", "--time", "02:00:00")
    script = (folder / "job.sh").read_text()
    assert code == 0 and "sbatch job.sh" in said
    assert "#SBATCH --nodes=2" in script and "02:00:00" in script and "--mesh.pipeline=" in script
    assert subprocess.run(["bash", "-n", "job.sh"], cwd=folder, timeout=30).returncode == 0


def test_ranks_that_do_not_fill_their_nodes_get_no_script(capsys):
    code, _, said = plan(capsys, "--devices", 129, "--batch", 129, "--script", "job.sh")
    assert code == 2 and "take a multiple of 128" in said


@pytest.fixture
def large(folder):
    (folder / "large.toml").write_text('[model]\nstyle = "gpt2"\nwidth = 12288\nlayers = 96\nheads = 96\n'
                                       "sequence_length = 2048\nvocabulary_size = 51200\n")
    return "large.toml"


def test_where_nothing_fits_it_says_so_and_what_would(capsys, large):
    code, said, _ = plan(capsys, "--devices", 16, "--batch", 16, "--software", "mixed", model=large, cluster="a100-80gb-hdr")
    assert code == 1 and "no layout fits" in said and "GB would hold it" in said and "devices would: pipeline" in said


def test_a_model_that_train_does_not_know_is_shown_in_python(capsys, large):
    code, said, _ = plan(capsys, "--devices", 256, "--batch", 512, model=large, cluster="h200-141gb-ndr")
    assert code == 0 and "HybridShardedModel(gpt, config" in said and "run it: mpiexec" not in said
    code, _, said = plan(capsys, "--devices", 256, "--batch", 512, "--script", "job.sh", model=large, cluster="h200-141gb-ndr")
    assert code == 2 and "256 tokens" in said


def test_settings_on_the_command_line_count(capsys):
    _, said, _ = plan(capsys, "--devices", 2, "--model.layers=3")
    assert "--model.layers=3" in said
    code, _, said = plan(capsys, "--devices", 2, "--model.layer=3")
    assert code == 2 and "did you mean model.layers" in said


def test_half_floats_of_the_settings_are_planned_for(capsys):
    plain, from_settings, chosen = [json.loads(plan(capsys, "--devices", 8, "--json", *more, cluster="a100-80gb-hdr")[1])
                                    for more in ([], ["--parallel.compute_dtype=bfloat16"], ["--software", "shardkit-bf16"])]
    assert plain["software"] == "shardkit" and from_settings["software"] == chosen["software"] == "shardkit-bf16"
    assert from_settings["rows"][0] == chosen["rows"][0] and chosen["rows"][0]["bytes"] < plain["rows"][0]["bytes"]
    _, said, _ = plan(capsys, "--devices", 8, "--software", "shardkit-fp16", cluster="a100-80gb-hdr")
    assert "--parallel.compute_dtype=float16" in said
    _, said, _ = plan(capsys, "--devices", 8, "--parallel.compute_dtype=bfloat16", "--software", "shardkit")
    assert "--parallel.compute_dtype=model" in said
    code, _, said = plan(capsys, "--devices", 8, "--software", "shardkit-bf16")
    assert code == 2 and "no peak for bfloat16" in said


@pytest.mark.parametrize("arguments, message", [
    (["--software", "megatron"], "wanted one of shardkit"), (["--devices", "0"], "at least 1"), (["--tokens", "many"], "300e9")])
def test_wrong_arguments_are_refused(capsys, arguments, message):
    try:
        code = main(["plan", "model.toml", "cpu-node", *(["--devices", "2"] if "--devices" not in arguments else []), *arguments])
    except SystemExit as stopped:
        code = stopped.code
    assert code == 2 and message in capsys.readouterr().err
