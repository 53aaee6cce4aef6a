"""Nothing goes between host and GPU unseen: each step asks for the same few copies, whatever is
computed in between.

Counted by the stand-in, so a real GPU skips these. What messages between ranks copy is asked by
address ("copy to ...") and is another matter; here are the copies that arrays were asked for.
"""

from collections import Counter

import numpy
import pytest
from builders import small_gpt, token_batch, train
from hybrids import batch, gpt, hybrid, layers_for

import shardkit as sk

PLAIN_TWINS = (
    "vocabulary.py",
    "half.py",
)  # kernels whose plain twins ask the GPU; those in CUDA C++ do not
BATCH, NUMBERS = "to device", "to host"


@pytest.fixture
def book(gpu):
    """The transfers of this test so far, without those of the plain twins: Counter of kinds for
    each thread.
    """
    if gpu.is_real:
        pytest.skip("a real GPU keeps no book")

    def read():
        ignored = () if gpu.has_kernels else PLAIN_TWINS
        seen = [
            t
            for t in gpu.machine.transfers
            if not t.place.startswith(ignored) and not t.kind.startswith("copy")
        ]
        gpu.machine.transfers.clear()
        return {
            thread: Counter(t.kind for t in seen if t.thread == thread)
            for thread in {t.thread for t in seen}
        }, seen

    return read


def of_one_step(book, num_ranks, make, step):
    """{kind: how often} of one step of each rank, after a first one."""

    def on_rank(backend):
        model = make(backend)
        step(model)
        backend.barrier()
        if backend.rank == 0:
            book()
        backend.barrier()
        step(model)
        backend.barrier()

    sk.run_ranks(num_ranks, on_rank)
    by_thread, seen = book()
    assert len({frozenset(kinds.items()) for kinds in by_thread.values()}) == 1, seen
    return dict(next(iter(by_thread.values())))


TRAINED = {
    "FSDP": {"strategy": "FSDP"},
    "DDP without clipping": {"strategy": "DDP", "max_gradient_norm": None},
    "three micro-batches": {"strategy": "ZeRO-2", "micro_batch": 2},
    "checkpointed": {"strategy": "FSDP", "activation_checkpointing": True},
    "dropout": {"strategy": "FSDP", "model": lambda: small_gpt(dropout=0.2)},
    "llama": {"strategy": "FSDP", "model": lambda: small_gpt(style="llama")},
    "half floats": {"strategy": "FSDP", "compute_dtype": "float16"},
    "momentum": {"strategy": "ZeRO-1", "optimizer": sk.Momentum(lr=0.1)},
}


@pytest.mark.parametrize("how", TRAINED)
@pytest.mark.thorough
def test_a_step_sends_its_batch_and_asks_for_loss_and_norm(book, how):
    settings = dict(TRAINED[how])
    strategy, model = settings.pop("strategy"), settings.pop("model", small_gpt)

    def make(backend):
        return train(strategy, backend, 0, model=model(), device="cuda", **settings)[0]

    found = of_one_step(
        book, 2, make, lambda model: model.train(*sk.split_batch(model.mesh, *token_batch(1)))
    )
    assert found == {BATCH: 2, NUMBERS: 1}


@pytest.mark.emulated
@pytest.mark.thorough
def test_the_kernels_ask_for_nothing(book):
    def make(backend):
        return train("FSDP", backend, 0, model=small_gpt(dropout=0.2), device="cuda")[0]

    found = of_one_step(book, 1, make, lambda model: model.train(*token_batch(1)))
    assert found == {BATCH: 2, NUMBERS: 1}


@pytest.mark.parametrize(
    "mesh, schedule, settings",
    [
        ((1, 1, 2), "1f1b", {"sequence_parallel": True}),
        ((2, 1, 1), "zb-h1", {}),
        ((2, 1, 2), "interleaved", {}),
    ],
    ids=str,
)
@pytest.mark.thorough
def test_pipelines_and_tensor_ranks_ask_for_no_more(book, mesh, schedule, settings):
    def make(backend):
        model = gpt(max(2, layers_for(mesh[0], schedule)))  # a border between two layers
        return hybrid(backend, mesh, "fsdp", schedule, model=model, device="cuda", **settings)

    def on_rank(backend):
        model = make(backend)
        model.train(*sk.split_batch(model.mesh, *batch(0)))
        backend.barrier()
        if backend.rank == 0:
            book()
        backend.barrier()
        model.train(*sk.split_batch(model.mesh, *batch(1)))

    sk.run_ranks(int(numpy.prod(mesh)), on_rank)
    by_thread, seen = book()
    for kinds in by_thread.values():
        assert kinds == {BATCH: 2, NUMBERS: 1}, seen


def test_labels_that_are_ignored_are_not_counted_on_the_gpu(book):
    def make(backend):
        model = small_gpt()
        model.loss = sk.nn.CrossEntropy(ignore_index=-100)
        return train("FSDP", backend, 0, model=model, device="cuda")[0]

    def step(model):
        x, y = token_batch(1)
        model.train(*sk.split_batch(model.mesh, x, numpy.where(y % 3 == 0, -100, y)))

    assert of_one_step(book, 1, make, step) == {BATCH: 2, NUMBERS: 1}


def test_features_that_are_switched_off_are_not_sent_again(book):
    x, y = numpy.ones((8, 4), "float32"), numpy.ones((8, 1), "float32")

    def make(backend):
        model = sk.DDPModel(
            sk.models.MLP([4, 16, 1]),
            sk.ShardingConfiguration(backend, max_gradient_norm=1.0, device="cuda"),
        )
        model.set_active_feature_indices([1, 2])
        return model

    assert of_one_step(book, 1, make, lambda model: model.train(x, y)) == {BATCH: 2, NUMBERS: 1}


@pytest.mark.thorough
def test_half_floats_on_the_wire_ask_for_one_magnitude_per_unit(book):
    def make(backend):
        return train("FSDP", backend, 0, device="cuda", gradient_compression="float16")[0]

    found = of_one_step(
        book, 2, make, lambda model: model.train(*sk.split_batch(model.mesh, *token_batch(1)))
    )
    assert found == {BATCH: 2, NUMBERS: 1}  # and the magnitudes, where the plain twin computes them


@pytest.mark.thorough
def test_predictions_evaluations_and_words_ask_for_what_they_return(book):
    def make(backend):
        return train("DDP", backend, 0, model=small_gpt(), device="cuda")[0]

    x, y = token_batch(1)
    assert of_one_step(book, 1, make, lambda model: model.predict(x)) == {BATCH: 1, NUMBERS: 1}
    assert of_one_step(book, 1, make, lambda model: model.evaluate(x, y)) == {BATCH: 2, NUMBERS: 1}
    one_word = of_one_step(book, 1, make, lambda model: model.wrapped_model.generate(x[0, :3], 1))
    assert one_word[NUMBERS] == 1 and one_word[BATCH] <= 2
    ten_words = of_one_step(book, 1, make, lambda model: model.wrapped_model.generate(x[0, :2], 10))
    assert ten_words == {kind: 10 * count for kind, count in one_word.items()}


def test_a_checkpoint_asks_arrays_for_nothing(book, tmp_path):
    def on_rank(backend):
        model, _ = train("FSDP", backend, 1, device="cuda")
        book()
        model.save_model(tmp_path)
        model.save_model_async(tmp_path).wait()
        model.load_model(tmp_path)

    sk.run_ranks(1, on_rank)
    assert book()[1] == []
