"""A surrogate of one's own on an HDF5 table; the same command goes on where it was stopped.

mpiexec -n 2 python examples/surrogate.py table.h5 new.h5 runs/surrogate
mpiexec -n 2 shardkit train --task examples/surrogate.py:Surrogate --data.path=table.h5 \\
    --data.target=y
"""

import sys

import shardkit as sk
from shardkit import nn
from shardkit.nn import ops


class Residual(nn.Module):
    def __init__(self, width):
        self.norm, self.up = nn.LayerNorm(width), nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(ops.gelu(self.up(self.norm(x))))


class Surrogate(sk.TableTask):
    class Settings:
        width: int = 32
        blocks: int = 3

    def make_model(self):
        width = self.settings.task.width
        first, last = nn.Linear(self.num_features, width), nn.Linear(width, self.num_outputs)
        middle = [Residual(width) for _ in range(self.settings.task.blocks)]
        return nn.Sequential(first, *middle, last).finish(self.settings.run.seed)


if __name__ == "__main__":
    table, new, folder = sys.argv[1:]
    settings = {"data.path": table, "data.features": ["x"], "data.target": ["y"]}
    settings |= {"batch.sequences": 64, "batch.micro_batch": 16, "optimizer.learning_rate": 3e-3}
    settings |= {"run.steps": 400, "run.validate_every": 50, "run.patience": 3}
    training = sk.Training(Surrogate, folder=folder, settings=settings)
    training.run()
    training.predict(new, f"{folder}/predictions.h5")
