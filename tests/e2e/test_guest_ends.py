"""A rank of a guest that waits in shutdown() while others are still in calls: an error on all of
them where they wait for it, and nothing where they do not.
"""

from e2e.mpi_jobs import run_job

EARLY = """
import numpy
from mpi4py import MPI
import shardkit as sk

backend = sk.MPICommunicationBackend(MPI.COMM_WORLD)
backend.initialize()
try:
    for number in range(2 + (backend.rank > 0)):
        backend.all_reduce(numpy.ones(3))
    backend.shutdown()
except sk.CommunicationError as error:
    print(f"rank {backend.rank} got: {error}")
    backend.shutdown()
print(f"rank {backend.rank} went on")
"""
# Rank 0 fails, and closes the backend that was opened last; rank 1 waits for it on the first.
FAILS = """
import numpy
from mpi4py import MPI
import shardkit as sk

first, last = [sk.MPICommunicationBackend(MPI.COMM_WORLD) for _ in range(2)]
first.initialize(), last.initialize()
try:
    try:
        first.all_reduce(numpy.ones(3))
        if first.rank == 0:
            raise ValueError("of its own")
        first.all_reduce(numpy.ones(3))
    finally:
        last.shutdown()
        first.shutdown()
except (sk.CommunicationError, ValueError) as error:
    print(f"rank {first.rank} got: {error} after {error.__context__}")
"""
# Rank 0 has done its part of the last calls; the others take long over theirs.
DONE = """
import time
import numpy
from mpi4py import MPI
import shardkit as sk

other, backend = [sk.MPICommunicationBackend(MPI.COMM_WORLD) for _ in range(2)]
other.initialize(), backend.initialize()
pair = backend.split(int(backend.rank > 0))
backend.broadcast(numpy.ones(3), root=0)
if backend.rank == 2:
    time.sleep(5)
    backend.send(numpy.ones(3), 1)
elif backend.rank == 1:
    backend.receive(numpy.empty(3), 2)
pair.all_reduce(numpy.ones(3))
other.shutdown()
backend.shutdown()
print(f"rank {backend.rank} went on")
"""


def test_ranks_that_wait_for_one_in_shutdown_get_an_error_and_so_does_that_one(tmp_path):
    (tmp_path / "early.py").write_text(EARLY)
    done = run_job("MPICH", tmp_path / "early.py", num_ranks=2)
    assert done.returncode == 0 and done.stdout.count("went on") == 2, done.stderr
    said = "rank 0 is in shutdown() while rank 1 is in all_reduce"
    assert f"rank 0 got: rank 0 of 2 waits in shutdown(): {said}" in done.stdout
    assert f"rank 1 got: rank 1 of 2 waits in all_reduce (call 3 on group world): {said}" in (
        done.stdout
    )


def test_a_rank_that_is_in_shutdown_of_another_backend_is_missed_no_less(tmp_path):
    (tmp_path / "fails.py").write_text(FAILS)
    done = run_job("MPICH", tmp_path / "fails.py", num_ranks=2)
    said = "rank 0 is in shutdown() while rank 1 is in all_reduce (call 2 on group world)"
    assert done.returncode == 0, done.stderr
    assert f"rank 1 got: rank 1 of 2 waits in all_reduce (call 2 on group world): {said}" in (
        done.stdout
    )
    assert f"rank 0 got: rank 0 of 2 waits in shutdown(): {said}" in done.stdout
    assert "after of its own" in done.stdout


def test_a_rank_that_has_done_its_part_may_wait_in_shutdown(tmp_path):
    (tmp_path / "done.py").write_text(DONE)
    done = run_job("MPICH", tmp_path / "done.py", num_ranks=3)
    assert done.returncode == 0 and done.stdout.count("went on") == 3, done.stderr
