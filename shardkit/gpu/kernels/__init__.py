"""Kernels for CuPy arrays in CUDA C++: float32, float64, and half floats where layers compute.

Signatures and meaning are those of the reference. Half floats are computed in float32; what is one
number per row, or a sum over rows, stays float32. The bits may differ from the reference, but
follow the same rules: what is computed element by element has the bits it would have anywhere else,
sums along a row depend on the row alone, sums over rows and buffers go in a fixed order. Nothing
depends on where arrays lie in memory, on which block runs first or on the GPU's size; no float is
added by an atomic.
"""
