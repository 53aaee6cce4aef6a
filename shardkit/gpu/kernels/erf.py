"""The error function, and the GELU that is made of it, with its gradient, in one pass."""

from .arrays import enter

enter("erf.cu", "erf_gelu", "erf_gelu_backward", erf="erf_of_all")  # CUDA has an erf itself
