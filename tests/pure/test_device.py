"""The door to NumPy and CuPy, without a GPU."""

import gc
import sys

import numpy
import pytest
from stand_in import pretended_gpu

from shardkit import DeviceError
from shardkit.testing.array import (
    ALIGNMENT_BYTES,
    HUGE_PAGE_BYTES,
    BufferPool,
    Device,
    is_device_array,
    to_host,
    xp_of,
)


class FakeDeviceArray:
    """An array that says it is on a GPU."""

    def __init__(self, array):
        self.array, self.shape, self.ndim, self.dtype = array, array.shape, array.ndim, array.dtype
        self.__cuda_array_interface__ = {
            "shape": array.shape,
            "typestr": array.dtype.str,
            "version": 3,
            "data": (array.ctypes.data, False),
        }

    def get(self):
        return self.array.copy()


def test_every_array_starts_on_a_cache_line_and_has_the_shape_asked_for():
    device = Device("cpu")
    for shape, dtype in (
        ((3, 5), "float32"),
        (7, "float64"),
        ((), "float32"),
        (0, "float32"),
        ((2, 0), "int64"),
    ):
        array = device.zeros(shape, dtype, purpose="test")
        assert array.size == 0 or array.ctypes.data % ALIGNMENT_BYTES == 0
        assert array.dtype == dtype and array.shape == (
            shape if isinstance(shape, tuple) else (shape,)
        )
        assert not array.any()


def test_a_large_array_starts_on_a_huge_page_and_is_counted_until_its_last_view_is_gone():
    device = Device("cpu")
    array = device.zeros((3, HUGE_PAGE_BYTES // 4 + 1), "float32", purpose="test")
    assert array.ctypes.data % HUGE_PAGE_BYTES == 0 and array.shape[0] == 3
    view = array[1:]
    view += 1
    del array
    assert device.bytes_in_use("test") == 3 * (HUGE_PAGE_BYTES + 4) and view.min() == 1
    del view
    assert device.bytes_in_use("test") == 0
    with pytest.raises(MemoryError, match="bytes for weights"):
        device.empty(1 << 58, "uint8", purpose="weights")


def test_bytes_are_counted_until_the_last_view_is_gone():
    device = Device("cpu")
    array = device.empty(1000, "float32", purpose="parameters")
    view = array[10:20].reshape(2, 5)
    del array
    gc.collect()
    assert device.bytes_in_use("parameters") == 4000
    del view
    gc.collect()
    assert device.bytes_in_use() == 0
    assert device.accounts.peak_bytes() == 4000
    device.accounts.reset_peak()
    assert device.accounts.peak_bytes() == 0


def test_a_pool_holds_only_what_was_ever_out_at_once():
    device = Device("cpu")
    pool = BufferPool(device, "float32", purpose="pool")
    for size in (10, 30, 20, 5):
        buffer = pool.take(size)
        assert buffer.shape == (size,)
        pool.give(buffer)
        del buffer
    assert device.bytes_in_use("pool") == 30 * 4
    first, second = pool.take(30), pool.take(4)
    assert not numpy.shares_memory(first, second)


def test_an_unknown_device_is_refused():
    with pytest.raises(ValueError, match="tpu"):
        Device("tpu")


def test_cuda_without_cupy_is_one_clear_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(DeviceError, match="CuPy, which is not installed") as error:
        Device("cuda")
    assert "\n" not in str(error.value)


def test_cuda_without_a_driver_is_one_clear_sentence(monkeypatch):
    class NoDriver(RuntimeError):
        pass

    class runtime:
        CUDARuntimeError = NoDriver
        is_hip = False

        @staticmethod
        def getDeviceCount():
            raise NoDriver("cudaErrorInsufficientDriver")

    module = type(sys)("cupy")
    module.cuda = type("cuda", (), {"runtime": runtime})
    monkeypatch.setitem(sys.modules, "cupy", module)
    with pytest.raises(DeviceError, match="needs a GPU and its driver"):
        Device("cuda")
    runtime.getDeviceCount = staticmethod(lambda: 0)
    with pytest.raises(DeviceError, match="none is visible"):
        Device("cuda")


def test_ranks_of_a_node_take_the_visible_gpus_in_turn():
    with pretended_gpu(num_devices=2) as machine:
        used = []
        for local_rank in range(4):
            used.append((Device("cuda", ordinal=local_rank).ordinal, machine.device))
    assert used == [(0, 0), (1, 1), (0, 0), (1, 1)]


@pytest.mark.parametrize("library", ["nvrtc", "cublas"])
def test_cuda_without_its_libraries_says_how_to_get_them(monkeypatch, library):
    class Missing:
        @property
        def getVersion(self):
            raise ImportError(f'Failure finding "lib{library}.so.12"\nNo such file')

    with pretended_gpu():
        monkeypatch.setattr(sys.modules["cupy"].cuda, library, Missing())
        with pytest.raises(DeviceError, match=f"lib{library}.so.12.*pip install") as error:
            Device("cuda")
    assert "\n" not in str(error.value)


def test_cupy_that_cannot_be_loaded_is_one_clear_sentence(monkeypatch, tmp_path):
    (tmp_path / "cupy.py").write_text(
        "raise ImportError('libfoo.so.1:\\n cannot open shared object file')"
    )
    for name in [name for name in sys.modules if name.partition(".")[0] == "cupy"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(
        DeviceError, match="installed but cannot be loaded: libfoo.so.1: cannot open"
    ) as error:
        Device("cuda")
    assert "\n" not in str(error.value)


def test_device_arrays_are_told_from_host_arrays(monkeypatch):
    fake = FakeDeviceArray(numpy.arange(3.0))
    assert is_device_array(fake) and not is_device_array(numpy.arange(3.0))
    numpy.testing.assert_array_equal(to_host(fake), numpy.arange(3.0))
    stand_in = type(sys)("cupy")
    stand_in.ndarray = type("ndarray", (), {})
    monkeypatch.setitem(sys.modules, "cupy", stand_in)
    assert xp_of(fake, 2.0) is stand_in and xp_of(numpy.ones(2), 1) is numpy
    with pytest.raises(DeviceError, match="two devices"):
        xp_of(fake, numpy.ones(2))
