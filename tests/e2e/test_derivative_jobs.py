"""The examples with derivatives in the loss: a differential equation, and forces of a molecule."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
from test_command_line import MPIEXEC

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def finish(job, num_ranks, *arguments):
    return subprocess.run(
        [MPIEXEC, "-n", str(num_ranks), sys.executable, str(EXAMPLES / job), *arguments],
        capture_output=True,
        text=True,
        timeout=500,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


@pytest.mark.sweep
@pytest.mark.parametrize("kind", ["fsdp", "pipeline"])
@pytest.mark.parametrize("job", ["poisson.py", "forces.py"])
def test_four_ranks_reach_the_error_that_is_wanted(job, kind):
    done = finish(job, 4, kind)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_job_that_has_too_few_steps_says_so():
    done = finish("forces.py", 4, "pipeline", "2")
    assert done.returncode == 1 and "of their size, wanted at most 0.1" in done.stdout, done.stderr


def test_the_gradients_that_forces_are_learned_from_are_those_of_the_energy():
    exact = runpy.run_path(str(EXAMPLES / "forces.py"))["exact"]
    positions = numpy.random.default_rng(3).normal(0, 1, (5, 12))
    _, gradients = exact(positions)
    for along in range(12):
        step = 1e-6 * (numpy.arange(12) == along)
        slope = (exact(positions + step)[0] - exact(positions - step)[0]) / 2e-6
        numpy.testing.assert_allclose(gradients[:, along], slope[:, 0], rtol=1e-6, atol=1e-8)
