"""The one door to NumPy and CuPy: devices, random numbers that depend on no rank, and kernels."""
