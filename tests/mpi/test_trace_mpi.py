"""A trace of real processes: all ranks in one file, on one clock."""

from pathlib import Path

import numpy
import pytest
from builders import small_gpt, token_batch
from trace_rules import read_trace, steps_of

import shardkit as sk

pytestmark = pytest.mark.mpi


@pytest.fixture
def path(backend, tmp_path):
    """A file in a folder that all ranks see."""
    return Path(backend.broadcast_object(str(tmp_path), 0)) / "trace.json"


@pytest.mark.parametrize("policy", ["ddp", "fsdp"])
def test_the_steps_of_all_ranks_lie_at_the_same_time(backend, path, policy):
    config = sk.ShardingConfiguration(backend, optimizer=sk.AdamW(), max_gradient_norm=1.0)
    pipeline = 2 if backend.world_size % 2 == 0 else 1
    model = sk.HybridShardedModel(small_gpt(), config, pipeline, 1, policy=policy)
    part = sk.split_batch(model.mesh, *token_batch(0))
    model.train(*part)
    with model.trace(path):
        for _ in range(3):
            model.train(*part)
    model.close()
    content = read_trace(path)
    steps = [[step for step, _ in steps_of(content, rank)] for rank in range(backend.world_size)]
    assert [len(of_rank) for of_rank in steps] == [3] * backend.world_size
    starts = numpy.array([[step["ts"] for step in of_rank] for of_rank in steps])
    ends = starts + numpy.array([[step["dur"] for step in of_rank] for of_rank in steps])
    # nobody ends a step, which has collectives of all, before the last one has begun it
    assert (starts.max(axis=0) <= ends.min(axis=0)).all()
