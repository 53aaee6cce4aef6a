"""Recorded calls make the same numbers from other inputs; what they cannot make again is
refused.
"""

import numpy
import pytest

from shardkit.array import fresh, kernels, products
from shardkit.array.backend import Device
from shardkit.array.recording import Recorder, changing, noted
from shardkit.array.replaying import RecordingMemory
from shardkit.array.traced import Traced, plain
from shardkit.nn.context import ForwardContext

numbers = numpy.random.default_rng(5)
X, OTHER_X = [numbers.standard_normal((2, 6, 8)).astype("float32") for _ in range(2)]
W, OTHER_W = [numbers.standard_normal(64).astype("float32") for _ in range(2)]
TABLE = numbers.integers(0, 6, 5)


def changed_in_place(x, w):
    y = fresh.copy(x)
    y[0] += w[0]
    y[:, 1:3] = 2
    y[x > 1] = 0.5
    y[..., 0].fill(3)
    return y


def added_at_places(x, w):
    y = fresh.zeros(x.shape[1:], x.dtype)
    numpy.add.at(y, (TABLE, slice(None)), x[0, TABLE])
    return y


WORK = {
    "elements": lambda x, w: numpy.exp(x * 2 + w[0]) / 3.0,
    "comparisons": lambda x, w: numpy.where((x > 0) & (x < w[:, None, 0:1][:2]), x, -1.0),
    "sums": lambda x, w: (
        x.sum(axis=1)
        + x.mean(axis=(0, 1))
        + x.T.max(axis=2).sum(axis=1)[:, None][:2].reshape(2, 1)
        + x.sum()
    ),
    "variance": lambda x, w: x.var(axis=-1, keepdims=True),
    "products": lambda x, w: products.matmul(x, w.T) @ w,
    "arrangement": lambda x, w: numpy.concatenate(
        [x.swapaxes(0, 1).reshape(6, 16), numpy.stack([w, w], 1)[:6].reshape(6, 16)]
    ),
    "rows": lambda x, w: fresh.rows(w, TABLE) + w.take(TABLE, axis=0) + w[TABLE],
    "casts": lambda x, w: x.astype("float64") + w.astype("int64")[0] + x.copy(),
    "choice": lambda x, w: (
        fresh.choose(x > 0, x, 0.0) + numpy.clip(x, 0, 1) + numpy.broadcast_to(w[0], x.shape)
    ),
    "order": lambda x, w: w[numpy.argsort(x[0, 0])] + x[0, 0].argmax(),
    "kernels": lambda x, w: (
        kernels.gelu(x) + kernels.softmax(x) + kernels.layer_norm(x[0], w[0], w[1], 1e-5)[0]
    ),
    "in place": changed_in_place,
    "at places": added_at_places,
    "a part": lambda x, w: numpy.moveaxis(x, 0, 2)[1:, ::-1],
    "out": lambda x, w: numpy.add(x, w[0], out=fresh.copy(x)),
}


def recorded(work, memory):
    """(recorder, x, result): work on X and W, recorded; x is the array that was read."""
    x = memory.empty(X.shape, X.dtype)
    plain(x)[...] = X
    recorder = Recorder(memory, {"w": W})
    with recorder.active():
        result = work(x, W.view(Traced).reshape(8, 8))
    return recorder, x, result


@pytest.fixture
def memory():
    return RecordingMemory(Device("cpu"), purpose="activations")


@pytest.mark.parametrize("name", WORK)
def test_calls_make_the_bits_of_the_work_from_other_inputs(name, memory):
    work = WORK[name]
    recorder, x, result = recorded(work, memory)
    assert recorder.reason is None
    numpy.testing.assert_array_equal(plain(result), work(X, W.reshape(8, 8)))
    plain(x)[...] = OTHER_X
    for w in (OTHER_W, W, OTHER_W):  # the buffer moves
        recorder.calls.run({"w": w}, None)
        numpy.testing.assert_array_equal(plain(result), work(OTHER_X, w.reshape(8, 8)))


@pytest.mark.parametrize(
    "work, reason",
    [
        (lambda x, w: x * (1.0 if x[0, 0, 0] > 0 else 2.0), "__bool__ reads numbers"),
        (lambda x, w: x * x.max().item(), "item reads numbers"),
        (lambda x, w: x[x[0].nonzero()[0][:1]], "nonzero reads numbers"),
        (lambda x, w: fresh.copy(x).sort(), "sort reads numbers, or changes arrays in place"),
        (lambda x, w: x[x > 0], "the shape of what __getitem__ makes depends on numbers"),
        (lambda x, w: x * numpy.array_equal(x, x), "array_equal reads numbers"),
        (
            lambda x, w: numpy.exp(numpy.ndarray.__deepcopy__(x, {})),
            "made in a way that is not recorded",
        ),
    ],
)
def test_what_cannot_be_made_again_is_refused(work, reason, memory):
    assert reason in recorded(work, memory)[0].reason


def test_calls_keep_no_memory(memory):
    recorder, x, result = recorded(
        lambda x, w: kernels.gelu(x * 2) + numpy.where(x > 0, w[0], x), memory
    )
    del result, x
    assert memory.lent_bytes == 0
    recorder.calls.run({"w": W}, None)


def test_what_changes_from_run_to_run_is_asked_for_again(memory):
    def work(x, w):
        return x * changing(lambda context: context.step, ForwardContext(step=3)).astype("float32")

    recorder, x, result = recorded(work, memory)
    numpy.testing.assert_array_equal(plain(result), X * 3.0)
    recorder.calls.run({"w": W}, ForwardContext(step=5))
    numpy.testing.assert_array_equal(plain(result), X * 5.0)


def test_noted_functions_are_called_again_with_plain_arrays_and_not_looked_into(memory):
    seen = []

    def double(array):
        seen.append(type(array))
        array *= 2

    def work(x, w):
        y = x + 1
        noted(double, y)
        return y

    recorder, x, result = recorded(work, memory)
    recorder.calls.run({"w": W}, None)
    numpy.testing.assert_array_equal(plain(result), (X + 1) * 2)
    assert seen == [numpy.ndarray, numpy.ndarray]


def test_without_a_recorder_they_are_arrays_like_any_other():
    x = X.view(Traced)
    assert (
        float(x.sum()) == float(X.sum())
        and (x + 1).tolist() == (X + 1).tolist()
        and len(list(x)) == 2
    )
    numpy.testing.assert_array_equal(numpy.concatenate([x, x]), numpy.concatenate([X, X]))
