"""inspect, diff and convert as a user meets them: what they print, and their exit codes."""
import re

import pytest
from builders import token_batch, train

import shardkit as sk
from shardkit.__main__ import main


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
    except SystemExit as error:         # argparse
        code = error.code
    printed = capsys.readouterr()
    assert "Traceback" not in printed.err
    return code, printed.out, printed.err


def break_step(store, step):
    path = store / f"step-{step:08d}" / "rank-00001.h5"
    path.write_bytes(path.read_bytes()[:-7])


# ---- inspect -----------------------------------------------------------------------------------------------------

def test_inspect_draws_a_tree_with_sizes_that_add_up(store, capsys):
    code, out, _ = shardkit(capsys, "inspect", "store/step-00000002", "--verify")
    assert code == 0 and "checksums hold" in out and "step 2, loss" in out and "data 2" in out and "optimizer AdamW" in out
    lines = out.splitlines()
    assert "model                                      8,736  34,944" in lines
    assert re.search(r"^        up +1,088 +4,352$\n^          bias +64 +float32 +64 +256 +1$\n"
                     r"^          weight +64x16 +float32 +1,024 +4,096 +2$", out, re.M)
    totals = [int(line.split()[1].replace(",", "")) for line in lines if re.match(r"  (blocks|embedding|head) ", line)]
    assert sum(totals[:3]) == 8736


def test_inspect_lists_the_checkpoints_of_a_folder_with_why_some_are_damaged(store, capsys):
    (store / "step-00000003.tmp").mkdir()
    code, out, _ = shardkit(capsys, "inspect", "store")
    assert code == 0 and out.count("GPT of 8,736 parameters") == 2 and "step-00000003.tmp  unfinished" in out
    break_step(store, 2)
    code, out, _ = shardkit(capsys, "inspect", "store")
    assert code == 1 and re.search(r"step-00000002  DAMAGED: .*rank-00001.h5 has \d+ bytes", out)
    code, _, err = shardkit(capsys, "inspect", "store/step-00000002")
    assert code == 1 and "rank-00001.h5" in err
    (store / "step-00000002" / "manifest.json").unlink()
    code, _, err = shardkit(capsys, "inspect", "store/step-00000002")
    assert code == 1 and "cut short" in err


def test_inspect_says_damaged_where_a_manifest_leaves_something_out(store, capsys):
    path = store / "step-00000001" / "manifest.json"
    path.write_text(path.read_text().replace('"strategy"', '"tragedy"'))
    code, out, _ = shardkit(capsys, "inspect", "store")
    assert code == 1 and "step-00000001  DAMAGED" in out and "strategy" in out


# ---- diff --------------------------------------------------------------------------------------------------------

def test_diff_ends_with_0_1_or_2(store, capsys):
    code, out, _ = shardkit(capsys, "diff", "store", "store/step-00000002")
    assert code == 0 and "all values equal" in out and out.startswith("store/step-00000002\nstore/step-00000002\n")
    code, out, _ = shardkit(capsys, "diff", "store/step-00000001", "store")
    assert code == 1 and "step: 1 and 2" in out and "largest relative" in out and "111 of 111 tensors differ" in out
    code, out, _ = shardkit(capsys, "diff", "store/step-00000001", "store", "--model-only", "--tolerance", "1")
    assert code == 0 and "37 tensors of 8,736 elements" in out
    code, _, err = shardkit(capsys, "diff", "store", "nowhere")
    assert code == 2 and "nowhere" in err
    code, _, err = shardkit(capsys, "diff", "store", "store", "--tolerance", "little")
    assert code == 2 and "little is not a tolerance" in err


def test_diff_takes_the_newest_valid_checkpoint_and_says_what_it_passed_over(store, capsys):
    break_step(store, 2)
    code, out, _ = shardkit(capsys, "diff", "store", "store/step-00000001")
    assert code == 0 and out.startswith("store/step-00000001\n  skipped: ") and "rank-00001.h5" in out
    code, _, err = shardkit(capsys, "diff", "store", "store/step-00000002")
    assert code == 2 and "rank-00001.h5" in err
