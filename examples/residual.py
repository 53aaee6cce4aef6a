"""A residual network of one's own, fully sharded or in a pipeline.

mpiexec -n 4 python examples/residual.py               fully sharded over 4 data ranks
mpiexec -n 4 python examples/residual.py 2             2 pipeline stages, each over 2 data ranks
"""

import sys

import numpy

import shardkit as sk
from shardkit import nn
from shardkit.nn import ops

STEPS = 60


class Layer(nn.Module):
    def __init__(self, width):
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(ops.gelu(self.up(self.norm(x))))


class Residual(nn.Module):
    loss = nn.MSELoss()

    def __init__(self, width=32, depth=4):
        self.enter, self.leave = nn.Linear(8, width), nn.Linear(width, 1)
        self.layers = nn.ModuleList(Layer(width) for _ in range(depth))

    def blocks(self):
        layers = [(f"layers.{i}", layer) for i, layer in enumerate(self.layers)]
        return [("enter", self.enter), *layers, ("leave", self.leave)]


def main(pipeline=1):
    backend = sk.MPICommunicationBackend()
    config = sk.ShardingConfiguration(backend, optimizer=sk.AdamW(lr=3e-3), micro_batches=2)
    model = sk.HybridShardedModel(Residual(), config, pipeline_parallel_size=int(pipeline))
    x = numpy.random.default_rng(0).normal(size=(64, 8)).astype("float32")
    y = numpy.sin(x).sum(1, keepdims=True)
    for step in range(STEPS):
        loss = model.train(*sk.split_batch(model.mesh, x, y))
        if step % 20 == 19 and model.rank == 0:
            print(f"step {step + 1}: loss {loss:.4f}")
    model.save_model("runs/residual")
    backend.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
