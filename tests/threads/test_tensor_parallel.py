"""Tensor parallelism on ranks that are threads: adjoints, and whole models against the model that
is not cut.
"""

import types

import numpy
import pytest

import shardkit as sk
from shardkit import nn
from shardkit.nn import ForwardContext, forward_context
from shardkit.testing.comm import ordered_sum
from shardkit.testing.layout import FlatLayout, even_span, tiles_exactly
from shardkit.testing.nn import SlicedParameter
from shardkit.testing.parallel import (
    LINEAR,
    STYLES,
    RowParallelLinear,
    TensorAxis,
    VocabularyParallelCrossEntropy,
    apply_plan,
    close_groups,
    conjugate,
    default_plan,
    global_piece,
    is_counted,
    style,
    sum_partial,
    whole_outputs,
)

EVERY_SIZE = pytest.mark.parametrize("num_ranks", [1, 2, 3, 4])
VOCABULARY, SEQUENCE = 60, 12
TOLERANCE = 1e-12  # of float64 sums of about a thousand terms, relative to the largest element


def gpt(**changes):
    """Return a GPT whose heads, hidden units and vocabulary 1, 2, 3 and 4 ranks divide."""
    sizes = {"width": 72, "layers": 2, "heads": 12, "seed": 3, "dtype": "float64", **changes}
    return sk.models.GPT(sizes.pop("vocabulary", VOCABULARY), SEQUENCE, **sizes)


def mlp(num_layers, **changes):
    return sk.models.MLP(
        [7, 24, 36, 12, 24][:num_layers] + [12], seed=5, dtype="float64", **changes
    )


def vit(**changes):
    """Return a ViT whose heads and hidden units 1, 2, 3 and 4 ranks divide."""
    return sk.models.ViT(
        (4, 6), 2, 3, 5, width=24, depth=2, heads=12, seed=3, dtype="float64", **changes
    )


def tokens(seed=0, samples=2):
    drawn = numpy.random.default_rng(seed).integers(0, VOCABULARY, (samples, SEQUENCE + 1))
    return drawn[:, :-1], drawn[:, 1:]


def assert_close(got, wanted, called):
    scale = max(numpy.abs(wanted).max(), 1e-300)
    assert got.shape == wanted.shape, called
    assert numpy.abs(got - wanted).max() <= TOLERANCE * scale, (
        f"{called}: off by {numpy.abs(got - wanted).max() / scale:.1e}"
    )


# ---- conjugates ----------------------------------------------------------------------------------


def own(length, group):
    """Return the shape [4, part of length, 3], local."""
    start, stop = even_span(length, group.world_size, group.rank)
    return (4, stop - start, 3)


LENGTH = 7
WHOLE, OWN, SLICE = "whole", "own", "slice"
CONJUGATES = {  # function, what it takes, what it returns
    "copy": (conjugate.copy_to_region, WHOLE, OWN),
    "reduce": (conjugate.reduce_from_region, OWN, WHOLE),
    "all_gather": (lambda x, group: conjugate.all_gather(x, group, 1, LENGTH), SLICE, OWN),
    "reduce_scatter": (lambda x, group: conjugate.reduce_scatter(x, group, -2), OWN, SLICE),
    "gather": (lambda x, group: conjugate.gather_from_region(x, group, -2, LENGTH), SLICE, WHOLE),
}


def drawn(state, seed, group):
    """Return random values in a state: whole ones are the same on all ranks."""
    rng = numpy.random.default_rng([seed, 0 if state == WHOLE else 1 + group.rank])
    return rng.standard_normal(own(LENGTH, group) if state == SLICE else (4, LENGTH, 3))


def inner_product(a, b, state, group):
    """Sum the inner product over ranks, with whole tensors counted once."""
    counts = state != WHOLE or group.rank == 0
    return float(ordered_sum(group, [float((a * b).sum()) if counts else 0.0])[0])


@EVERY_SIZE
@pytest.mark.parametrize("name", CONJUGATES)
def test_forward_and_backward_of_a_conjugate_are_adjoint(name, num_ranks):
    function, state_in, state_out = CONJUGATES[name]

    def run(group):
        x = nn.Tensor(drawn(state_in, 1, group), requires_grad=True)
        gradient = drawn(state_out, 2, group)
        y = function(x, group)
        y.backward(gradient)
        assert y.shape == gradient.shape and x.grad.shape == x.shape
        if state_in == WHOLE:
            assert all((other == x.grad).all() for other in group.all_gather_object(x.grad)), (
                "whole gradients differ"
            )
        forward = inner_product(y.array, gradient, state_out, group)
        assert forward == pytest.approx(inner_product(x.array, x.grad, state_in, group), rel=1e-12)

    sk.run_ranks(num_ranks, run)


@EVERY_SIZE
def test_conjugates_move_slices_to_their_places(num_ranks):
    whole = numpy.arange(4 * LENGTH * 3.0).reshape(4, LENGTH, 3)

    def run(group):
        start, stop = even_span(LENGTH, group.world_size, group.rank)
        part = nn.Tensor(whole[:, start:stop])
        numpy.testing.assert_array_equal(conjugate.all_gather(part, group, 1, LENGTH).array, whole)
        numpy.testing.assert_array_equal(
            conjugate.gather_from_region(part, group, 1, LENGTH).array, whole
        )
        summed = conjugate.reduce_scatter(nn.Tensor(whole), group, 1)
        numpy.testing.assert_array_equal(summed.array, num_ranks * whole[:, start:stop])
        numpy.testing.assert_array_equal(
            conjugate.reduce_from_region(nn.Tensor(whole), group).array, num_ranks * whole
        )
        numpy.testing.assert_array_equal(
            conjugate.copy_to_region(nn.Tensor(whole), group).array, whole
        )

    sk.run_ranks(num_ranks, run)


# ---- models --------------------------------------------------------------------------------------

MODELS = {
    "gpt2": (gpt, {}),
    "gpt2 tied": (gpt, {"tied": True}),
    "gpt2 kv 4": (gpt, {"kv_heads": 4}),
    "gpt2 kv 2": (gpt, {"kv_heads": 2}),
    "llama": (gpt, {"style": "llama"}),
    "llama kv 1": (gpt, {"style": "llama", "kv_heads": 1}),
    "llama kv 2": (gpt, {"style": "llama", "kv_heads": 2}),
    "llama tied": (gpt, {"style": "llama", "tied": True}),
    "llama vocabulary 61": (gpt, {"style": "llama", "vocabulary": 61}),
    "llama vocabulary 61 tied": (gpt, {"style": "llama", "tied": True, "vocabulary": 61}),
    "llama qkv bias": (gpt, {"style": "llama", "kv_heads": 1, "attention_bias": "qkv"}),
    "llama head norm": (
        gpt,
        {"style": "llama", "kv_heads": 1, "qk_norm": "head", "head_dim": 10},
    ),
    "llama norm of all": (
        gpt,
        {"style": "llama", "kv_heads": 1, "qk_norm": "projection", "norms": "after"},
    ),
    "llama norm of all, kv 12": (gpt, {"style": "llama", "qk_norm": "projection"}),
    "mlp 1": (mlp, {"num_layers": 1}),
    "mlp 2": (mlp, {"num_layers": 2}),
    "mlp 3": (mlp, {"num_layers": 3}),
    "vit": (vit, {"dropout": 0.3}),
    "mlp 4": (mlp, {"num_layers": 4, "activation": "tanh", "task": "classification"}),
}
REFUSED = {("gpt2 kv 4", 3), ("gpt2 kv 2", 3), ("llama kv 2", 3)}
DROPOUT = {"gpt2 dropout": (gpt, {"dropout": 0.3})}


def make(name):
    function, changes = (MODELS | DROPOUT)[name]
    return function(**changes)


def batch_for(model):
    if isinstance(model, sk.models.GPT):
        return tokens()
    rng = numpy.random.default_rng(0)
    if isinstance(model, sk.models.ViT):
        return rng.standard_normal((4, 3, 4, 6)), rng.integers(0, 5, 4)
    sizes = model.configuration()["sizes"]
    is_regression = model.configuration()["task"] == "regression"
    return rng.standard_normal((5, sizes[0])), rng.standard_normal(
        (5, 12)
    ) if is_regression else rng.integers(0, 12, 5)


def randomized(model):
    """Draw all parameters of the model, so that biases and norms are no constants."""
    for index, parameter in enumerate(model.parameters()):
        rng = numpy.random.default_rng(index)
        parameter.array = parameter.array + 0.1 * rng.standard_normal(parameter.shape)
    return model


def loss_and_gradients(model):
    """Return the mean loss, and {name: gradient} with partial ones summed. Collective where the
    model is.
    """
    x, y = batch_for(model)
    with forward_context(ForwardContext(training=True, seed=1, step=2, first_sample=3)):
        loss = model.loss(model(nn.Tensor(x)), y)
    loss.backward()
    for parameter in model.parameters():
        sum_partial(parameter, parameter.grad)
    return float(loss.item()), {name: p.grad for name, p in model.named_parameters().items()}


def check_against_whole(name, num_ranks, **options):
    """Check that loss, gradients and names under the plan are those of the whole model."""
    wanted_loss, wanted = loss_and_gradients(randomized(make(name)))

    def run(group):
        model = randomized(make(name))
        apply_plan(model, default_plan(model), group, **options)
        loss, gradients = loss_and_gradients(model)
        assert loss == pytest.approx(wanted_loss, rel=1e-12)
        assert list(gradients) == list(wanted)
        for key, parameter in model.named_parameters().items():
            if key.endswith("key.bias") and name.startswith(("gpt2", "vit")):
                # without rotary positions it moves all scores of a query alike
                assert numpy.abs(gradients[key]).max() < 1e-15, key
            else:
                assert_close(gradients[key], wanted[key][parameter.box.slices()], key)
        close_groups(model)
        return loss

    assert len(set(sk.run_ranks(num_ranks, run))) == 1, "ranks disagree about the loss"


@EVERY_SIZE
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.thorough(but=6)
def test_loss_and_gradients_under_the_plan_are_boxes_of_those_of_the_whole_model(name, num_ranks):
    if (name, num_ranks) in REFUSED:
        with pytest.raises(sk.ConfigurationError, match="key heads"):
            check_against_whole(name, num_ranks)
    else:
        check_against_whole(name, num_ranks)


def test_a_style_of_ones_own_is_one_entry(monkeypatch):
    monkeypatch.setitem(STYLES, "last row", None)  # undone when the test ends
    del STYLES["last row"]

    @style("last row", takes=LINEAR, dim=1, cuts=("weight",), counted="input features")
    def last_row(axis, module, parts, enters):
        return RowParallelLinear(axis, parts[id(module.weight)], module.bias)

    wanted_loss, wanted = loss_and_gradients(randomized(mlp(2)))

    def run(group):
        model = randomized(mlp(2))
        apply_plan(model, {"layers.0": "column", "layers.1": "last row"}, group)
        loss, gradients = loss_and_gradients(model)
        assert loss == pytest.approx(wanted_loss, rel=1e-12)
        for key, parameter in model.named_parameters().items():
            assert_close(gradients[key], wanted[key][parameter.box.slices()], key)
        with pytest.raises(sk.ConfigurationError, match="as last row has 24 input features = 5"):
            apply_plan(
                mlp(2), {"layers.1": "last row"}, types.SimpleNamespace(world_size=5, rank=0)
            )

    sk.run_ranks(2, run)


@pytest.mark.strength(1)
@EVERY_SIZE
@pytest.mark.parametrize("name", ["gpt2", "llama kv 1", "gpt2 tied", "llama norm of all", *DROPOUT])
def test_sequence_parallelism_does_not_change_loss_and_gradients(name, num_ranks):
    check_against_whole(name, num_ranks, sequence=True)


@pytest.mark.parametrize("sequence", [False, True])
def test_input_and_weight_gradients_at_different_times_are_those_of_one_backward(sequence):
    def run(group):
        gradients = []
        for is_split in (False, True):
            model, (x, y) = make("llama kv 1"), tokens()
            apply_plan(model, default_plan(model), group, sequence=sequence)
            loss = model.loss(model(nn.Tensor(x)), y)
            if is_split:
                nn.backward_inputs(loss).run()
            else:
                loss.backward()
            gradients.append([p.grad for p in model.parameters()])
        for together, apart in zip(*gradients):
            numpy.testing.assert_array_equal(together, apart)

    sk.run_ranks(2, run)


@pytest.mark.parametrize("sequence", [False, True])
def test_a_float32_model_stays_float32_and_close(sequence):
    plain, (x, y) = gpt(dtype="float32", style="llama"), tokens()
    wanted = plain.loss(plain(nn.Tensor(x)), y).item()

    def run(group):
        model = gpt(dtype="float32", style="llama")
        apply_plan(model, default_plan(model), group, sequence=sequence)
        loss = model.loss(model(nn.Tensor(x)), y)
        loss.backward()
        assert loss.dtype == "float32" and {str(p.grad.dtype) for p in model.parameters()} == {
            "float32"
        }
        assert loss.item() == pytest.approx(wanted, rel=1e-6)

    sk.run_ranks(2, run)


@pytest.mark.parametrize("num_ranks", [1, 3])
def test_dropout_masks_do_not_depend_on_the_tensor_size(num_ranks):
    check_against_whole("gpt2 dropout", num_ranks)


@EVERY_SIZE
@pytest.mark.parametrize("name", ["gpt2 tied", "llama kv 1", "mlp 3", "mlp 4"])
def test_initial_weights_are_boxes_of_those_of_the_whole_model(name, num_ranks):
    whole = {key: p.array for key, p in make(name).named_parameters().items()}

    def run(group):
        model = make(name)
        apply_plan(model, default_plan(model), group)
        for key, p in model.named_parameters().items():
            assert p.is_fresh and p.global_shape == whole[key].shape and p.name == key
            third = p.size // 3
            cut = numpy.concatenate(
                [
                    p.initial_span(0, third),
                    p.initial_span(third, p.size - 1),
                    p.initial_span(p.size - 1, p.size),
                ]
            )
            assert p.is_fresh
            numpy.testing.assert_array_equal(cut.reshape(p.shape), whole[key][p.box.slices()])
            numpy.testing.assert_array_equal(p.array, whole[key][p.box.slices()])

    sk.run_ranks(num_ranks, run)


@EVERY_SIZE
@pytest.mark.parametrize("name", ["gpt2 tied", "llama kv 1", "mlp 3"])
def test_pieces_of_counted_parameters_tile_the_whole_model_exactly_once(name, num_ranks):
    shapes = {key: p.shape for key, p in make(name).named_parameters().items()}

    def run(group):
        model = make(name)
        apply_plan(model, default_plan(model), group)
        named = model.named_parameters()
        layout = FlatLayout.of(
            {key: p.shape for key, p in named.items()}, num_shards=2, dtype="float64"
        )
        local = [
            piece
            for shard in range(2)
            for piece in layout.pieces(shard)
            if is_counted(named[piece.name])
        ]
        return [(piece.name, global_piece(named[piece.name], piece)) for piece in local]

    pieces = [entry for part in sk.run_ranks(num_ranks, run) for entry in part]
    for key, shape in shapes.items():
        tiles_exactly(shape, [piece.box for name, piece in pieces if name == key])


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_each_rank_holds_its_part_of_what_is_cut(num_ranks):
    def run(group):
        model = gpt()
        apply_plan(model, default_plan(model), group)
        return [(p.claim.kind, p.size, p.global_shape) for p in model.parameters()]

    for claims in sk.run_ranks(num_ranks, run):
        for kind, size, shape in claims:
            assert size * (num_ranks if kind == "sharded" else 1) == numpy.prod(shape)


@pytest.mark.parametrize("name", ["gpt2 tied", "llama kv 1"])
def test_predictions_and_text_are_those_of_the_whole_model(name):
    plain, (x, _) = make(name), tokens()
    predicted, text = plain.predict(x), plain.generate(x[0, :3], 12, seed=1)

    def run(group):
        model = make(name)
        apply_plan(model, default_plan(model), group)
        with whole_outputs():
            assert_close(model.predict(x), predicted, "logits")
            numpy.testing.assert_array_equal(model.generate(x[0, :3], 12, seed=1), text)
        assert model.predict(x).shape[-1] == VOCABULARY // group.world_size

    sk.run_ranks(2, run)


@EVERY_SIZE
@pytest.mark.parametrize("ignore_index", [None, 7])
def test_cross_entropy_of_large_local_logits_is_that_of_whole_ones(ignore_index, num_ranks):
    rng = numpy.random.default_rng(0)
    logits, y = 900 * rng.standard_normal((2, 9, 13)), rng.integers(0, 13, (2, 9))
    y[0, :2] = 7
    plain, loss = nn.Tensor(logits, requires_grad=True), nn.CrossEntropy(ignore_index)
    loss(plain, y).backward()

    def run(group):
        part = slice(*even_span(13, group.world_size, group.rank))
        local = nn.Tensor(logits[..., part].copy(), requires_grad=True)
        cut = VocabularyParallelCrossEntropy(TensorAxis(group), 13, ignore_index)
        value = cut(local, y)
        assert value.item() == pytest.approx(loss(plain, y).item(), rel=1e-12) and cut.count(
            y
        ) == loss.count(y)
        value.backward()
        numpy.testing.assert_allclose(local.grad, plain.grad[..., part], rtol=1e-12, atol=1e-15)

    sk.run_ranks(num_ranks, run)


def test_a_region_sums_the_gradient_of_its_input_once_for_all_projections():
    def run(group):
        model = gpt(layers=1)
        apply_plan(model, default_plan(model), group)
        loss = model.loss(model(nn.Tensor(tokens()[0])), tokens()[1])
        group.traffic.reset()
        loss.backward()
        return group.traffic.by_verb["all_to_all"]

    activation = 2 * SEQUENCE * 72 * 8
    assert sk.run_ranks(2, run) == [3 * activation // 2] * 2, (
        "wanted one sum each for attention, mlp and head"
    )


# ---- refusals ------------------------------------------------------------------------------------


class TwoLayers(nn.Module):
    """A model of a user, whose layers may be tied."""

    def __init__(self, tied=False):
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        if tied:
            self.second.weight = self.first.weight
        self.norm = nn.LayerNorm(6)

    def forward(self, x):
        return self.second(self.norm(self.first(x)))


@pytest.mark.parametrize(
    "build, plan, error, message",
    [
        (
            gpt,
            {"blocks.*.atention.query": "column"},
            sk.ShardingError,
            r"atention.query.*did you mean blocks...attention.query",
        ),
        (gpt, {"blocks.*.mlp.up": "colum"}, sk.ShardingError, "colum.*wanted one of column"),
        (gpt, {"head.norm": "row"}, sk.ShardingError, "head.norm is a LayerNorm"),
        (
            gpt,
            {"embedding.positions": "column"},
            sk.ShardingError,
            "Embedding, which cannot be column",
        ),
        (
            lambda: gpt(tied=True),
            {"embedding.tokens": "vocabulary"},
            sk.ShardingError,
            "head.output is not in it, but is tied",
        ),
        (
            gpt,
            {"blocks.*.mlp": "region", "blocks.*.mlp.up": "column"},
            sk.ShardingError,
            "mlp.down is inside a region",
        ),
        (
            lambda: gpt(width=48, heads=3),
            None,
            sk.ConfigurationError,
            r"3 heads = 2 tensor ranks x 1 \+ 1",
        ),
        (
            lambda: mlp(2),
            {"layers.0": "row"},
            sk.ConfigurationError,
            r"7 input features = 2 tensor ranks x 3 \+ 1",
        ),
        (
            lambda: sk.models.GPT(1, 8, width=16, layers=1, heads=2),
            None,
            sk.ConfigurationError,
            r"1 vocabulary rows = 2 tensor ranks x 0 \+ 1; wanted at least 2",
        ),
        (lambda: mlp(2), {"layers.1": "vocabulary"}, sk.ShardingError, "CrossEntropy"),
        (
            lambda: TwoLayers(tied=True),
            {"first": "column"},
            sk.ShardingError,
            "second is not in it",
        ),
        (
            lambda: TwoLayers(tied=True),
            {"first": "column", "second": "row"},
            sk.ShardingError,
            "otherwise than another layer",
        ),
        (TwoLayers, None, sk.ShardingError, "no default tensor plan for a TwoLayers"),
    ],
)
def test_a_plan_that_does_not_fit_is_refused_before_anything_changes(build, plan, error, message):
    def run(group):
        model = build().finish(0)
        before = model.named_modules()
        with pytest.raises(error, match=message):
            apply_plan(model, plan or default_plan(model), group)
        assert model.named_modules() == before
        assert not any(isinstance(p, SlicedParameter) or p.claim for p in model.parameters())

    sk.run_ranks(2, run)


@pytest.mark.parametrize("tensor", [1, 2])
@pytest.mark.parametrize(
    "plan, message",
    [
        ({"layers.7": "column"}, "'layers.7' matches no module of this MLP"),
        ({"layers.*": "rows"}, "'rows'; wanted one of column"),
        ({"nowhere": "row"}, "its modules are features, layers, layers.0"),
    ],
)
def test_a_plan_that_does_not_fit_is_refused_on_any_tensor_axis(tensor, plan, message):
    def run(backend):
        config = sk.ShardingConfiguration(backend, tensor_plan=plan)
        with pytest.raises(sk.ShardingError, match=message):
            sk.HybridShardedModel(sk.models.MLP([4, 8, 2]), config, tensor_parallel_size=tensor)

    sk.run_ranks(2, run)


def test_a_second_plan_and_sequence_parallelism_of_other_models_are_refused():
    def run(group):
        model = gpt()
        apply_plan(model, default_plan(model), group)
        with pytest.raises(sk.ShardingError, match="before"):
            apply_plan(model, {"head.norm": "region"}, group)
        with pytest.raises(sk.ShardingError, match="for a GPT"):
            apply_plan(mlp(2), default_plan(mlp(2)), group, sequence=True)
        sliced = gpt()
        apply_plan(sliced, default_plan(sliced), group, sequence=True)
        with pytest.raises(sk.ShapeError, match=r"11 = 2 tensor ranks x 5 \+ 1"):
            sliced(nn.Tensor(tokens()[0][:, :11]))

    sk.run_ranks(2, run)
