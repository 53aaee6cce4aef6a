"""Training runs of `shardkit train` in this process: what a start and a resumed run take, keep and refuse."""
import pytest

import shardkit as sk
from shardkit.config import RunConfiguration
from shardkit.errors import ConfigurationError, CorpusError
from shardkit.nn.models import GPT
from shardkit.train import generate_text, train_run

SMALL = {"model.width": 8, "model.layers": 1, "model.heads": 2, "model.sequence_length": 8, "batch.sequences": 4,
         "batch.micro_batch": 2, "run.steps": 2, "run.validation_batches": 1, "sample.tokens": 0, "optimizer.warmup_steps": 1}


@pytest.fixture
def folder(tmp_path):
    for name in ("one.txt", "other.txt"):
        (tmp_path / name).write_text("".join(f"{name}: line {i} with the number {i * i}\n" for i in range(60)))
    return tmp_path


def settings_of(folder, **changes):
    given = {"run.folder": str(folder / "run"), "data.path": [str(folder / "one.txt")]}
    return RunConfiguration().replace({**SMALL, **given, **{name.replace("__", "."): value for name, value in changes.items()}})


def run(settings, *, resume=False, num_ranks=1):
    return sk.run_ranks(num_ranks, lambda backend: train_run(settings, backend, resume=resume))[0]


def text_of(folder):
    return (folder / "run" / "data" / "train.bin").read_bytes()


def failed_start(folder):
    """A first start that leaves its text and no checkpoint."""
    with pytest.raises(CorpusError, match="sequence_length"):
        run(settings_of(folder, model__sequence_length=10**5))
    assert b"one.txt" in text_of(folder)


def test_a_start_reads_the_text_that_it_is_given_though_one_before_left_another(folder):
    failed_start(folder)
    run(settings_of(folder, data__path=[str(folder / "other.txt")]))
    assert b"other.txt" in text_of(folder) and b"one.txt" not in text_of(folder)


def test_a_path_that_is_not_there_is_refused_though_a_start_before_left_a_text(folder):
    failed_start(folder)
    with pytest.raises(CorpusError, match="nonexistent does not exist"):
        run(settings_of(folder, data__path=["/nonexistent"]))


def test_text_is_generated_by_models_of_bytes_only():
    model = GPT(5003, 8, width=8, layers=1, heads=2)
    with pytest.raises(ConfigurationError, match=r"this model has 5,003 tokens.* tokenizer"):
        generate_text(model, "def ", 3, 0.0, 0)
    assert generate_text(GPT(256, 8, width=8, layers=1, heads=2), "def ", 0, 0.0, 0) == "def "
