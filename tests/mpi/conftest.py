"""Tests under a launcher: mpiexec -n 4 pytest"""

import pytest
from mpi_run import MPIRun


@pytest.fixture
def backend(pytestconfig):
    """The MPI backend over all ranks of the run."""
    return pytestconfig.pluginmanager.get_plugin(MPIRun.NAME).backend
