"""Messages between pipeline stages through NCCL, on the stand-ins: in lanes, one for what crosses
a boundary in one direction.
"""

import numpy
import pytest
from builders import small_gpt, token_batch
from gpu_verbs import plain_twins  # noqa: F401
from hybrids import layers_for, table_of
from stand_in import fake_nccl, pretended_gpu

import shardkit as sk
from shardkit import run_ranks
from shardkit.testing.array import registry
from shardkit.testing.comm import Lane
from shardkit.testing.gpu import open_nccl
from shardkit.testing.schedule import ORDERS, Kind


@pytest.fixture(autouse=True)
def plain_masks(monkeypatch):
    masks = registry.KERNELS["dropout_mask"]
    monkeypatch.setattr(masks, "cuda", masks.reference)


def on_gpus(num_ranks, work):
    """Results, what NCCL was asked for, and bytes that went to the host by address."""

    def run(backend):
        import cupy

        return work(backend, cupy)

    with pretended_gpu(num_devices=num_ranks) as machine, fake_nccl.installed():
        results = run_ranks(num_ranks, run, timeout=500)
        staged = sum(t.num_bytes for t in machine.transfers if t.kind == "copy to host")
        return results, {name for _, name in fake_nccl.calls}, staged


def model_of(backend, name, stages, schedule):
    config = sk.ShardingConfiguration(
        backend,
        optimizer=sk.AdamW(lr=1e-2),
        micro_batches=4,
        schedule=schedule,
        virtual_stages=ORDERS[schedule].stages_per_rank,
        device="cuda",
        gpu_transport=name,
    )
    return sk.HybridShardedModel(
        small_gpt(layers=layers_for(stages, schedule)), config, pipeline_parallel_size=stages
    )


def trained(name, stages, schedule):
    def work(backend, cupy):
        model = model_of(backend, name, stages, schedule)
        losses = [model.train(*token_batch(step, 8)) for step in range(2)]
        losses.append(model.evaluate(*token_batch(3, 8)))
        parameters = model.gather_full_parameters()
        model.close()
        return losses, parameters.tobytes()

    return work


@pytest.mark.strength(1)
@pytest.mark.parametrize("stages", [3, 2])
@pytest.mark.parametrize("schedule", ORDERS)
@pytest.mark.thorough(but=1)
def test_activations_and_gradients_stay_on_gpus_with_the_same_bits(stages, schedule):
    results, calls, staged = on_gpus(stages, trained("nccl", stages, schedule))
    wanted, _, before = on_gpus(stages, trained("staged", stages, schedule))
    assert results == wanted
    assert {"send", "recv"} <= calls
    width = 16 * 12 * 2 * 4  # of one activation: width x sequence x samples x bytes
    assert before - staged >= 2 * 4 * 2 * (stages - 1) * width


@pytest.mark.thorough
def test_after_a_program_that_was_given_up_messages_match_again():
    class Lost(BaseException):
        """What no rank is told of."""

    def work(name):
        def on_rank(backend, cupy):
            model = model_of(backend, name, 2, "1f1b")
            losses = [model.train(*token_batch(0, 8))]
            table = table_of(model)
            compute = table[Kind.FORWARD]

            def lose(action, *arguments):
                if action.micro_batch == 1 - backend.rank:  # each has posted a receive ahead
                    raise Lost
                return compute(action, *arguments)

            table[Kind.FORWARD] = lose
            with pytest.raises(Lost):
                model.train(*token_batch(1, 8))
            table[Kind.FORWARD] = compute
            backend.barrier()
            losses.append(model.train(*token_batch(2, 8)))
            model.close()
            return losses

        return on_rank

    assert on_gpus(2, work("nccl"))[0] == on_gpus(2, work("staged"))[0]


def test_lanes_do_not_wait_for_each_other_and_keep_their_order():
    def work(backend, cupy):
        group = backend.split(0)
        open_nccl(backend, [], fixed_order=True, messages=[group])
        lanes = [Lane(0, 0, 1), Lane(1, 1, 0), Lane(2, 0, 1)]
        group.gpu_transport.open(lanes[:2])
        group.gpu_transport.open(lanes)
        way, got, handles = group.gpu_transport, {}, []
        if backend.rank == 1:  # a receive that is posted ahead holds nothing back
            got = {key: cupy.empty(3) for key in ("a", "b", "c", "staged")}
            handles += [way.irecv(got["a"], 0, 0), way.irecv(got["b"], 0, 0)]
            way.isend(cupy.full(3, 7.0), 0, 1).wait()
            handles += [way.irecv(got["c"], 0, 2), group.irecv(got["staged"], 0, 5)]
            handles.append(way.irecv(cupy.empty(0), 0, 2))
        else:
            got = {"d": cupy.empty(3)}
            way.irecv(got["d"], 1, 1).wait()
            first = float(got["d"][0])
            handles = [
                way.isend(cupy.full(3, first + value), 1, lane)
                for value, lane in [(3, 2), (1, 0), (2, 0)]
            ]
            handles.append(group.isend(cupy.full(3, first + 4), 1, 5))
            handles.append(way.isend(cupy.empty(0), 1, 2))
        for handle in handles:
            handle.wait()
        values = {key: array.get().tolist() for key, array in got.items()}
        group.close()
        return values

    (first, second), calls, _ = on_gpus(2, work)
    assert first == {"d": [7.0] * 3}
    assert second == {"a": [8.0] * 3, "b": [9.0] * 3, "c": [10.0] * 3, "staged": [11.0] * 3}
    assert numpy.isin(["send", "recv"], list(calls)).all()
