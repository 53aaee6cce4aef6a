"""The door to the GPU: what is counted, what is copied when, and what it says when something is
missing.
"""

import gc
import threading

import numpy
import pytest
from builders import small_gpt, token_batch, train
from sabotage import threads_without_room

import shardkit as sk
from shardkit import DeviceError
from shardkit.testing.array import (
    BufferPool,
    Device,
    Done,
    numbers_of,
    products,
    random,
    to_host,
    xp_of,
)
from shardkit.testing.base import DeviceMemoryError


@pytest.mark.parametrize("num_bytes", [3 << 20, (1 << 20) + 1])
def test_a_large_page_locked_block_has_its_size_and_is_given_back(gpu, num_bytes):
    if gpu.is_real:
        pytest.skip("only the stand-in tells what is page-locked")
    before = sum(gpu.machine.pinned.values())
    array = gpu.device.pinned(num_bytes, "uint8")
    assert sum(gpu.machine.pinned.values()) - before == num_bytes
    del array
    assert sum(gpu.machine.pinned.values()) == before


def test_products_of_two_threads_do_not_meet_in_a_workspace(gpu):
    """Long sums of small results are several kernels, which meet there."""
    a, b = [gpu.device.xp.asarray(random_values(shape)) for shape in ((8, 20_000), (20_000, 8))]
    alone = products.matmul(a, b).get().tobytes()

    def on_rank(backend):
        gpu.device.select()
        backend.barrier()
        results = [products.matmul(a, b) for _ in range(2000 if gpu.is_real else 3)]
        return all(result.get().tobytes() == alone for result in results)

    assert sk.run_ranks(2, on_rank) == [True, True]


def random_values(shape):
    return numpy.random.default_rng(0).standard_normal(shape).astype("float32")


def test_arrays_move_to_the_device_and_back_and_are_counted(gpu):
    device = gpu.device
    there = device.from_host(numpy.arange(10.0))
    assert xp_of(there) is device.xp
    numpy.testing.assert_array_equal(to_host(there * 2), numpy.arange(10.0) * 2)
    kept = device.zeros(1000, "float32", purpose="test")[3:]
    gc.collect()
    assert device.bytes_in_use("test") == 4000
    del kept
    assert device.bytes_in_use("test") == 0


def test_the_pool_and_the_driver_are_asked_beside_the_accounts(gpu):
    before = gpu.device.memory()
    array = gpu.device.empty(1 << 20, "uint8", purpose="test")
    after = gpu.device.memory()
    assert after.pool_used - before.pool_used == array.nbytes
    assert after.pool_used <= after.pool_held <= after.total and 0 < after.free < after.total
    assert f"{after.total / 2**30:.4g} GiB" in str(after)
    assert Device("cpu").memory().total == 0


def test_mixing_host_and_device_arrays_is_one_clear_error(gpu):
    with pytest.raises(DeviceError, match="two devices"):
        xp_of(gpu.device.from_host(numpy.ones(2)), numpy.ones(2))


@pytest.mark.parametrize(
    "call", ["train", "predict", "evaluate", "set_parameters", "apply_gradients", "generate"]
)
@pytest.mark.thorough
def test_arrays_of_the_gpu_at_the_door_of_a_model_are_one_clear_error(gpu, call):
    def on_rank(backend):
        model, _ = train("FSDP", backend, 1, device="cuda")
        x, y = token_batch(0)
        there = gpu.device.xp.asarray(x)
        arguments = {
            "train": (there, y),
            "predict": (there,),
            "evaluate": (x, there),
            "set_parameters": (there,),
            "apply_gradients": (there, 0.1),
            "generate": ([there[0]], 3),
        }[call]
        with pytest.raises(DeviceError, match="is on the GPU; wanted an array of the host"):
            getattr(model, call)(*arguments)
        model.train(x, y)  # nothing is broken

    sk.run_ranks(1, on_rank)


# ---- memory that runs out ------------------------------------------------------------------------


def test_out_of_memory_names_the_largest_holders(gpu):
    device = gpu.device
    sizes = {"optimizer state": 1 << 16, "gradients": 1 << 20}
    held = [device.zeros(size, "uint8", purpose=purpose) for purpose, size in sizes.items()]
    with pytest.raises(DeviceMemoryError) as error:
        device.empty(1 << 50, "uint8", purpose="parameters")
    text = str(error.value)
    assert "ordinal=0) has no room for 1.049e+06 GiB of parameters" in text
    assert (
        "1.062 MiB there (gradients 1 MiB, optimizer state 64 KiB)" in text and "on the GPU" in text
    )
    assert (
        isinstance(error.value, DeviceError)
        and isinstance(error.value, MemoryError)
        and "\n" not in text
    )
    del held


def test_a_step_without_memory_changes_nothing_and_names_the_holders(gpu):
    pool = gpu.device.xp.get_default_memory_pool()

    def on_rank(backend):
        model, _ = train("FSDP", backend, 1, device="cuda")
        before = model.gather_full_parameters()
        pool.free_all_blocks()
        pool.set_limit(size=pool.used_bytes() + (256 << 10))
        with pytest.raises(
            sk.OutOfMemoryError,
            match="out of memory in .* of step 2: Out of memory allocating.*optimizer state",
        ):
            # on a real GPU blocks that are in use in part have room left
            model.train(*token_batch(1, 60_000 if gpu.is_real else 240))
        pool.set_limit(size=0)
        numpy.testing.assert_array_equal(model.gather_full_parameters(), before)
        return model.train(*token_batch(1))

    try:
        assert 0 < sk.run_ranks(1, on_rank)[0] < 5
    finally:
        pool.set_limit(size=0)


def test_a_batch_to_predict_that_one_rank_has_no_room_for_is_an_error_of_all(gpu, monkeypatch):
    without_room = threads_without_room(monkeypatch)

    def on_rank(backend):
        model, _ = train("FSDP", backend, 0, device="cuda")
        if backend.rank == 1:
            without_room.add(threading.get_ident())
        with pytest.raises(sk.OutOfMemoryError, match="^rank 1 ran out of memory in a batch to"):
            model.predict(token_batch(0)[0])
        without_room.clear()
        return model.predict(token_batch(0)[0]).shape

    assert sk.run_ranks(2, on_rank) == [(12, 12, 61)] * 2


def test_page_locked_memory_that_is_not_to_be_had_says_so(gpu, monkeypatch):
    def refuse(size):
        raise MemoryError("cudaErrorMemoryAllocation: out of memory")

    monkeypatch.setattr(gpu.device.xp.cuda, "alloc_pinned_memory", refuse)
    with pytest.raises(DeviceMemoryError, match="locks no 4 KiB of host memory for staging"):
        gpu.device.pinned(1024)


# ---- copies beside the computation ---------------------------------------------------------------


def test_a_copy_to_the_host_has_the_values_of_when_it_was_asked_for(gpu):
    device = gpu.device
    array, target = device.from_host(numpy.arange(1000.0)), device.pinned(1000, "float64")
    done = device.copies.to_host(array, target)
    device.copies.hold_back(done)
    array += 1  # begins when the copy is done
    done.wait()
    numpy.testing.assert_array_equal(target, numpy.arange(1000.0))
    assert to_host(array)[0] == 1


def test_an_array_lives_until_its_copy_is_done(gpu):
    device = gpu.device
    target = device.pinned(1000, "float64")
    done = device.copies.to_host(
        device.from_host(numpy.arange(1000.0)) + 0, target
    )  # nobody else has it
    device.xp.full(1000, numpy.nan)  # would take its place in the pool
    done.wait()
    numpy.testing.assert_array_equal(target, numpy.arange(1000.0))


def test_parts_come_in_order_through_two_blocks_that_are_used_again(gpu):
    device = gpu.device
    array, seen = device.from_host(numpy.arange(1000.0)), []
    spans = [(start, min(start + 300, 1000)) for start in range(0, 1000, 300)]
    for part in device.copies.parts(array, spans):
        seen.append(part.copy())
    numpy.testing.assert_array_equal(numpy.concatenate(seen), numpy.arange(1000.0))
    assert device.bytes_in_use("staging") == 2 * 300 * 8
    for part in device.copies.parts(array, spans):
        break  # a caller that gives up
    assert (
        len(list(device.copies.parts(array, spans))) == 4
        and device.bytes_in_use("staging") == 2 * 300 * 8
    )


def test_what_is_delivered_is_there_for_the_work_that_follows(gpu):
    device = gpu.device
    target = device.zeros((6, 8), "float32", purpose="test")
    for row in range(6):
        window = device.copies.window(32).view("float32")
        window[:] = row
        device.copies.deliver(window, target[row])
    window = device.copies.window(6 * 4).view("float32").reshape(6, 1)
    window[:] = 9
    device.copies.deliver(window, target[:, 3:4])  # not contiguous on the GPU
    device.copies.finish()
    wanted = numpy.repeat(numpy.arange(6, dtype="float32")[:, None], 8, 1)
    wanted[:, 3] = 9
    numpy.testing.assert_array_equal(to_host(target + 0), wanted)
    Done().wait()


def test_page_locked_buffers_are_taken_and_given_back(gpu):
    pool = BufferPool(gpu.device, "uint8", purpose="blocks", make=gpu.device.pinned)
    first = pool.take(1000)
    address = first.ctypes.data
    pool.give(first)
    assert pool.take(500).ctypes.data == address and isinstance(first, numpy.ndarray)
    assert gpu.device.bytes_in_use("blocks") == 1000


# ---- numbers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("start, stop", [(0, 5), (3, 70001), (2**34 - 3, 2**34 + 9)])
def test_random_numbers_are_those_of_the_cpu_bit_for_bit(gpu, start, stop):
    xp, key = gpu.device.xp, random.key_of(7, "dropout", "blocks.0", 3)
    for draw in (random.random_bits, random.uniform):
        there = draw(key, start, stop, xp)
        assert xp_of(there) is xp
        numpy.testing.assert_array_equal(to_host(there), draw(key, start, stop))


def test_numbers_of_several_arrays_are_fetched_together(gpu):
    arrays = [gpu.device.xp.full((), value) for value in (1.5, 2.5, -3.0)]
    if not gpu.is_real:
        gpu.machine.transfers.clear()
    assert numbers_of(arrays) == [1.5, 2.5, -3.0] and numbers_of([]) == []
    assert gpu.is_real or len(gpu.machine.transfers) == 1


@pytest.mark.parametrize("wrong", [61, -1])
def test_a_token_outside_of_the_vocabulary_is_found_before_the_gpu_reads_it(gpu, wrong):
    def on_rank(backend):
        model, _ = train("FSDP", backend, 0, model=small_gpt(), device="cuda")
        x, y = token_batch(0)
        for bad_x, bad_y in ((x.copy(), y), (x, y.copy())):
            (bad_x if bad_y is y else bad_y)[2, 3] = wrong
            with pytest.raises(sk.ShapeError, match="wanted 0 <= (id|target) < 61"):
                model.train(bad_x, bad_y)

    sk.run_ranks(1, on_rank)
