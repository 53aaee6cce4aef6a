"""Optimizer rules, each in one pass, with the operations of the reference in the same order."""

import math

from ..reference import rules as reference
from ..registry import on_cpu
from .arrays import plain
from .compiled import compiled
from .scalar import like


@on_cpu
def sgd(parameters, gradients, *, lr, weight_decay=0.0, gradient_scale=1.0):
    if not parameters.flags.carray:
        return NotImplemented
    _sgd(parameters, plain(gradients), float(lr), float(weight_decay), float(gradient_scale))


@on_cpu
def momentum(
    parameters, gradients, velocity, *, lr, beta, nesterov, weight_decay=0.0, gradient_scale=1.0
):
    if not (parameters.flags.carray and velocity.flags.carray):
        return NotImplemented
    numbers = float(lr), float(beta), bool(nesterov), float(weight_decay), float(gradient_scale)
    _momentum(parameters, plain(gradients), velocity, *numbers)


@on_cpu
def adam(parameters, gradients, m, v, *, gradient_scale=1.0, **constants):
    if not (parameters.flags.carray and m.flags.carray and v.flags.carray):
        return NotImplemented
    numbers = map(float, (*reference.adam_numbers(**constants), gradient_scale))
    _adam(parameters, plain(gradients), m, v, *numbers)


@on_cpu
def lion(parameters, gradients, m, *, lr, beta1, beta2, weight_decay=0.0, gradient_scale=1.0):
    if not (parameters.flags.carray and m.flags.carray):
        return NotImplemented
    numbers = map(float, (lr, beta1, beta2, 1 - lr * weight_decay, gradient_scale))
    _lion(parameters, plain(gradients), m, *numbers)


@compiled
def _sgd(parameters, gradients, lr, decay, gradient_scale):
    for i in range(parameters.size):
        p = parameters[i]
        g = gradients[i] * like(gradient_scale, p)
        if decay != 0.0:
            g = g + like(decay, p) * p
        parameters[i] = p - like(lr, p) * g


@compiled
def _momentum(parameters, gradients, velocity, lr, beta, nesterov, decay, gradient_scale):
    for i in range(parameters.size):
        p = parameters[i]
        g = gradients[i] * like(gradient_scale, p)
        if decay != 0.0:
            g = g + like(decay, p) * p
        velocity[i] = v = velocity[i] * like(beta, p) + g
        parameters[i] = p - like(lr, p) * (g + like(beta, p) * v if nesterov else v)


@compiled
def _adam(
    parameters,
    gradients,
    m,
    v,
    step_size,
    root_correction,
    beta1,
    beta2,
    eps,
    shrink,
    decay,
    gradient_scale,
):
    for i in range(parameters.size):
        p = parameters[i]
        g = gradients[i] * like(gradient_scale, p)
        if decay != 0.0:
            g = g + like(decay, p) * p
        p = p * like(shrink, p)
        m[i] = first = m[i] + like(1 - beta1, p) * (g - m[i])
        kept = v[i] * like(beta2, p)
        v[i] = second = kept + like(1 - beta2, p) * g * g
        parameters[i] = p - like(step_size, p) * first / (
            math.sqrt(second) / like(root_correction, p) + like(eps, p)
        )


@compiled
def _lion(parameters, gradients, m, lr, beta1, beta2, shrink, gradient_scale):
    for i in range(parameters.size):
        p = parameters[i]
        change = gradients[i] * like(gradient_scale, p) - m[i]
        mixed = m[i] + like(1 - beta1, p) * change
        sign = mixed  # of zero and NaN
        if mixed > 0:
            sign = like(1.0, p)
        elif mixed < 0:
            sign = like(-1.0, p)
        parameters[i] = p * like(shrink, p) - like(lr, p) * sign
        m[i] = m[i] + like(1 - beta2, p) * change
