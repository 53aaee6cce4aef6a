"""Cross-entropy of logits over a large vocabulary on a GPU: by blocks of rows, never whole."""

import numpy
import pytest
from builders import SEQUENCE, token_batch
from hybrids import hybrid

import shardkit as sk
from shardkit import nn
from shardkit.nn import ops
from shardkit.testing.array import dtype_named, widened
from shardkit.testing.nn import MANY_CLASSES, blocks, late_logits

ROWS, WIDTH, CLASSES = 21, 6, MANY_CLASSES + 3
# of float32: exp of what a number of size 10 was taken from
TOLERANCE = {"float32": 1e-5, "bfloat16": 2e-2}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Two blocks or three, of which the last is shorter."""
    monkeypatch.setattr(blocks, "ROWS_OF_BLOCK", 8)


def of_device(gpu, array):
    return array if gpu is None else gpu.device.from_host(array)


def found(gpu, dtype, ignored=None):
    """Return the loss and both gradients, on the GPU by blocks, or on the CPU of whole logits in
    float64: NumPy arrays.
    """
    rng = numpy.random.default_rng(0)
    kind = dtype_named(dtype, numpy)
    given = [rng.standard_normal(shape).astype("float32").astype(kind) for shape in SHAPES]
    if gpu is None:
        given = [widened(array).astype("float64") for array in given]
    x, weight = [nn.Tensor(of_device(gpu, array), requires_grad=True) for array in given]
    y = rng.integers(0, CLASSES, ROWS)
    y[::5] = y[0]
    with late_logits():
        logits = ops.linear(x, weight)
        loss = ops.cross_entropy(logits, of_device(gpu, y), int(y[0]) if ignored else None)
    assert gpu is None or logits.is_unread, "the logits were made as a whole"
    (loss * 3.0).backward()
    return [to_host(array) for array in (loss.array, x.grad, weight.grad)]


SHAPES = (ROWS, WIDTH), (CLASSES, WIDTH)


def to_host(array):
    return widened(array.get() if hasattr(array, "get") else array)


@pytest.mark.emulated
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("ignored", [False, True])
def test_loss_and_gradients_by_blocks_are_those_of_whole_logits(gpu, dtype, ignored):
    for got, wanted in zip(found(gpu, dtype, ignored), found(None, dtype, ignored)):
        scale = numpy.abs(wanted).max()
        numpy.testing.assert_allclose(got, wanted, rtol=0, atol=TOLERANCE[dtype] * scale)


def steps(mesh, device, compiles=False):
    """Return losses and weights of steps of a GPT, with 32 rows for a width of 6."""

    def on_rank(backend):
        sizes = {"width": WIDTH, "heads": 2, "layers": 1, "dtype": "float64", "seed": 3}
        module = sk.models.GPT(CLASSES, SEQUENCE, **sizes)
        model = hybrid(backend, mesh, "fsdp", model=module, device=device)
        if compiles:
            model.compile()
        batches = [sk.split_batch(model.mesh, *token_batch(step, 8)) for step in range(4)]
        losses = [model.train(*batch) for batch in batches]
        assert not compiles or model.get_model_metadata()["compiled"]
        return losses, model.gather_full_parameters()

    return sk.run_ranks(int(numpy.prod(mesh)), on_rank)[0]


@pytest.mark.parametrize("mesh", [(1, 1, 1), (1, 1, 2), (2, 1, 1)], ids=str)
def test_training_follows_the_cpu_also_where_the_vocabulary_is_cut(gpu, mesh):
    (losses, weights), (wanted, at) = steps(mesh, "cuda"), steps(mesh, "cpu")
    assert losses == pytest.approx(wanted, rel=1e-11)
    assert numpy.abs(weights - at).max() < 1e-9


@pytest.mark.emulated
@pytest.mark.thorough
def test_a_replayed_step_has_the_bits_of_a_plain_one(gpu):
    plain, replayed = steps((1, 1, 1), "cuda"), steps((1, 1, 1), "cuda", compiles=True)
    assert plain[0] == replayed[0] and (plain[1] == replayed[1]).all()
