"""HSDP under mpiexec: groups of two ranks in windows of shared memory, messages between them."""

import numpy
import pytest
from hybrids import gpt, hybrid, step_once

from shardkit.testing.parallel import is_in_a_window, synchronize_replicas, units_of

pytestmark = pytest.mark.mpi(min_size=2)


@pytest.mark.parametrize("settings", [{}, {"compute_dtype": "float16"}, {"overlap": True}], ids=str)
@pytest.mark.parametrize("pipeline", [1, 2])
@pytest.mark.thorough(but=1)
def test_groups_train_save_and_load_as_ddp_does(backend, tmp_path, pipeline, settings):
    """2 x 2 on four ranks; on two and three, groups of two and of one."""
    if backend.world_size % pipeline:
        pytest.skip("stages are equally many ranks")
    mesh = pipeline, backend.world_size // pipeline, 1
    ours, ddp = [
        hybrid(backend, mesh, policy, model=gpt(pipeline, dtype="float32"), **settings)
        for policy in ("hsdp", "ddp")
    ]
    assert [step_once(ours, step) for step in range(2)] == [
        step_once(ddp, step) for step in range(2)
    ]
    folder = backend.broadcast_object(str(tmp_path))
    ours.save_model(folder)
    ddp.load_model(folder)
    ours.load_model(folder)
    assert step_once(ours, 2) == step_once(ddp, 2)
    same = numpy.array_equal(ours.get_parameters(), ddp.get_parameters())
    assert all(backend.all_gather_object(same)) and synchronize_replicas(ours).largest == 0
    windows = [is_in_a_window(unit) for unit in units_of(ours)]
    sharing = units_of(ours)[0].group
    in_memory = sharing.memory() is not None and sharing.shares_memory and sharing.world_size > 1
    assert windows == [in_memory] * len(windows)
    for model in (ours, ddp):
        model.close()
