"""Text of sharded language models: on any mesh it is that of the unsharded model."""

import numpy
import pytest

import shardkit as sk
from shardkit import ConfigurationError, NonFiniteError, ShapeError, ShardingError
from shardkit.testing.nn import Choice, TextPass, generation

PROMPTS = [[3, 1, 4, 1, 5], [2], [9, 2, 6], [5, 3, 5], [8, 9, 7, 9, 3, 2, 3]]
WINDOW = 12
MESHES = {  # pipeline, tensor, policy, number of ranks
    "one": (1, 1, "fsdp", 1),
    "data": (1, 1, "fsdp", 3),
    "ddp": (1, 1, "ddp", 2),
    "tensor": (1, 2, "ddp", 2),
    "pipeline": (2, 1, "ddp", 2),
    "all": (2, 2, "fsdp", 8),
    "groups": (1, 1, "hsdp", 4),
    "groups of stages": (2, 1, "hsdp", 8),
}


def gpt(style="llama", **options):
    return sk.models.GPT(
        11, WINDOW, 16, 2, 4, kv_heads=2, style=style, dtype="float64", seed=3, **options
    )


def alone(model, **how):
    """Each text by itself."""
    return [
        model.generate(prompt, 10, seed=seed, **how).tolist() for seed, prompt in enumerate(PROMPTS)
    ]


def on_mesh(mesh, task, style="llama", sight=None, **options):
    pipeline, tensor, policy, num_ranks = MESHES[mesh]

    def on_rank(backend):
        groups = {"shard_ranks": 2} if policy == "hsdp" else {}
        config = sk.ShardingConfiguration(backend, optimizer=sk.SGD(lr=0.1), **groups, **options)
        whole = gpt(style, **(sight or {}))
        model = sk.HybridShardedModel(whole, config, pipeline, tensor, policy=policy)
        return task(model)

    return sk.run_ranks(num_ranks, on_rank)


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.thorough(but=3)
def test_each_text_is_that_of_the_unsharded_model_alone(mesh):
    """Some texts outgrow the window of twelve, at different times."""
    how = {"temperature": 0.7, "top_k": 6, "top_p": 0.9, "repetition_penalty": 1.3}
    texts = on_mesh(mesh, lambda model: model.generate(PROMPTS, 10, **how))
    expected = alone(gpt(), **how)
    assert all([text.tolist() for text in of_rank] == expected for of_rank in texts)


@pytest.mark.parametrize("style", ["gpt2", "llama"])
@pytest.mark.parametrize("sight", [{}, {"window": 3}, {"window": 2, "full_layers": (0,)}], ids=str)
def test_the_likeliest_tokens_are_those_of_plain_predictions(style, sight):
    """Of attention with a window too, whose texts are read and continued together."""
    (texts,) = on_mesh("one", lambda model: model.generate(PROMPTS, 10, 0), style, sight)
    model = gpt(style, **sight)
    if sight:
        assert [text.tolist() for text in texts] != alone(gpt(style), temperature=0)
    for prompt, text in zip(PROMPTS, texts):
        seen = list(prompt)
        for token in text:
            assert token == model.predict(numpy.array([seen[-WINDOW:]]))[0, -1].argmax()
            seen.append(token)


def test_sequence_parallel_ranks_write_the_same_text():
    texts = on_mesh("tensor", lambda model: model.generate(PROMPTS, 6), sequence_parallel=True)
    model = gpt()
    expected = [model.generate(p, 6, seed=seed).tolist() for seed, p in enumerate(PROMPTS)]
    assert all([text.tolist() for text in of_rank] == expected for of_rank in texts)


def test_a_text_that_sequence_parallel_ranks_would_fill_up_beyond_the_model_is_refused():
    """Of 11 tokens that 2 ranks fill up to 12; one of 10 is written."""

    def on_rank(backend):
        config = sk.ShardingConfiguration(backend, sequence_parallel=True)
        model = sk.TensorParallelModel(sk.models.GPT(11, 11, 8, 1, 2, seed=3), config)
        with pytest.raises(
            ConfigurationError, match=r"11 tokens = 2 tensor ranks x 5 \+ 1, .* 11 of"
        ):
            model.generate([PROMPTS[0]], 7)
        return len(model.generate([PROMPTS[0]], 6)[0])

    assert sk.run_ranks(2, on_rank) == [6, 6]


def test_a_text_ends_before_its_stop_token():
    whole = alone(gpt())
    stop = whole[0][4]
    expected = [text[: text.index(stop)] if stop in text else text for text in whole]
    assert len(expected[0]) <= 4
    for texts in on_mesh("data", lambda model: model.generate(PROMPTS, 10, stop=[stop])):
        assert [text.tolist() for text in texts] == expected


def test_no_prompts_and_no_tokens_are_fine():
    def none(model):
        return model.generate([], 5), model.generate([[1]], 0)

    for texts, (nothing,) in on_mesh("data", none):
        assert texts == [] and nothing.shape == (0,)


@pytest.mark.parametrize("together", [1, 2, 4])
def test_a_text_has_the_same_logits_to_the_bit_beside_any_others(together, monkeypatch):
    """In float32, and while prompts are read in passes that continue other texts."""
    seen = {}

    def noted(choice, logits, chance, text=()):
        seen.setdefault(tuple(text), set()).add(logits.tobytes())
        return token(choice, logits, chance, text)

    token = Choice.token
    monkeypatch.setattr(Choice, "token", noted)

    def on_rank(backend):
        model = sk.models.GPT(61, WINDOW, 40, 2, 4, kv_heads=2, style="llama", seed=3)
        config = sk.ShardingConfiguration(backend, optimizer=sk.SGD(lr=0.1))
        sharded = sk.DDPModel(model, config)
        texts = sharded.generate(PROMPTS, 10, 0.7, together=together)
        beside = sharded.generate(PROMPTS[::-1], 10, 0.7, seeds=range(len(PROMPTS))[::-1])
        alone = [model.generate(p, 10, 0.7, seed=i).tolist() for i, p in enumerate(PROMPTS)]
        assert [text.tolist() for text in texts] == alone
        assert [text.tolist() for text in beside[::-1]] == alone

    sk.run_ranks(1, on_rank)
    assert len(seen) > 40 and max(map(len, seen.values())) == 1


def test_prompts_that_do_not_fit_into_one_pass_are_read_in_several(monkeypatch):
    counts = []
    monkeypatch.setattr(generation, "POSITIONS", 8)
    expected = alone(gpt())
    make = TextPass.__init__

    def noted(self, texts, rows, given):
        counts.append(given)
        make(self, texts, rows, given)

    monkeypatch.setattr(TextPass, "__init__", noted)
    (texts,) = on_mesh("one", lambda model: model.generate(PROMPTS, 10, together=3))
    assert [text.tolist() for text in texts] == expected
    assert counts[:3] == [[5, 3], [1, 1, 1], [1, 1, 1]] and [7, 1] in counts
    assert all(sum(given) <= 8 or len(given) == 1 for given in counts)


def test_a_repetition_penalty_is_that_of_its_paper():
    logits = numpy.array([2.0, -1.0, 1.5, 3.0], "float32")
    greedy = Choice(temperature=0, repetition_penalty=2.0)
    assert greedy.token(logits, 0.0) == 3
    assert greedy.token(logits, 0.0, [3]) == 0
    assert greedy.token(logits, 0.0, [3, 0, 3]) == 2  # 3.0 is divided once
    assert greedy.token(-logits, 0.0, [1]) == 1 and greedy.token(-logits, 0.0, [1, 1, 2]) == 1
    drawn = shares(Choice(repetition_penalty=2.0), numpy.log([0.5, 0.25, 0.25]), [0])
    assert drawn == pytest.approx([1 / 3, 1 / 3, 1 / 3], abs=1e-3)


@pytest.mark.thorough
def test_top_p_looks_as_far_as_it_must(monkeypatch):
    logits = numpy.random.default_rng(0).normal(size=500)
    given = [Choice(top_p=p, top_k=k) for p in (0.01, 0.5, 0.999, 1.0) for k in (None, 3, 999)]
    whole = [shares(choice, logits, count=400) for choice in given]
    monkeypatch.setattr(generation, "FIRST_LOOK", 1)
    assert [shares(choice, logits, count=400) for choice in given] == whole
    weights = numpy.sort(numpy.exp(logits))[::-1]
    num_drawn = 1 + int((weights.cumsum() < 0.5 * weights.sum()).sum())
    chances = numpy.linspace(0, 1, 100_000, endpoint=False)
    drawn = {Choice(top_p=0.5).token(logits, chance) for chance in chances[::50]}
    assert drawn <= set(numpy.argsort(-logits)[:num_drawn].tolist()) and num_drawn < 200
    assert len(drawn) > 0.9 * num_drawn


def shares(choice, logits, text=(), count=1600):
    """How often each token is drawn at evenly spread chances."""
    chances = (numpy.arange(count) + 0.5) / count
    drawn = [choice.token(logits, chance, text) for chance in chances]
    return (numpy.bincount(drawn, minlength=len(logits)) / count).tolist()


def test_top_k_and_top_p_draw_from_the_likeliest_in_proportion():
    logits = numpy.log(numpy.array([0.125, 0.5, 0.125, 0.25]))
    assert shares(Choice(top_k=1), logits) == [0, 1, 0, 0]
    assert shares(Choice(top_k=2), logits) == pytest.approx([0, 2 / 3, 0, 1 / 3], abs=1e-3)
    assert shares(Choice(top_p=0.5), logits) == [0, 1, 0, 0]
    assert shares(Choice(top_p=0.51), logits) == pytest.approx([0, 2 / 3, 0, 1 / 3], abs=1e-3)
    assert shares(Choice(top_p=0.8), logits) == pytest.approx([1 / 7, 4 / 7, 0, 2 / 7], abs=1e-3)
    assert shares(Choice(top_k=3, top_p=1.0), logits) == shares(Choice(top_k=3), logits)


@pytest.mark.parametrize(
    "prompts, options, error, match",
    [
        ([[1], []], {}, ShapeError, "at least one"),
        ([[11]], {}, ShapeError, "0 <= token < 11"),
        ([[1]], {"num_tokens": -1}, ConfigurationError, "not below 0"),
        ([[1]], {"temperature": -1.0}, ConfigurationError, "not below 0"),
        ([[1]], {"top_k": 0}, ConfigurationError, "top_k"),
        ([[1]], {"top_p": 1.5}, ConfigurationError, "top_p"),
        ([[1]], {"repetition_penalty": 0}, ConfigurationError, "repetition_penalty"),
        ([[1]], {"together": 0}, ConfigurationError, "together"),
        ([[1]], {"stop": [-1]}, ConfigurationError, "stop"),
        ([[1]], {"seeds": [1, 2]}, ConfigurationError, "seeds"),
        ([[1]], {"seeds": 5}, ConfigurationError, "seeds = 5"),
        ([[1]], {"seeds": [None]}, ConfigurationError, "seeds"),
        ([[1]], {"temperature": None}, ConfigurationError, "temperature = None"),
        ([[1]], {"stop": 5}, ConfigurationError, "stop = 5; wanted token numbers"),
        ([[1]], {"stop": "ab"}, ConfigurationError, "stop"),
        ([[1]], {"on_token": 3}, ConfigurationError, "on_token"),
        (5, {}, ConfigurationError, "prompts = 5; wanted a list"),
        ([1, 2], {}, ShapeError, "1-D integers"),
    ],
)
def test_what_cannot_be_continued_is_refused_on_all_ranks(prompts, options, error, match):
    def refused(model):
        given = {"num_tokens": 3, **options}
        with pytest.raises(error, match=match):
            model.generate(prompts, **given)
        return True

    assert on_mesh("data", refused) == [True] * 3


def test_ranks_with_different_prompts_are_refused():
    def refused(model):
        with pytest.raises(ShardingError, match="prompts"):
            model.generate([[model.rank]], 3)
        return True

    assert on_mesh("ddp", refused) == [True] * 2


def test_a_model_of_no_language_is_refused():
    def refused(backend):
        config = sk.ShardingConfiguration(backend, optimizer=sk.SGD(lr=0.1))
        with pytest.raises(ConfigurationError, match="wanted a language model"):
            sk.DDPModel(sk.models.MLP([2, 1]), config).generate([[1]], 3)
        return True

    assert sk.run_ranks(2, refused) == [True, True]


@pytest.mark.parametrize("mesh", ["data", "tensor", "pipeline"])
def test_logits_that_are_no_numbers_are_refused_on_all_ranks(mesh):
    """One prompt alone meets the NaN: its rank must not leave the others waiting."""
    heard = []

    def refused(model):
        parameters = model.gather_full_parameters()
        parameters[7 * 16] = numpy.nan  # of the row of token 7
        model.set_parameters(parameters)
        with pytest.raises(NonFiniteError, match="behind 0 new tokens of prompt 1"):
            model.generate([[1], [7]], 3, on_token=lambda *told: heard.append(told))
        return True

    assert set(on_mesh(mesh, refused)) == {True}
    assert all(number == 0 and token >= 0 for number, token in heard)


@pytest.mark.parametrize("bad", [numpy.nan, numpy.inf])
@pytest.mark.parametrize("temperature", [0, 1.0])
def test_no_token_is_chosen_among_what_is_no_number(bad, temperature):
    choice = Choice(temperature, top_k=2)
    assert choice.token(numpy.array([0.0, bad, 1.0]), 0.5) == -1
    assert choice.token(numpy.full(3, -numpy.inf), 0.5) == -1
    assert choice.token(numpy.array([0.0, -numpy.inf, -9.0]), 0.5) == 0


def test_a_model_alone_refuses_them_too():
    model = gpt()
    model.load_state_dict({name: each * numpy.nan for name, each in model.state_dict().items()})
    with pytest.raises(NonFiniteError, match="prompt 0"):
        model.generate([1, 2], 3)
