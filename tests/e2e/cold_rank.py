"""A rank that asks for kernels of which none is in a file, and says who started to compile."""

import sys

import numpy

import shardkit as sk
from shardkit.testing.array import compiled, kernels

backend = sk.MPICommunicationBackend()
backend.initialize()
backend.barrier()
x = numpy.linspace(-3, 3, 1000).reshape(10, 100)
y = kernels.softmax(x)
kernels.softmax_backward(x, y)
kernels.silu(x)
starts = sum(one._process is not None for one in compiled.workshops()._idle)
every = backend.all_gather_object((starts, "numba" in sys.modules, float(y.sum())))
if backend.rank == 0:
    started, loaded = (sum(part) for part in list(zip(*every))[:2])
    print(f"{started} started to compile; {loaded} ranks have loaded Numba")
    print(f"sums {len({total for _, _, total in every})}")
backend.shutdown()
