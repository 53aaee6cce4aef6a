"""Settings of what arrays live on, and of what multiplies them."""

from dataclasses import dataclass

from ..arguments import require
from ..settings import setting
from .blas import LIBRARIES
from .products import CONVOLUTIONS, PRECISIONS

DEVICES = ("cpu", "cuda")


@dataclass(frozen=True, kw_only=True)
class ArraySettings:
    """Where arrays live, and who multiplies matrices; all of it changes bits."""

    device: str = setting(
        "cpu",
        "where arrays live",
        among=DEVICES,
        unplanned="the hardware file says what ranks compute on",
    )
    matmul_precision: str = setting(
        "highest",
        "precision of float32 products; tf32: on cuda, reads 10 bits of the mantissa",
        among=PRECISIONS,
        unplanned="multiplies faster",
    )
    convolutions: str = setting(
        "fast",
        "convolutions on the CPU; direct: no taps by fewer products, whose errors are those "
        "of the largest number within 6 x 6",
        among=CONVOLUTIONS,
        unplanned="products are counted as a sum of all of them has them",
    )
    blas: str = setting(
        "numpy",
        "library that multiplies matrices on the CPU; mkl (Intel's CPUs) and onednn: if installed",
        among=LIBRARIES,
        unplanned="the hardware's products say how fast matrices are multiplied",
    )


def check_device(settings: ArraySettings) -> None:
    """Raise ConfigurationError on a choice that the device does not have."""
    if settings.device != "cuda":
        require(
            settings.matmul_precision == "highest",
            "matmul_precision",
            settings.matmul_precision,
            '"highest": TF32 is arithmetic of GPUs (device = "cuda")',
        )
    if settings.device != "cpu":
        require(
            settings.blas == "numpy", "blas", settings.blas, '"numpy": on "cuda" cuBLAS multiplies'
        )
        require(
            settings.convolutions == "fast",
            "convolutions",
            settings.convolutions,
            '"fast": on "cuda" every sum adds all products',
        )
