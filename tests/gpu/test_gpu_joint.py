"""Queries, keys and values by one product: the numbers of three, fewer launches, and nothing else
where weights do not lie side by side.
"""

from functools import cache, partial

import numpy
import pytest
from builders import small_gpt, token_batch
from half_floats import BFLOAT16, relative_distance
from hybrids import gpt, hybrid, step_once, trained

import shardkit as sk
from shardkit import nn
from shardkit.nn import Parameter, Tensor, backward_inputs, ops
from shardkit.nn.ops import causal_attention, linear, rotary
from shardkit.testing.array import dtype_named, to_host, wide
from shardkit.testing.gpu import joint
from shardkit.testing.nn import Fill, transformer

ROWS, WIDTH = (3, 5), 4
EQUAL, GROUPED = (6, 6, 6), (8, 2, 2)
# sizes of the weights, whether biases come after each or after all; products of both passes
FORMS = {
    "one after the other": (GROUPED, None, 3),
    "biases at the end": (GROUPED, "end", 3),
    "biases in between": (EQUAL, "between", 5),
}
TOLERANCES = {"float64": 1e-14, "float32": 1e-6, "bfloat16": 2.0**-7}


def laid_out(sizes, biases):
    """Return the shapes of weights and biases in their order, and which are which."""
    weights = [(f"w{n}", (size, WIDTH)) for n, size in enumerate(sizes)]
    other = [(f"b{n}", (size,)) for n, size in enumerate(sizes)]
    if biases == "between":
        return [each for pair in zip(weights, other) for each in pair]
    return weights + (other if biases else [])


class Layers:
    """Weights and biases in one flat buffer of a GPU, as a unit binds them, and their gradients.

    waits   gradients have memory in one buffer too
    """

    def __init__(self, cupy, sizes, biases, dtype, *, waits=True):
        self.sizes, self.order = sizes, laid_out(sizes, biases)
        length = sum(int(numpy.prod(shape)) for _, shape in self.order)
        values = numpy.random.default_rng(1).standard_normal(length)
        self.flat = cupy.asarray(values.astype(dtype_named(dtype)))
        self.grads = cupy.asarray(numpy.full(length, numpy.nan, wide(dtype_named(dtype))))
        self.named = {}
        self.at = {}
        start = 0
        for name, shape in self.order:
            part = slice(start, start + int(numpy.prod(shape)))
            parameter = Parameter(shape, Fill(0.0), "float64" if dtype == "float64" else "float32")
            parameter.bind(self.flat[part].reshape(shape))
            if waits:
                parameter.grad, parameter.grad_is_empty = self.grads[part].reshape(shape), True
            self.named[name], self.at[name] = parameter, part
            start = part.stop
        self.weights = [self.named[f"w{n}"] for n in range(len(sizes))]
        self.biases = [self.named.get(f"b{n}") for n in range(len(sizes))]

    def gradients(self):
        return {name: to_host(p.grad).astype("float64") for name, p in self.named.items()}


def numbers(cupy, shape, dtype, seed):
    values = numpy.random.default_rng(seed).standard_normal(shape).astype(dtype_named(dtype))
    return cupy.asarray(values)


def loss_of(cupy, parts, dtype):
    """Return a number made of all parts, the first one twice."""
    first, *others = parts
    terms = [first * first] + others
    total = None
    for seed, term in enumerate(terms):
        weighed = ops.sum(term * Tensor(numbers(cupy, term.shape, dtype, 10 + seed)))
        total = weighed if total is None else total + weighed
    return total


def by_three(x, layers):
    return [linear(x, *each) for each in zip(layers.weights, layers.biases)]


def by_one(x, layers, is_dense=False):
    views = [transformer._seen_as_it_is] * len(layers.sizes)
    return joint.joint_linear(x, layers.weights, layers.biases, views, is_dense=is_dense)


def differentiated(cupy, make, form, dtype, *, waits=True, backward=Tensor.backward):
    sizes, biases, _ = FORMS[form]
    layers = Layers(cupy, sizes, biases, dtype, waits=waits)
    x = Tensor(numbers(cupy, (*ROWS, WIDTH), dtype, 2), requires_grad=True)
    parts = make(x, layers)
    backward(loss_of(cupy, parts, dtype))
    outputs = {f"y{n}": to_host(part.array).astype("float64") for n, part in enumerate(parts)}
    return {"x": to_host(x.grad).astype("float64"), **outputs, **layers.gradients()}


def in_two_halves(loss):
    """Input gradients first, weight gradients later, as zero-bubble schedules do."""
    backward_inputs(loss).run()


@pytest.fixture
def cupy(gpu):
    import cupy

    return cupy


@pytest.mark.parametrize("dtype", ["float64", "float32", BFLOAT16])
@pytest.mark.parametrize("waits", [True, False], ids=["in place", "new"])
@pytest.mark.parametrize("backward", [Tensor.backward, in_two_halves])
@pytest.mark.parametrize("form", FORMS)
def test_one_product_has_the_numbers_of_three(cupy, form, dtype, waits, backward):
    settings = {"waits": waits, "backward": backward}
    wanted = differentiated(cupy, by_three, form, dtype, **settings)
    got = differentiated(cupy, by_one, form, dtype, **settings)
    assert got.keys() == wanted.keys()
    for name, values in wanted.items():
        assert relative_distance(got[name], values) < TOLERANCES[dtype], name


@pytest.mark.parametrize("form", FORMS)
def test_products_and_sums_are_few(gpu, cupy, form):
    if gpu.is_real:
        pytest.skip("a real GPU keeps no book")
    sizes, biases, num_products = FORMS[form]

    def launches(make):
        layers = Layers(cupy, sizes, biases, "float32")
        x = Tensor(numbers(cupy, (*ROWS, WIDTH), "float32", 2), requires_grad=True)
        gpu.machine.forget()
        parts = make(x, layers)
        before = dict(gpu.machine.launches)
        loss = loss_of(cupy, parts, "float32")
        gpu.machine.forget()
        loss.backward()
        return before, dict(gpu.machine.launches)

    (forward, backward), (three, of_three) = launches(by_one), launches(by_three)
    assert forward == {"gemm": 1} and three == {"gemm": 3}  # with their biases
    assert forward["gemm"] + backward["gemm"] == num_products
    assert of_three["gemm"] == 6
    assert backward["add"] == of_three["add"] - 2  # those of the gradients of x
    if biases:
        assert of_three["sum"] - backward["sum"] == 2


@pytest.mark.parametrize("form", FORMS)
def test_a_tape_that_is_kept_gives_the_same_again(cupy, form):
    twice = differentiated(cupy, by_one, form, "float64", backward=_twice, waits=False)
    once = differentiated(cupy, by_one, form, "float64", waits=False)
    for name in once.keys() - {"y0", "y1", "y2"}:
        numpy.testing.assert_allclose(twice[name], 2 * once[name], rtol=1e-14)


def _twice(loss):
    loss.backward(retain_graph=True)
    loss.backward()


@pytest.mark.parametrize("form", FORMS)
def test_a_part_that_nothing_uses_has_no_gradient(cupy, form):
    def first_alone(make):
        return lambda x, layers: make(x, layers)[:1]

    wanted = differentiated(cupy, first_alone(by_three), form, "float64", waits=False)
    got = differentiated(cupy, first_alone(by_one), form, "float64", waits=False)
    for name in ("x", "w0"):
        assert relative_distance(got[name], wanted[name]) < 1e-14
    assert not got["w1"].any() and not got["w2"].any()


def test_a_place_is_lent_once(cupy):
    """The second of two operations on the same parts must not write over what the first wrote."""

    def attended_twice(make):
        def make_both(x, layers):
            q, k, v = make(x, layers)
            q = rotary(q)
            return [causal_attention(q, k, v) + causal_attention(q, k, v, 2.0)]

        return make_both

    by_head = partial(transformer._seen_by_head, head_dim=2)

    def by_one_and_head(x, layers):
        return joint.joint_linear(x, layers.weights, layers.biases, [by_head] * 3)

    def by_three_and_head(x, layers):
        return [transformer._by_head(y, 2) for y in by_three(x, layers)]

    form = "biases in between"
    wanted = differentiated(cupy, attended_twice(by_three_and_head), form, "float64")
    got = differentiated(cupy, attended_twice(by_one_and_head), form, "float64")
    for name, values in wanted.items():
        assert relative_distance(got[name], values) < 1e-13, name


@pytest.mark.emulated
@pytest.mark.parametrize("turns", [True, False])
@pytest.mark.thorough
def test_heads_are_turned_and_their_gradients_written_where_they_belong(gpu, cupy, turns):
    if gpu.is_real:
        pytest.skip("a real GPU keeps no book")
    layers = Layers(cupy, (16, 8, 8), None, "bfloat16")
    x = Tensor(numbers(cupy, (*ROWS, WIDTH), "bfloat16", 2), requires_grad=True)
    by_head = partial(transformer._seen_by_head, head_dim=8)
    q, k, v = joint.joint_linear(x, layers.weights, layers.biases, [by_head] * 3)
    block = q.array.data.mem.ptr
    q, k = [rotary(part) for part in (q, k)] if turns else (q, k)
    y = causal_attention(q, k, v)
    assert q.array.data.mem.ptr == k.array.data.mem.ptr == v.array.data.mem.ptr == block
    first = cupy.ones(y.shape, y.dtype)
    gpu.machine.forget()
    y.backward(first)
    launches = dict(gpu.machine.launches)
    of_attention = ["attention_along"] + [
        f"tensor_attention_for_{rows}" for rows in ("queries", "keys")
    ]
    assert {name: launches.pop(name) for name in of_attention} == dict.fromkeys(of_attention, 1)
    assert launches.pop("rotary", 0) == 2 * turns
    assert launches == {"gemm": 2, "setitem": 1}  # x keeps a copy of its gradient


@pytest.mark.emulated
@pytest.mark.parametrize("dtype", ["float32", BFLOAT16])
@pytest.mark.parametrize("style", ["gpt2", "llama"])
@pytest.mark.thorough
def test_kernels_read_heads_where_the_product_left_them(gpu, monkeypatch, style, dtype):
    """Heads of 12 numbers, so that some begin where 16 bytes do not."""

    def losses():
        def on_rank(backend):
            model = small_gpt(style=style, width=36, heads=3, layers=1, kv_heads=OF_STYLE[style])
            settings = {"model": model, "device": "cuda", "compute_dtype": dtype}
            sharded = hybrid(backend, *SERIAL, **settings, micro_batches=1)
            losses = [sharded.train(*token_batch(step, 2)) for step in range(2)]
            return losses, sharded.gather_full_parameters()

        return sk.run_ranks(1, on_rank)[0]

    (got, parameters) = losses()
    monkeypatch.setattr(joint, "joint_linear", lambda *args, **kwargs: None)
    (wanted, of_three) = losses()
    tolerance = {"float32": 1e-5, "bfloat16": 2e-2}[dtype]
    numpy.testing.assert_allclose(got, wanted, rtol=tolerance)
    assert relative_distance(parameters, of_three) < tolerance


OF_STYLE = {"gpt2": None, "llama": 1}
SERIAL = (1, 1, 1), "ddp", "gpipe"


def test_a_backward_that_failed_leaves_nothing_behind(cupy):
    """Parts come from the last to the first; here memory ran out before the first."""
    places = joint._Places(lambda: cupy.zeros((3, 2)), list)
    ones = cupy.ones(2)
    assert places.deliver(2, ones) is not None and places.deliver(1, ones) is None
    whole = places.deliver(2, 2 * ones)
    assert whole is not None and places.deliver(1, ones) is places.deliver(0, ones) is None
    places.complete(whole)
    assert whole.get().tolist() == [[1, 1], [1, 1], [2, 2]]


@pytest.mark.parametrize("change", ["frozen", "elsewhere", "gaps", "dtype", "dense"])
def test_weights_that_do_not_belong_together_are_left_alone(cupy, change):
    layers = Layers(cupy, GROUPED, None, "float32")
    x = Tensor(numbers(cupy, (*ROWS, WIDTH), "float32", 2))
    assert by_one(x, layers) is not None
    if change == "frozen":
        layers.weights = [
            Tensor(w.array, requires_grad=n != 1) for n, w in enumerate(layers.weights)
        ]
    elif change == "elsewhere":
        layers.weights[2] = Tensor(layers.weights[2].array.copy(), requires_grad=True)
    elif change == "gaps":
        layers.weights[0] = Tensor(layers.weights[0].array[:7], requires_grad=True)
    elif change == "dtype":
        x = Tensor(x.array.astype("float64"))
    assert by_one(x, layers, is_dense=change == "dense") is None


# ---- models --------------------------------------------------------------------------------------


@pytest.fixture
def uses(monkeypatch):
    """How many parts each layer had in each forward pass; None where it made three products."""
    found, plain = [], joint.joint_linear

    def seen(*args, **kwargs):
        parts = plain(*args, **kwargs)
        found.append(None if parts is None else len(parts))
        return parts

    monkeypatch.setattr(joint, "joint_linear", seen)
    return found


@pytest.fixture
def in_memory(monkeypatch):
    """Whether gradients of weights and biases went to the memory of the unit."""
    found = []
    plain = joint._memory_of

    def seen(form, tensors):
        there, memory = plain(form, tensors)
        found.append(there is not None)
        return there, memory

    monkeypatch.setattr(joint, "_memory_of", seen)
    return found


RUNS = {
    "ddp": ((1, 2, 1), "ddp", "1f1b", {}),
    "zero1": ((1, 2, 1), "zero1", "1f1b", {}),
    "zero2": ((1, 2, 1), "zero2", "1f1b", {"activation_checkpointing": True}),
    "fsdp": ((1, 2, 1), "fsdp", "1f1b", {}),
    "tensor": ((1, 1, 2), "fsdp", "1f1b", {}),
    "sequence": ((1, 1, 2), "ddp", "1f1b", {"sequence_parallel": True}),
    "zero bubble": ((2, 1, 1), "fsdp", "zb-h1", {}),
}
MODELS = {
    "gpt2": {},
    "llama": {"style": "llama", "heads": 12, "kv_heads": 4},
    "norms": {"style": "llama", "heads": 12, "qk_norm": "head"},
    "norms together": {"style": "llama", "heads": 12, "qk_norm": "projection"},
}
TOLERANCE = 1e-11


@cache
def on_cpu(name):
    return trained(*SERIAL, steps=1, model=lambda: gpt(1, **MODELS[name]))


def check_run(mesh, policy, schedule, name, **settings):
    """Train on a GPU as on the CPU: gradients and parameters are the same but for rounding."""
    got = trained(
        *(mesh, policy, schedule),
        steps=1,
        model=lambda: gpt(1, **MODELS[name]),
        device="cuda",
        **settings,
    )
    wanted = on_cpu(name)
    assert relative(got.gradients[0], wanted.gradients[0]) < TOLERANCE
    assert relative(got.parameters, wanted.parameters) < TOLERANCE


def relative(got, wanted):
    return numpy.abs(got - wanted).max() / numpy.abs(wanted).max()


@pytest.mark.parametrize(
    "run, name",
    [
        pytest.param(run, name, marks=[pytest.mark.sweep] * ((turn + number) % 2))
        for turn, run in enumerate(RUNS)
        for number, name in enumerate(MODELS)
    ],  # each run with every other model
)
@pytest.mark.thorough
def test_every_policy_and_schedule_multiplies_once(gpu, uses, in_memory, run, name):
    mesh, policy, schedule, settings = RUNS[run]
    check_run(mesh, policy, schedule, name, **settings)
    assert uses and set(uses) == {3}
    assert in_memory and all(in_memory)


@pytest.mark.thorough
def test_biases_of_another_group_are_added_together(gpu, uses, in_memory):
    """They lie behind all weights then."""
    rates = sk.ParameterGroup("*.bias", lr_scale=1.0)
    check_run((1, 2, 1), "fsdp", "1f1b", "gpt2", parameter_groups=(rates,))
    assert set(uses) == {3} and all(in_memory)


def adapted(model):
    nn.apply_lora(model, "*.attention.query", rank=2)


def partly_frozen(model):
    model.freeze("*.attention.key.*")


def wholly_frozen(model):
    model.freeze("*.attention.query.*", "*.attention.key.*", "*.attention.value.*")


@pytest.mark.parametrize(
    "change, found", [(adapted, set()), (partly_frozen, {None}), (wholly_frozen, {3})]
)
@pytest.mark.thorough
def test_frozen_and_adapted_layers_follow_the_cpu(gpu, uses, change, found):
    def parameters_on(device):
        def on_rank(backend):
            model = gpt(1)
            change(model)
            sharded = hybrid(backend, (1, 2, 1), "fsdp", model=model, device=device)
            step_once(sharded, 0)
            return sharded.gather_full_parameters()

        return sk.run_ranks(2, on_rank)[0]

    assert relative(parameters_on("cuda"), parameters_on("cpu")) < TOLERANCE
    assert set(uses) == found


@pytest.mark.thorough
def test_layers_that_x_enters_one_by_one_follow_the_cpu(gpu, uses):
    """Each sums its gradient of x over the tensor ranks by itself."""
    styles = {"query": "column", "key": "column", "value": "column", "output": "row"}
    plan = {f"blocks.*.attention.{name}": style for name, style in styles.items()}
    check_run((1, 1, 2), "ddp", "1f1b", "gpt2", tensor_plan=plan)
    assert not uses


def test_key_heads_of_another_number_are_not_joined_where_norms_would_copy_them(gpu, uses):
    changes = {"style": "llama", "heads": 12, "kv_heads": 4, "qk_norm": "head"}
    trained(*SERIAL, steps=1, model=lambda: gpt(1, **changes), device="cuda")
    assert set(uses) == {None}


@pytest.mark.thorough
def test_texts_are_continued_by_one_product(gpu, uses):
    """Keys and values that are kept are copies: turning them in place changes no other."""

    def on_rank(device):
        def run(backend):
            model = hybrid(backend, *SERIAL[:2], model=gpt(2, **MODELS["llama"]), device=device)
            return model.generate([[1, 2, 3], [4, 5]], 4)

        return sk.run_ranks(1, run)[0]

    assert str(on_rank("cuda")) == str(on_rank("cpu"))
    assert set(uses) == {3}
