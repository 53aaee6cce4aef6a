"""Tests on a GPU: a real one where there is one, else the stand-in for CuPy (see tests/gpus.py)."""

from gpus import gpu, missing  # noqa: F401


def pytest_configure(config):
    config.addinivalue_line("markers", "real: needs a real GPU")
    config.addinivalue_line(
        "markers", "emulated: the kernels in CUDA C++ compute, on the stand-in too"
    )
