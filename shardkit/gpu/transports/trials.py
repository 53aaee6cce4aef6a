"""The processes that the probe starts: each verb on GPU arrays, given to MPI as they are.

mpiexec -n 2 python -m shardkit.gpu.transports.trials send:1024 broadcast:1024 ...
"""

import sys

from ...array.device import Device
from ...comm.mpi.backend import MPICommunicationBackend
from .mpi import MPITransport
from .probe import LIMIT_SECONDS, PASSED, Verdict


def _try_here(trials: list[str]) -> None:
    """Do each trial "verb:bytes"; the first that is wrong ends the program.

    Collective over two ranks.
    """
    backend = MPICommunicationBackend(timeout=LIMIT_SECONDS)
    backend.initialize()
    xp = Device("cuda", ordinal=backend.local_rank).xp
    backend.use_gpu_transport(MPITransport(backend, Verdict.everything()))
    for trial in trials:
        verb, _, num_bytes = trial.partition(":")
        _TRIALS[verb](backend, xp, int(num_bytes) // 4)
        if all(backend.all_gather_object(True)) and backend.rank == 0:
            print(PASSED + trial, flush=True)
    backend.shutdown()


def _values(xp, rank: int, size: int):
    return xp.arange(size, dtype="int32") * 3 + rank


def _empty(xp, size: int):
    return xp.full(size, -1, "int32")


def _check(array, expected) -> None:
    if not bool((array == expected).all()):
        raise SystemExit("wrong bytes arrived")


def _try_send(backend, xp, size):
    other, received = 1 - backend.rank, _empty(xp, size)
    handle = backend.irecv(received, other)
    backend.isend(_values(xp, backend.rank, size), other).wait()
    handle.wait()
    _check(received, _values(xp, other, size))


def _try_broadcast(backend, xp, size):
    array = _values(xp, 7, size) if backend.rank == 0 else _empty(xp, size)
    backend.broadcast(array)
    _check(array, _values(xp, 7, size))


def _try_all_gather(backend, xp, size):
    whole, half = _empty(xp, size), size // 2
    backend.all_gather(_values(xp, backend.rank, half), whole)
    for rank in range(2):
        part = whole[rank * half : (rank + 1) * half]
        _check(part, _values(xp, rank, half))


def _try_all_to_all(backend, xp, size):
    received = _empty(xp, size)
    backend.all_to_all(_values(xp, 100 * backend.rank, size), received)
    half = slice(backend.rank * (size // 2), (backend.rank + 1) * (size // 2))
    for rank in range(2):
        _check(
            received[rank * (size // 2) : (rank + 1) * (size // 2)],
            _values(xp, 100 * rank, size)[half],
        )


_TRIALS = {
    "send": _try_send,
    "broadcast": _try_broadcast,
    "all_gather": _try_all_gather,
    "all_to_all": _try_all_to_all,
}

if __name__ == "__main__":
    _try_here(sys.argv[1:])
