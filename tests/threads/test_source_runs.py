"""A run on each kind of language data has the same bits on every mesh and goes on in an epoch."""

import os
import threading

import pytest
from token_sources import FORMATS, documents, write_documents

import shardkit as sk
from shardkit import ConfigurationError
from shardkit.testing.base import CorpusError
from shardkit.testing.checkpoint import compare, find_checkpoint
from shardkit.testing.data import TokenWindows
from shardkit.testing.task import Language
from shardkit.testing.train import (
    configuration_of,
    read_metrics,
    resumed,
    stored_settings,
    train_run,
)

SMALL = {
    "model.width": 8,
    "model.layers": 2,
    "model.heads": 2,
    "model.sequence_length": 16,
    "model.vocabulary_size": 256,
    "batch.sequences": 4,
    "batch.micro_batch": 1,
    "run.steps": 2,
    "run.validation_batches": 1,
    "data.validation_percent": 20.0,
    "sample.tokens": 0,
    "optimizer.warmup_steps": 1,
}
MESHES = ((2, 1), (2, 2), (4, 2))  # ranks, pipeline stages
TRIED = {"text": MESHES}  # what is read does not know the mesh; the others on the largest


def run(folder, name, settings, *, num_ranks=1, resume=False):
    given = {**SMALL, "run.folder": str(folder / name), **settings}
    if resume:
        settings = resumed(stored_settings(folder / name), settings)
    else:
        settings = configuration_of(Language)().replace(given)
    sk.run_ranks(num_ranks, lambda backend: train_run(settings, backend, resume=resume))
    return find_checkpoint(folder / name)[0]


def are_equal(first, second):
    return compare(first, second, tolerance=0.0).is_equal


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.thorough
def test_the_bits_are_those_of_one_rank_on_every_mesh(tmp_path, name):
    path = write_documents(tmp_path / "files", name, documents())
    data = {"data.path": [str(path)], "data.mask_documents": True}
    alone = run(tmp_path, "alone", data)
    for num_ranks, stages in TRIED.get(name, MESHES[-1:]):
        mesh = {**data, "mesh.pipeline": stages}
        assert are_equal(alone, run(tmp_path, f"{num_ranks}-{stages}", mesh, num_ranks=num_ranks))


@pytest.mark.thorough
def test_a_mixture_stopped_in_an_epoch_goes_on_on_another_mesh_as_if_it_had_not(tmp_path):
    paths = [
        write_documents(tmp_path / "a", "megatron", documents(60)),
        write_documents(tmp_path / "b", "nanogpt", documents(9, seed=1)),
    ]
    data = {
        "data.path": [str(path) for path in paths],
        "data.weights": [3.0, 1.0],
        "run.steps": 8,
        "optimizer.decay": "constant",
    }
    whole = run(tmp_path, "whole", data)
    run(tmp_path, "parts", {**data, "run.steps": 3}, num_ranks=2)
    parts = run(tmp_path, "parts", {"run.steps": 8}, num_ranks=1, resume=True)
    records = [r for r in read_metrics(tmp_path / "parts" / "metrics.jsonl") if "train_loss" in r]
    assert records and all(0 <= r["data_wait_seconds"] < 10 for r in records)
    assert parts.manifest["step"] == 8 and are_equal(whole, parts)


def test_what_cannot_be_trained_on_is_refused_before_there_is_a_run(tmp_path):
    tokens = write_documents(tmp_path / "npy", "npy", documents())
    text = write_documents(tmp_path / "text", "text", documents())
    for kind, words, settings in (
        (CorpusError, r"tokens.npy: token \d+ is \d+, but", {"model.vocabulary_size": 99}),
        (ConfigurationError, "model.vocabulary_size", {"model.vocabulary_size": None}),
        (CorpusError, "nowhere does not exist", {"data.path": [str(tmp_path / "nowhere")]}),
        (CorpusError, "weights has 3", {"data.weights": [1.0, 1.0, 1.0]}),
        (ConfigurationError, "knows 300", {"data.path": [str(text)], "model.vocabulary_size": 300}),
    ):
        with pytest.raises(kind, match=words):
            run(tmp_path, "run", {"data.path": [str(tokens)], **settings}, num_ranks=2)
        assert not (tmp_path / "run").exists()


def test_a_run_that_fails_leaves_no_thread_that_reads(tmp_path):
    path = write_documents(tmp_path / "npy", "npy", documents())
    data = {"data.path": [str(path)], "run.steps": 50}
    before = threading.active_count()

    def cut_short(batch):
        os.truncate(path, 200)
        return batch

    with pytest.MonkeyPatch.context() as patch:
        read = TokenWindows.read
        patch.setattr(TokenWindows, "read", lambda self, numbers: cut_short(read(self, numbers)))
        patch.setattr("shardkit.testing.data.segments._KEPT_FILE_BYTES", 0)
        with pytest.raises(CorpusError, match="became shorter"):
            run(tmp_path, "run", data, num_ranks=2)
    assert threading.active_count() == before
