"""The benchmarks compare what they say they compare."""

import ast
import importlib
import importlib.util
from pathlib import Path

import numpy
import pytest
from torch_or_skip import torch

BENCHMARKS = str(Path(__file__).resolve().parents[2] / "benchmarks")


@pytest.fixture(autouse=True)
def benchmarks_importable(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)


@pytest.mark.parametrize("style", ["gpt2", "llama"])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_a_twin_has_the_names_logits_and_gradients_of_our_model(style, attention):
    pytest.importorskip("torch")
    from contestants import Sizes, shardkit_gpt, token_batch
    from twins import GPT, mean_loss

    sizes = Sizes("T", vocabulary=31, width=16, heads=2, layers=2, sequence=8, batch=3, style=style)
    ours, twin = shardkit_gpt(sizes), GPT(sizes, attention)
    twin.load_state_dict(
        {name: torch.from_numpy(array) for name, array in ours.state_dict().items()}
    )
    x, y = token_batch(sizes, 5)
    mean_loss(twin(torch.from_numpy(x)), torch.from_numpy(y)).backward()
    ours.loss(ours(x), y).backward()
    numpy.testing.assert_allclose(
        twin(torch.from_numpy(x)).detach().numpy(), ours.predict(x), rtol=1e-5, atol=1e-6
    )
    for name, parameter in ours.named_parameters().items():
        numpy.testing.assert_allclose(
            twin.get_parameter(name).grad.numpy(),
            parameter.grad,
            rtol=1e-4,
            atol=1e-7,
            err_msg=name,
        )


def test_contestants_take_turns_forwards_and_backwards():
    from report import interleaved

    order = []
    seconds = interleaved(
        {"a": lambda: order.append("a"), "b": lambda: order.append("b")}, repeats=2
    )
    assert order == ["a", "b", "b", "a", "a", "b"] and list(map(len, seconds.values())) == [2, 2]


def test_a_table_shows_every_cell_and_what_was_not_measured():
    from report import Table

    text = Table(
        "title", ["name", "ms"], [["a", 1.23456], ["b", None], ["c", 12345.6]], note="why"
    ).markdown()
    figures = [line.split("|")[2].strip() for line in text.splitlines() if line.startswith("|")]
    assert figures == ["ms", "-----:", "1.23", "-", "12,346"]
    assert text.startswith("**title**") and text.endswith("why")


def test_a_global_batch_depends_on_the_number_of_the_step_alone():
    from contestants import Sizes, token_batch

    sizes = Sizes("T", vocabulary=31, width=16, heads=2, layers=2, sequence=8, batch=4)
    (x, y), (again, _), (other, _) = (
        token_batch(sizes, 1),
        token_batch(sizes, 1),
        token_batch(sizes, 2),
    )
    assert (
        numpy.array_equal(x, again)
        and not numpy.array_equal(x, other)
        and numpy.array_equal(x[:, 1:], y[:, :-1])
    )


def test_what_benchmarks_import_from_the_package_is_there():
    """Some import late, in the processes of a race: a name that moved would show there alone."""
    wrong = [
        f"{path.name}: {module}.{name}"
        for path in sorted(Path(BENCHMARKS).rglob("*.py"))
        for module, name in _imported(ast.parse(path.read_text()))
        if not hasattr(importlib.import_module(module), name)
        and importlib.util.find_spec(f"{module}.{name}") is None
    ]
    assert not wrong


def _imported(tree):
    return [
        (node.module, name.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("shardkit")
        for name in node.names
    ]
