"""Kernels for NumPy arrays of float32 and float64: loops compiled by Numba.

Signatures and meaning are those of the reference. The bits may differ from it, but follow the same
rules: what is computed element by element has the bits it would have anywhere else, sums along a
row depend on the row alone, sums over rows and buffers go in a fixed order. Nothing depends on
where arrays lie in memory, on the number of threads or on other rows.
"""
