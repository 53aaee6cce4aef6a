"""The lowest frequencies of a grid, as few products with waves, and what lies between.

    x [..., *grid] --to_modes--> [..., 2, *kept] --multiply_modes--> [..., 2, *kept] --from_modes-->

Kept are 0 to m - 1 of the last dimension; of each other 0 to m - 1 and -m to -1, in this order.
They are few: a product with the matrix of their waves gives them in less time than a whole fast
transform, and the dimensions that come later see modes, not the grid. All real parts stand before
all imaginary ones, right behind the dimension that is next: so a sum over complex numbers is one
product of real matrices, and nothing is turned round in between.

    [..., n1, n2] @ waves -> [..., n1, 2, m2];  waves @ [..., n1 2, m2] -> [..., 2 2m1, m2]
"""

import functools
import math
from typing import NamedTuple

import numpy

from ...array import fresh, halves, kernels, products
from ...array.backend import xp_of
from ..autograd import Tensor, record, record_linear
from .shape import cast


class Slab(NamedTuple):
    """The part of a grid that there is: along `dim`, of size `length`, from `start` on."""

    dim: int
    start: int
    length: int


def to_modes(x: Tensor, modes: tuple[int, ...], slab: Slab | None = None) -> Tensor:
    """Return the lowest frequencies [..., 2, *kept] of x [..., *grid]: those of rfftn.

    Of a slab these are a term of a sum: the frequencies of the grid are the sum over its slabs.
    """
    return _analyzed(x, modes, False, slab)


def from_modes(y: Tensor, grid: tuple[int, ...], slab: Slab | None = None) -> Tensor:
    """Return the real signal [..., *grid] whose lowest frequencies are y, the others 0: irfftn.

    As there, imaginary parts of the frequencies 0 and size / 2 of the last dimension do not count.

    grid  with the sizes of the slab, if it is one
    """
    return _synthesized(y, grid, True, slab)


def multiply_modes(x: Tensor, weight: Tensor) -> Tensor:
    """Return y [B, O, 2, *kept], in each mode the complex product of x and a matrix of channels.

    Parameters
    ----------
    x
        [B, I, 2, *kept].
    weight
        [I, O, *kept, 2], pairs of real and imaginary part.
    """
    return _multiply_modes(x, weight, False)


def multiply_own_modes(x: Tensor, weight: Tensor, own: slice) -> Tensor:
    """Return multiply_modes(x, weight[:, :, own]), for x of these modes of the first dim alone.

    The gradient of the weight has its whole shape, 0 in other modes. (A view of a sharded parameter
    would not outlive its buffer.)
    """
    shape, dtype = weight.shape, weight.gradient_dtype
    part = (slice(None), slice(None), own)
    x_kept, weight_kept = _read(x, weight)

    def backward(gradient, wanted):
        for_x = for_weight = None
        if wanted[0]:
            for_x = kernels.multiply_modes_input(gradient, weight_kept.array[part])
        if wanted[1]:
            for_weight = fresh.zeros(shape, dtype, xp_of(gradient))
            for_own = kernels.multiply_modes_weight(gradient, x_kept.array)
            for_weight[part] = halves.rounded(for_own, dtype)
        return for_x, for_weight

    y = kernels.multiply_modes(x.array, weight.array[part])
    return record(y, (x, weight), backward, needs=(x_kept, weight_kept))


def _multiply_modes(x, weight, is_adjoint):
    """Return multiply_modes of both; is_adjoint: its gradient by x, of a gradient in its place."""
    read_x, read_weight = _read(x, weight)
    dtype = weight.gradient_dtype

    def backward(gradient, wanted):
        for_x = for_weight = None
        if wanted[0]:
            for_x = _product(not is_adjoint)(gradient, read_weight.array)
        if wanted[1]:
            both = _ordered(gradient, read_x.array, is_adjoint)
            for_weight = kernels.multiply_modes_weight(*both, out=weight.empty_gradient())
            for_weight = halves.rounded(for_weight, dtype)
        return for_x, for_weight

    def differentiable(gradient, wanted, output):
        return (
            _multiply_modes(gradient, read_weight, not is_adjoint) if wanted[0] else None,
            _correlate_modes(*_ordered(gradient, read_x, is_adjoint), dtype) if wanted[1] else None,
        )

    y = _product(is_adjoint)(x.array, weight.array)
    needs = (read_x, read_weight)
    return record(y, (x, weight), backward, needs=needs, differentiable=differentiable)


def _correlate_modes(y, x, dtype):
    """Return the gradient of multiply_modes by the weight, of this dtype, for that of y."""
    read_y, read_x = _read(y, x)
    own = x.dtype

    def backward(gradient, wanted):
        matrices = halves.rounded(gradient, own)
        return (
            kernels.multiply_modes(read_x.array, matrices) if wanted[0] else None,
            kernels.multiply_modes_input(read_y.array, matrices) if wanted[1] else None,
        )

    def differentiable(gradient, wanted, output):
        matrices = gradient if gradient.dtype == own else cast(gradient, own)
        return (
            _multiply_modes(read_x, matrices, False) if wanted[0] else None,
            _multiply_modes(read_y, matrices, True) if wanted[1] else None,
        )

    weight = kernels.multiply_modes_weight(y.array, x.array)
    return record(
        halves.rounded(weight, dtype),
        (y, x),
        backward,
        needs=(read_y, read_x),
        differentiable=differentiable,
    )


def _product(is_adjoint):
    return kernels.multiply_modes_input if is_adjoint else kernels.multiply_modes


def _ordered(gradient, x, is_adjoint):
    """Return what stands on the side of y, then what stands on that of x."""
    return (x, gradient) if is_adjoint else (gradient, x)


def _read(a, b):
    """Return of two factors what the backward reads: each for the gradient of the other."""
    return (a if b.requires_grad else None), (b if a.requires_grad else None)


# ---- from the grid to modes, and back: each is the adjoint of the other --------------------------


def _analyzed(x, modes, is_mean, slab):
    """Return the modes of x; is_mean: as the adjoint of from_modes, so divided by the grid."""
    grid = x.shape[x.ndim - len(modes) :]
    y = _analysis(x.array, modes, is_mean, slab)
    form = grid, is_mean, slab
    return record_linear(y, x, _synthesis, _synthesized, *form, gives_new=True)


def _synthesized(y, grid, is_mean, slab):
    """Return the sum of waves on the grid; is_mean: as irfftn, else as the adjoint of to_modes."""
    modes = _modes(y.shape[y.ndim - len(grid) :])
    x = _synthesis(y.array, grid, is_mean, slab)
    form = modes, is_mean, slab
    return record_linear(x, y, _analysis, _analyzed, *form, gives_new=True)


def _analysis(x, modes, is_mean, slab):
    """Return [..., 2, *kept] for an array [..., *grid]."""
    num_dims = len(modes)
    leading, grid = x.shape[: x.ndim - num_dims], x.shape[x.ndim - num_dims :]
    waves = _waves_of(x, grid, modes, is_mean, slab)
    lines = x.reshape(math.prod(x.shape[:-1]), grid[-1])
    y = products.matmul(lines, waves[-1])
    for dim in reversed(range(num_dims - 1)):  # [rows, n 2, later modes]
        rows = math.prod(leading) * math.prod(grid[:dim])
        columns = math.prod(_kept(modes)[dim + 1 :])
        y = y.reshape(rows, 2 * grid[dim], columns)
        y = products.matmul(waves[dim], y)
    return y.reshape(*leading, 2, *_kept(modes))


def _synthesis(y, grid, is_mean, slab):
    """Return [..., *grid] for an array [..., 2, *kept]."""
    num_dims = len(grid)
    first = y.ndim - num_dims  # of the dimensions of modes
    leading, kept = y.shape[: first - 1], y.shape[first:]
    waves = [w.swapaxes(0, 1) for w in _waves_of(y, grid, _modes(kept), is_mean, slab)]
    for dim in range(num_dims - 1):  # [rows, 2 modes, later modes]
        rows = math.prod(leading) * math.prod(grid[:dim])
        y = y.reshape(rows, 2 * kept[dim], math.prod(kept[dim + 1 :]))
        y = products.matmul(waves[dim], y)
    rows = math.prod(leading) * math.prod(grid[:-1])
    x = products.matmul(y.reshape(rows, 2 * kept[-1]), waves[-1])
    return x.reshape(*leading, *grid)


def _waves_of(array, grid, modes, is_mean, slab):
    """Return the matrix of each dim, where the grid is a slab, of its part."""
    num_own = grid[slab.dim] if slab is not None else 0
    if slab is not None:
        grid = (*grid[: slab.dim], slab.length, *grid[slab.dim + 1 :])
    form = array.dtype, is_mean
    waves = [_complex_waves(xp_of(array), *each, array.dtype) for each in zip(grid[:-1], modes)]
    waves.append(_real_waves(xp_of(array), grid, modes[-1], *form))
    if slab is not None:
        own = slice(slab.start, slab.start + num_own)
        waves[slab.dim] = _part_of_waves(waves[slab.dim], own, slab.dim == len(grid) - 1)
    return waves


def _part_of_waves(waves, own, is_last):
    """Return the waves of a part of a dim, of [n, 2 m] of the last one, or else of [2 2m, n 2]."""
    if is_last:
        return waves[own]
    by_place = waves.reshape(len(waves), -1, 2)[:, own]
    return by_place.reshape(len(waves), 2 * by_place.shape[1])


def _kept(modes):
    """Return how many frequencies are kept of each dimension."""
    return [*[2 * m for m in modes[:-1]], modes[-1]]


def _modes(kept):
    return (*[size // 2 for size in kept[:-1]], kept[-1])


def _on_host_once(make):
    """Keep the last matrices of NumPy."""

    @functools.lru_cache(maxsize=64)
    def of_host(*form):
        waves = make(numpy, *form)
        waves.flags.writeable = False
        return waves

    @functools.wraps(make)
    def waves(xp, *form):
        return of_host(*form) if xp is numpy else make(xp, *form)

    return waves


@_on_host_once
def _real_waves(xp, grid, m, dtype, is_mean):
    """Return [n, 2 m], by which rows of the last dimension are multiplied: cos, then -sin.

    is_mean   divided by the size of the grid; a frequency counts for its negative too, if it has
              one
    """
    size = grid[-1]
    cosines, sines = _waves(xp, size, range(m))
    if is_mean:
        counts = xp.asarray([1 if 2 * k in (0, size) else 2 for k in range(m)])
        counts = counts / math.prod(grid)
        cosines, sines = cosines * counts, sines * counts
    return xp.concatenate([cosines, -sines], 1).astype(dtype)


@_on_host_once
def _complex_waves(xp, size, m, dtype):
    """Return [2 2m, n 2], exp(-i angle) as real matrices: real parts of all modes before imaginary
    ones, but pairs of them for each place of the grid.
    """
    frequencies = [*range(m), *range(-m, 0)]
    cosines, sines = [part.T for part in _waves(xp, size, frequencies)]
    real = xp.stack((cosines, sines), -1)
    imaginary = xp.stack((-sines, cosines), -1)
    return xp.concatenate([real, imaginary]).reshape(4 * m, 2 * size).astype(dtype)


def _waves(xp, size, frequencies):
    """Return the cosines and sines of 2 pi j k / size, each [size, frequencies], for j < size."""
    # Whole: nothing is lost.
    places, frequencies = xp.arange(size)[:, None], xp.asarray(list(frequencies))
    turns = places * frequencies % size
    angles = turns * (2 * math.pi / size)
    return xp.cos(angles), xp.sin(angles)
