"""Checkpoints on ranks that are threads: exact resume, other layouts, damage."""

import json
import shutil
from functools import cache

import h5py
import numpy
import pytest
from builders import STRATEGIES, sha256, small_gpt, token_batch, train
from checkpoints import edit_manifest, flip_bit, save_boxes

import shardkit as sk
from shardkit.testing.checkpoint import Checkpoint, CheckpointStore, describe
from shardkit.testing.layout import Box


def run(strategy, num_ranks, steps, *, load=None, save=None, start=0, samples=12, **settings):
    """Train, from a checkpoint or from the beginning, and perhaps save; returns SHA-256 of the
    parameters.
    """

    def on_rank(backend):
        model, _ = train(strategy, backend, 0, samples=samples, micro_batch=3, **settings)
        if load:
            assert model.load_model(load)["step"] == start
        for step in range(start, start + steps):
            model.train(*sk.split_batch(model.mesh, *token_batch(step, samples)))
        if save:
            model.save_model(save)
        return sha256(model.gather_full_parameters())

    bits = set(sk.run_ranks(num_ranks, on_rank))
    assert len(bits) == 1
    return bits.pop()


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.thorough(but=2)
def test_resuming_equals_the_uninterrupted_run_bit_for_bit(strategy, tmp_path):
    run(strategy, 2, 2, save=tmp_path)
    assert run(strategy, 2, 1, load=tmp_path, start=2) == run(strategy, 2, 3)


@pytest.mark.strength(1)
@pytest.mark.parametrize("saved", [("FSDP", 4), ("DDP", 1), ("ZeRO-1", 2)])
@pytest.mark.parametrize("loaded", [("DDP", 2), ("FSDP", 1), ("ZeRO-2", 4), ("FSDP", 4)])
@pytest.mark.thorough
def test_a_checkpoint_goes_on_under_another_strategy_and_number_of_ranks(saved, loaded, tmp_path):
    run(*saved, 2, save=tmp_path)
    assert run(*loaded, 2, load=tmp_path, start=2) == run("DDP", 1, 4)


def test_plain_hdf5_tools_see_every_tensor_whole(tmp_path):
    def on_rank(backend):
        model, _ = train("FSDP", backend, 1)
        folder = model.save_model(tmp_path)
        return folder, model.gather_full_parameters(), list(model.wrapped_model.named_parameters())

    folder, vector, names = sk.run_ranks(3, on_rank)[0]
    with h5py.File(f"{folder}/index.h5") as index:
        whole = numpy.concatenate([index[f"model/{name}"][...].ravel() for name in names])
        assert index.attrs["step"] == 1 and json.loads(index.attrs["mesh"])["data"] == 3
        assert set(index["optimizer"]) == {"first_moment", "second_moment"}
    numpy.testing.assert_array_equal(whole, vector)


def test_scalars_are_in_the_index_too(tmp_path):
    folder = save_boxes(
        tmp_path, {"model/scale": (numpy.float64(2.5).reshape(()), [[], [Box((), ())]])}
    )
    with h5py.File(folder / "index.h5") as index:
        assert index["model/scale"][()] == 2.5 and index["model/scale"].attrs["dtype"] == "float64"
        assert index["model/scale"].attrs["global_shape"].tolist() == []
    assert Checkpoint(folder).read_whole("model/scale") == 2.5


def test_the_manifest_describes_the_model_so_that_it_can_be_built_again(tmp_path):
    run("FSDP", 2, 1, save=tmp_path)
    model = sk.models.GPT.from_checkpoint(tmp_path)
    assert model.configuration() == small_gpt().configuration()


@pytest.mark.thorough
def test_older_checkpoints_are_deleted_but_the_last_ones(tmp_path):
    def on_rank(backend):
        model, _ = train("FSDP", backend, 0)
        for step in range(4):
            model.train(*sk.split_batch(model.mesh, *token_batch(step)))
            model.save_model(tmp_path, keep=2)

    sk.run_ranks(2, on_rank)
    assert [folder.name for folder in CheckpointStore(tmp_path).steps()] == [
        "step-00000003",
        "step-00000004",
    ]
    assert (tmp_path / "newest").read_text().strip() == "step-00000004"


def test_saving_the_same_step_again_replaces_it(tmp_path):
    def on_rank(backend):
        model, _ = train("ZeRO-1", backend, 1)
        model.save_model(tmp_path)
        model.set_parameters(numpy.zeros(model.parameter_count, "float32"))
        model.save_model(tmp_path)
        model.load_model(tmp_path)
        assert not model.gather_full_parameters().any()

    sk.run_ranks(2, on_rank)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["newest", "step-00000001"]


DAMAGE = {
    "a flipped bit in a rank file": lambda f: flip_bit(f / "rank-00001.h5"),
    "a truncated rank file": lambda f: (f / "rank-00000.h5").write_bytes(
        (f / "rank-00000.h5").read_bytes()[:-10]
    ),
    "a missing rank file": lambda f: (f / "rank-00001.h5").unlink(),
    "a flipped bit in what HDF5 says about a rank file": lambda f: flip_bit(
        f / "rank-00000.h5", at=20
    ),
    "a flipped bit in the index": lambda f: flip_bit(f / "index.h5"),
    "a flipped bit in the manifest": lambda f: flip_bit(f / "manifest.json", at=300),
    "another step in the manifest": lambda f: edit_manifest(
        f, lambda m: m.update(step=2), sealed=False
    ),
    "a missing manifest": lambda f: (f / "manifest.json").unlink(),
    "half a manifest": lambda f: (f / "manifest.json").write_text(
        (f / "manifest.json").read_text()[:500]
    ),
    "a foreign manifest": lambda f: (f / "manifest.json").write_text('{"format": "other"}'),
    "a lost box": lambda f: edit_manifest(
        f, lambda m: next(iter(m["tensors"].values()))["boxes"].pop()
    ),
    "another version": lambda f: edit_manifest(f, lambda m: m.update(version=99)),
}


@pytest.fixture(scope="module")
def saved_at(tmp_path_factory):
    """A function that returns a folder of checkpoints of these steps."""

    @cache
    def save(*steps):
        folder = tmp_path_factory.mktemp("saved")
        for start, step in zip((0, *steps), steps):
            load = folder if start else None
            run("FSDP", 2, step - start, load=load, start=start, save=folder)
        return folder

    return save


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.thorough
def test_a_damaged_checkpoint_is_skipped_with_a_reason_and_the_one_before_is_used(
    damage, saved_at, tmp_path
):
    shutil.copytree(saved_at(2, 3), tmp_path, dirs_exist_ok=True)
    DAMAGE[damage](tmp_path / "step-00000003")

    def on_rank(backend):
        model, _ = train("DDP", backend, 0)
        manifest = model.load_model(tmp_path)
        return manifest["step"], manifest["skipped"]

    with pytest.warns(UserWarning, match="passed over"):
        found = sk.run_ranks(2, on_rank)
    for step, skipped in found:
        assert step == 2 and len(skipped) == 1
    assert "DAMAGED" in str(describe(tmp_path, verify=True)).splitlines()[1]


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.thorough(but=3)
def test_without_a_valid_checkpoint_loading_fails_on_all_ranks_and_the_model_is_unchanged(
    damage, saved_at, tmp_path
):
    shutil.copytree(saved_at(1), tmp_path, dirs_exist_ok=True)
    DAMAGE[damage](tmp_path / "step-00000001")

    def on_rank(backend):
        model, _ = train("FSDP", backend, 1)
        before = model.gather_full_parameters()
        with pytest.raises(sk.CheckpointError, match="no valid checkpoint"):
            model.load_model(tmp_path)
        numpy.testing.assert_array_equal(model.gather_full_parameters(), before)

    sk.run_ranks(2, on_rank)


def test_a_checkpoint_of_another_model_is_refused_by_the_first_tensor_that_differs(tmp_path):
    run("FSDP", 2, 1, save=tmp_path)

    def on_rank(backend):
        model, _ = train("FSDP", backend, 0, model=small_gpt(layers=3))
        with pytest.raises(sk.CheckpointError, match="another model: model/blocks.2"):
            model.load_model(tmp_path)

    sk.run_ranks(2, on_rank)


def test_nothing_there_is_a_file_not_found_error_on_all_ranks(tmp_path):
    def on_rank(backend):
        model, _ = train("FSDP", backend, 0)
        with pytest.raises(FileNotFoundError):
            model.load_model(tmp_path / "nowhere")

    sk.run_ranks(2, on_rank)


def test_a_save_that_fails_leaves_the_earlier_checkpoint_and_no_half_written_one(
    tmp_path, monkeypatch
):
    run("FSDP", 2, 1, save=tmp_path)

    def no_room(path, boxes, room):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr("shardkit.testing.checkpoint.rank_file.lay_out", no_room)

    def on_rank(backend):
        model, _ = train("FSDP", backend, 2)
        with pytest.raises(OSError, match="No space left"):
            model.save_model(tmp_path)

    sk.run_ranks(2, on_rank)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["newest", "step-00000001"]
    Checkpoint(tmp_path / "step-00000001").verify()


def test_leftovers_of_a_killed_save_are_never_read(tmp_path):
    run("FSDP", 2, 1, save=tmp_path)
    shutil.copytree(tmp_path / "step-00000001", tmp_path / "step-00000009.tmp")
    assert [folder.name for folder in CheckpointStore(tmp_path).steps()] == ["step-00000001"]
