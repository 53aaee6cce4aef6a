"""The benchmarks compare what they say they compare."""

import ast
import importlib
import importlib.util
from pathlib import Path

import numpy
import pytest
from each_case import check_each
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


@pytest.mark.parametrize("model", ["ResNet", "UNet", "FNO", "LSTM", "ViT", "MessagePassing", "MLP"])
def test_a_twin_of_a_model_of_science_has_its_loss_and_gradients(model):
    pytest.importorskip("torch")
    from problems import PROBLEMS, Problem
    from science_twins import TWINS

    small = {
        "ResNet": ({"width": 8}, (2, 3, 8, 8), 10),
        "UNet": ({"width": 8}, (2, 2, 8, 16), (2, 1, 8, 16)),
        "FNO": ({"width": 4, "modes": (3, 4)}, (2, 2, 8, 10), (2, 1, 8, 10)),
        "LSTM": ({"width": 6}, (3, 5, 16), (3, 4)),
        "ViT": ({"width": 12, "depth": 2, "image_size": 8}, (2, 3, 8, 8), 10),
        "MessagePassing": ({"width": 8}, (2, 7, 8), (2, 7, 2)),
        "MLP": ({"sizes": (5, 7, 6, 3)}, (4, 5), (4, 3)),
    }
    raced = next(each for each in PROBLEMS.values() if each.model == model)
    arguments, x, y = small[model]
    graph = None if raced.graph is None else (7, 20)
    problem = Problem("small", model, raced.arguments | arguments, x, y, graph)
    ours, twin = problem.our_model(), problem.made_by(TWINS.__getitem__).double().eval()
    weights = {name: torch.from_numpy(array) for name, array in ours.state_dict().items()}
    twin.load_state_dict(weights)
    x, y = problem.step_batch(3)
    floats = y if y.dtype.kind == "i" else y.astype("float64")
    loss = twin.loss(twin(torch.from_numpy(x).double()), torch.from_numpy(floats))
    loss.backward()
    found = ours.loss(ours(x), y)
    found.backward()
    numpy.testing.assert_allclose(found.array, loss.item(), rtol=1e-5)
    expected = dict(twin.named_parameters())
    for name, parameter in ours.named_parameters().items():
        theirs = expected[name].grad.numpy()
        largest = max(abs(theirs).max(), 1e-3)
        assert abs(parameter.grad - theirs).max() < 1e-3 * largest, name
        expected.pop(name)
    assert not expected and twin.parts()


def test_each_problem_of_science_has_a_second_size():
    from contestants import sizes_from
    from problems import PROBLEMS, SECOND

    names = list(PROBLEMS)
    for first, second in zip(names[::2], names[1::2]):
        assert PROBLEMS[first].model == PROBLEMS[second].model
        assert first not in SECOND and second in SECOND
    assert all(sizes_from(problem.to_json()) is problem for problem in PROBLEMS.values())


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


def test_a_ratio_has_fallen_beyond_the_noise_of_both_runs_and_no_sooner(tmp_path):
    from guard import Ratio, cpu_of, judged, keep, kept_ratios

    about = {"processor": "a CPU, AVX2", "torch": "2.0", "commit": "abc", "date": "2026-01-01"}
    path = tmp_path / "guard.json"
    keep(path, {**about, "torch": "1.0"}, {"a race": Ratio(9.0, 0.0, "torch", "numpy")})
    keep(path, about, {"a race": Ratio(1.2, 0.01, "torch", "numpy")})
    keep(path, about, {"a second": Ratio(3.0, 0.01, "torch", "numpy")})
    kept = kept_ratios(path, cpu_of(about))
    assert kept.pop("a second").value == 3.0, "beside what was kept of other races"
    assert kept["a race"].value == 1.2 and not kept_ratios(path, "another CPU")
    for value, error, words in (
        (1.2, 0.01, None),
        (1.13, 0.01, None),  # 3% and three errors of sqrt(2) 0.01
        (1.11, 0.01, "a race fell from 1.200 to 1.110"),
        (1.11, 0.05, None),
        (1.5, 0.01, None),
    ):
        lines, fallen = judged({"a race": Ratio(value, error, "torch", "numpy")}, kept)
        assert len(lines) == 1 and bool(fallen) == bool(words)
        assert not words or fallen[0].startswith(words)
    lines, fallen = judged({"another race": Ratio(0.1, 0.01, "torch", "numpy")}, kept)
    assert not fallen and len(lines) == 1 and "kept" not in lines[0]
    lines, fallen = judged({"a race": Ratio(1.2, 0.01, "torch", "mkl")}, kept)
    assert not fallen and lines[0].endswith("products by mkl, kept by numpy")
    lines, fallen = judged({"a race": Ratio(0.1, 0.01, "torch", "mkl")}, {})
    assert not fallen and "nothing was compared" in lines[-1]


@pytest.mark.thorough
def test_a_ratio_is_that_of_turns_beside_each_other():
    from types import SimpleNamespace

    from guard import Ratio
    from race import Race

    turns = {"shardkit": [1.0, 2.0, 1.0, 2.0, 1.0], "torch": [1.1, 2.2, 1.2, 2.4, 1.15]}
    other = {"shardkit": [9.0] * 5, "torch": [3.0] * 5}
    for ranks, (clock, processor) in ((1, (other, turns)), (2, (turns, other))):
        spec = SimpleNamespace(blas="numpy", ranks=ranks)
        race = Race.__new__(Race)
        race.contestants = {
            name: SimpleNamespace(turns=clock[name], processor_turns=processor[name], spec=spec)
            for name in turns
        }
        ratio = Ratio.of(race, "shardkit", "torch")
        assert abs(ratio.value - 1.15) < 1e-12 and 0 < ratio.error < 0.1


def test_the_results_page_begins_with_what_misses_most(monkeypatch, tmp_path):
    import json

    import report

    def result(processor, ms):
        rows = [["shardkit", 100.0], ["shardkit, NumPy's BLAS", 90.0], ["torch eager", ms[0]]]
        halves = [["shardkit, bfloat16", 50.0], ["shardkit, float32", 10.0], ["torch", ms[1]]]
        clock = [7.0, None, None, None]  # of one rank the processor time is compared
        rows, halves = [[[each[0], *clock, each[1]] for each in part] for part in (rows, halves)]
        titles = ("M, 1 rank", "M, 1 rank, computed in bfloat16 from float32 masters")
        tables = [{"title": t, "rows": r} for t, r in zip(titles, (rows, halves)) if r[-1][-1]]
        return json.dumps({"machine": {"processor": processor}, "tables": tables})

    monkeypatch.setattr(report, "RESULTS", tmp_path)
    (tmp_path / "train_step.json").write_text(result("a Xeon", (180.0, 40.0)))
    (tmp_path / "train_step_amd.json").write_text(result("an EPYC", (99.0, None)))
    heading, table = report.beside_parts()
    rows = [line.split("|")[1:-1] for line in table.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in row] for row in rows]
    assert cells[0] == ["race", "wanted", "a Xeon", "an EPYC"]
    assert cells[2] == ["M, 1 rank, computed in bfloat16 from float32 masters", "1.05", "0.8", "-"]
    assert cells[3] == ["M, 1 rank", "1.2", "2", "1.1"]


@pytest.mark.thorough
@pytest.mark.parametrize("name", [pytest.param("UNet", marks=pytest.mark.sweep), "GPT"])
def test_a_twin_cut_over_two_ranks_has_the_losses_of_one(name, tmp_path):
    pytest.importorskip("torch")
    from contestants import Sizes, Spec
    from problems import CUT
    from race import Race

    gpt = Sizes(
        "T", vocabulary=31, width=16, heads=2, layers=2, sequence=32, batch=1, style="llama"
    )
    *_, small_unet = CUT.values()
    sizes = {"UNet": small_unet, "GPT": gpt}[name]
    form = {"fused": True, "attention": "sdpa", "channels_last": name == "UNet"}
    specs = [Spec("one", "torch", **form), Spec("cut", "torch", 2, "domain", **form)]
    with Race(sizes) as race:
        race.enter(*specs)
        race.run(turns=2, steps=1)
        assert not race.failed
        assert race.loss_difference("cut", "one") < 1e-4


def test_both_sides_of_each_layer_are_one_function():
    pytest.importorskip("torch")
    from layers import CASES

    def compare(name):
        ours, theirs = (step() for step in CASES[name]())
        for mine, wanted in zip(ours, theirs):
            error = 1e-4 * numpy.abs(wanted).max() + 1e-6  # ones go through a norm as zeros
            numpy.testing.assert_allclose(mine, wanted, rtol=0, atol=error)

    check_each({name: [name] for name in CASES}, compare)
