"""Two hybrid models of different mesh sizes alive in one job do not disturb each other."""

import pytest
from two_models import PAIRS, trained_alone, trained_in_turn

import shardkit as sk


@pytest.mark.parametrize(
    "num_ranks, pair",
    [(num_ranks, pair) for num_ranks in PAIRS for pair in PAIRS[num_ranks]],
    ids=lambda value: (
        " and ".join(str(one["mesh"]) for one in value) if isinstance(value, tuple) else None
    ),
)
@pytest.mark.thorough
def test_each_of_two_models_in_one_job_has_the_bits_of_its_own_run(num_ranks, pair):
    alone = [sk.run_ranks(num_ranks, lambda backend: trained_alone(backend, one)) for one in pair]
    together = sk.run_ranks(num_ranks, lambda backend: trained_in_turn(backend, *pair))
    for rank, of_rank in enumerate(together):
        assert of_rank == [alone[0][rank], alone[1][rank]]
    assert alone[0][0] != alone[1][0], "wanted two models that differ"
