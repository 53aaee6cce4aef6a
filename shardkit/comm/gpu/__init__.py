"""GPU arrays in verbs. Read device.py first, then ../transport.py.

Staging through host memory is the default. EXPERIMENTAL: the transports of ipc.py, nccl.py and
mpi.py (with probe.py and trials.py) must be asked for with gpu_transport.
"""
