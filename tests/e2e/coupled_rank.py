"""mpiexec -n N python coupled_rank.py LOST ON_LOSS FOLDER: a coupling of which a rank is killed.

LOST   solver or trainer; the last rank trains
Prints what the others see.
"""

import os
import signal
import sys
import time

import numpy
from mpi4py import MPI

import shardkit as sk

PUTS, WHEN = 400, 40
RECORDS = 20 * 192


def main(lost, on_loss, folder):
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # by which Hydra tells of the death
    c = sk.coupled(None, 1, on_loss=on_loss, buffer_bytes=RECORDS)
    if c.is_solver:
        solve(c, lost == "solver")
    else:
        train(c, lost == "trainer", folder)
    print("ended", flush=True)
    os._exit(0)  # MPI_Finalize may wait for the dead


def solve(c, dies):
    x = numpy.ones(8, "float32")
    try:
        for put in range(PUTS):
            if dies and put == WHEN and c.solvers.rank == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            c.put(x=x * put, y=x[:1])
            time.sleep(0.01)
        c.finish()
        print(f"solver: {c.report()}", flush=True)
    except sk.CommunicationError as error:
        print(f"solver: {error}", flush=True)


def train(c, dies, folder):
    model = sk.FSDPModel(sk.models.MLP([8, 4, 1]), sk.ShardingConfiguration(c.backend))
    for number, part in enumerate(c.batches(model, 4)):
        model.train(*part)
        if dies and number == WHEN // 4:
            os.kill(os.getpid(), signal.SIGKILL)
    model.save_model(folder)
    print(f"trainer: step {model.step_number}, {c.report()['ended_by']}", flush=True)


assert MPI.COMM_WORLD.size > 1
main(*sys.argv[1:])
