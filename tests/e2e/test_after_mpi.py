"""Processes that are no ranks: whose MPI is finalized, and those forked from a rank."""

import pytest
from e2e.mpi_jobs import LIBRARIES, run_job, words_of_shardkit

FINALIZED = """
from mpi4py import MPI
import shardkit as sk

{first}
MPI.Finalize()
for given in (None, MPI.COMM_WORLD):
    try:
        sk.MPICommunicationBackend(given)
    except sk.errors.CommunicationError as error:
        assert "MPI is finalized" in str(error), error
    else:
        raise AssertionError("a backend without MPI")
print("went on")
"""
USED = "backend = sk.MPICommunicationBackend(); backend.initialize(); backend.shutdown()"

FORKED = """
import mpi4py
mpi4py.rc.finalize = False  # mpi4py would finalize the MPI of the parent in the child
import os
import numpy
import shardkit as sk

backend = sk.MPICommunicationBackend()
backend.initialize()
planned = backend.prepare.all_reduce(numpy.ones(4))
planned()
planned()
rank = backend.rank
{before}
child = os.fork()
if child == 0:
    for call in (planned, backend.barrier, lambda: backend.all_reduce(numpy.ones(4)){again}):
        try:
            call()
        except sk.errors.CommunicationError as error:
            assert "{refusal}" in str(error), error
        else:
            os._exit(9)
    raise RuntimeError("of a child")
assert os.waitpid(child, 0)[1] == 256
if rank == 0:  # where no other rank has a child, which it might meet
    child = os.fork()
    if child == 0:
        raise SystemExit
    assert os.waitpid(child, 0)[1] == 0
{after}
print("went on")
"""


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("first", ("", USED), ids=("unused", "used"))
def test_a_backend_after_finalize_is_refused_and_the_program_goes_on(library, first, tmp_path):
    result = _run(library, FINALIZED.format(first=first), tmp_path)
    assert result.stdout.count("went on") == 2
    assert not words_of_shardkit(result)


@pytest.mark.parametrize("shutdown", ("before", "after"))
def test_a_forked_process_calls_no_verb_and_its_exception_is_that_of_no_rank(shutdown, tmp_path):
    places = dict.fromkeys(("before", "after"), "") | {shutdown: "backend.shutdown()"}
    places["refusal"] = "not initialized" if shutdown == "before" else "has forked"
    places["again"] = ", backend.initialize" if shutdown == "after" else ""
    result = _run("MPICH", FORKED.format(**places), tmp_path)
    assert result.stdout.count("went on") == 2
    assert result.stderr.count("RuntimeError: of a child") == 2
    assert not words_of_shardkit(result)


def _run(library, text, folder):
    script = folder / "program.py"
    script.write_text(text)
    result = run_job(library, script, num_ranks=2)
    assert result.returncode == 0, result.stderr
    return result
