"""One rank of a job in which code is loaded or compiled: loading_rank.py HOW.

before   says which verbs were under way when code was loaded for them
slow     rank 1 compiles for longer than the limit before it comes to a collective
endless  the same, and does not end
stuck    rank 1 sleeps in what it compiles
asleep   rank 1 does nothing for longer than the limit
"""

import sys
import time

import numpy

import shardkit as sk
from shardkit.testing.array import MACHINE_CODE
from shardkit.testing.comm import cores

LIMIT_SECONDS = 1.0


class Listener:
    """Notes what is loaded while a verb is under way."""

    def __init__(self, progress):
        self.progress, self.num, self.late = progress, 0, []

    def note_code(self, doing):
        self.num += bool(doing)
        if doing and self.progress.current is not None:
            self.late.append(f"{doing} in {self.progress.current}")


def call_all(backend):
    size = backend.world_size
    for count in (3, 50_000):
        backend.all_reduce(numpy.ones(count))
        backend.broadcast(numpy.ones(count))
        backend.all_gather(numpy.ones(count), numpy.ones(count * size))
    backend.reduce_scatter(numpy.ones(50_000 * size, "int64"), numpy.ones(50_000, "int64"))
    backend.barrier()


def compute(seconds):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        pass


def main(how):
    backend = sk.MPICommunicationBackend()
    backend.initialize()
    if how == "before":
        listener = Listener(backend.progress)
        MACHINE_CODE.listeners.add(listener)
        call_all(backend)
        print(f"rank {backend.rank} loaded {listener.num}, late {listener.late}", flush=True)
    else:
        backend.barrier()
        backend.timeout = LIMIT_SECONDS
        if how == "endless":
            cores.MOST_SECONDS = 2 * LIMIT_SECONDS
        if backend.rank == 1 and how != "asleep":
            MACHINE_CODE.begin("a slow loop")
        if backend.rank == 1:
            wait = time.sleep if how in ("asleep", "stuck") else compute
            wait(3 * LIMIT_SECONDS if how == "slow" else 100)
        if backend.rank == 1 and how != "asleep":
            MACHINE_CODE.end("a slow loop")
        backend.barrier()
        print(f"rank {backend.rank} went on", flush=True)
    backend.shutdown()


main(sys.argv[1])
