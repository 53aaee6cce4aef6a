"""jobs/finetune.sh: from a folder of transformers and text to a folder of transformers."""

import os
import subprocess

import pytest
from e2e.mpi_jobs import ROOT, python_of

from shardkit.testing.cli import main

TEXT = "The ship sails over the sea. The sea is deep, and the ship is small.\n"


def pretrained(folder):
    """Write a small random Llama with a tokenizer of 280 tokens."""
    pytest.importorskip("torch").manual_seed(0)
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("tokenizers")
    from shardkit.testing.data import train_vocabulary

    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
    settings = transformers.LlamaConfig(vocab_size=280, tie_word_embeddings=True, **sizes, **heads)
    transformers.LlamaForCausalLM(settings).save_pretrained(folder)
    for name, content in train_vocabulary(iter([TEXT]), 280).items():
        (folder / name).write_bytes(content)


def loss_of(folder):
    """The loss on the text, by transformers alone."""
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    numbers = torch.tensor([tokenizer(TEXT)["input_ids"]])
    return model(input_ids=numbers, labels=numbers).loss.item()


def test_a_pretrained_model_is_fine_tuned_on_text_and_handed_back(tmp_path, capsys):
    python = python_of("MPICH")
    pretrained(tmp_path / "model")
    (tmp_path / "text.txt").write_text(TEXT * 200)
    command = ["bash", ROOT / "jobs/finetune.sh", "model", "text.txt", "out"]
    command += ["--model.sequence_length=32", "--run.steps=40", "--optimizer.learning_rate=1e-2"]
    command += ["--sample.prompt=The ship", "--sample.tokens=12", "--sample.temperature=0"]
    environment = os.environ | {"PYTHON": str(python), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr
    assert "sample of generated text:\nThe ship sails" in done.stdout
    before, after = loss_of(tmp_path / "model"), loss_of(tmp_path / "out/model")
    assert before > 5 and after < 3
    tokenizer = (tmp_path / "model/tokenizer.json").read_bytes()
    assert (tmp_path / "out/model/tokenizer.json").read_bytes() == tokenizer
    assert main(["generate", f"{tmp_path}/out/run", "--prompt=The sea", "--tokens=6"]) == 0
    assert capsys.readouterr().out.startswith("The sea ")


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """(folder, function (steps, text, more) -> its process): model, text.txt and a first run."""
    folder = tmp_path_factory.mktemp("tuned")
    python = python_of("MPICH")
    pretrained(folder / "model")
    environment = os.environ | {"PYTHON": str(python), "PYTHONPATH": str(ROOT), "RANKS": "1"}

    def call(steps, *more):
        command = ["bash", ROOT / "jobs/finetune.sh", "model", "text.txt", "out"]
        command += [f"--run.steps={steps}", "--model.sequence_length=32", "--sample.tokens=0"]
        command += ["--run.validation_batches=1", "--batch.sequences=2", *more]
        how = {"cwd": folder, "env": environment, "capture_output": True, "text": True}
        return subprocess.run(command, timeout=500, **how)

    (folder / "text.txt").write_text(TEXT * 200)
    done = call(2)
    assert done.returncode == 0, done.stderr
    return folder, call


def exported(folder):
    return (folder / "out/model/model.safetensors").read_bytes()


def test_a_second_call_leaves_what_still_holds(tuned):
    folder, call = tuned
    before, tokens = exported(folder), (folder / "out/tokens.h5").stat()
    about = (folder / "out/model/model.safetensors").stat()
    done = call(2)
    assert done.returncode == 0, done.stderr
    assert "is of this checkpoint already" in done.stdout and "made from the same" in done.stdout
    assert exported(folder) == before
    assert (folder / "out/model/model.safetensors").stat().st_mtime_ns == about.st_mtime_ns
    assert (folder / "out/tokens.h5").stat().st_mtime_ns == tokens.st_mtime_ns


def test_a_second_call_that_trains_on_hands_back_the_newer_model(tuned):
    folder, call = tuned
    before = exported(folder)
    done = call(4)
    assert done.returncode == 0, done.stderr
    assert main(["convert", "--to", "safetensors", f"{folder}/out/run", f"{folder}/now"]) == 0
    assert exported(folder) != before
    assert exported(folder) == (folder / "now/model.safetensors").read_bytes()


def test_a_second_call_with_another_text_or_tokenizer_is_refused(tuned):
    folder, call = tuned
    text, kept = (folder / "text.txt").read_bytes(), exported(folder)
    for name, content in (
        ("text.txt", text[:-2] + b"!\n"),
        ("model/tokenizer_config.json", b"{}"),
    ):
        before = (folder / name).read_bytes()
        (folder / name).write_bytes(content)
        done = call(6)
        (folder / name).write_bytes(before)
        assert done.returncode == 2 and "out/tokens.h5 was not made from" in done.stderr
        assert exported(folder) == kept


def test_a_second_call_with_other_weights_to_begin_with_is_refused(tuned):
    folder, call = tuned
    weights = folder / "model/model.safetensors"
    before = weights.read_bytes()
    weights.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
    done = call(6)
    weights.write_bytes(before)
    assert done.returncode == 2 and "model.safetensors is not what this run was" in done.stderr
