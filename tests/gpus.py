"""A GPU for the tests that want one: a real one where there is one, else the stand-in for CuPy
(tests/stand_in).

On the stand-in the plain twins of the kernels compute, fast enough for many runs. Tests that are
marked `emulated` have the kernels in CUDA C++ there too, thread by thread on the CPU; they need
g++.
"""

import functools
from dataclasses import dataclass

import pytest
from stand_in import pretended_gpu
from stand_in.emulator import compiler

from shardkit import DeviceError
from shardkit.testing.array import Device, registry


@functools.cache
def why_no_gpu() -> str | None:
    """Return why there is no real GPU; None if there is one."""
    try:
        Device("cuda")
    except DeviceError as error:
        return str(error)
    return None


@pytest.fixture(scope="session")
def missing():
    return why_no_gpu()


@dataclass
class Gpu:
    """machine: the book of the stand-in; None on a real GPU. has_kernels: those in CUDA C++
    compute.
    """

    device: Device
    machine: object = None
    has_kernels: bool = True

    @property
    def is_real(self) -> bool:
        return self.machine is None


@pytest.fixture
def gpu(missing, request, monkeypatch):
    """Make the device "cuda" work during the test."""
    if missing is None:
        yield Gpu(Device("cuda"))
    elif request.node.get_closest_marker("real"):
        pytest.skip(f"needs a real GPU: {missing}")
    else:
        is_emulated = request.node.get_closest_marker("emulated") is not None
        if is_emulated and compiler() is None:
            pytest.skip("needs g++, to run CUDA C++ on the CPU")
        if not is_emulated:
            monkeypatch.setattr(registry, "is_cupy_array", lambda x: False)
            masks = registry.KERNELS["dropout_mask"]
            monkeypatch.setattr(masks, "cuda", masks.reference)
        with pretended_gpu() as machine:
            yield Gpu(Device("cuda"), machine, is_emulated)
