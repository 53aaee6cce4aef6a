"""Upsample: a grid of another size, by its neighbors."""

from typing import Any

from ...errors import ConfigurationError
from ..autograd import Tensor
from ..module import Module
from ..ops.resampling import check_mode, interpolate


class Upsample(Module):
    """x [samples, channels, *grid] on a grid of another size; arguments of ops.interpolate.

    Parameters
    ----------
    size, scale_factor
        Of the new grid, or the new by the old size; one of them.
    mode, align_corners, recompute_scale_factor
        As of ops.interpolate.
    """

    def __init__(
        self,
        size: Any = None,
        scale_factor: Any = None,
        mode: str = "nearest",
        align_corners: bool | None = None,
        recompute_scale_factor: bool | None = None,
    ) -> None:
        check_mode("Upsample", mode, align_corners)
        if (size is None) == (scale_factor is None):
            raise ConfigurationError(
                f"Upsample with size = {size} and scale_factor = {scale_factor}; wanted one of them"
            )
        self.size = size
        self.scale_factor = scale_factor
        self.mode = mode
        self.align_corners = align_corners
        self.recompute_scale_factor = recompute_scale_factor

    def forward(self, x: Tensor) -> Tensor:
        form = (self.size, self.scale_factor, self.mode, self.align_corners)
        return interpolate(x, *form, self.recompute_scale_factor)
