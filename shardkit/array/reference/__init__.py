"""Definitions of the kernels, on NumPy or CuPy arrays: obvious first, fast second.

Inputs may be strided or read-only and are never written to, except where a rule says "in place".
Results are in the dtype of the inputs; nothing is widened to float64 unless the docstring says so.

Results are new arrays, or `out` where it is given: C-contiguous, of the shape and dtype of the
result, and returned. It may be one of the inputs of that shape unless the docstring says otherwise,
which is how a backward reuses the gradient's memory.
"""
