"""model.compile() on CPUs: it is refused on all ranks alike, and the model goes on."""

import numpy
import pytest
from hybrids import hybrid, step_once

import shardkit as sk
from shardkit import ShardingError


@pytest.mark.parametrize(
    "mesh, policy",
    [
        ((1, 1, 1), "fsdp"),
        ((2, 1, 1), "fsdp"),
        ((1, 2, 1), "fsdp"),
        ((1, 1, 2), "fsdp"),
        ((1, 4, 1), "hsdp"),
    ],
    ids=str,
)
def test_on_cpus_it_is_refused_with_the_reason_on_all_ranks(mesh, policy):
    def on_rank(backend):
        model = hybrid(backend, mesh, policy)
        assert not model.supports_compilation
        with pytest.raises(ShardingError) as refused:
            model.compile()
        assert not model.get_model_metadata()["compiled"]
        return str(refused.value), step_once(model, 0)

    (text, _), *others = results = sk.run_ranks(int(numpy.prod(mesh)), on_rank)
    assert all(other == results[0] for other in others)
    assert 'it is on device "cpu"' in text and 'wants device = "cuda"' in text
    assert "train it without compile()" in text


def test_a_refusal_changes_no_bit():
    def curve(is_asked):
        def on_rank(backend):
            model = hybrid(backend, (1, 2, 1))
            if is_asked:
                with pytest.raises(ShardingError):
                    model.compile()
            return [step_once(model, step) for step in range(3)], model.get_parameters().tobytes()

        return sk.run_ranks(2, on_rank)

    assert curve(True) == curve(False)
