"""Products of complex matrices, one for each mode of a spectrum, and their two gradients.

    x [B, I, 2, *modes], weight [I, O, *modes, 2]  ->  y [B, O, 2, *modes]

A spectrum has all real parts of a channel before all imaginary ones, as products with waves give
them; a weight is pairs. With s = the sum of y g over all real numbers, each of the three is the
gradient of s by what it lacks, so that the derivatives of all three are these three again.
"""

from math import prod

from .. import products
from ..backend import xp_of
from ..registry import kernel


@kernel(rounded=(True,), has_cuda_twin=False)
def multiply_modes(x, weight):
    """Return y [B, O, 2, *modes]: y[b, o] = sum over i of x[b, i] weight[i, o], in each mode.

    x, weight   [B, I, 2, *modes], [I, O, *modes, 2]
    """
    (a, b), (c, d) = _parts(x), _pairs(weight)
    real = _times(a, c) - _times(b, d)
    imaginary = _times(a, d) + _times(b, c)
    return _joined(real, imaginary, x.shape[3:])


@kernel(rounded=(True,), has_cuda_twin=False)
def multiply_modes_input(gradient, weight):
    """Return the gradient of x [B, I, 2, *modes] for that of y.

    gradient, weight   [B, O, 2, *modes], [I, O, *modes, 2]
    """
    a, b = _parts(gradient)
    c, d = [part.swapaxes(1, 2) for part in _pairs(weight)]
    real = _times(a, c) + _times(b, d)
    imaginary = _times(b, c) - _times(a, d)
    return _joined(real, imaginary, gradient.shape[3:])


@kernel(rounded=(False,), has_cuda_twin=False)
def multiply_modes_weight(gradient, x, out=None):
    """Return the gradient of the weight [I, O, *modes, 2] for that of y.

    gradient, x   [B, O, 2, *modes], [B, I, 2, *modes]
    """
    a, b = [part.swapaxes(1, 2) for part in _parts(x)]
    c, d = _parts(gradient)
    real = _times(a, c) + _times(b, d)
    imaginary = _times(a, d) - _times(b, c)
    parts = real, imaginary
    shape = (x.shape[1], gradient.shape[1], *x.shape[3:], 2)
    weight = xp_of(x).stack([part.transpose(1, 2, 0) for part in parts], -1).reshape(shape)
    if out is None:
        return weight
    out[...] = weight
    return out


_times = products.matmul


def _parts(x):
    """Return the real and the imaginary part of a spectrum, each [M, B, channels]."""
    x = x.reshape(*x.shape[:3], prod(x.shape[3:]))
    return [_contiguous(x[:, :, part].transpose(2, 0, 1)) for part in (0, 1)]


def _pairs(weight):
    """Return the real and the imaginary part of a weight, each [M, I, O]."""
    weight = weight.reshape(*weight.shape[:2], prod(weight.shape[2:-1]), 2)
    return [_contiguous(weight[..., part].transpose(2, 0, 1)) for part in (0, 1)]


def _contiguous(x):
    return xp_of(x).ascontiguousarray(x)


def _joined(real, imaginary, modes):
    """Return the spectrum [B, channels, 2, *modes] of two parts, each [M, B, channels]."""
    x = xp_of(real).stack([part.transpose(1, 2, 0) for part in (real, imaginary)], 2)
    return x.reshape(*x.shape[:3], *modes)
