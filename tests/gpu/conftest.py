"""A GPU for the tests of this folder: a real one where there is one, else the stand-in for CuPy (tests/stand_in)."""
from dataclasses import dataclass

import pytest
from stand_in import pretended_gpu

from shardkit.array.backend import Device
from shardkit.errors import DeviceError


def pytest_configure(config):
    config.addinivalue_line("markers", "real: needs a real GPU")


@pytest.fixture(scope="session")
def missing():
    """Why there is no real GPU; None if there is one."""
    try:
        Device("cuda")
    except DeviceError as error:
        return str(error)


@dataclass
class Gpu:
    """machine: the book of the stand-in; None on a real GPU."""

    device: Device
    machine: object = None

    @property
    def is_real(self) -> bool:
        return self.machine is None


@pytest.fixture
def gpu(missing, request):
    """Device "cuda" works during the test."""
    if missing is None:
        yield Gpu(Device("cuda"))
    elif request.node.get_closest_marker("real"):
        pytest.skip(f"needs a real GPU: {missing}")
    else:
        with pretended_gpu() as machine:
            yield Gpu(Device("cuda"), machine)
