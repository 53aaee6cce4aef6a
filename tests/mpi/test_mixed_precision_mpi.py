"""Half floats under mpiexec: parameters that a node has once, sums in shared memory, the bits of
one rank.
"""

import pytest
from builders import sha256, token_batch, train
from half_floats import EVERY_HALF

import shardkit as sk
from shardkit.testing.parallel import is_in_a_window, units_of

pytestmark = pytest.mark.mpi


@EVERY_HALF
@pytest.mark.parametrize("strategy", ["FSDP", "ZeRO-1"])
@pytest.mark.thorough(but=1)
def test_half_floats_end_in_the_bits_of_the_serial_run(backend, on_one_rank, strategy, half):
    """Predictions between the steps: where all ranks have the parameters once, nobody may round
    them while another reads.
    """
    if 4 % backend.world_size:
        pytest.skip(f"4 micro-batches do not divide among {backend.world_size} ranks")

    def run(ranks, name):
        model, _ = train(name, ranks, 0, samples=8, micro_batch=2, compute_dtype=half)
        for step in range(3):
            model.train(*sk.split_batch(model.mesh, *token_batch(step, 8)))
            model.predict(token_batch(step, 2)[0])
        full = sha256(model.gather_full_parameters())
        shared = is_in_a_window(units_of(model)[0])
        model.close()
        return full, shared

    serial, _ = on_one_rank(lambda alone: run(alone, "DDP"))
    found = backend.all_gather_object(run(backend, strategy))
    assert {bits for bits, _ in found} == {serial}
    is_shared = backend.world_size > 1 and backend.memory() is not None
    assert {shared for _, shared in found} == {is_shared}
