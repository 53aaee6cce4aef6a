"""A solver of the 2-D heat equation that trains its surrogate while it runs.

    mpiexec -n 4 python examples/coupled_heat.py             3 ranks solve, the last one trains
    shardkit report runs/heat                                meanwhile: how far the training is
    mpiexec -n 4 python examples/coupled_heat.py 0           all do both, in turn

Solver ranks hold slabs of rows and exchange halos by mpi4py; each step of a slab is a sample. The
solver runs until the surrogate's loss is low, then compares it with its own next step.
"""

import sys

import numpy
from mpi4py import MPI

import shardkit as sk

ROWS, COLUMNS, MOST_STEPS, BATCH, LOW_LOSS = 4, 8, 3000, 12, 5e-3
SIZES = [(ROWS + 2) * COLUMNS, ROWS * COLUMNS]  # of the surrogate: the step is linear
SETTINGS = {"run.steps": MOST_STEPS, "batch.sequences": BATCH, "optimizer.learning_rate": 1e-2}


class Slab:
    """The rows of one rank, with a halo row above and below; u [ROWS + 2, COLUMNS] float32."""

    def __init__(self, comm):
        self.comm, self.generator = comm, numpy.random.default_rng(comm.rank)
        self.u = numpy.zeros((ROWS + 2, COLUMNS), "float32")

    def exchange_halos(self):
        above, below = (self.comm.rank - 1) % self.comm.size, (self.comm.rank + 1) % self.comm.size
        self.comm.Sendrecv(self.u[1], above, recvbuf=self.u[-1], source=below)
        self.comm.Sendrecv(self.u[-2], below, recvbuf=self.u[0], source=above)

    def step(self):
        """Return (u with halos before, rows after) of one step, heated at random."""
        self.u[1:-1] += 0.5 * self.generator.standard_normal((ROWS, COLUMNS), "float32")
        self.exchange_halos()
        before, u = self.u.copy(), self.u
        sides = numpy.roll(u, 1, 1) + numpy.roll(u, -1, 1)
        u[1:-1] = 0.2 * (before[:-2] + before[2:] + sides[1:-1]) + 0.1 * before[1:-1]  # and cools
        return before.ravel(), u[1:-1].ravel()


def compare(c, slab):
    """Print the error of a prediction of the next step, relative to what the step changes."""
    before, after = slab.step()
    change = numpy.linalg.norm(after - before[COLUMNS:-COLUMNS])
    error = float(numpy.linalg.norm(c.predict(before[None])[0] - after) / change)
    worst = slab.comm.allreduce(error, MPI.MAX)
    if slab.comm.rank == 0:
        print(f"{c.num_puts} steps; the surrogate's error is {worst:.0%} of a step's change")


def train(c):
    """Train on all that is put and send the loss, until the solver ends; return the model."""
    alone = Slab(MPI.COMM_SELF)
    held_out = [numpy.stack(each) for each in zip(*(alone.step() for _ in range(BATCH)))]
    how = {"settings": SETTINGS, "folder": "runs/heat", "callbacks": [c.callback()]}
    training = sk.Training(sk.models.MLP(SIZES), (c.samples(), held_out), backend=c.backend, **how)
    training.run()
    return training.model


def surrogate(backend):
    config = sk.ShardingConfiguration(backend, optimizer=sk.Adam(lr=1e-2))
    return sk.FSDPModel(sk.models.MLP(SIZES), config)


def solve(c, model):
    """Step and put until the loss is low, and train a model in turn; return the slab."""
    slab = Slab(c.solvers)
    for step in range(MOST_STEPS):
        x, y = slab.step()
        c.put(x=x, y=y, time=float(step))
        for part in c.batches(model, BATCH) if model else ():
            c.steer(loss=model.train(*part), step=model.step_number)
        is_low = c.steered.get("loss", numpy.inf) < LOW_LOSS
        if slab.comm.allreduce(is_low, MPI.LAND):  # all stop after the same step
            break
        if step % 200 == 0 and slab.comm.rank == 0:
            print(f"step {step} of the solver: {c.steered}", flush=True)
    return slab


def main(trainers=1):
    with sk.coupled(trainers=trainers or None, buffer_bytes=1 << 20) as c:
        if not c.is_solver:
            return c.publish(train(c))
        model = surrogate(c.backend) if c.is_trainer else None
        slab = solve(c, model)
        if c.is_trainer:
            c.publish(model)
        c.finish()
        compare(c, slab)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
