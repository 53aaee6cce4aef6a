"""What trains on NumPy trains on CuPy: needs a GPU, skips without one."""
import numpy
import pytest
from builders import STRATEGIES, small_gpt, token_batch, train

import shardkit as sk
from shardkit.array.backend import Device, to_host, xp_of
from shardkit.errors import DeviceError


@pytest.fixture(scope="module")
def gpu():
    try:
        return Device("cuda")
    except DeviceError as error:
        pytest.skip(str(error))


def test_arrays_move_to_the_device_and_back_and_are_counted(gpu):
    there = gpu.from_host(numpy.arange(10.0))
    assert xp_of(there) is gpu.xp
    numpy.testing.assert_array_equal(to_host(there * 2), numpy.arange(10.0) * 2)
    kept = gpu.zeros(1000, "float32", purpose="test")
    assert gpu.bytes_in_use("test") == 4000
    del kept
    assert gpu.bytes_in_use("test") == 0


def test_mixing_host_and_device_arrays_is_one_clear_error(gpu):
    with pytest.raises(DeviceError, match="two devices"):
        xp_of(gpu.from_host(numpy.ones(2)), numpy.ones(2))


@pytest.mark.parametrize("style", ["gpt2", "llama"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_run_on_the_gpu_follows_the_run_on_the_cpu(gpu, strategy, style):
    def run(device, num_ranks):
        def on_rank(backend):
            model, losses = train(strategy, backend, 5, model=small_gpt(style=style, dtype="float64"), device=device,
                                  micro_batch=3)
            return losses, model.predict(token_batch(0)[0])
        return sk.run_ranks(num_ranks, on_rank)[0]
    losses, prediction = run("cpu", 1)
    gpu_losses, gpu_prediction = run("cuda", 2)
    numpy.testing.assert_allclose(gpu_losses, losses, rtol=1e-9)
    numpy.testing.assert_allclose(gpu_prediction, prediction, rtol=1e-6, atol=1e-9)


def test_a_checkpoint_written_on_the_gpu_opens_on_the_cpu(gpu, tmp_path):
    def on_rank(backend):
        model, _ = train("FSDP", backend, 2, device="cuda")
        model.save_model(tmp_path)
        there = model.gather_full_parameters()
        other, _ = train("DDP", backend, 0)
        other.load_model(tmp_path)
        numpy.testing.assert_array_equal(other.gather_full_parameters(), there)
    sk.run_ranks(2, on_rank)
