"""Cross-entropy by blocks of rows in sharded models: the bits of every data and pipeline mesh, and
a vocabulary that tensor ranks share.
"""

import numpy
import pytest
from hybrids import SERIAL, gpt, hybrid, step_once, trained

import shardkit as sk
from shardkit.testing.nn import MANY_CLASSES, blocks, ops_linear, ops_loss
from shardkit.testing.parallel import vocabulary

VOCABULARY = MANY_CLASSES + 1  # more on the first tensor rank than on the last
TOLERANCE = 1e-12  # float64, sums of a few thousand terms


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch):
    """Several blocks in each micro-batch, the last of them short."""
    monkeypatch.setattr(blocks, "ROWS_OF_BLOCK", 20)


@pytest.fixture
def walked(monkeypatch):
    """How often sums were made by blocks."""
    calls, by_blocks = [], blocks.sum_by_blocks
    for module in (ops_loss, vocabulary):
        monkeypatch.setattr(module, "sum_by_blocks", lambda *a: (calls.append(1), by_blocks(*a))[1])
    return calls


def large(dtype="float64", **changes):
    return lambda: gpt(2, vocabulary_size=VOCABULARY, dtype=dtype, **changes)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(
    "mesh, policy, schedule",
    [((1, 3, 1), "fsdp", "1f1b"), ((3, 1, 1), "ddp", "gpipe"), ((2, 1, 1), "zero2", "zb-v")],
)
def test_bits_are_the_same_on_data_and_pipeline_meshes(mesh, policy, schedule, tied, walked):
    settings = {"steps": 2, "model": large("float32", tied=tied)}
    wanted = trained(SERIAL, micro_batches=3, **settings)
    assert len(walked) == 6
    run = trained(mesh, policy, schedule, micro_batches=3 // mesh[1], **settings)
    assert len(walked) == 12
    assert run.losses == wanted.losses and run.norms == wanted.norms
    assert run.parameters.tobytes() == wanted.parameters.tobytes()


@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize("mesh", [(1, 1, 2), (1, 1, 4), (2, 1, 2)], ids=str)
@pytest.mark.thorough(but=2)
def test_tensor_ranks_share_the_blocks(mesh, sequence, walked):
    settings = {"steps": 2, "model": large(tied=True), "micro_batches": 3}
    wanted = trained(SERIAL, **settings)
    run = trained(mesh, sequence_parallel=sequence, **settings)
    assert len(walked) == 6 * (1 + mesh[2])
    numpy.testing.assert_allclose(run.losses, wanted.losses, rtol=TOLERANCE)
    for found, right in zip(run.gradients[:1], wanted.gradients[:1]):
        assert abs(found - right).max() <= TOLERANCE * abs(right).max()


def losses_of(whole_logits, monkeypatch, **settings):
    """Return the losses of three steps on one rank, by blocks or with whole logits."""
    monkeypatch.setattr(ops_linear, "MANY_CLASSES", 10**9 if whole_logits else VOCABULARY)

    def on_rank(backend):
        model = hybrid(backend, SERIAL, model=large("float32")(), micro_batches=3, **settings)
        return [step_once(model, step) for step in range(2)]

    return sk.run_ranks(1, on_rank)[0]


@pytest.mark.parametrize(
    "settings, tolerance",
    [
        ({}, 1e-6),
        ({"activation_checkpointing": True}, 1e-6),
        ({"compute_dtype": "bfloat16"}, 1e-3),
        ({"compute_dtype": "float16"}, 0),
    ],
    ids=["plain", "checkpointing", "bfloat16", "float16"],
)
@pytest.mark.thorough(but=2)
def test_losses_are_those_of_whole_logits(settings, tolerance, monkeypatch, walked):
    wanted = losses_of(True, monkeypatch, **settings)
    assert not walked
    found = losses_of(False, monkeypatch, **settings)
    assert bool(walked) == (settings.get("compute_dtype") != "float16")
    numpy.testing.assert_allclose(found, wanted, rtol=tolerance)


def test_evaluation_and_predictions_have_whole_logits(walked):
    def on_rank(backend):
        model = hybrid(backend, SERIAL, model=large()())
        x = numpy.arange(8 * 8).reshape(8, 8)
        return model.predict(x), model.evaluate(x, x)

    predicted, loss = sk.run_ranks(1, on_rank)[0]
    assert predicted.shape == (8, 8, VOCABULARY) and numpy.isfinite(loss) and not walked
