"""What blocks would read of a unit, from one use to the next: stale or current values."""

import pytest
from builders import STRATEGIES
from called_models import UNetLike, batch

import shardkit as sk
from shardkit.testing.parallel import Freshness, trained_units_of

STALE, CURRENT = Freshness

# of a unit after it was made, gathered, released, stepped, spread, and gathered if that lasts
WHOLE_AND_UPDATED_BY_ALL = (CURRENT, CURRENT, CURRENT, CURRENT, CURRENT, CURRENT)
WHOLE = (CURRENT, CURRENT, CURRENT, STALE, CURRENT, CURRENT)
ROUNDED = (CURRENT, CURRENT, CURRENT, STALE, STALE, CURRENT)
SHARDED = (STALE, CURRENT, STALE, STALE, STALE, STALE)
LIVES = {
    ("DDP", None): WHOLE_AND_UPDATED_BY_ALL,
    ("ZeRO-1", None): WHOLE,
    ("ZeRO-2", None): WHOLE,
    ("FSDP", None): SHARDED,
    ("DDP", "bfloat16"): ROUNDED,
    ("ZeRO-1", "bfloat16"): ROUNDED,
    ("ZeRO-2", "bfloat16"): ROUNDED,
    ("FSDP", "bfloat16"): SHARDED,
}


@pytest.mark.parametrize("strategy, half", LIVES)
def test_what_blocks_would_read_is_known_after_each_use(strategy, half):
    def run(backend):
        settings = {"optimizer": sk.AdamW(lr=1e-2), "micro_batches": 4, "compute_dtype": half}
        model = STRATEGIES[strategy](UNetLike(), sk.ShardingConfiguration(backend, **settings))
        model.compute_gradients(*sk.split_batch(model.mesh, *batch(0)))
        lives = set()
        for unit in trained_units_of(model):
            unit.release()
            life = [unit.freshness]
            acts = unit.gather, unit.release, lambda: unit.step(1), unit.spread
            for act in (*acts, unit.gather_if_lasting):
                act()
                life.append(unit.freshness)
                assert unit.whole is not None or unit.freshness is STALE
            lives.add(tuple(life))
        return lives

    for lives in sk.run_ranks(2, run):
        assert lives == {LIVES[strategy, half]}
