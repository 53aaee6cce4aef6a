"""inspect, diff and convert as a user meets them: what they print, and their exit codes."""

import os
import re
from pathlib import Path

import pytest
from builders import token_batch, train
from checkpoints import edit_manifest

import shardkit as sk
from shardkit.testing.cli import main


@pytest.fixture
def store(tmp_path, monkeypatch):
    """A folder `store` with checkpoints of steps 1 and 2, in the working directory."""

    def on_rank(backend):
        model, _ = train("FSDP", backend, 1)
        model.save_model(tmp_path / "store")
        model.train(*sk.split_batch(model.mesh, *token_batch(1)))
        model.save_model(tmp_path / "store")

    sk.run_ranks(2, on_rank)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "store"


def shardkit(capsys, *arguments):
    """(exit code, standard output, standard error) of a command."""
    try:
        code = main(list(arguments))
    except SystemExit as error:  # argparse
        code = error.code
    printed = capsys.readouterr()
    assert "Traceback" not in printed.err
    return code, printed.out, printed.err


def break_step(store, step):
    path = store / f"step-{step:08d}" / "rank-00001.h5"
    path.write_bytes(path.read_bytes()[:-7])


# ---- inspect -------------------------------------------------------------------------------------


def test_inspect_draws_a_tree_with_sizes_that_add_up(store, capsys):
    code, out, _ = shardkit(capsys, "inspect", "store/step-00000002", "--verify")
    assert (
        code == 0
        and "checksums hold" in out
        and "step 2, loss" in out
        and "data 2" in out
        and "optimizer AdamW" in out
    )
    lines = out.splitlines()
    assert "model                                      8,736  34,944" in lines
    assert re.search(
        r"^        up +1,088 +4,352$\n^          bias +64 +float32 +64 +256 +1$\n"
        r"^          weight +64x16 +float32 +1,024 +4,096 +2$",
        out,
        re.M,
    )
    assert re.search(
        r"^    output.weight +61x16 +float32 +976 +3,904 +2$", out, re.M
    )  # a chain is one line
    totals = [
        int(line.split()[1].replace(",", ""))
        for line in lines
        if re.match(r"  (blocks|embedding|head) ", line)
    ]
    assert sum(totals[:3]) == 8736


def test_inspect_lists_the_checkpoints_of_a_folder_with_why_some_are_damaged(store, capsys):
    (store / "step-00000003.tmp").mkdir()
    code, out, _ = shardkit(capsys, "inspect", "store")
    assert (
        code == 0
        and out.count("GPT of 8,736 parameters") == 2
        and "step-00000003.tmp  unfinished" in out
    )
    break_step(store, 2)
    code, out, _ = shardkit(capsys, "inspect", "store")
    assert code == 1 and re.search(r"step-00000002  DAMAGED: .*rank-00001.h5 has \d+ bytes", out)
    code, _, err = shardkit(capsys, "inspect", "store/step-00000002")
    assert code == 1 and "rank-00001.h5" in err
    (store / "step-00000002" / "manifest.json").unlink()
    code, _, err = shardkit(capsys, "inspect", "store/step-00000002")
    assert code == 1 and "cut short" in err


def test_inspect_says_damaged_where_a_manifest_leaves_something_out(store, capsys):
    edit_manifest(store / "step-00000001", lambda manifest: manifest.pop("strategy"))
    code, out, _ = shardkit(capsys, "inspect", "store")
    assert code == 1 and "step-00000001  DAMAGED" in out and "strategy" in out


# ---- diff ----------------------------------------------------------------------------------------


def test_diff_ends_with_0_1_or_2(store, capsys):
    code, out, _ = shardkit(capsys, "diff", "store", "store/step-00000002")
    assert (
        code == 0
        and "all values equal" in out
        and out.startswith("store/step-00000002\nstore/step-00000002\n")
    )
    code, out, _ = shardkit(capsys, "diff", "store/step-00000001", "store")
    assert (
        code == 1
        and "step: 1 and 2" in out
        and "largest relative" in out
        and "111 of 111 tensors differ" in out
    )
    code, out, _ = shardkit(
        capsys, "diff", "store/step-00000001", "store", "--model-only", "--tolerance", "1"
    )
    assert (
        code == 0
        and "37 tensors: equal within 1 of" in out
        and "largest absolute" in out
        and "all values" not in out
    )
    code, _, err = shardkit(capsys, "diff", "store", "nowhere")
    assert code == 2 and "nowhere" in err
    code, _, err = shardkit(capsys, "diff", "store", "store", "--tolerance", "little")
    assert code == 2 and "little is not a tolerance" in err


def test_diff_takes_the_newest_valid_checkpoint_and_says_what_it_passed_over(store, capsys):
    break_step(store, 2)
    code, out, _ = shardkit(capsys, "diff", "store", "store/step-00000001")
    assert (
        code == 0 and out.startswith("store/step-00000001\n  skipped: ") and "rank-00001.h5" in out
    )
    code, _, err = shardkit(capsys, "diff", "store", "store/step-00000002")
    assert code == 2 and "rank-00001.h5" in err


def test_diff_reads_no_numbers_from_a_file_whose_checksum_does_not_hold(store, capsys):
    path = store / "step-00000001" / "rank-00000.h5"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    code, out, err = shardkit(capsys, "diff", "store", "store/step-00000001")
    assert code == 2 and "checksum" in err and "differ" not in out


# ---- convert -------------------------------------------------------------------------------------


def test_convert_goes_there_and_back_and_diff_agrees(store, capsys):
    code, out, _ = shardkit(capsys, "convert", "--to", "safetensors", "store", "gpt2")
    assert code == 0 and out.startswith("gpt2: 29 tensors, 8,736 parameters\n")
    assert out.endswith("checkpoint of step 2, the newest (store/step-00000002)\n")
    assert sorted(os.listdir("gpt2")) == ["config.json", "model.safetensors"]
    code, out, _ = shardkit(capsys, "inspect", "gpt2", "--verify")
    assert (
        code == 0 and out.startswith("gpt2\nstep 0") and "transformers writes no checksums" in out
    )
    assert "\n8,736 parameters, parameters only" in out and "2 files" not in out
    assert f"1 file, {os.path.getsize('gpt2/model.safetensors'):,} bytes" in out
    code, out, _ = shardkit(capsys, "plan", "gpt2", "cpu-node", "--devices", "2", "--batch", "4")
    assert code == 0 and out.startswith("8,736 parameters on 2 devices")
    assert "mpiexec -n 2 shardkit train --model.start=gpt2 --mesh.pipeline=" in out
    code, out, _ = shardkit(capsys, "convert", "--to", "shardkit", "gpt2", "back")
    assert code == 0 and out == "back/step-00000000: 37 tensors, 8,736 parameters\n"
    assert shardkit(capsys, "diff", "store", "back", "--model-only")[0] == 0
    code, out, _ = shardkit(capsys, "inspect", "back", "--verify")
    assert code == 0 and "no loss yet" in out and "converted" in out
    code, out, _ = shardkit(capsys, "inspect", "back/step-00000000")
    assert code == 0 and "parameters only, no optimizer state" in out
    code, out, _ = shardkit(capsys, "diff", "store", "back")
    assert (
        code == 1 and "optimizer: AdamW and None" in out and "only in the first: 74 tensors" in out
    )


@pytest.mark.parametrize(
    "command", [["inspect", "gpt2"], ["plan", "gpt2", "cpu-node", "--devices", "2"]]
)
def test_a_folder_of_another_architecture_is_refused_with_those_that_are_known(
    command, store, capsys
):
    shardkit(capsys, "convert", "--to", "safetensors", "store", "gpt2")
    config = Path("gpt2/config.json")
    config.write_text(config.read_text().replace('"gpt2"', '"vit"'))
    code, _, err = shardkit(capsys, *command)
    assert code == 1 and "describes a 'vit' model; wanted gpt2, llama, mistral" in err


@pytest.mark.parametrize(
    "arguments, code, words",
    [
        (["store", "gpt2"], 2, "--to"),
        (["--to", "pickle", "store", "gpt2"], 2, "'pickle'"),
        (["--to", "shardkit", "store", "gpt2"], 1, "store holds neither model.safetensors"),
        (["--to", "safetensors", "nowhere", "gpt2"], 1, "nowhere"),
        (["--to", "shardkit", "nowhere", "gpt2"], 1, "nowhere"),
        (["--to", "safetensors", "store", "store"], 0, ""),
        (["--to", "safetensors", "store", "store/newest"], 1, "newest"),
        (["--to", "safetensors", "--dtype", "float16", "store", "gpt2"], 2, "'float16'"),
    ],
    ids=str,
)
@pytest.mark.thorough(but=2)
def test_bad_arguments_of_convert_are_one_sentence_and_an_exit_code(
    arguments, code, words, store, capsys
):
    got, _, err = shardkit(capsys, "convert", *arguments)
    assert got == code and words in err
