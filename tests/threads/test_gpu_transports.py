"""Training on pretended GPUs: whichever way arrays go between ranks, the trained bits are the
same.
"""

from contextlib import ExitStack

import numpy
import pytest
from builders import token_batch, train
from gpu_verbs import plain_twins  # noqa: F401
from stand_in import fake_ipc, fake_nccl, pretended_gpu

import shardkit as sk
from shardkit import DeviceError
from shardkit.testing.array import KERNELS
from shardkit.testing.gpu import gpu_ipc


@pytest.fixture(autouse=True)
def plain_masks_and_small_blocks(monkeypatch):
    masks = KERNELS["dropout_mask"]
    monkeypatch.setattr(masks, "cuda", masks.reference)
    monkeypatch.setattr(gpu_ipc, "HALF_BYTES", 1 << 16)
    monkeypatch.setattr(gpu_ipc, "SMALL_BYTES", 0)


def on_gpus(num_ranks, work, num_devices):
    """work(backend) on ranks; (results, copies between host and GPU by the runtime, what NCCL was
    asked for).
    """
    with ExitStack() as stack:
        machine = stack.enter_context(pretended_gpu(num_devices=num_devices))
        stack.enter_context(fake_nccl.installed())
        opened = stack.enter_context(fake_ipc.installed())
        results = sk.run_ranks(num_ranks, work, timeout=500)
        assert not opened
        return (
            results,
            [t for t in machine.transfers if t.kind.startswith("copy")],
            {name for _, name in fake_nccl.calls},
        )


def trained(strategy, transport, **settings):
    """A function of a backend: (losses, parameters) after two steps."""

    def work(backend):
        model, losses = train(
            strategy, backend, 2, device="cuda", gpu_transport=transport, micro_batch=3, **settings
        )
        parameters = model.gather_full_parameters()
        transports = {
            axis: type(model.mesh.group(axis).gpu_transport).__name__
            for axis in ("data", "pipeline")
        }
        model.mesh.close()
        return losses, parameters.tobytes(), transports

    return work


@pytest.mark.parametrize("strategy", ["DDP", "FSDP"])
@pytest.mark.thorough
def test_the_trained_bits_do_not_depend_on_the_way_and_nccl_and_ipc_leave_the_host_out(strategy):
    runs = {
        transport: on_gpus(2, trained(strategy, transport), 1 if transport == "ipc" else 2)
        for transport in ("staged", "nccl", "ipc")
    }
    outcomes = {transport: results[0][:2] for transport, (results, _, _) in runs.items()}
    assert outcomes["staged"] == outcomes["nccl"] == outcomes["ipc"]
    staged, nccl, ipc = (
        sum(t.num_bytes for t in runs[transport][1]) for transport in ("staged", "nccl", "ipc")
    )
    assert staged > 10 * max(nccl, ipc)
    assert [runs[transport][0][0][2]["data"] for transport in runs] == [
        "NoneType",
        "NcclTransport",
        "IpcTransport",
    ]
    assert (
        not {"allReduce", "reduceScatter", "reduce"} & runs["nccl"][2]
    )  # deterministic: the tree, not NCCL's order


@pytest.mark.thorough
def test_without_determinism_nccl_adds_in_its_own_order():
    results, _, calls = on_gpus(2, trained("FSDP", "nccl", deterministic=False), 2)
    assert {"reduceScatter", "allGather"} <= calls and results[0][:2] == results[1][:2]


@pytest.mark.parametrize("transport", ["nccl", "ipc"])
@pytest.mark.thorough
def test_every_axis_at_once_has_the_losses_of_the_staged_way(transport):
    def run(name):
        def work(backend):
            config = sk.ShardingConfiguration(
                backend,
                optimizer=sk.AdamW(lr=1e-2),
                micro_batches=2,
                device="cuda",
                gpu_transport=name,
            )
            model = sk.HybridShardedModel(
                sk.models.GPT(64, 12, width=16, layers=2, heads=2, seed=3),
                config,
                pipeline_parallel_size=2,
                tensor_parallel_size=2,
            )
            losses = [
                model.train(*sk.split_batch(model.mesh, *token_batch(step, 8))) for step in range(2)
            ]
            model.mesh.close()
            return losses

        return on_gpus(4, work, 4)[0]

    assert run(transport) == run("staged")


def test_two_ranks_on_one_gpu_and_nccl_are_refused_where_the_model_is_made():
    def work(backend):
        with pytest.raises(DeviceError, match="ranks 0, 1 share GPU"):
            trained("FSDP", "nccl")(backend)

    on_gpus(2, work, 1)


@pytest.mark.thorough
def test_in_checked_mode_arrays_are_staged_since_there_calls_are_compared(monkeypatch):
    monkeypatch.setenv("SHARDKIT_CHECK", "1")
    results, _, calls = on_gpus(2, trained("FSDP", "nccl"), 2)
    assert not calls and results[0][2]["data"] == "NoneType"


def test_numpy_runs_do_not_look_for_gpus():
    losses = sk.run_ranks(2, lambda backend: train("FSDP", backend, 1, gpu_transport="nccl")[1])
    assert losses[0] == losses[1] and numpy.isfinite(losses[0])


@pytest.mark.parametrize("transport", ["nccl", "ipc"])
@pytest.mark.thorough
def test_groups_of_data_ranks_have_the_transport_too(transport):
    """HSDP, 2 x 2: with the bits of staged arrays."""

    def work(name):
        def on_rank(backend):
            settings = {"device": "cuda", "gpu_transport": name, "micro_batch": 3}
            model, losses = train("HSDP", backend, 1, **settings)
            kinds = {type(g.gpu_transport).__name__ for g in model.mesh.carriers("data")}
            assert len(model.mesh.carriers("data")) == 3
            parameters = model.gather_full_parameters().tobytes()
            model.mesh.close()
            return losses, parameters, kinds

        return on_rank

    gpus = 1 if transport == "ipc" else 4
    staged, ours = [on_gpus(4, work(name), gpus)[0] for name in ("staged", transport)]
    assert [result[:2] for result in ours] == [result[:2] for result in staged]
    assert len(ours[0][2]) == 1 and ours[0][2] != staged[0][2] == {"NoneType"}
