"""Where a window of a kernel lies on a grid, in one dimension or in several.

    grid      . . 0 1 2 3 4 5 6 .        before = 2, after = 1: positions that count as zero
    window 0  x   x   x                  3 taps, dilation = 2
    window 1      x   x   x              stride = 2
    window 2          x   x   x

Tap t of window p reads position p stride + t dilation - before.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ConvolutionWindow:
    """How the windows of a convolution follow each other; one number per dimension of the grid.

    stride, dilation   from window to window, and from tap to tap
    before, after      zeros around the grid; after < 0: so many positions at its end are not read
    groups             parts of the channels that do not see each other
    """

    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    groups: int = 1

    def counts(self, sizes, taps) -> tuple[int, ...]:
        """Return how many windows with so many taps fit on a grid; below 1 if none does."""
        return tuple(
            [
                (size + before + after - dilation * (tap - 1) - 1) // stride + 1
                for size, tap, stride, dilation, before, after in zip(
                    sizes, taps, self.stride, self.dilation, self.before, self.after
                )
            ]
        )

    def in_dims(self, num_dims: int) -> "ConvolutionWindow":
        """Return this window on a grid with further dimensions of size 1 in front."""
        more = num_dims - len(self.stride)
        ones, zeros = (1,) * more, (0,) * more
        return ConvolutionWindow(
            ones + self.stride,
            ones + self.dilation,
            zeros + self.before,
            zeros + self.after,
            self.groups,
        )
