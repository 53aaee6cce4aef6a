"""Meshes, schedules and policies under mpiexec against the serial run, as
tests/threads/test_every_mesh.py does on threads.

Every mesh of 1, 2, 3, 4, 6 and 8 ranks, on as many as were started, with policies and schedules
going round. jobs/test.sh starts up to 4; the others by hand:

    mpiexec -n 8 python -m pytest --only-mpi tests/mpi/test_meshes.py
"""

import numpy
import pytest
from hybrids import (
    GradientRecord,
    hybrid,
    layers_for,
    meshes,
    policy_and_schedule,
    serial,
    shapes_of,
    step_once,
    whole_vector,
)
from two_models import PAIRS, trained_alone, trained_in_turn

from shardkit.testing.parallel import gradient_norm_of

pytestmark = pytest.mark.mpi
STEPS, TOLERANCE = 3, 1e-12
MESHES = (
    [mesh for num_ranks in (1, 2, 3, 4) for mesh in 2 * meshes(num_ranks)] + meshes(6) + meshes(8)
)
COVERING = [(mesh, *policy_and_schedule(turn)) for turn, mesh in enumerate(MESHES)]


def relative(got, wanted):
    return float(numpy.abs(got - wanted).max() / numpy.abs(wanted).max())


@pytest.mark.parametrize("mesh, policy, schedule", COVERING, ids=str)
def test_gradients_and_parameters_are_those_of_the_serial_run(backend, mesh, policy, schedule):
    """float64, AdamW with active clipping: every step's gradient, norm and loss, and the parameters
    at the end.
    """
    if numpy.prod(mesh) != backend.world_size:
        pytest.skip("meshes of another number of ranks")
    wanted = serial(layers_for(mesh[0], schedule), STEPS)
    model = hybrid(backend, mesh, policy, schedule)
    record, errors = GradientRecord(model), []
    for step in range(STEPS):
        errors += [
            step_once(model, step) / wanted.losses[step] - 1,
            gradient_norm_of(model) / wanted.norms[step] - 1,
        ]
        boxes = sum(backend.all_gather_object(record.steps[step + 1]), [])
        errors.append(relative(whole_vector(shapes_of(model), boxes), wanted.gradients[step]))
    errors.append(relative(model.gather_full_parameters(), wanted.parameters))
    model.close()
    assert numpy.abs(backend.all_gather_object(errors)).max() < TOLERANCE  # NaN is not below


@pytest.mark.mpi(min_size=4)
@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.thorough
def test_each_of_two_hybrid_models_in_one_job_has_the_bits_of_its_own_run(backend, number):
    if backend.world_size not in PAIRS:
        pytest.skip("pairs are of 4 or 8 ranks")
    pair = PAIRS[backend.world_size][number]
    alone = [trained_alone(backend, one) for one in pair]
    assert all(backend.all_gather_object(trained_in_turn(backend, *pair) == alone))
