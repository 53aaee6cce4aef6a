"""Every op, from one table: its gradient against finite differences, itself and its gradient
against PyTorch.

float64 finite differences: the step is 1e-6, so truncation and rounding leave about 1e-9; allowed
is 1e-6. PyTorch: float64 to 1e-12, float32 to 2e-5, relative to the largest value.
"""

from dataclasses import dataclass, field
from typing import Callable

import numpy
import pytest
import test_ops_table

from shardkit import AutogradError
from shardkit.nn import Tensor, no_grad, ops

try:
    import torch
    import torch.nn.functional as F
except ImportError:
    torch = F = None

IDS = numpy.array([[1, 0, 3], [3, 3, 2]])
TARGETS = numpy.array([0, 4, 4, 1, 2, 0])
WEIGHTS = numpy.array([0.5, 2.0, 0.0, 1.5, 1.0, 3.0])
MASK = numpy.array(
    [[True, False, True, True], [False, False, True, False], [True, True, False, True]]
)
GATHERED = numpy.array([[0, 3], [1, 1], [2, 0]])


def ints(array):
    return torch.tensor(array)


def as_like(x, array):
    return torch.tensor(array, dtype=x.dtype)


def torch_layer_norm(x, w, b):
    return F.layer_norm(x, x.shape[-1:], w, b, 1e-5)


def torch_rms_norm(x, w):
    return F.rms_norm(x, x.shape[-1:], w, 1e-6)


def torch_attention(first_query=0, scale=None):
    def attend(q, k, v):
        mask = (
            torch.arange(k.shape[2]) <= torch.arange(first_query, first_query + q.shape[2])[:, None]
        )
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=True)

    return attend


def torch_rotary(x, positions=(3, 0, 700, 5, 1), base=10000.0):
    half = x.shape[-1] // 2
    rates = base ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = torch.tensor(positions, dtype=torch.float64)[:, None] * rates
    cos, sin = torch.cos(angles).to(x.dtype), torch.sin(angles).to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


@dataclass
class Case:
    """op and (torch) twin on Tensors of these shapes, filled with normal numbers (or positive
    ones).
    """

    name: str
    op: Callable
    twin: Callable
    shapes: list
    positive: bool = False
    seed: int = field(default=0)

    def inputs(self, dtype):
        rng = numpy.random.default_rng(len(self.name) + self.seed)
        arrays = [rng.standard_normal(shape) for shape in self.shapes]
        return [(abs(a) + 0.5 if self.positive else a).astype(dtype) for a in arrays]


CASES = [
    Case("add", ops.add, lambda a, b: a + b, [(3, 4), (3, 4)]),
    Case("add broadcast", ops.add, lambda a, b: a + b, [(3, 1, 4), (5, 1)]),
    Case("add number", lambda a, b: 2 + a + b + 1, lambda a, b: 2 + a + b + 1, [(), (3,)]),
    Case("add empty", ops.add, lambda a, b: a + b, [(0, 4), (4,)]),
    Case("add itself", lambda a: ops.add(a, a), lambda a: a + a, [(3,)]),
    Case("subtract", ops.subtract, lambda a, b: a - b, [(3, 4), (4,)]),
    Case("subtract from number", lambda a: 1 - a, lambda a: 1 - a, [(3,)]),
    Case("multiply", ops.multiply, lambda a, b: a * b, [(3, 4), (3, 1)]),
    Case("multiply itself", lambda a: a * a, lambda a: a * a, [(3, 4)]),
    Case("multiply number", lambda a: 3 * a * 0.5, lambda a: 3 * a * 0.5, [(3, 4)]),
    Case("divide", ops.divide, lambda a, b: a / b, [(3, 4), (4,)], positive=True),
    Case("divide number", lambda a: 1 / a, lambda a: 1 / a, [(7,)], positive=True),
    Case("negative", lambda a: -a, lambda a: -a, [(3, 4)]),
    Case("power", lambda a: a**3, lambda a: a**3, [(3, 4)]),
    Case("power fraction", lambda a: a**-1.5, lambda a: a**-1.5, [(3, 4)], positive=True),
    Case("power tensor", ops.power, lambda a, b: a**b, [(3, 4), (4,)], positive=True),
    Case("power of number", lambda a: 2.0**a, lambda a: 2.0**a, [(3,)]),
    Case("exp", ops.exp, lambda a: a.exp(), [(3, 4)]),
    Case("log", ops.log, lambda a: a.log(), [(3, 4)], positive=True),
    Case("sqrt", ops.sqrt, lambda a: a.sqrt(), [(3, 4)], positive=True),
    Case("tanh", ops.tanh, lambda a: a.tanh(), [(3, 4)]),
    Case("sigmoid", ops.sigmoid, lambda a: a.sigmoid(), [(3, 4)]),
    Case("relu", ops.relu, lambda a: a.relu(), [(5, 7)]),
    Case("maximum", ops.maximum, lambda a, b: torch.maximum(a, b), [(3, 4), (4,)]),
    Case(
        "where",
        lambda a, b: ops.where(MASK, a, b),
        lambda a, b: torch.where(ints(MASK), a, b),
        [(3, 4), (3, 1)],
    ),
    Case("matmul", ops.matmul, lambda a, b: a @ b, [(3, 5), (5, 2)]),
    Case("matmul batched", ops.matmul, lambda a, b: a @ b, [(2, 1, 3, 5), (4, 5, 2)]),
    Case("matmul times one matrix", ops.matmul, lambda a, b: a @ b, [(2, 3, 5), (5, 1)]),
    Case("matmul empty", ops.matmul, lambda a, b: a @ b, [(0, 5), (5, 2)]),
    Case("matmul over nothing", ops.matmul, lambda a, b: a @ b, [(3, 0), (0, 2)]),
    Case("linear", ops.linear, lambda x, w, b: F.linear(x, w, b), [(2, 3, 5), (4, 5), (4,)]),
    Case(
        "linear no bias",
        lambda x, w: ops.linear(x, w),
        lambda x, w: F.linear(x, w),
        [(3, 5), (4, 5)],
    ),
    Case("linear of a vector", ops.linear, lambda x, w, b: F.linear(x, w, b), [(5,), (4, 5), (4,)]),
    Case(
        "linear with gelu",
        lambda x, w, b: ops.linear(x, w, b, ops.gelu),
        lambda x, w, b: F.gelu(F.linear(x, w, b), approximate="tanh"),
        [(2, 3, 5), (4, 5), (4,)],
    ),
    Case(
        "linear with gelu, no bias",
        lambda x, w: ops.linear(x, w, None, ops.gelu),
        lambda x, w: F.gelu(F.linear(x, w), approximate="tanh"),
        [(3, 5), (4, 5)],
    ),
    Case(
        "linear with tanh",
        lambda x, w, b: ops.linear(x, w, b, ops.tanh),
        lambda x, w, b: F.linear(x, w, b).tanh(),
        [(3, 5), (4, 5), (4,)],
    ),
    Case("add_bias", ops.add_bias, lambda x, b: x + b, [(2, 3, 5), (5,)]),
    Case("linear empty", ops.linear, lambda x, w, b: F.linear(x, w, b), [(0, 5), (4, 5), (4,)]),
    Case("sum", lambda a: ops.sum(a), lambda a: a.sum(), [(3, 4)]),
    Case("sum dim", lambda a: ops.sum(a, 1), lambda a: a.sum(1), [(3, 4, 2)]),
    Case(
        "sum dims",
        lambda a: ops.sum(a, (0, -1), keepdim=True),
        lambda a: a.sum((0, -1), keepdim=True),
        [(3, 4, 2)],
    ),
    Case("sum of nothing", lambda a: ops.sum(a, 0), lambda a: a.sum(0), [(0, 4)]),
    Case("mean", lambda a: ops.mean(a), lambda a: a.mean(), [(3, 4)]),
    Case("mean dim", lambda a: ops.mean(a, -2, True), lambda a: a.mean(-2, True), [(3, 4, 2)]),
    Case("max", lambda a: ops.max(a), lambda a: a.amax(), [(3, 4)]),
    Case("max dim", lambda a: ops.max(a, 1, True), lambda a: a.amax(1, True), [(3, 4)]),
    Case("variance", lambda a: ops.variance(a), lambda a: a.var(correction=0), [(3, 4)]),
    Case("variance dim", lambda a: ops.variance(a, 0), lambda a: a.var(0, correction=0), [(3, 4)]),
    Case("reshape", lambda a: a.reshape(2, -1), lambda a: a.reshape(2, -1), [(3, 4)]),
    Case("transpose", lambda a: ops.transpose(a, 0, -1), lambda a: a.transpose(0, -1), [(3, 4, 2)]),
    Case(
        "permute", lambda a: ops.permute(a, (2, 0, -2)), lambda a: a.permute(2, 0, -2), [(3, 4, 2)]
    ),
    Case("squeeze", lambda a: ops.squeeze(a, 1), lambda a: a.squeeze(1), [(3, 1, 4)]),
    Case("unsqueeze", lambda a: ops.unsqueeze(a, -1), lambda a: a.unsqueeze(-1), [(3, 4)]),
    Case("expand", lambda a: ops.expand(a, (5, 3, 4)), lambda a: a.expand(5, 3, 4), [(3, 1)]),
    Case(
        "split",
        lambda a: ops.concatenate([2 * p for p in reversed(ops.split(a, [1, 0, 3], 1))], 1),
        lambda a: torch.cat([2 * p for p in reversed(a.split([1, 0, 3], 1))], 1),
        [(3, 4)],
    ),
    Case(
        "split equal",
        lambda a: ops.multiply(*ops.split(a, 2, -1)),
        lambda a: torch.mul(*a.chunk(2, -1)),
        [(3, 4)],
    ),
    Case(
        "concatenate",
        lambda a, b: ops.concatenate([a, b, a], -1),
        lambda a, b: torch.cat([a, b, a], -1),
        [(3, 4), (3, 2)],
    ),
    Case("getitem slice", lambda a: a[1:, ..., ::2], lambda a: a[1:, ..., ::2], [(3, 4, 5)]),
    Case("getitem number", lambda a: a[1, None, -1], lambda a: a[1, None, -1], [(3, 4)]),
    Case("getitem array", lambda a: a[IDS], lambda a: a[ints(IDS)], [(5, 2)]),
    Case("getitem mixed", lambda a: a[:, IDS[0]], lambda a: a[:, ints(IDS[0])], [(2, 5)]),
    Case("getitem mask", lambda a: a[MASK], lambda a: a[ints(MASK)], [(3, 4)]),
    Case(
        "gather",
        lambda a: ops.gather(a, 1, GATHERED),
        lambda a: a.gather(1, ints(GATHERED)),
        [(3, 4)],
    ),
    Case(
        "gather dim 0",
        lambda a: ops.gather(a, 0, GATHERED),
        lambda a: a.gather(0, ints(GATHERED)),
        [(4, 2)],
    ),
    Case(
        "embedding", lambda w: ops.embedding(w, IDS), lambda w: F.embedding(ints(IDS), w), [(5, 3)]
    ),
    Case(
        "embedding of nothing",
        lambda w: ops.embedding(w, IDS[:0]),
        lambda w: F.embedding(ints(IDS[:0]), w),
        [(5, 3)],
    ),
    Case("softmax", lambda a: ops.softmax(a), lambda a: a.softmax(-1), [(3, 5)]),
    Case("softmax dim", lambda a: ops.softmax(a, 0), lambda a: a.softmax(0), [(3, 5)]),
    Case("softmax empty", lambda a: ops.softmax(a), lambda a: a.softmax(-1), [(0, 5)]),
    Case("log_softmax", lambda a: ops.log_softmax(a, 1), lambda a: a.log_softmax(1), [(3, 5, 2)]),
    Case("layer_norm", ops.layer_norm, torch_layer_norm, [(2, 3, 7), (7,), (7,)]),
    Case("layer_norm empty", ops.layer_norm, torch_layer_norm, [(0, 7), (7,), (7,)]),
    Case("rms_norm", ops.rms_norm, torch_rms_norm, [(2, 3, 7), (7,)]),
    Case(
        "add_layer_norm",
        lambda x, y, w, b: ops.multiply(*ops.add_layer_norm(x, y, w, b)),
        lambda x, y, w, b: (x + y) * torch_layer_norm(x + y, w, b),
        [(2, 3, 7), (2, 3, 7), (7,), (7,)],
    ),
    Case(
        "add_rms_norm",
        lambda x, y, w: ops.multiply(*ops.add_rms_norm(x, y, w)),
        lambda x, y, w: (x + y) * torch_rms_norm(x + y, w),
        [(2, 3, 7), (2, 3, 7), (7,)],
    ),
    Case("gelu", ops.gelu, lambda a: F.gelu(a, approximate="tanh"), [(5, 7)]),
    Case("gelu empty", ops.gelu, lambda a: F.gelu(a, approximate="tanh"), [(0, 7)]),
    Case(
        "bias_gelu",
        ops.bias_gelu,
        lambda a, b: F.gelu(a + b, approximate="tanh"),
        [(2, 3, 7), (7,)],
    ),
    Case(
        "bias_gelu empty",
        ops.bias_gelu,
        lambda a, b: F.gelu(a + b, approximate="tanh"),
        [(0, 7), (7,)],
    ),
    Case("silu", ops.silu, lambda a: F.silu(a), [(5, 7)]),
    Case("swiglu", ops.swiglu, lambda a, b: F.silu(a) * b, [(3, 7), (3, 7)]),
    Case("attention", ops.causal_attention, torch_attention(), [(2, 3, 5, 4)] * 3),
    Case(
        "attention grouped",
        ops.causal_attention,
        torch_attention(),
        [(2, 6, 5, 4), (2, 2, 5, 4), (2, 2, 5, 4)],
    ),
    Case(
        "attention one key head",
        lambda q, k, v: ops.causal_attention(q, k, v, scale=0.3),
        torch_attention(scale=0.3),
        [(1, 2, 3, 4), (1, 1, 3, 4), (1, 1, 3, 4)],
    ),
    Case(
        "attention last queries",
        lambda q, k, v: ops.causal_attention(q, k, v, first_query=3),
        torch_attention(3),
        [(2, 4, 2, 4), (2, 2, 5, 4), (2, 2, 5, 4)],
    ),
    Case("attention one token", ops.causal_attention, torch_attention(), [(1, 1, 1, 2)] * 3),
    Case(
        "rotary",
        lambda x: ops.rotary(x, numpy.array([3, 0, 700, 5, 1])),
        torch_rotary,
        [(2, 3, 5, 4)],
    ),
    Case(
        "cross_entropy",
        lambda x: ops.cross_entropy(x, TARGETS),
        lambda x: F.cross_entropy(x, ints(TARGETS)),
        [(6, 5)],
    ),
    Case(
        "cross_entropy sum",
        lambda x: ops.cross_entropy(x, TARGETS.reshape(2, 3), reduction="sum"),
        lambda x: F.cross_entropy(x.reshape(6, 5), ints(TARGETS), reduction="sum"),
        [(2, 3, 5)],
    ),
    Case(
        "cross_entropy ignore",
        lambda x: ops.cross_entropy(x, TARGETS, ignore_index=4),
        lambda x: F.cross_entropy(x, ints(TARGETS), ignore_index=4),
        [(6, 5)],
    ),
    Case("mse", ops.mse, lambda a, b: F.mse_loss(a, b), [(3, 4), (3, 4)]),
    Case(
        "mse sum",
        lambda a, b: ops.mse(a, b, "sum"),
        lambda a, b: F.mse_loss(a, b, reduction="sum"),
        [(3, 4), (3, 4)],
    ),
    Case(
        "cross_entropy weighted",
        lambda x: ops.cross_entropy(x, TARGETS, reduction="sum", weights=WEIGHTS),
        lambda x: (F.cross_entropy(x, ints(TARGETS), reduction="none") * as_like(x, WEIGHTS)).sum(),
        [(6, 5)],
    ),
    Case(
        "mse weighted",
        lambda a, b: ops.mse(a, b, "sum", WEIGHTS),
        lambda a, b: ((a - b) ** 2 * as_like(a, WEIGHTS)[:, None]).sum(),
        [(6, 4), (6, 4)],
    ),
    Case(
        "binary_cross_entropy_with_logits",
        lambda x: ops.binary_cross_entropy_with_logits(x, TARGETS > 1),
        lambda x: F.binary_cross_entropy_with_logits(x, as_like(x, TARGETS > 1)),
        [(6,)],
    ),
    Case(
        "binary_cross_entropy_with_logits weighted",
        lambda x: ops.binary_cross_entropy_with_logits(x, TARGETS[:, None] > 1, "sum", WEIGHTS),
        lambda x: F.binary_cross_entropy_with_logits(
            x, as_like(x, TARGETS[:, None] > 1), as_like(x, WEIGHTS[:, None]), reduction="sum"
        ),
        [(6, 1)],
    ),
]
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "-"))


def strided(array):
    """The same numbers, every other element of a larger array, the last dimension first in
    memory.
    """
    if array.ndim == 0:
        return array
    wide = numpy.full(tuple(2 * size for size in array.shape[::-1]), numpy.nan, array.dtype).T
    view = wide[tuple([slice(None, None, 2)] * array.ndim)]
    view[...] = array
    return view


def gradients(case, arrays):
    """The output, what was sent back, and the gradient of each input."""
    tensors = [Tensor(array, requires_grad=True) for array in arrays]
    output = case.op(*tensors)
    sent = numpy.random.default_rng(1).standard_normal(output.shape).astype(output.dtype)
    output.backward(sent)
    return output.numpy(), sent, [tensor.grad for tensor in tensors]


def difference_quotients(case, arrays, sent, step=1e-6):
    """d sum(output sent) / d input, one element of the inputs at a time."""

    def value():
        with no_grad():
            return float((case.op(*[Tensor(a) for a in arrays]).numpy() * sent).sum())

    for array in arrays:
        quotient = numpy.empty_like(array)
        for index in numpy.ndindex(array.shape):
            here = array[index]
            array[index] = here + step
            above = value()
            array[index] = here - step
            quotient[index] = (above - value()) / (2 * step)
            array[index] = here
        yield quotient


@every_case
@pytest.mark.thorough(but=24)
def test_the_gradient_is_the_limit_of_difference_quotients(case):
    arrays = case.inputs("float64")
    _, sent, got = gradients(case, arrays)
    for found, wanted in zip(got, difference_quotients(case, arrays, sent), strict=True):
        numpy.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)


@every_case
@pytest.mark.parametrize("dtype, tolerance", [("float64", 1e-12), ("float32", 2e-5)])
def test_values_and_gradients_are_those_of_pytorch(case, dtype, tolerance):
    pytest.importorskip("torch")
    arrays = case.inputs(dtype)
    output, sent, got = gradients(case, arrays)
    twins = [torch.tensor(array, requires_grad=True) for array in arrays]
    twin = case.twin(*twins)
    twin.backward(torch.tensor(sent))
    assert output.shape == tuple(twin.shape)
    for found, wanted in zip([output, *got], [twin, *[t.grad for t in twins]], strict=True):
        wanted = wanted.detach().numpy()
        numpy.testing.assert_allclose(
            found, wanted, rtol=0, atol=tolerance * max(1, abs(wanted).max(initial=0))
        )


@every_case
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_results_and_gradients_keep_dtype_and_shape_and_are_arrays(case, dtype):
    arrays = case.inputs(dtype)
    output, _, got = gradients(case, arrays)
    assert output.dtype == dtype and isinstance(output, numpy.ndarray)
    for array, gradient in zip(arrays, got, strict=True):
        assert (
            isinstance(gradient, numpy.ndarray)
            and gradient.dtype == dtype
            and gradient.shape == array.shape
        )


@every_case
@pytest.mark.thorough(but=24)
def test_strided_inputs_give_what_contiguous_ones_give(case):
    arrays = case.inputs("float64")
    output, _, got = gradients(case, arrays)
    strided_output, _, strided_got = gradients(case, [strided(array) for array in arrays])
    for found, wanted in zip([strided_output, *strided_got], [output, *got], strict=True):
        numpy.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)


@every_case
@pytest.mark.thorough(but=24)
def test_inputs_and_the_gradient_sent_in_are_never_written_to(case):
    arrays = case.inputs("float32")
    tensors = [Tensor(array, requires_grad=True) for array in arrays]
    for array in arrays:
        array.flags.writeable = False
    output = case.op(*tensors)
    sent = numpy.ones(output.shape, output.dtype)
    sent.flags.writeable = False
    output.backward(sent)


@every_case
@pytest.mark.thorough(but=24)
def test_an_input_changed_in_place_is_noticed_or_does_not_matter(case):
    _, sent, wanted = gradients(case, case.inputs("float64"))
    for changed in range(len(case.shapes)):
        tensors = [Tensor(array, requires_grad=True) for array in case.inputs("float64")]
        output = case.op(*tensors)
        with no_grad():
            tensors[changed].mul_(3).add_(1)
        try:
            output.backward(sent)
        except AutogradError as error:
            assert "changed in place" in str(error)
        else:
            for tensor, gradient in zip(tensors, wanted, strict=True):
                numpy.testing.assert_array_equal(tensor.grad, gradient)


@every_case
@pytest.mark.thorough(but=24)
def test_an_output_changed_in_place_is_noticed_or_does_not_matter(case):
    _, sent, wanted = gradients(case, case.inputs("float64"))
    tensors = [Tensor(array, requires_grad=True) for array in case.inputs("float64")]
    output = case.op(*tensors)
    if not output.array.flags.writeable:
        return
    with no_grad():
        output.mul_(3).add_(1)
    try:
        output.backward(sent)
    except AutogradError as error:
        assert "changed in place" in str(error)
    else:
        for tensor, gradient in zip(tensors, wanted, strict=True):
            numpy.testing.assert_array_equal(tensor.grad, gradient)


@every_case
@pytest.mark.thorough(but=24)
def test_each_gradient_has_the_same_bits_when_it_alone_is_wanted(case):
    arrays = case.inputs("float32")
    _, sent, together = gradients(case, arrays)
    for alone in range(len(arrays)):
        tensors = [
            Tensor(array, requires_grad=number == alone) for number, array in enumerate(arrays)
        ]
        case.op(*tensors).backward(sent)
        assert [tensor.grad is not None for tensor in tensors] == [
            number == alone for number in range(len(arrays))
        ]
        numpy.testing.assert_array_equal(tensors[alone].grad, together[alone])


def test_every_op_is_in_the_table_or_tested_by_name():
    tested = set("".join(test_case.name + " " for test_case in CASES).split())
    tested |= set(" ".join([*test_ops_table.TABLE, *test_ops_table.PLACES]).split())
    elsewhere = {"cast", "compare", "dropout", "causal_attention"}
    elsewhere |= {"fft", "segment_sum", "segment_mean", "segment_max", "gru", "lstm"}
    elsewhere |= {"attention_weights", "scaled_dot_product_attention"}
    elsewhere |= {"batch_norm", "group_norm", "instance_norm", "interpolate", "pad"}
    on_grids = "conv conv_transpose avg_pool max_pool adaptive_avg_pool adaptive_max_pool".split()
    elsewhere |= {f"{name}{dims}d" for name in on_grids for dims in (1, 2, 3)}
    # As layers, losses and functions beside PyTorch's: test_layers_table.py.
    elsewhere |= set(
        "celu glu hardshrink hardsigmoid hardswish logsigmoid prelu relu6 selu".split()
    )
    elsewhere |= set("softshrink softsign tanhshrink threshold fold unfold pixel_shuffle".split())
    elsewhere |= set("pixel_unshuffle cosine_similarity pairwise_distance normalize".split())
    elsewhere |= {"grid_sample", "ctc_loss", "cat"}  # cat is concatenate: test_habits.py
    assert set(ops.__all__) - tested == elsewhere
