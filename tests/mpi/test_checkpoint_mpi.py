"""Checkpoints of ranks that are processes: each writes a file of its own, or all write one."""

import shutil
import tempfile
from pathlib import Path

import pytest
from builders import sha256, token_batch, train

import shardkit as sk
from shardkit.testing.checkpoint import saving

pytestmark = pytest.mark.mpi


@pytest.fixture
def folder(backend):
    """A folder that all ranks share."""
    path = Path(backend.broadcast_object(tempfile.mkdtemp() if backend.rank == 0 else None))
    yield path
    backend.barrier()
    if backend.rank == 0:
        shutil.rmtree(path)


def go_on(model, steps):
    for _ in range(steps):
        model.train(*sk.split_batch(model.mesh, *token_batch(model.step_number)))
    return sha256(model.gather_full_parameters())


@pytest.mark.parametrize("listed, files", [(64, None), (0, 1)])
@pytest.mark.parametrize("way", ["save_model", "save_model_async"])
def test_what_was_saved_is_gone_on_with_bit_for_bit(
    way, listed, files, backend, folder, monkeypatch
):
    monkeypatch.setattr(saving, "MOST_LISTED_RANKS", listed)
    model, _ = train("FSDP", backend, 2)
    if way == "save_model_async":
        pending = model.save_model_async(folder, files_per_node=files)
    else:
        model.save_model(folder, files_per_node=files)
    bits = go_on(model, 2)
    if way == "save_model_async":
        pending.wait()
    other, _ = train("ZeRO-1", backend, 0)
    assert other.load_model(folder)["step"] == 2
    assert go_on(other, 2) == bits
    for each in (model, other):
        each.close()
