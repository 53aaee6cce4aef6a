"""GPT against a transformer written in PyTorch; names, ties, dropout, and text from the cache."""

import copy
import json

import numpy
import pytest
from torch_gpt import torch_block, torch_gpt, torch_weights
from torch_or_skip import torch

import shardkit as sk
from shardkit import ConfigurationError, ShapeError
from shardkit.nn import (
    CrossEntropy,
    ForwardContext,
    Tensor,
    TransformerBlock,
    forward_context,
    no_grad,
)
from shardkit.testing.nn import STYLES, Choice, Passes, TextPass, Texts

TOLERANCE = {"float32": 1e-5, "float64": 1e-10}
SIZES = {"vocabulary_size": 11, "sequence_length": 8, "width": 16, "layers": 2, "heads": 4}
styles = pytest.mark.parametrize("style", STYLES)
dtypes = pytest.mark.parametrize("dtype", TOLERANCE)


def gpt(**changes):
    return sk.models.GPT(**{**SIZES, "dtype": "float64", **changes})


def randomized(module, scale=0.3):
    """Every weight random, so that no initial 0 or 1 hides a mistake."""
    generator = numpy.random.default_rng(0)
    for parameter in module.finish().parameters():
        parameter.array = generator.normal(scale=scale, size=parameter.shape)
    return module


def token_ids(batch=3, sequence=8, seed=0):
    return numpy.random.default_rng(seed).integers(0, SIZES["vocabulary_size"], (batch, sequence))


# ---- against torch -------------------------------------------------------------------------------


def assert_gradients_equal(module, weights, dtype):
    for name, parameter in module.named_parameters().items():
        assert parameter.grad.dtype == dtype
        numpy.testing.assert_allclose(
            parameter.grad,
            weights[name].grad.numpy(),
            rtol=TOLERANCE[dtype],
            atol=TOLERANCE[dtype] * 10,
            err_msg=name,
        )


@dtypes
@styles
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_a_block_and_all_its_gradients_equal_those_of_torch(style, kv_heads, dtype):
    choices = STYLES[style]
    block = randomized(TransformerBlock(16, 4, kv_heads=kv_heads, style=choices, dtype=dtype))
    weights, values = (
        torch_weights(block),
        numpy.random.default_rng(1).normal(size=(2, 2, 5, 16)).astype(dtype),
    )
    x, x_torch = Tensor(values[0], requires_grad=True), torch.tensor(values[0], requires_grad=True)
    y, y_torch = block(x), torch_block(weights, x_torch, 4, choices.is_rotary)
    y.backward(values[1])
    y_torch.backward(torch.tensor(values[1]))
    numpy.testing.assert_allclose(
        y.array, y_torch.detach().numpy(), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] * 10
    )
    numpy.testing.assert_allclose(
        x.grad, x_torch.grad.numpy(), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] * 10
    )
    assert_gradients_equal(block, weights, dtype)


@dtypes
@styles
@pytest.mark.parametrize("tied", [False, True])
def test_the_loss_and_all_gradients_of_a_gpt_equal_those_of_torch(style, tied, dtype):
    model, ids, y = (
        randomized(gpt(style=style, tied=tied, kv_heads=2, dtype=dtype)),
        token_ids(),
        token_ids(seed=1),
    )
    weights = torch_weights(model)
    loss = model.loss(model(ids), y)
    loss.backward()
    logits = torch_gpt(weights, ids, model.settings).reshape(-1, 11)
    loss_torch = torch.nn.functional.cross_entropy(logits, torch.tensor(y).reshape(-1))
    loss_torch.backward()
    assert loss.item() == pytest.approx(loss_torch.item(), rel=TOLERANCE[dtype])
    assert_gradients_equal(model, weights, dtype)


# ---- what it is made of --------------------------------------------------------------------------


def names_of_block(style, index):
    parts = {
        "gpt2": [
            "attention_norm",
            "attention.query",
            "attention.key",
            "attention.value",
            "attention.output",
            "mlp_norm",
            "mlp.up",
            "mlp.down",
        ],
        "llama": [
            "attention_norm",
            "attention.query",
            "attention.key",
            "attention.value",
            "attention.output",
            "mlp_norm",
            "mlp.gate",
            "mlp.up",
            "mlp.down",
        ],
    }[style]
    ends = ["weight", "bias"] if style == "gpt2" else ["weight"]
    return [f"blocks.{index}.{part}.{end}" for part in parts for end in ends]


@styles
@pytest.mark.parametrize("tied", [False, True])
def test_parameters_have_these_names_in_this_order(style, tied):
    is_gpt2 = style == "gpt2"
    expected = [
        "embedding.tokens.weight",
        *["embedding.positions.weight"] * is_gpt2,
        *names_of_block(style, 0),
        *names_of_block(style, 1),
        "head.norm.weight",
        *["head.norm.bias"] * is_gpt2,
        *["head.output.weight"] * (not tied),
    ]
    assert list(gpt(style=style, tied=tied).named_parameters()) == expected


@styles
def test_the_chain_of_blocks_is_the_forward_pass(style):
    model, x = gpt(style=style), token_ids()
    names = [name for name, _ in model.blocks()]
    assert names == ["embedding", "blocks.0", "blocks.1", "head"]
    for name, block in model.blocks():
        assert model.named_modules()[name] is block
        x = block(x)
    assert numpy.array_equal(x.array, model.predict(token_ids())) and isinstance(
        model.loss, CrossEntropy
    )


def test_making_a_model_makes_no_arrays():
    assert all(
        p.is_fresh
        for p in sk.models.GPT(50_000, 2048, width=8192, layers=80, heads=64).parameters()
    )


@styles
def test_initial_weights_have_the_spread_of_gpt2(style):
    model = gpt(style=style, width=64, layers=8)
    spread = {name: p.array.std() for name, p in model.named_parameters().items()}
    assert spread["blocks.3.attention.query.weight"] == pytest.approx(0.02, rel=0.1)
    assert spread["embedding.tokens.weight"] == pytest.approx(0.02, rel=0.1)
    for name in ("attention.output", "mlp.down"):
        assert spread[f"blocks.3.{name}.weight"] == pytest.approx(0.02 / 16**0.5, rel=0.1)
    for name, p in model.named_parameters().items():
        assert (
            (p.array == 0).all()
            if name.endswith("bias")
            else (p.array == 1).all()
            if "norm" in name
            else p.array.std() > 0
        )


def test_the_seed_decides_the_initial_weights():
    a, b, c = gpt(seed=1).state_dict(), gpt(seed=1).state_dict(), gpt(seed=2).state_dict()
    assert all(numpy.array_equal(a[name], b[name]) for name in a)
    assert not numpy.array_equal(a["head.output.weight"], c["head.output.weight"])


def test_tied_weights_are_one_parameter_and_get_both_gradients():
    model = gpt(tied=True)
    table = model.embedding.tokens.weight
    assert model.head.output.weight is table and table.name == "embedding.tokens.weight"
    ids = token_ids()
    model.loss(model(ids), ids).backward()
    both = table.grad.copy()
    table.grad, x = None, Tensor(model.layers[1](model.layers[0](model.embedding(ids))).array)
    model.loss(model.head(x), ids).backward()
    from_head = table.grad.copy()
    unused = numpy.setdiff1d(numpy.arange(11), ids)
    used = numpy.unique(ids)
    assert (
        numpy.allclose(both[unused], from_head[unused])
        and not numpy.isclose(both[used], from_head[used]).all()
    )


@styles
def test_a_configuration_survives_json_and_builds_an_equal_model(style):
    model = gpt(style=style, kv_heads=2, tied=True, dropout=0.25, seed=7, dtype="float32")
    twin = sk.models.GPT(**json.loads(json.dumps(model.configuration())))
    assert twin.settings == model.settings
    assert numpy.array_equal(twin.predict(token_ids()), model.predict(token_ids()))


@styles
def test_hidden_units_norm_epsilon_and_rotary_base_are_those_asked_for(style):
    model = randomized(gpt(style=style, hidden=10, norm_eps=0.1, rotary_base=100.0))
    wanted = torch_gpt(torch_weights(model), token_ids(), model.settings).detach().numpy()
    numpy.testing.assert_allclose(model.predict(token_ids()), wanted, rtol=1e-10, atol=1e-10)
    assert model.layers[0].mlp.up.weight.shape == (10, 16)


def test_the_hidden_width_is_four_times_or_for_llama_near_eight_thirds():
    assert gpt(width=48).layers[0].mlp.up.weight.shape == (192, 48)
    for width, hidden in [(48, 128), (64, 168), (4, 8), (1024, 2728)]:
        assert sk.models.GPT(11, 8, width, 1, 2, style="llama").layers[0].mlp.gate.weight.shape == (
            hidden,
            width,
        )


def test_flops_per_token_are_six_per_multiplied_weight_plus_attention():
    model, attention = gpt(), 12 * 2 * 16 * 8
    assert model.num_flops_per_token == 6 * (model.parameter_count - 11 * 16 - 8 * 16) + attention
    assert gpt(tied=True).num_flops_per_token == model.num_flops_per_token


# ---- refused -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"width": 18}, "width 18 = 4 heads x 4 \\+ 2; .* such as 20"),
        ({"kv_heads": 3}, "4 heads = 3 kv_heads x 1 \\+ 1"),
        ({"kv_heads": 8}, "4 heads = 8 kv_heads x 0 \\+ 4"),
        ({"width": 12, "style": "llama"}, "12 / 4 heads = head dim 3, which is odd"),
        ({"layers": 0}, "layers = 0"),
        ({"heads": 0}, "heads = 0"),
        ({"vocabulary_size": -1}, "vocabulary_size = -1"),
        ({"sequence_length": 2.5}, "sequence_length = 2.5"),
        ({"style": "bert"}, "'bert'; wanted one of gpt2, llama"),
        ({"dtype": "int32"}, "wanted one of float32, float64"),
        ({"dropout": 1.5}, "p = 1.5"),
        ({"hidden": 0}, "hidden = 0"),
        ({"norm_eps": 0.0}, "norm_eps = 0.0"),
        ({"rotary_base": float("nan")}, "rotary_base = nan"),
        ({"window": 0}, "window = 0; wanted a number of tokens from 1 on"),
        ({"window": True}, "window = True"),
        ({"window": 4.0}, "window = 4.0"),
        ({"full_layers": (0,)}, r"full_layers = \(0,\); wanted a window with it"),
        ({"window": 4, "full_layers": (2,)}, r"full_layers = \(2,\); wanted numbers .* 0 .. 1"),
        ({"window": 4, "full_layers": (0, 0)}, "each once"),
        ({"window": 4, "full_layers": (True,)}, "full_layers = .True"),
        ({"window": 4, "full_layers": 1}, "full_layers = 1; wanted numbers"),
    ],
    ids=str,
)
def test_sizes_that_do_not_fit_are_refused_with_the_arithmetic(changes, message):
    with pytest.raises(ConfigurationError, match=message) as error:
        gpt(**changes)
    assert isinstance(error.value, ValueError)


@styles
@pytest.mark.parametrize("full_layers, reach", [((), 5), ((1,), 8)])
def test_what_a_token_tells_reaches_a_window_further_in_each_layer(full_layers, reach, style):
    """With a window of 3, two tokens further in each of two layers, or in a full one to the end."""
    model = gpt(style=style, window=3, full_layers=full_layers, dtype="float64")
    x = numpy.arange(8)[None]
    other = x.copy()
    other[0, 0] = 10
    moved = abs(model.predict(x) - model.predict(other)).max(axis=(0, 2)) > 0
    assert moved.tolist() == [place < reach for place in range(8)]
    assert model.configuration()["window"] == 3
    whole = gpt(style=style, dtype="float64")
    saved = 12 * 4 * (16 // 4) * (8 - 3) * (2 - len(full_layers))
    assert whole.num_flops_per_token - model.num_flops_per_token == saved


@styles
@pytest.mark.parametrize(
    "x, message",
    [
        (numpy.zeros((1, 9), int), "9 tokens, but it was made for sequence_length = 8"),
        (numpy.full((1, 3), 11), "ids from 11 to 11; wanted 0 <= id < 11"),
        (numpy.full((1, 3), -1), "wanted 0 <= id < 11"),
        (numpy.zeros(3, int), "wanted integers \\[batch, sequence\\]"),
        (numpy.zeros((1, 3)), "wanted integers"),
    ],
    ids=["too long", "too large", "negative", "1-D", "float"],
)
def test_input_that_is_not_tokens_is_refused(style, x, message):
    with pytest.raises(ShapeError, match=message):
        gpt(style=style).predict(x)


# ---- pure functions of input, parameters and context ---------------------------------------------


def trained_output(model, ids, **context):
    with (
        no_grad(),
        forward_context(ForwardContext(**{"training": True, "seed": 3, "step": 4, **context})),
    ):
        return model(ids).array


def test_every_dropout_has_a_path_of_its_own():
    paths = [
        module.path_in_model
        for module in gpt(dropout=0.5).named_modules().values()
        if type(module).__name__ == "Dropout"
    ]
    assert paths == [
        "embedding.dropout",
        "blocks.0.attention.dropout",
        "blocks.0.mlp.dropout",
        "blocks.1.attention.dropout",
        "blocks.1.mlp.dropout",
    ]


@styles
def test_with_dropout_the_output_of_a_sample_does_not_depend_on_how_the_batch_is_cut(style):
    model, ids = randomized(gpt(style=style, dropout=0.3)), token_ids(batch=4)
    whole = trained_output(model, ids)
    parts = [trained_output(model, ids[start : start + 2], first_sample=start) for start in (0, 2)]
    numpy.testing.assert_allclose(numpy.concatenate(parts), whole, rtol=1e-12)
    assert not numpy.allclose(trained_output(model, ids, step=5), whole)


def test_a_block_run_again_under_the_same_context_gives_the_same_bits():
    model, ids = randomized(gpt(dropout=0.3)), token_ids()
    assert numpy.array_equal(trained_output(model, ids), trained_output(model, ids))


@styles
def test_dropout_is_inactive_outside_training(style):
    model, plain = gpt(style=style, dropout=0.9), gpt(style=style)
    with forward_context(ForwardContext(training=True)):
        assert numpy.array_equal(model.predict(token_ids()), plain.predict(token_ids()))


@styles
def test_a_logit_does_not_depend_on_later_tokens(style):
    model, ids = randomized(gpt(style=style)), token_ids()
    changed = ids.copy()
    changed[:, 5:] = (changed[:, 5:] + 1) % 11
    before, after = model.predict(ids), model.predict(changed)
    assert (
        numpy.array_equal(before[:, :5], after[:, :5])
        and not numpy.isclose(before[:, 5:], after[:, 5:]).all()
    )


# ---- generation ----------------------------------------------------------------------------------


@styles
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_logits_from_the_cache_equal_those_of_the_forward_to_rounding(style, kv_heads):
    model, text = randomized(gpt(style=style, kv_heads=kv_heads)), token_ids(1)[0].tolist()
    passes, texts = Passes(model), Texts(1, 8)
    for length in range(2, 9):  # the first pass takes two tokens together, the others one
        expected = model.predict(numpy.array([text[:length]]))[0, -1]
        count = 2 if length == 2 else 1
        step = TextPass(texts, [0], [count])
        new = text[length - count : length]
        numpy.testing.assert_allclose(passes.logits([new], step)[0], expected, rtol=1e-10)
        step.finish()


def test_after_the_prompt_each_token_costs_one_position_until_the_window_slides(monkeypatch):
    computed, attend = [], TransformerBlock.forward
    monkeypatch.setattr(
        TransformerBlock,
        "forward",
        lambda self, x: computed.append(x.shape[1]) or attend(self, x),
    )
    gpt(layers=1).generate([1, 2, 3], 8)
    assert computed == [3, 1, 1, 1, 1, 1, 8, 8]


@styles
@pytest.mark.parametrize("prompt_length", [1, 5, 8, 12])
def test_generated_text_equals_that_of_the_plain_forward_on_the_last_window(style, prompt_length):
    model = randomized(gpt(style=style))
    text = numpy.resize(token_ids(1)[0], prompt_length).tolist()
    generated = model.generate(text, 12, temperature=0)
    for token in generated:
        assert token == model.predict(numpy.array([text[-8:]]))[0, -1].argmax()
        text.append(token)
    assert generated.dtype == numpy.int64 and generated.shape == (12,)


def test_the_same_seed_gives_the_same_text_and_another_seed_another():
    model = gpt()
    assert numpy.array_equal(model.generate([1, 2], 20, seed=5), model.generate([1, 2], 20, seed=5))
    assert not numpy.array_equal(
        model.generate([1, 2], 20, seed=5), model.generate([1, 2], 20, seed=6)
    )


def test_more_tokens_begin_with_the_same_tokens():
    model = gpt()
    assert numpy.array_equal(model.generate([1], 15, seed=5)[:6], model.generate([1], 6, seed=5))


@pytest.mark.parametrize("cuts", [(5, 7), (1, 1, 10), (4, 4, 4)])
def test_a_text_that_is_continued_is_the_text_of_one_call(cuts):
    model, text = gpt(), [3, 1, 2]
    whole = model.generate(text, 12, seed=5)
    for count in cuts:
        text = [*text, *model.generate(text, count, seed=5).tolist()]
    assert text[3:] == whole.tolist()


def test_a_text_that_is_continued_draws_no_number_twice():
    """With equal logits for all tokens the text is the random numbers themselves."""
    model = gpt()
    for parameter in model.parameters():
        parameter.array = numpy.zeros(parameter.shape, parameter.dtype)
    first = model.generate([1], 60, seed=5).tolist()
    second = model.generate([1, *first], 60, seed=5).tolist()
    assert sum(a == b for a, b in zip(first, second)) < 20


def test_generating_no_tokens_gives_an_empty_array():
    assert gpt().generate([1], 0).shape == (0,)


def test_generating_leaves_parameters_without_gradients_and_ignores_dropout():
    model = gpt(dropout=0.9)
    with forward_context(ForwardContext(training=True)):
        assert numpy.array_equal(model.generate([1], 5), gpt().generate([1], 5))
    assert all(p.grad is None for p in model.parameters())


def test_tokens_are_drawn_in_proportion_to_their_probabilities():
    logits, chances = (
        numpy.log(numpy.array([0.5, 0.25, 0.125, 0.125])),
        (numpy.arange(800) + 0.5) / 800,
    )
    counts = numpy.bincount([Choice().token(logits, chance) for chance in chances])
    assert counts.tolist() == [400, 200, 100, 100]
    squared = (
        numpy.bincount([Choice(0.5).token(logits, chance) for chance in chances], minlength=4) / 800
    )
    assert squared == pytest.approx(numpy.array([16, 4, 1, 1]) / 22, abs=1 / 400)


def test_an_impossible_token_is_never_drawn():
    logits = numpy.array([-numpy.inf, 0, -numpy.inf])
    assert {Choice().token(logits, chance) for chance in (0.0, 0.5, 1 - 2**-53)} == {1}


@pytest.mark.parametrize("prompt", [[], [[1]], [1.5], [11], [-1]], ids=str)
def test_a_prompt_that_is_not_tokens_is_refused(prompt):
    with pytest.raises(ShapeError, match="prompt"):
        gpt().generate(prompt, 3)


@pytest.mark.parametrize(
    "arguments",
    [
        {"num_tokens": -1},
        {"num_tokens": 1, "temperature": -0.5},
        {"num_tokens": 1, "temperature": float("nan")},
    ],
    ids=str,
)
def test_negative_numbers_and_temperatures_are_refused(arguments):
    with pytest.raises(ConfigurationError, match="below 0"):
        gpt().generate([1], **arguments)


def test_a_full_cache_refuses_more():
    texts = Texts(1, capacity=3)
    TextPass(texts, [0], [2]).finish()
    TextPass(texts, [0], [1]).finish()
    with pytest.raises(
        ShapeError, match="1 positions do not fit behind 3 in a key/value cache of 3"
    ):
        TextPass(texts, [0], [1])


# ---- learning ------------------------------------------------------------------------------------


@styles
def test_a_few_steps_of_plain_descent_lower_the_loss(style):
    model, ids = gpt(style=style, dtype="float32"), token_ids()
    x, y = ids[:, :-1], ids[:, 1:]
    losses = []
    for _ in range(30):
        loss = model.loss(model(x), y)
        loss.backward()
        losses.append(loss.item())
        for parameter in model.parameters():
            parameter.array -= 0.5 * parameter.grad
            parameter.grad = None
    assert losses[0] == pytest.approx(numpy.log(11), rel=0.05) and losses[-1] < 0.8 * losses[0]


def test_a_deep_copy_learns_alone_and_stays_tied():
    model = gpt(tied=True)
    twin = copy.deepcopy(model)
    twin.embedding.tokens.weight.array += 1
    assert twin.head.output.weight is twin.embedding.tokens.weight
    assert not numpy.array_equal(twin.predict(token_ids()), model.predict(token_ids()))
