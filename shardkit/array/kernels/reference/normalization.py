"""Layer norm and RMS norm over the rows of a matrix, each with its gradient; the mask of dropout.

Both norms keep one or two numbers per row and compute the normalised rows again in the backward. A sum over rows (the
gradients of weight and bias) goes through the rows in order, in pieces whose size depends on D alone.
"""
import numpy

from ...backend import xp_of
from ...random import random_bits
from .chunks import spans


def layer_norm(x, weight, bias, eps):
    """x [N, D], weight [D], bias [D] -> y [N, D], mean [N], inverse [N] = 1 / sqrt(variance + eps)."""
    xp, width = xp_of(x), x.shape[1]
    y = xp.empty(x.shape, x.dtype)
    mean, inverse = xp.empty(x.shape[0], x.dtype), xp.empty(x.shape[0], x.dtype)
    for rows in spans(x, width):
        mean[rows] = x[rows].sum(axis=1) / width
        centred = xp.subtract(x[rows], mean[rows, None], out=y[rows])
        inverse[rows] = 1 / xp.sqrt((centred * centred).sum(axis=1) / width + eps)
        centred *= inverse[rows, None]
        centred *= weight
        centred += bias
    return y, mean, inverse


def layer_norm_backward(gradient, x, weight, mean, inverse, wanted=(True, True, True)):
    """gradient [N, D], x [N, D] and what layer_norm returned -> gradients of x [N, D], weight [D], bias [D].

    With n the normalised row and h = gradient weight:  inverse (h - mean(h) - n mean(h n)).
    wanted  which of the three to compute; the others are None
    """
    xp, width = xp_of(gradient), x.shape[1]
    for_x = xp.empty(x.shape, x.dtype) if wanted[0] else None
    for_weight = xp.zeros(width, x.dtype) if wanted[1] else None
    for_bias = xp.zeros(width, x.dtype) if wanted[2] else None
    for rows in spans(x, width):
        normalised = (x[rows] - mean[rows, None]) * inverse[rows, None]
        if wanted[0]:
            h = gradient[rows] * weight
            level = h.sum(axis=1, keepdims=True) / width
            along = (h * normalised).sum(axis=1, keepdims=True) / width
            for_x[rows] = (h - level - normalised * along) * inverse[rows, None]
        if wanted[1]:
            for_weight += (gradient[rows] * normalised).sum(axis=0)
        if wanted[2]:
            for_bias += gradient[rows].sum(axis=0)
    return for_x, for_weight, for_bias


def rms_norm(x, weight, eps):
    """x [N, D], weight [D] -> y [N, D], inverse [N] = 1 / sqrt(mean of squares + eps)."""
    xp, width = xp_of(x), x.shape[1]
    y = xp.empty(x.shape, x.dtype)
    inverse = xp.empty(x.shape[0], x.dtype)
    for rows in spans(x, width):
        inverse[rows] = 1 / xp.sqrt((x[rows] * x[rows]).sum(axis=1) / width + eps)
        y[rows] = x[rows] * inverse[rows, None] * weight
    return y, inverse


def rms_norm_backward(gradient, x, weight, inverse, wanted=(True, True)):
    """gradient [N, D], x [N, D] and what rms_norm returned -> gradients of x [N, D] and weight [D] (None if not wanted).

    With n the normalised row and h = gradient weight:  inverse (h - n mean(h n)).
    """
    xp, width = xp_of(gradient), x.shape[1]
    for_x = xp.empty(x.shape, x.dtype) if wanted[0] else None
    for_weight = xp.zeros(width, x.dtype) if wanted[1] else None
    for rows in spans(x, width):
        normalised = x[rows] * inverse[rows, None]
        if wanted[0]:
            h = gradient[rows] * weight
            along = (h * normalised).sum(axis=1, keepdims=True) / width
            for_x[rows] = (h - normalised * along) * inverse[rows, None]
        if wanted[1]:
            for_weight += (gradient[rows] * normalised).sum(axis=0)
    return for_x, for_weight


def dropout_mask(key, start, stop, p, xp=numpy):
    """Elements [start, stop) of the mask of this key -> [stop - start] bool, True (keep) with probability 1 - p."""
    return random_bits(key, start, stop, xp) >= min(round(p * 2 ** 32), 2 ** 32 - 1)
