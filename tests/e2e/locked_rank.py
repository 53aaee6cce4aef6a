"""mpiexec -n N python locked_rank.py WHO WHERE DELAY WORK MARK: native code of a rank takes the
interpreter's lock and keeps it.

WHO     the rank, or all
WHERE   thread: another thread takes the lock; main: the one that communicates does
DELAY   seconds after the start of the work
WORK    train, reduce (calls without a pause), or late (the other ranks come later)
MARK    a file that is made then
"""

import ctypes
import signal
import sys
import threading
import time
from pathlib import Path

import numpy

import shardkit as sk

LIMIT = 4.0


def main(who, where, delay, work, mark):
    backend = sk.MPICommunicationBackend(timeout=60.0)
    model = sk.FSDPModel(
        sk.models.MLP([8, 16, 1], seed=0),
        sk.ShardingConfiguration(backend, minimum_parameter_group_size=1),
    )
    array = numpy.ones(1000, "float32")

    def step():
        if work == "train":
            x, y = numpy.ones((12, 8), "float32"), numpy.ones((12, 1), "float32")
            model.train(*sk.split_batch(model.mesh, x, y))
        else:
            backend.all_reduce(array)

    for _ in range(20):
        step()  # compiled and loaded
    backend.barrier()
    backend.timeout = LIMIT
    time.sleep(1.5)  # a pulse later

    def keep_lock(*_):
        Path(mark).touch()
        ctypes.PyDLL(None).sleep(3600)

    is_struck = who == "all" or backend.rank == int(who)
    if is_struck and where == "thread":
        # one after the other: the last is in a call then, and waits for the others
        threading.Timer(delay + (backend.rank if who == "all" else 0), keep_lock).start()
    elif is_struck:
        signal.signal(signal.SIGALRM, keep_lock)
        signal.setitimer(signal.ITIMER_REAL, delay)
    if work == "late" and not is_struck:
        time.sleep(delay + 1.0)
    while True:
        step()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4], sys.argv[5])
