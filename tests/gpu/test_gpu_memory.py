"""What lies in GPU memory: as much as the formulas say, and after many steps no more than after the
first.
"""

import gc

import numpy
import pytest
from builders import small_gpt, token_batch, train
from hybrids import POLICIES, gpt, hybrid, step_once

import shardkit as sk
from shardkit.testing.layout import WHOLE
from shardkit.testing.parallel import device_of, parts_of

POOL_UNIT = 512  # bytes that CuPy's pool rounds an array up to


# two ranks share a copy under hsdp, so it has four
RUNS = [
    *[((1, 2 + 2 * (policy == "hsdp"), 1), policy) for policy in POLICIES],
    ((1, 1, 2), "fsdp"),
    ((2, 1, 1), "zero1"),
]


@pytest.mark.parametrize("mesh, policy", RUNS, ids=str)
@pytest.mark.thorough
def test_the_accounts_are_those_of_the_cpu(gpu, mesh, policy):
    """What lasts from step to step; the formulas are held by tests/threads/test_memory.py."""

    def run(device):
        def on_rank(backend):
            module = gpt(2, width=48, heads=4, dtype="float32")
            model = hybrid(backend, mesh, policy, model=module, micro_batches=1, device=device)
            step_once(model, 0)
            kinds = ["parameters", "gradients", "optimizer state"] + ["gradients in flight"] * (
                parts_of(model).policy.on(2).gradients is WHOLE
            )
            return [device_of(model).bytes_in_use(kind) for kind in kinds]

        return sk.run_ranks(int(numpy.prod(mesh)), on_rank)

    assert run("cuda") == run("cpu")


@pytest.mark.thorough
def test_between_two_steps_the_pool_holds_what_the_accounts_know(gpu):
    """But what the pool rounds up, and a few numbers: no temporary outlives its step."""
    pool = gpu.device.xp.get_default_memory_pool()

    def on_rank(backend):
        train("FSDP", backend, 1, model=small_gpt(), device="cuda")[
            0
        ].close()  # what libraries keep is there now
        gc.collect()
        before = pool.used_bytes()
        model, _ = train("FSDP", backend, 2, model=small_gpt(), device="cuda")
        gc.collect()
        known = device_of(model).bytes_in_use() - device_of(model).bytes_in_use("staging")
        return pool.used_bytes() - before - known

    unknown = sk.run_ranks(1, on_rank)[0]
    assert 0 <= unknown < 64 * POOL_UNIT


@pytest.mark.thorough
def test_two_hundred_steps_leave_nothing_behind(gpu):
    """Ten on the stand-in. Pool, accounts and page-locked memory are as after the tenth."""
    device_pool = gpu.device.xp.get_default_memory_pool()

    def on_rank(backend):
        model, _ = train(
            "FSDP", backend, 10, device="cuda", model=small_gpt(dropout=0.1), samples=4
        )
        gc.collect()
        first = (
            device_pool.used_bytes(),
            device_pool.total_bytes(),
            device_of(model).accounts.table(),
        )
        x, y = token_batch(0, 4)
        for _ in range(200 if gpu.is_real else 10):
            model.train(x, y)
        gc.collect()
        return first, (
            device_pool.used_bytes(),
            device_pool.total_bytes(),
            device_of(model).accounts.table(),
        )

    first, last = sk.run_ranks(1, on_rank)[0]
    assert last == first


@pytest.mark.thorough
def test_a_model_that_is_closed_gives_its_memory_back(gpu):
    pool = gpu.device.xp.get_default_memory_pool()
    gc.collect()
    before = pool.used_bytes()

    def on_rank(backend):
        model, _ = train("ZeRO-1", backend, 1, device="cuda")
        model.close()

    sk.run_ranks(2, on_rank)
    gc.collect()
    assert pool.used_bytes() == before
