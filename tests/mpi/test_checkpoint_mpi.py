"""Checkpoints of ranks that are processes: each writes its file, or all write one through parallel
HDF5.
"""

import shutil
import tempfile
from pathlib import Path

import h5py
import numpy
import pytest
from builders import sha256, token_batch, train

import shardkit as sk
from shardkit.checkpoint import Checkpoint

pytestmark = pytest.mark.mpi
IS_PARALLEL = h5py.get_config().mpi


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


@pytest.mark.parametrize("way", ["save_model", "save_model_async", "mpio"])
def test_what_was_saved_is_gone_on_with_bit_for_bit(way, backend, folder):
    if way == "mpio" and not IS_PARALLEL:
        pytest.skip("this h5py is serial")
    model, _ = train("FSDP", backend, 2)
    if way == "save_model_async":
        pending = model.save_model_async(folder)
    else:
        model.save_model(folder, **({"driver": "mpio"} if way == "mpio" else {}))
    bits = go_on(model, 2)
    if way == "save_model_async":
        pending.wait()
    other, _ = train("ZeRO-1", backend, 0)
    assert other.load_model(folder)["step"] == 2
    assert go_on(other, 2) == bits
    for each in (model, other):
        each.close()


@pytest.mark.skipif(not IS_PARALLEL, reason="this h5py is serial")
def test_the_file_of_all_ranks_has_the_same_content_as_theirs_have_together(backend, folder):
    model, _ = train("FSDP", backend, 2)
    folders = [
        Path(model.save_model(folder / driver, driver=driver)) for driver in ("files", "mpio")
    ]
    model.close()
    if backend.rank == 0:
        files, shared = map(Checkpoint, folders)
        shared.verify()
        assert sorted(shared.manifest["files"]) == ["boxes.h5", "index.h5"]
        for tensor in files.shapes:
            numpy.testing.assert_array_equal(shared.read_whole(tensor), files.read_whole(tensor))
            boxes = [
                sorted(
                    (box[2], box[3], box[5])
                    for box in checkpoint.manifest["tensors"][tensor]["boxes"]
                )
                for checkpoint in (files, shared)
            ]
            assert boxes[0] == boxes[1]
            with h5py.File(shared.folder / "index.h5") as index:
                numpy.testing.assert_array_equal(index[tensor][...], files.read_whole(tensor))
    backend.barrier()


@pytest.mark.skipif(IS_PARALLEL, reason="this h5py is parallel")
def test_one_file_of_all_ranks_needs_parallel_hdf5_and_says_so_on_all_ranks(backend, folder):
    model, _ = train("FSDP", backend, 1)
    with pytest.raises(sk.CheckpointError, match='built with parallel HDF5.*driver="files"'):
        model.save_model(folder, driver="mpio")
    assert not list(folder.iterdir())
    model.close()
