"""Where shared libraries of products lie, and how many threads they shall have."""

import sys
from pathlib import Path

from threadpoolctl import threadpool_info


def path_of(name: str, *packages: str) -> Path | None:
    """Return the shared library of this name: of one of these packages, or of this environment.

    name   the beginning, up to ".so"; a version may follow
    """
    found = [
        Path(file.locate()).resolve()
        for package in packages
        for file in _files_of(package)
        if file.name.startswith(name)
    ]
    return next(iter([*found, *sorted(Path(sys.prefix, "lib").glob(f"{name}*"))]), None)


def _files_of(package: str):
    from importlib import metadata

    try:
        return metadata.files(package) or ()
    except metadata.PackageNotFoundError:
        return ()


def blas_threads() -> int:
    """Return the number of threads of NumPy's BLAS; 1 if it does not say."""
    return max(
        (found["num_threads"] for found in threadpool_info() if found["user_api"] == "blas"),
        default=1,
    )
