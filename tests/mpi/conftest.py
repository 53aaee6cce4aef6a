"""Tests under a launcher: mpiexec -n 4 pytest"""

import pytest
from mpi_run import MPIRun

import shardkit as sk


@pytest.fixture(scope="session")
def backend(pytestconfig):
    """The MPI backend over all ranks of the run."""
    return pytestconfig.pluginmanager.get_plugin(MPIRun.NAME).backend


@pytest.fixture(scope="session")
def on_one_rank(backend):
    """function (run) -> what run(alone) gives on a backend of one rank: rank 0 computes it for
    all, which share its cores. Collective.
    """

    def computed(run):
        result, error = None, None
        if backend.rank == 0:
            try:
                result = sk.run_ranks(1, run)[0]
            except Exception as raised:
                error = raised
        result, error = backend.broadcast_object((result, error))
        if error is not None:
            raise error
        return result

    return computed
