"""Optimizer rules, each in one pass, with the operations of the reference in the same order."""

from ..reference import rules as reference
from ..registry import NUMBERS, on_cuda
from .arrays import THREADS, pack, plain, spread
from .launch import launch

FILE = "rules.cu"


@on_cuda(dtypes=NUMBERS)
def sgd(parameters, gradients, *, lr, weight_decay=0.0, gradient_scale=1.0):
    if not _are_plain(parameters, gradients):
        return reference.sgd(
            parameters, gradients, lr=lr, weight_decay=weight_decay, gradient_scale=gradient_scale
        )
    _update("sgd", parameters, gradients, (), lr, weight_decay, gradient_scale)


@on_cuda(dtypes=NUMBERS)
def momentum(
    parameters,
    gradients,
    velocity,
    *,
    lr,
    beta,
    nesterov=False,
    weight_decay=0.0,
    gradient_scale=1.0,
):
    if not _are_plain(parameters, gradients, velocity):
        return reference.momentum(
            parameters,
            gradients,
            velocity,
            lr=lr,
            beta=beta,
            nesterov=nesterov,
            weight_decay=weight_decay,
            gradient_scale=gradient_scale,
        )
    _update(
        "momentum",
        parameters,
        gradients,
        (velocity,),
        lr,
        beta,
        bool(nesterov),
        weight_decay,
        gradient_scale,
    )


@on_cuda(dtypes=NUMBERS)
def adam(
    parameters,
    gradients,
    m,
    v,
    *,
    step,
    lr,
    beta1,
    beta2,
    eps,
    weight_decay=0.0,
    decoupled,
    gradient_scale=1.0,
):
    if not _are_plain(parameters, gradients, m, v):
        return reference.adam(
            parameters,
            gradients,
            m,
            v,
            step=step,
            lr=lr,
            beta1=beta1,
            beta2=beta2,
            eps=eps,
            weight_decay=weight_decay,
            decoupled=decoupled,
            gradient_scale=gradient_scale,
        )
    step_size, root_correction = reference.adam_factors(step, lr, beta1, beta2)
    shrink, decay = (1 - lr * weight_decay, 0.0) if decoupled else (1.0, weight_decay)
    _update(
        "adam",
        parameters,
        gradients,
        (m, v),
        step_size,
        root_correction,
        1 - beta1,
        beta2,
        1 - beta2,
        eps,
        shrink,
        decay,
        gradient_scale,
    )


@on_cuda(dtypes=NUMBERS)
def lion(parameters, gradients, m, *, lr, beta1, beta2, weight_decay=0.0, gradient_scale=1.0):
    if not _are_plain(parameters, gradients, m):
        return reference.lion(
            parameters,
            gradients,
            m,
            lr=lr,
            beta1=beta1,
            beta2=beta2,
            weight_decay=weight_decay,
            gradient_scale=gradient_scale,
        )
    shrink = 1 - lr * weight_decay
    numbers = (lr, 1 - beta1, 1 - beta2, shrink, gradient_scale)
    _update("lion", parameters, gradients, (m,), *numbers)


def _are_plain(parameters, gradients, *states):
    """Return False if what is updated has gaps, or dtypes differ: the reference takes these."""
    return gradients.dtype == parameters.dtype and all(
        x.flags.c_contiguous and x.dtype == parameters.dtype for x in (parameters, *states)
    )


def _update(name, parameters, gradients, states, *numbers):
    numbers = [int(n) if isinstance(n, bool) else float(n) for n in numbers]
    launch(
        parameters,
        FILE,
        name,
        spread(parameters.size, THREADS * pack(parameters)),
        (THREADS,),
        parameters,
        plain(gradients),
        *states,
        *numbers,
        parameters.size,
    )
