"""mpiexec -n 4 python failing_rank.py HOW MARK: rank 1 goes in the way HOW while the others sit in
a collective.

MARK is a file that rank 1 makes then.

HOW ends in "-guarded" for the same inside abort_on_error, as the commands of shardkit do it.
"""

import os
import signal
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import numpy

from shardkit import ConfigurationError, Mesh, MPICommunicationBackend
from shardkit.testing.comm import abort_on_error


def fail(how):
    """One way to go."""
    if how == "raise":
        raise RuntimeError("the data is gone")
    if how == "exit":
        sys.exit(3)
    if how == "_exit":
        os._exit(3)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    if how == "abort":
        mesh.world.abort("rank 1 gives up")


def run(how):
    """Rank 1 goes; the others wait for it in three kinds of verbs."""
    total = numpy.ones(1000, "float32")
    mesh.group("data").all_reduce(total)
    time.sleep(0.2)
    if mesh.rank == 1:
        Path(sys.argv[2]).touch()
        return fail(how)
    if mesh.rank == 2:
        mesh.world.receive(total, 1)
    if mesh.rank == 3:
        mesh.world.iall_reduce(total).wait()
    mesh.group("data").all_reduce(total)


def work_on_without_rank_1():
    """Rank 1 ends first, but the others wait only for each other: in a verb that rank 1 has done,
    and in another group.
    """
    numbers = numpy.arange(4.0)
    group = mesh.world.split(mesh.rank == 1)
    time.sleep(1.2 if mesh.rank > 1 else 0)
    mesh.world.broadcast(numbers, root=1)
    if mesh.rank != 1:
        time.sleep(1.2 if mesh.rank == 3 else 0)
        group.all_reduce(numbers)


how, _, guarded = sys.argv[1].partition("-")
mesh = Mesh(MPICommunicationBackend())
with abort_on_error(mesh.world, describe=lambda: "step 7") if guarded else nullcontext():
    if how == "all":
        raise ConfigurationError("batch of 3 does not divide")
    if how == "work":  # rank 1 leaves early, but nobody needs it any more
        time.sleep(0 if mesh.rank == 1 else 1.5)
    elif how == "clean":
        mesh.close()
        mesh.world.shutdown()
    else:
        run(how)
print(f"rank {mesh.rank} reached its end")
