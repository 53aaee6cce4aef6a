"""A step that has been taken before allocates nothing large: what it needs comes from the arena and
the pools.

How: between any two calls in any thread, Python tells us how far the traced memory rose above where
it stood, and where. Ranks are threads, and each may be amid an allocation: the limit counts for
each of them.
"""

import sys
import threading
import tracemalloc

import numpy
import pytest
from hybrids import table_of

import shardkit as sk
from shardkit.testing.array import Arena
from shardkit.testing.parallel import pools_of
from shardkit.testing.schedule import Kind

MOST_BYTES = 1 << 16
VOCABULARY, SEQUENCE, SAMPLES = 128, 64, 48


class Watch:
    """Inside `with`, notes every call during which memory rose by more than MOST_BYTES a rank;
    watch() is for each thread.
    """

    def __init__(self, num_ranks):
        self._most_bytes = MOST_BYTES * num_ranks
        self.found: list[str] = []
        self._lock = threading.Lock()
        self._before = 0

    def watch(self):
        sys.setprofile(self._note)

    def _note(self, frame, event, argument):
        with self._lock:
            now, peak = tracemalloc.get_traced_memory()
            if peak - self._before > self._most_bytes:
                self.found.append(
                    f"{peak - self._before} bytes before {event} at "
                    f"{frame.f_code.co_filename}:{frame.f_lineno}"
                )
            tracemalloc.reset_peak()
            self._before = now

    def __enter__(self):
        tracemalloc.start()
        tracemalloc.reset_peak()
        self._before = tracemalloc.get_traced_memory()[0]
        return self

    def __exit__(self, *error):
        tracemalloc.stop()


def batch(step):
    tokens = numpy.random.default_rng(step).integers(0, VOCABULARY, (SAMPLES, SEQUENCE + 1))
    return tokens[:, :-1], tokens[:, 1:]


def large_allocations(num_ranks, make_model):
    """What a step allocates after two others, and whether the arena stayed as it was, of all
    ranks together.
    """
    watch, barrier, grown = Watch(num_ranks), threading.Barrier(num_ranks), [None] * num_ranks

    def run(backend):
        model = make_model(backend)
        batches = [sk.split_batch(model.mesh, *batch(step)) for step in range(3)]
        for x, y in batches[:2]:
            model.train(x, y)
        arena = pools_of(model).arena
        before = arena.num_bytes
        if barrier.wait() == 0:
            watch.__enter__()
        barrier.wait()
        watch.watch()
        for x, y in batches[2:]:
            model.train(x, y)
        sys.setprofile(None)
        if barrier.wait() == 0:
            watch.__exit__()
        grown[backend.rank] = arena.num_bytes - before
        assert before > 0 and arena.used_bytes == 0, "something of a step outlives it"

    sk.run_ranks(num_ranks, run)
    return watch.found, grown


def gpt(style="gpt2", **changes):
    sizes = {
        "width": 64,
        "layers": 2,
        "heads": 4,
        "style": style,
        "dropout": 0.1,
        "tied": style == "llama",
        **changes,
    }
    return sk.models.GPT(VOCABULARY, SEQUENCE, **sizes)


def sharded(strategy, style="gpt2", micro_batches=1, **settings):
    def make(backend):
        config = sk.ShardingConfiguration(
            backend,
            optimizer=sk.AdamW(lr=1e-3),
            max_gradient_norm=1.0,
            micro_batches=micro_batches,
            **settings,
        )
        return strategy(gpt(style), config)

    return make


CASES = {
    "1 rank": (1, sharded(sk.DDPModel)),
    "1 rank, llama": (1, sharded(sk.DDPModel, "llama")),
    "1 rank, 2 micro-batches": (1, sharded(sk.DDPModel, micro_batches=2)),
    "1 rank, checkpointed": (1, sharded(sk.DDPModel, activation_checkpointing=True)),
    "DDP": (2, sharded(sk.DDPModel)),
    "FSDP": (2, sharded(sk.FSDPModel, "llama")),
    "FSDP on 3": (3, sharded(sk.FSDPModel)),
    "ZeRO-2": (4, sharded(sk.ZeRO2Model)),
    "pipeline": (2, sharded(sk.PipelineParallelModel, micro_batches=2)),
    "pipeline of 3, llama": (
        3,
        sharded(sk.PipelineParallelModel, "llama", micro_batches=2, schedule="gpipe"),
    ),
    "tensor": (2, sharded(sk.TensorParallelModel)),
    "tensor, llama": (2, sharded(sk.TensorParallelModel, "llama")),
    "sequence": (2, sharded(sk.TensorParallelModel, sequence_parallel=True)),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.thorough(but=1)
def test_a_later_step_allocates_nothing_large(case):
    num_ranks, make_model = CASES[case]
    found, grown = large_allocations(num_ranks, make_model)
    assert not found, "\n".join(dict.fromkeys(found))
    assert grown == [0] * num_ranks


@pytest.mark.parametrize("style", ["gpt2", "llama"])
def test_the_arena_holds_little_more_than_what_is_in_use_at_once(style, monkeypatch):
    most, empty = [0], Arena.empty

    def counted(arena, *rest):
        array = empty(arena, *rest)
        most[0] = max(most[0], arena.used_bytes)
        return array

    monkeypatch.setattr(Arena, "empty", counted)

    def run(backend):
        model = sk.DDPModel(
            sk.models.GPT(1024, 128, 128, 4, 4, style=style), sk.ShardingConfiguration(backend)
        )
        tokens = numpy.arange(8 * 129).reshape(8, 129) % 1024
        for _ in range(2):
            model.train(tokens[:, :-1], tokens[:, 1:])
        return pools_of(model).arena.num_bytes

    (num_bytes,) = sk.run_ranks(1, run)
    assert most[0] > 30 << 20 and most[0] <= num_bytes < 1.25 * most[0]


@pytest.mark.thorough
def test_a_large_allocation_is_found():
    """The test of the test: one array in one thread, gone at once. Another thread may look while it
    is there, and see it too.
    """

    def make(backend):
        model = sharded(sk.DDPModel)(backend)
        table = table_of(model)
        step = table[Kind.STEP]

        def wasteful(*arguments):
            if backend.rank == 1:
                numpy.empty(2 * MOST_BYTES + 1, numpy.uint8)
            step(*arguments)

        table[Kind.STEP] = wasteful
        return model

    found, _ = large_allocations(2, make)
    assert any("test_allocations.py" in each for each in found)
