"""Checkpoints from and to GPU memory: through page-locked blocks, beside the training, and no
different from those of a CPU.
"""

import numpy
import pytest
from builders import small_gpt, train
from hybrids import hybrid, step_once
from stand_in import pretended_gpu

import shardkit as sk
from shardkit.testing.array import Device
from shardkit.testing.checkpoint import Snapshot, _Task, to_safetensors
from shardkit.testing.parallel import Neighbors, device_of, parts_of, restore

WAYS = [
    ("cuda", "cpu", "at once"),
    ("cuda", "cpu", "beside the training"),
    ("cuda", "cpu", "image"),
    ("cpu", "cuda", "at once"),
    ("cpu", "cuda", "image"),
    ("cuda", "cuda", "beside the training"),
]


def saved(model, how, folder):
    """Write it; then a function that loads it into another model."""
    if how == "image":
        image = model.serialize()
        return lambda other: other.deserialize(image)
    if how == "at once":
        model.save_model(folder)
    else:
        model.save_model_async(folder).wait()
    return lambda other: other.load_model(folder)


@pytest.mark.parametrize("there, back, how", WAYS)
@pytest.mark.thorough
def test_training_goes_on_from_a_checkpoint_of_the_other_device(gpu, tmp_path, there, back, how):
    """Another policy reads other boxes: rows, columns, and pieces of both."""

    def on_rank(backend):
        model, _ = train("FSDP", backend, 2, model=small_gpt(dtype="float64"), device=there)
        load = saved(model, how, tmp_path)
        other, _ = train("ZeRO-1", backend, 0, model=small_gpt(dtype="float64"), device=back)
        load(other)
        assert other.gather_full_parameters().tobytes() == model.gather_full_parameters().tobytes()
        for each in (model, other):
            x, y = sk.split_batch(each.mesh, *batch())
            each.train(x, y)  # a step more: the optimizer state came along too
        return model.gather_full_parameters(), other.gather_full_parameters()

    for one, other in sk.run_ranks(2, on_rank):
        numpy.testing.assert_allclose(other, one, rtol=1e-9, atol=1e-12)


def batch():
    tokens = numpy.random.default_rng(5).integers(0, 61, (12, 13))
    return tokens[:, :-1], tokens[:, 1:]


@pytest.mark.parametrize("style", ["gpt2", "llama"])  # transposed in the file, and as it is
@pytest.mark.thorough
def test_a_folder_of_transformers_is_read_into_gpu_memory(gpu, tmp_path, style):
    later = {"rotary_scaling": (8.0, 1.0, 4.0, 5.0), "qk_norm": "head", "head_dim": 4}
    changes = {"style": style, "heads": 4, **(later if style == "llama" else {})}

    def on_rank(backend):
        model, _ = train("FSDP", backend, 1, model=small_gpt(**changes), device="cpu")
        model.save_model(tmp_path / "store")
        if backend.rank == 0:
            to_safetensors(tmp_path / "store", tmp_path / "theirs")
        backend.barrier()
        made = sk.models.GPT.from_checkpoint(tmp_path / "theirs")
        config = sk.ShardingConfiguration(backend, device="cuda", minimum_parameter_group_size=64)
        other = sk.HybridShardedModel(made, config, tensor_parallel_size=2)
        other.load_model(tmp_path / "theirs", only="model")
        assert other.gather_full_parameters().tobytes() == model.gather_full_parameters().tobytes()
        x, _ = batch()
        numpy.testing.assert_allclose(other.predict(x), model.predict(x), rtol=0, atol=1e-5)

    sk.run_ranks(2, on_rank)


@pytest.mark.thorough
def test_training_that_goes_on_does_not_change_what_is_being_written(gpu, tmp_path):
    def on_rank(backend):
        model, _ = train("FSDP", backend, 1, device="cuda")
        before = model.gather_full_parameters()
        pending = model.save_model_async(tmp_path)
        for _ in range(3):  # the copies have to wait for nobody, but these steps for the copies
            model.train(*sk.split_batch(model.mesh, *batch()))
        pending.wait()
        other, _ = train("DDP", backend, 0, device="cpu")
        other.load_model(tmp_path)
        numpy.testing.assert_array_equal(other.gather_full_parameters(), before)
        assert (model.gather_full_parameters() != before).any()

    sk.run_ranks(2, on_rank)


@pytest.mark.thorough
def test_a_tensor_parallel_model_reads_columns_that_were_written_as_rows(gpu, tmp_path):
    def on_rank(backend):
        model = hybrid(backend, (1, 2, 1), device="cuda")
        step_once(model, 0)
        model.save_model(tmp_path)
        other = hybrid(backend, (1, 1, 2), device="cuda")
        other.load_model(tmp_path)
        numpy.testing.assert_array_equal(
            other.gather_full_parameters(), model.gather_full_parameters()
        )

    sk.run_ranks(2, on_rank)


@pytest.mark.thorough
def test_what_neighbors_keep_comes_from_the_gpu_and_goes_back(gpu):
    def on_rank(backend):
        model, _ = train("FSDP", backend, 2, device="cuda")
        copies, before = Neighbors(parts_of(model)), model.gather_full_parameters()
        copies.commit()
        model.train(*sk.split_batch(model.mesh, *batch()))
        assert (model.gather_full_parameters() != before).any()
        assert restore(backend, [copies], parts_of(model)) == 2
        numpy.testing.assert_array_equal(model.gather_full_parameters(), before)

    sk.run_ranks(2, on_rank)


@pytest.mark.thorough
def test_writing_takes_two_page_locked_blocks_and_reading_two(gpu, tmp_path):
    def on_rank(backend):
        model, _ = train("DDP", backend, 1, model=small_gpt(width=64, layers=3), device="cuda")
        device = device_of(model)
        model.save_model(tmp_path)
        assert 0 < device.bytes_in_use("staging") <= 2 << 20
        model.load_model(tmp_path)
        assert device.bytes_in_use("staging") <= 4 << 20
        assert device.bytes_in_use("checkpoint snapshot") == 0
        model.save_model_async(tmp_path).wait()
        assert device.bytes_in_use("checkpoint snapshot") >= 3 * 4 * model.parameter_count

    sk.run_ranks(1, on_rank)


def test_arrays_may_change_as_soon_as_a_snapshot_is_taken(gpu):
    array = gpu.device.from_host(numpy.arange(1000.0))
    (copied,), done = Snapshot(gpu.device).take([("weights", None, array)])
    array += 1
    done.wait()
    assert copied[2].tolist() == list(range(1000))


def test_the_thread_that_writes_is_on_the_device_of_its_rank():
    seen = []
    with pretended_gpu(num_devices=2):
        import cupy

        task = _Task(lambda: seen.append(cupy.cuda.Device().id), Device("cuda", ordinal=1))
        task.finish()
        cupy.cuda.Device(0).use()
    assert seen == [1]
