"""mpiexec -n N python ending_rank.py FIRST COMM FINALIZE SHUTDOWN PLACE WAY MARK: a user's program
that trains a step, and ends in some way.

FIRST     mpi4py or shardkit: which of them initializes MPI, where COMM is none
COMM      none, world, half (the upper ranks train), or bare: the program without shardkit
FINALIZE  program: it calls MPI.Finalize(); exit: an exit hook does; never: nobody does
SHUTDOWN  shutdown, or open: the backend is left as it is
PLACE     one of PLACES: where the last rank goes its WAY
WAY       a key of WAYS
MARK      a file that is made then
"""

import atexit
import ctypes
import os
import signal
import sys
import threading
import time
from pathlib import Path

LIMIT = 6.0
LONGER = LIMIT + 6.0
PLACES = ("trained", "shut down", "hook", "early hook", "finalized")


def loop(seconds):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        pass


def raise_error():
    raise KeyError("lost")


def kill(name):
    os.kill(os.getpid(), getattr(signal, name))


def leave_thread(seconds, daemon):
    threading.Thread(target=time.sleep, args=(seconds,), daemon=daemon).start()


WAYS = {
    "return": lambda: None,
    "exit 0": lambda: sys.exit(0),
    "exit 3": lambda: sys.exit(3),
    "_exit 0": lambda: os._exit(0),
    "exception": raise_error,
    "daemon thread": lambda: leave_thread(3600, True),
    "thread": lambda: leave_thread(LONGER, False),
    "thread for ever": lambda: leave_thread(3600, False),
    "moment": lambda: time.sleep(0.5),
    "sleep": lambda: time.sleep(LONGER),
    "sleep for ever": lambda: time.sleep(3600),
    "loop": lambda: loop(LONGER),
    "loop for ever": lambda: loop(3600),
    "native": lambda: ctypes.PyDLL(None).sleep(3600),
    "stop": lambda: kill("SIGSTOP"),
    "kill": lambda: kill("SIGKILL"),
    "segmentation fault": lambda: kill("SIGSEGV"),
}


def main(first, comm, finalize, shutdown, place, way, mark):
    num_ranks = int(os.environ.get("PMI_SIZE") or os.environ["OMPI_COMM_WORLD_SIZE"])
    rank = int(os.environ.get("PMI_RANK") or os.environ["OMPI_COMM_WORLD_RANK"])

    def reach(here):
        if here == place and rank == num_ranks - 1:
            Path(mark).touch()
            WAYS[way]()

    atexit.register(reach, "early hook")
    if finalize == "never":
        import mpi4py

        mpi4py.rc.finalize = False
    if first == "mpi4py" or comm != "none":
        from mpi4py import MPI
    if comm == "bare":
        MPI.COMM_WORLD.Barrier()
        reach("trained")
    else:
        train(comm, shutdown, lambda: reach("trained"))
        from mpi4py import MPI
    atexit.register(reach, "hook")
    reach("shut down")
    if finalize == "program":
        MPI.Finalize()
        reach("finalized")
    print(f"rank {rank} reached its end", flush=True)


def train(comm, shutdown, reach):
    import numpy

    import shardkit as sk

    world = None
    if comm != "none":
        from mpi4py import MPI

        world = MPI.COMM_WORLD
    if comm == "half":
        trains = world.rank >= world.size // 2
        world = world.Split(int(trains), world.rank)
        if not trains:
            return
    backend = sk.MPICommunicationBackend(world, timeout=60.0)
    model = sk.FSDPModel(sk.models.MLP([8, 16, 1]), sk.ShardingConfiguration(backend))
    x, y = numpy.ones((8, 8), "float32"), numpy.ones((8, 1), "float32")
    model.train(*sk.split_batch(model.mesh, x, y))
    backend.barrier()
    backend.timeout = LIMIT  # a busy machine may take longer for what comes before
    reach()
    if shutdown == "shutdown":
        backend.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
