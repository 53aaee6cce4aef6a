"""What guest.c runs: a training on the communicator that it has set, if it has."""

import numpy

import shardkit as sk

backend = sk.MPICommunicationBackend(globals().get("comm"))
model = sk.FSDPModel(sk.models.MLP([8, 16, 1]), sk.ShardingConfiguration(backend))
x, y = numpy.ones((12, 8), "float32"), numpy.ones((12, 1), "float32")
losses = [model.train(*sk.split_batch(model.mesh, x, y)) for _ in range(3)]
assert losses[2] < losses[0]
if globals().get("comm") is None:
    backend.shutdown()
