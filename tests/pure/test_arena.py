"""Memory that comes back by itself."""
import numpy
import pytest

from shardkit.array.arena import Arena, block_bytes
from shardkit.array.backend import ALIGNMENT_BYTES, Device


@pytest.fixture
def device():
    return Device()


@pytest.fixture
def arena(device):
    return Arena(device, purpose="activations")


def address(array):
    return array.ctypes.data


@pytest.mark.parametrize("shape", [(), (0,), (3,), (4, 128), (512, 1024)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_arrays_are_aligned_writable_and_of_the_shape_that_was_asked_for(arena, shape, dtype):
    array = arena.empty(shape, dtype)
    assert (array.shape, array.dtype) == (shape, dtype)
    assert array.flags.c_contiguous and address(array) % ALIGNMENT_BYTES == 0
    array[...] = 7
    assert (array == 7).all()


@pytest.mark.parametrize("shape", [(4, 128), (1024, 1024)], ids=str)
def test_a_block_is_used_again_once_the_last_view_is_gone_and_not_before(arena, shape):
    array = arena.empty(shape, "float32")
    where = address(array)
    view = array[1:][1:].reshape(-1)
    del array
    assert address(arena.empty(shape, "float32")) != where
    del view
    assert {address(a) for a in [arena.empty(shape, "float32") for _ in range(2)]} >= {where}


def test_two_arrays_that_are_alive_never_share_memory(arena):
    rng, alive = numpy.random.default_rng(0), []
    for number in range(500):
        array = arena.empty(int(rng.integers(1, 3000)), "int64")
        array[...] = number
        alive.append((number, array))
        if len(alive) > 20:
            del alive[rng.integers(len(alive))]
    assert all((array == number).all() for number, array in alive)


def test_a_block_wastes_at_most_an_eighth():
    for num_bytes in range(64, 100000, 7):
        assert num_bytes <= block_bytes(num_bytes) <= num_bytes * 9 / 8 + 1
    assert block_bytes(0) == ALIGNMENT_BYTES


def test_bytes_are_counted_lent_out_or_idle_until_they_are_cleared(arena, device):
    array = arena.empty(1024, "float32")
    assert device.bytes_in_use("activations") == 4096
    del array
    assert (device.bytes_in_use("activations"), arena.num_idle) == (4096, 1)
    arena.clear()
    assert (device.bytes_in_use("activations"), arena.num_idle) == (0, 0)
