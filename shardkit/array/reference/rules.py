"""Optimizer rules on 1-D arrays, in place, with the formulas of torch.optim.

Each element is computed from its own parameter, gradient and state alone, so the bits do not depend
on how a span is cut. Gradients are not written to; each is used times gradient_scale, which is how
clipping gets in without a pass of its own. All arrays of a call have one length and live on one
device.
"""

import math

from ..backend import xp_of
from ..registry import kernel
from .chunks import spans


@kernel()
def sgd(parameters, gradients, *, lr, weight_decay=0.0, gradient_scale=1.0):
    """Compute parameters -= lr (gradients + weight_decay parameters)."""
    for span in spans(parameters):
        p = parameters[span]
        p -= lr * _decayed(gradients[span] * gradient_scale, p, weight_decay)


@kernel()
def momentum(
    parameters, gradients, velocity, *, lr, beta, nesterov, weight_decay=0.0, gradient_scale=1.0
):
    """Compute velocity = beta velocity + g, and parameters -= lr velocity.

    With nesterov: parameters -= lr (g + beta velocity). velocity starts at zero, which makes the
    first one g, as in torch.optim.SGD with dampening 0.
    """
    for span in spans(parameters):
        p, v = parameters[span], velocity[span]
        g = _decayed(gradients[span] * gradient_scale, p, weight_decay)
        v *= beta
        v += g
        p -= lr * (g + beta * v if nesterov else v)


@kernel()
def adam(parameters, gradients, m, v, *, gradient_scale=1.0, **constants):
    """Apply Adam (arXiv 1412.6980) or, decoupled, AdamW (arXiv 1711.05101).

    m and v start at zero; constants are those of adam_numbers()
    """
    xp = xp_of(parameters)
    step_size, correction, beta1, beta2, eps, shrink, decay = adam_numbers(**constants)
    for span in spans(parameters):
        p = parameters[span]
        m_ = m[span]
        v_ = v[span]
        g = _decayed(gradients[span] * gradient_scale, p, decay)
        if shrink != 1:
            p *= shrink
        m_ += (1 - beta1) * (g - m_)
        v_ *= beta2
        v_ += (1 - beta2) * g * g
        p -= step_size * m_ / (xp.sqrt(v_) / correction + eps)


@kernel()
def lion(parameters, gradients, m, *, lr, beta1, beta2, weight_decay=0.0, gradient_scale=1.0):
    """Apply Lion (arXiv 2302.06675), with decoupled weight decay.

    parameters -= lr sign(m + (1 - beta1) (g - m)), then m += (1 - beta2) (g - m); the sign of zero
    is zero, of NaN NaN. m starts at zero.
    """
    xp = xp_of(parameters)
    for span in spans(parameters):
        p, m_ = parameters[span], m[span]
        change = gradients[span] * gradient_scale - m_
        if weight_decay:
            p *= 1 - lr * weight_decay
        mixed = m_ + (1 - beta1) * change
        sign = xp.where(mixed > 0, 1, xp.where(mixed < 0, -1, mixed))  # of zero and NaN itself
        p -= lr * sign.astype(p.dtype)
        m_ += (1 - beta2) * change


def adam_numbers(*, step, lr, beta1, beta2, eps, weight_decay=0.0, decoupled):
    """Return the numbers of an update of Adam, that of AdamW where decoupled.

    step     1 for the first update
    returns  lr / (1 - beta1^step) and sqrt(1 - beta2^step), which correct moments that began at
             zero; beta1, beta2, eps; what parameters are multiplied by before, and how much of
             them is added to the gradient
    """
    shrink, decay = (1 - lr * weight_decay, 0.0) if decoupled else (1.0, weight_decay)
    correction = math.sqrt(1 - beta2**step)
    return lr / (1 - beta1**step), correction, beta1, beta2, eps, shrink, decay


def _decayed(gradients, parameters, weight_decay):
    """Return the gradient, plus that of weight_decay/2 times the squared parameters."""
    return gradients + weight_decay * parameters if weight_decay else gradients
