"""The error function, and the GELU that is made of it, with its gradient, in one pass."""

from ..registry import on_cuda
from .arrays import elementwise

FILE = "erf.cu"


@on_cuda()
def erf(x, out=None):
    return elementwise(FILE, "erf_of_all", x, out=out)


@on_cuda()
def erf_gelu(x, out=None):
    return elementwise(FILE, "erf_gelu", x, out=out)


@on_cuda()
def erf_gelu_backward(gradient, x, out=None):
    return elementwise(FILE, "erf_gelu_backward", gradient, x, out=out)
