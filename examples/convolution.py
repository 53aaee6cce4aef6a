"""A convolutional network of one's own on images, under FSDP: which way do the stripes run?

mpiexec -n 2 python examples/convolution.py

It has a forward and no list of blocks: FSDP gathers each layer as it is called.
"""

import numpy

import shardkit as sk
from shardkit import nn
from shardkit.nn import ops

STEPS, SIZE = 30, 12


class Stripes(nn.Module):
    """Images [samples, 1, 12, 12] -> logits of 2 classes [samples, 2]."""

    loss = nn.CrossEntropyLoss()

    def __init__(self):
        self.first = nn.Conv2d(1, 8, 3, padding=1)
        self.norm = nn.GroupNorm(2, 8)
        self.second = nn.Conv2d(8, 16, 3, padding=1)
        self.head = nn.Linear(16, 2)

    def forward(self, x):
        x = ops.relu(self.norm(self.first(x)))  # [samples, 8, 12, 12]
        x = ops.relu(self.second(ops.max_pool2d(x, 2)))  # [samples, 16, 6, 6]
        return self.head(x.mean((2, 3)))


def images(count, seed):
    """Return noisy stripes [count, 1, 12, 12] float32 and their direction [count]."""
    random = numpy.random.default_rng(seed)
    direction = random.integers(0, 2, count)
    stripes = numpy.sin(numpy.arange(SIZE) * 2 + random.uniform(0, 6, (count, 1)))
    across = numpy.broadcast_to(stripes[:, :, None], (count, SIZE, SIZE))
    chosen = numpy.where(direction[:, None, None], across, across.transpose(0, 2, 1))
    return (chosen + random.normal(0, 0.3, chosen.shape))[:, None].astype("float32"), direction


def main():
    backend = sk.MPICommunicationBackend()
    config = sk.ShardingConfiguration(backend, optimizer=sk.AdamW(lr=1e-2))
    model = sk.FSDPModel(Stripes(), config)
    for step in range(STEPS):
        model.train(*sk.split_batch(model.mesh, *images(32, seed=step)))
    x, direction = images(200, seed=STEPS)
    right = (model.predict(x).argmax(1) == direction).mean()
    if backend.rank == 0:
        print(f"{right:.0%} of new images are right")
    backend.shutdown()


if __name__ == "__main__":
    main()
