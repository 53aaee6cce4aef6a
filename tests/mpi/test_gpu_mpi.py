"""Ranks that are processes and share one GPU, or as many as there are: by MPI, on the real GPU or
each on a stand-in of its own.

bash tests/gpu/run.sh           runs these on 1, 2 and 4 ranks, on the stand-in on 2 only
"""

import numpy
import pytest
from builders import small_gpt, token_batch, train
from gpu_verbs import all_verbs, values
from gpus import gpu as any_gpu  # noqa: F401
from gpus import missing  # noqa: F401
from hybrids import (
    GradientRecord,
    hybrid,
    layers_for,
    serial,
    shapes_of,
    step_once,
    whole_vector,
)

import shardkit as sk
from shardkit.testing.array import Device, to_host
from shardkit.testing.comm import collectively, ordered_all_reduce
from shardkit.testing.gpu import open_gpu_ipc, open_gpu_mpi
from shardkit.testing.parallel import gradient_norm_of

pytestmark = pytest.mark.mpi
TOLERANCE = 1e-11
MESHES = [
    ((1, 1, 1), "fsdp", "1f1b"),
    ((1, 2, 1), "fsdp", "1f1b"),
    ((2, 1, 1), "zero1", "zb-h1"),
    ((1, 1, 2), "ddp", "1f1b"),
    ((2, 2, 1), "zero2", "1f1b"),
    ((1, 2, 2), "fsdp", "1f1b"),
]


@pytest.fixture
def gpu(any_gpu, backend):  # noqa: F811
    if not any_gpu.is_real and backend.world_size != 2:
        pytest.skip("two ranks are enough for the stand-in")
    return any_gpu


def relative(got, wanted):
    return float(numpy.abs(got - wanted).max() / numpy.abs(wanted).max())


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("mesh, policy, schedule", MESHES, ids=str)
def test_gradients_and_parameters_are_those_of_one_rank_on_the_cpu(
    gpu, backend, mesh, policy, schedule
):
    if numpy.prod(mesh) != backend.world_size:
        pytest.skip("meshes of another number of ranks")
    wanted, errors = serial(layers_for(mesh[0], schedule), 2), []
    model = hybrid(backend, mesh, policy, schedule, device="cuda")
    record = GradientRecord(model)
    for step in range(2):
        errors += [
            step_once(model, step) / wanted.losses[step] - 1,
            gradient_norm_of(model) / wanted.norms[step] - 1,
        ]
        boxes = sum(backend.all_gather_object(record.steps[step + 1]), [])
        errors.append(relative(whole_vector(shapes_of(model), boxes), wanted.gradients[step]))
    errors.append(relative(model.gather_full_parameters(), wanted.parameters))
    model.close()
    assert numpy.abs(backend.all_gather_object(errors)).max() < TOLERANCE  # NaN is not below


def test_arrays_of_the_gpu_travel_between_ranks(gpu, backend):
    """More than one window of the staging, and an odd number of elements."""
    device, count = Device("cuda", ordinal=backend.local_rank), 3_000_001
    array = device.from_host(numpy.arange(count, dtype="float32") % 97)
    array += backend.rank
    backend.all_reduce(array)
    wanted = (numpy.arange(count, dtype="float32") % 97) * backend.world_size + sum(
        range(backend.world_size)
    )
    received = device.zeros(count, purpose="test")
    handle = backend.irecv(received, (backend.rank - 1) % backend.world_size)
    backend.isend(array, (backend.rank + 1) % backend.world_size).wait()
    handle.wait()
    good = bool((to_host(received) == wanted).all() and (to_host(array) == wanted).all())
    assert all(backend.all_gather_object(good))


@pytest.mark.parametrize("transport", ["ipc", "mpi"])
def test_processes_that_share_a_gpu_have_the_bits_of_the_host(gpu, backend, transport):
    """By CUDA IPC, and by MPI as far as its probe goes; more than one window of a block."""
    if not gpu.is_real:
        pytest.skip("processes share the memory of a real GPU only")
    xp = Device("cuda", ordinal=backend.local_rank).xp
    with collectively(backend):
        group = backend.split(0)
        {"ipc": open_gpu_ipc, "mpi": open_gpu_mpi}[transport](group, [group])
        assert transport == "mpi" or backend.world_size == 1 or group.gpu_transport is not None
        assert all_verbs(group, xp.asarray, xp.empty) == all_verbs(
            group, numpy.asarray, numpy.empty
        )
        long = values(group.rank, 5_000_001)
        sums = [make(long) for make in (numpy.array, xp.asarray)]
        for each in sums:
            ordered_all_reduce(group, each)
        group.use_gpu_transport(None)
        group.close()
    assert all(backend.all_gather_object(sums[0].tobytes() == sums[1].get().tobytes()))


def test_a_checkpoint_of_all_ranks_opens_on_the_cpu(gpu, backend, tmp_path):
    folder = backend.broadcast_object(str(tmp_path), 0)
    model, _ = train(
        "FSDP", backend, 1, device="cuda", model=small_gpt(), samples=4 * backend.world_size
    )
    model.save_model_async(folder)
    model.train(*sk.split_batch(model.mesh, *token_batch(5, 4 * backend.world_size)))
    other, _ = train("DDP", backend, 0, model=small_gpt())
    model.save_model(folder)
    other.load_model(folder)
    good = other.gather_full_parameters().tobytes() == model.gather_full_parameters().tobytes()
    model.close()
    other.close()
    assert all(backend.all_gather_object(good))
