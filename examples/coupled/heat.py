"""The solver of heat.c in Python: the same numbers, and the same losses.

mpiexec -n 3 python heat.py : -n 1 python train.py
"""

import sys

import numpy

import shardkit as sk

ROWS, COLUMNS = 4, 8


class Slab:
    """The rows of one rank; before [ROWS + 2, COLUMNS] with halos, after [ROWS, COLUMNS]."""

    def __init__(self, comm):
        self.comm, self.drawn = comm, comm.rank + 1
        self.before = numpy.zeros((ROWS + 2, COLUMNS), "float32")
        self.after = self.before[1:-1].copy()

    def heat(self):
        for at in numpy.ndindex(ROWS, COLUMNS):
            self.drawn = self.drawn * 16807 % 2147483647
            self.before[1:-1][at] += numpy.float32(self.drawn) / numpy.float32(2**31) - 0.5

    def exchange_halos(self):
        above, below = (self.comm.rank - 1) % self.comm.size, (self.comm.rank + 1) % self.comm.size
        self.comm.Sendrecv(self.before[1], above, recvbuf=self.before[-1], source=below)
        self.comm.Sendrecv(self.before[-2], below, recvbuf=self.before[0], source=above)

    def step(self):
        self.before[1:-1] = self.after
        self.heat()
        self.exchange_halos()
        u = self.before[1:-1]
        sides = numpy.roll(u, 1, 1) + numpy.roll(u, -1, 1)
        self.after[:] = 0.2 * ((self.before[:-2] + self.before[2:]) + sides) + 0.1 * u


def main(num_steps=400):
    with sk.coupled(trainers=1) as c:
        slab = Slab(c.solvers)
        for number in range(num_steps):
            slab.step()
            c.put(x=slab.before, y=slab.after, time=float(number))
        slab.step()
        predicted = c.predict(slab.before.reshape(1, -1)).reshape(ROWS, COLUMNS)
        error = abs(predicted - slab.after).max()
        print(f"rank {slab.comm.rank} predicts its next step to {error:.2g}", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
