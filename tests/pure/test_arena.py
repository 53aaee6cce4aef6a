"""Memory that comes back by itself, and operations whose results lie in it."""

import threading

import numpy
import pytest

from shardkit.testing.array import (
    ALIGNMENT_BYTES,
    HUGE_PAGE_BYTES,
    SMALL_BYTES,
    Arena,
    Device,
    empty,
    fresh,
    halves,
)
from shardkit.testing.array import arena as arena_module

LARGE = SMALL_BYTES // 4 + 1  # float32 elements that do not count as small


@pytest.fixture
def device():
    return Device()


@pytest.fixture
def arena(device):
    return Arena(device, purpose="activations")


def address(array):
    return array.ctypes.data


@pytest.mark.parametrize("shape", [(), (0,), (3,), (4, 128), (512, 1024), (513, 1027)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_arrays_are_writable_and_of_the_shape_that_was_asked_for(arena, shape, dtype):
    array = arena.empty(shape, dtype)
    assert (array.shape, array.dtype) == (shape, dtype) and array.flags.carray
    assert array.nbytes <= SMALL_BYTES or address(array) % ALIGNMENT_BYTES == 0
    array[...] = 7
    assert (array == 7).all()


@pytest.mark.parametrize("shape", [(8, 1 << 14), (1024, 1024)], ids=str)
def test_a_block_is_used_again_once_the_last_view_is_gone_and_not_before(arena, shape):
    array = arena.empty(shape, "float32")
    where = address(array)
    view = array[1:][1:].reshape(-1)
    del array
    assert address(arena.empty(shape, "float32")) != where
    del view
    assert {address(a) for a in [arena.empty(shape, "float32") for _ in range(2)]} >= {where}


def test_two_arrays_that_are_alive_never_share_memory_and_all_comes_back(arena):
    rng, alive = numpy.random.default_rng(0), []
    for number in range(2000):
        array = arena.empty(int(rng.integers(LARGE, 20 * LARGE)), "float32")
        array[...] = number
        alive.append((number, array))
        if len(alive) > 20:
            number, array = alive.pop(rng.integers(len(alive)))
            assert (array == number).all()
    assert all((array == number).all() for number, array in alive)
    assert arena.used_bytes >= sum(array.nbytes for _, array in alive)
    del array
    alive.clear()
    assert arena.used_bytes == 0
    assert len(arena._free) == len(arena._segments), "free neighbors are not one block"


def test_the_largest_free_block_is_kept_for_large_arrays(arena):
    large = arena.empty(100 * LARGE, "float32")
    between, small, after = [arena.empty(LARGE, "float32") for _ in range(3)]
    where, num_bytes = address(small), arena.num_bytes
    del large, small
    small = arena.empty(LARGE, "float32")
    assert address(small) == where
    large = arena.empty(100 * LARGE, "float32")
    assert (
        arena.num_bytes == num_bytes
        and len({address(a) for a in (large, between, small, after)}) == 4
    )


def test_memory_grows_with_what_is_in_use_at_once_and_little_more(arena):
    rng, alive, most = numpy.random.default_rng(1), [], 0
    for _ in range(3000):
        alive.append(arena.empty(int(rng.integers(LARGE, 50 * LARGE)), "float32"))
        most = max(most, sum(array.nbytes for array in alive))
        if len(alive) > 60:
            del alive[rng.integers(len(alive))]
    assert (
        most <= arena.num_bytes < 1.4 * most
    )  # an eighth, and what lies between blocks of random sizes


def test_bytes_are_counted_lent_out_or_free_until_they_are_cleared(arena, device):
    array = arena.empty(1 << 18, "float32")
    array[...] = 3
    assert device.bytes_in_use("activations") == arena.num_bytes == HUGE_PAGE_BYTES
    assert arena.used_bytes == 1 << 20
    arena.clear()
    assert device.bytes_in_use("activations") == arena.num_bytes == 0
    assert (array == 3).all()  # who uses it still has it
    other = arena.empty(1 << 18, "float32")
    del array  # and it does not come back to an arena that begins anew
    assert arena.used_bytes == 1 << 20 and other.size == 1 << 18


def test_segments_become_one_when_nothing_is_in_use(arena):
    with arena.in_use():
        arrays = [empty((1 << 20,), "float32") for _ in range(5)]
    num_bytes = arena.num_bytes
    with arena.in_use():
        assert len(arena._segments) > 1  # they are in use
    del arrays
    with arena.in_use():
        assert len(arena._segments) == 1 and arena.num_bytes == num_bytes
        arrays = [empty((1 << 20,), "float32") for _ in range(5)]
    assert arena.num_bytes == num_bytes and len({address(array) for array in arrays}) == 5


def test_no_memory_is_a_memory_error(arena):
    with pytest.raises(MemoryError, match="no [0-9]+ bytes for activations"):
        arena.empty(1 << 58, "uint8")
    assert arena.num_bytes == 0 and arena.empty(LARGE, "float32").size == LARGE


def test_it_is_used_inside_of_its_block_and_in_its_thread_only(arena):
    def lent():
        array = empty(LARGE, "float32")
        return arena.used_bytes > 0 and array.size == LARGE

    found = []
    with arena.in_use():
        assert lent()
        thread = threading.Thread(target=lambda: found.append(lent()))
        thread.start()
        thread.join()
    assert found == [False] and not lent()


# ---- operations ----------------------------------------------------------------------------------

x = numpy.random.default_rng(2).standard_normal((64, 600)).astype("float32")
y, row, positive = x[::-1], x[0], numpy.abs(x) + 1
cases = {
    "add": lambda: fresh.compute("add", x, y),
    "add a row": lambda: fresh.compute("add", x, row),
    "a number": lambda: fresh.compute("multiply", 2, x),
    "log": lambda: fresh.compute("log", positive),
    "two dtypes": lambda: fresh.compute("add", x, x.astype("float64")),
    "integers": lambda: fresh.compute("divide", 7, 2),
    "outer": lambda: fresh.compute("maximum", x[:, :1], row),
    "choose": lambda: fresh.choose(x > y, x, y),
    "choose a number": lambda: fresh.choose(x[:, :1] > 0, 0.0, y),
    "rows": lambda: fresh.rows(x, numpy.arange(300) % 64),
    "total": lambda: halves.total(x, (0,)),
    "total of a transposed one": lambda: halves.total(x.T, (1,), True),
    "copy": lambda: halves.copy(x.T, "float64"),
    "zeros": lambda: fresh.zeros((300, 300), "int64"),
}


@pytest.mark.parametrize("case", cases)
def test_results_in_the_arena_are_those_of_the_plain_operation(arena, case, monkeypatch):
    monkeypatch.setattr(arena_module, "SMALL_BYTES", 0)
    plain = cases[case]()
    with arena.in_use():
        result = cases[case]()
        assert (arena.used_bytes > 0) == (
            case not in ("two dtypes", "integers", "total of a transposed one")
        )
    assert type(result) is type(plain)
    numpy.testing.assert_array_equal(result, plain)
    assert result.dtype == plain.dtype and result.shape == plain.shape
