"""An energy and its forces: four atoms, bound to each other by a Morse potential.

    mpiexec -n 4 python examples/forces.py                  fsdp: layers are sharded
    mpiexec -n 4 python examples/forces.py pipeline 400     layers on each rank, and the steps

The net makes an energy of the distances between atoms; nn.Derivatives carries its gradient by the
positions along, which is what forces are, up to the sign (docs/second-derivatives.md). After 400
steps, the error of the forces on configurations that were not learned is printed, in units of their
size; above 0.1 the job ends with exit code 1.
"""

import sys

import numpy

import shardkit as sk
from shardkit import nn
from shardkit.nn import ops

STEPS, LARGEST_ERROR = 400, 0.1
KINDS = {"fsdp": sk.FSDPModel, "pipeline": sk.PipelineParallelModel}
ATOMS, WIDTH = 4, 16
CORNERS = numpy.array([[1, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]]) / 8**0.5
SENDERS, RECEIVERS = numpy.nonzero(1 - numpy.eye(ATOMS))


def exact(positions):
    """Return the energies [samples, 1] and their gradients [samples, 12] by the positions."""
    places = positions.reshape(-1, ATOMS, 3)
    apart = places[:, RECEIVERS] - places[:, SENDERS]
    distances = numpy.linalg.norm(apart, axis=2, keepdims=True)
    decay = numpy.exp(1 - distances)
    energies = ((1 - decay) ** 2).sum(1) / 2  # each pair is there twice
    slopes = 2 * (1 - decay) * decay * apart / distances
    gradients = numpy.zeros_like(places)
    numpy.add.at(gradients, (slice(None), RECEIVERS), slopes)
    return energies, gradients.reshape(-1, 3 * ATOMS)


class Neighbors(nn.Module):
    """Positions [samples, 12] -> what each atom feels of the others [samples, atoms, width]."""

    def __init__(self):
        self.pair = nn.Linear(1, WIDTH, dtype="float64")

    def forward(self, positions):
        places = positions.reshape(-1, ATOMS, 3)
        apart = places[:, SENDERS] - places[:, RECEIVERS]
        distances = ops.sqrt((apart * apart).sum(2, keepdim=True))
        felt = ops.tanh(self.pair(distances))
        atoms = nn.Tensor(numpy.zeros((places.shape[0], ATOMS, WIDTH)))
        return ops.index_add(atoms, 1, RECEIVERS, felt)


class Layer(nn.Module):
    """Atoms [samples, atoms, width] -> the same, changed."""

    def __init__(self):
        self.map = nn.Linear(WIDTH, WIDTH, dtype="float64")

    def forward(self, atoms):
        return atoms + ops.silu(self.map(atoms))


class Energy(nn.Module):
    """Atoms [samples, atoms, width] -> their energies, added up [samples, 1]."""

    def __init__(self):
        self.map = nn.Linear(WIDTH, 1, dtype="float64")

    def forward(self, atoms):
        return self.map(atoms).sum(1)


def loss(rows, y):
    """Return the mean squared error of rows [samples, 1 + 12, 1]: energy, then its gradient."""
    return ((rows.reshape(*y.shape) - nn.Tensor(y)) ** 2).mean()


def main(kind="fsdp", steps=STEPS):
    backend = sk.MPICommunicationBackend()
    shaken = numpy.random.default_rng(0).normal(0, 0.1, (192, 3 * ATOMS))
    positions = CORNERS.reshape(-1) + shaken
    y = numpy.concatenate(exact(positions), 1)
    net = nn.Derivatives(nn.Sequential(Neighbors(), Layer(), Layer(), Energy()))
    net.loss = loss
    config = sk.ShardingConfiguration(
        backend,
        optimizer=sk.Adam(lr=1e-2),
        minimum_parameter_group_size=16,
        micro_batches=4 if kind == "pipeline" else 1,
    )
    model = KINDS[kind](net.finish(), config)
    batch = sk.split_batch(model.mesh, positions[:128], y[:128])
    for step in range(int(steps)):
        value = model.train(*batch)
        if step % 100 == 99 and backend.rank == 0:
            print(f"step {step + 1}: loss {value:.2e}", flush=True)
    forces = model.predict(positions[128:])[:, 1:, 0]
    error = numpy.sqrt(((forces - y[128:, 1:]) ** 2).mean()) / y[128:, 1:].std()
    if backend.rank == 0:
        print(f"error of the forces {error:.3f} of their size, wanted at most {LARGEST_ERROR}")
    backend.close()
    return 0 if error <= LARGEST_ERROR else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
