"""GPU arrays in verbs. Read device.py first, then comm/transport.py.

Staging through host memory always works. Which of the transports of nccl.py (with calls.py), ipc.py
and mpi.py (with probe.py and trials.py) is quicker, and can be used, choice.py decides.
"""
