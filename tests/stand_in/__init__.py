"""Stand-ins for a GPU on machines that have none: an emulator of CUDA kernels, and a strict module in CuPy's place."""
