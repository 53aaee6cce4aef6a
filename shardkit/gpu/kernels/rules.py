"""Optimizer rules, each in one pass, with the operations of the reference in the same order."""

import functools

from ...array.reference import rules as reference
from ...array.registry import NUMBERS, on_cuda
from .arrays import by_packs, plain


def _twin(launcher):
    """Enter a launcher; the definition computes where arrays have gaps, or dtypes differ."""
    definition = getattr(reference, launcher.__name__)

    @on_cuda(dtypes=NUMBERS)
    @functools.wraps(launcher)
    def rule(parameters, gradients, *states, **settings):
        are_plain = gradients.dtype == parameters.dtype and all(
            x.flags.c_contiguous and x.dtype == parameters.dtype for x in (parameters, *states)
        )
        compute = launcher if are_plain else definition
        return compute(parameters, gradients, *states, **settings)

    return rule


@_twin
def sgd(parameters, gradients, *, lr, weight_decay=0.0, gradient_scale=1.0):
    _update("sgd", parameters, gradients, (), lr, weight_decay, gradient_scale)


@_twin
def momentum(
    parameters, gradients, velocity, *, lr, beta, nesterov, weight_decay=0.0, gradient_scale=1.0
):
    numbers = (lr, beta, bool(nesterov), weight_decay, gradient_scale)
    _update("momentum", parameters, gradients, (velocity,), *numbers)


@_twin
def adam(parameters, gradients, m, v, *, gradient_scale=1.0, **constants):
    size, correction, beta1, beta2, *more = reference.adam_numbers(**constants)
    numbers = (size, correction, 1 - beta1, beta2, 1 - beta2, *more, gradient_scale)
    _update("adam", parameters, gradients, (m, v), *numbers)


@_twin
def lion(parameters, gradients, m, *, lr, beta1, beta2, weight_decay=0.0, gradient_scale=1.0):
    shrink = 1 - lr * weight_decay
    numbers = (lr, 1 - beta1, 1 - beta2, shrink, gradient_scale)
    _update("lion", parameters, gradients, (m,), *numbers)


def _update(name, parameters, gradients, states, *numbers):
    numbers = [int(n) if isinstance(n, bool) else float(n) for n in numbers]
    by_packs(parameters, "rules.cu", name, parameters, plain(gradients), *states, *numbers)
