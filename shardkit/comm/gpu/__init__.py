"""GPU arrays in verbs. Read device.py first, then ../transport.py.

Staging through host memory is the default and has run on GPUs. EXPERIMENTAL: no GPU has run the
transports of ipc.py, nccl.py and mpi.py (with probe.py and trials.py) yet; they are tested on
stand-ins for CuPy only. They must be asked for with gpu_transport.
"""
