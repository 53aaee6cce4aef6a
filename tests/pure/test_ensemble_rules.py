"""Which trials an ensemble has, who of them goes on, in which order, and the file about them."""

import math
import sys
import threading
from collections import Counter

import h5py
import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardkit as sk
from shardkit import ConfigurationError
from shardkit.testing.cli import Given, parted
from shardkit.testing.ensemble import (
    Book,
    Exchange,
    Halving,
    Report,
    Space,
    SweepRecord,
    Trial,
    check_run,
    loss_of,
    read_record,
)
from shardkit.testing.report import describe_sweep, page_of_sweep, read_sweep
from shardkit.testing.task import load_task
from shardkit.testing.train import configuration_of

# ---- which trials there are ---------------------------------------------------------------------


def test_a_grid_has_every_combination_once():
    space = Space.of({"run.steps": 5, "task.width": [1, 2, 3], "run.seed": [0, 1]})
    grid = space.grid()
    assert len(grid) == 6 and len({tuple(each.items()) for each in grid}) == 6
    assert all(each["run.steps"] == 5 for each in grid)


def test_what_a_trial_draws_depends_on_seed_and_number_alone():
    spans = {"a.rate": {"log": [1e-5, 1e-1]}, "a.n": {"uniform": [1, 3]}, "a.kind": ["x", "y"]}
    space = Space.of(spans)
    drawn = [space.draw(7, number) for number in range(400)]
    assert drawn == [space.draw(7, number) for number in range(400)]
    assert drawn[0] != space.draw(8, 0)
    rates = numpy.log10([each["a.rate"] for each in drawn])
    assert rates.min() >= -5 and rates.max() <= -1
    assert numpy.abs(numpy.histogram(rates, 4, (-5, -1))[0] - 100).max() < 40, "by its logarithm"
    whole = Counter(each["a.n"] for each in drawn)
    assert set(whole) == {1, 2, 3} and min(whole.values()) > 90, "both ends, evenly"
    assert {each["a.kind"] for each in drawn} == {"x", "y"}


WRONG_SPANS = [
    [],
    {},
    {"log": [0, 1]},
    {"log": [2, 1]},
    {"uniform": [1, 1]},
    {"uniform": [1]},
    {"uniform": ["a", "b"]},
    {"normal": [0, 1]},
    {"log": [1, 2], "uniform": [1, 2]},
    {"log": [1, math.inf]},
]


@pytest.mark.parametrize("span", WRONG_SPANS, ids=str)
def test_what_cannot_be_tried_is_refused_by_name(span):
    with pytest.raises(ConfigurationError, match=r"a\.b = "):
        Space.of({"a.b": span})


SPACE = {"run.seed": [0, 1], "optimizer.learning_rate": {"log": [1e-4, 1e-2]}}
WRONG = {
    "groups = 0; wanted an integer, at least 1": {"groups": 0},
    "compare_at = [4, 2]; wanted ascending steps": {"compare_at": [4, 2]},
    "sweep.compare_at = 3; wanted": {"compare_at": 3},
    "sweep.keep = 0; wanted": {"keep": 0},
    "exchange needs compare_at": {"exchange": True},
    "has a range, which has no end of values": {"trials": None},
    "sampler needs trials": {"sampler": "TPESampler", "trials": None},
    "pruner needs compare_at": {"pruner": "MedianPruner"},
    "compare_at wants a pruner": {"sampler": "TPESampler", "compare_at": [2]},
    "exchange and Optuna's": {"exchange": True, "compare_at": [2], "pruner": "MedianPruner"},
    "settings has no trials": {"settings": [], "trials": None},
    "trials, sampler and pruner go with a table": {"settings": [{"run.seed": 1}]},
    "settings of a trial = 3; wanted a table": {"settings": [3], "trials": None},
    "a.b = <object object": {"settings": [{"a.b": object()}], "trials": None},
    "make = 3; wanted a Task": {"make": 3},
    "trial 0: unknown configuration key run.sed; did you mean run.seed?": {
        "make": "table",
        "settings": [{"run.sed": 1}],
        "trials": None,
    },
    "trial 1: compare_at has step 20 of run.steps = 20": {
        "make": "table",
        "settings": [{"run.steps": steps, "run.validate_every": 10} for steps in (30, 20)],
        "trials": None,
        "compare_at": [10, 20],
    },
    "trial 0: compare_at has step 5 of run.steps": {
        "make": "table",
        "pruner": "MedianPruner",
        "sampler": "TPESampler",
        "compare_at": [5],
    },
    "run.folder of a trial is in": {"settings": {"run.folder": "here"}, "trials": 1},
    "run.task of trials = ['gpt', 'table']; wanted one task": {
        "make": "gpt",
        "settings": {"run.task": ["gpt", "table"]},
        "trials": None,
    },
    "trial 0: run.elastic of a trial": {
        "make": "table",
        "settings": {"run.elastic": True},
        "trials": 1,
    },
}


@pytest.mark.parametrize("message", WRONG)
def test_an_ensemble_that_means_nothing_is_refused(message):
    own = {"make": lambda settings, **place: None, "settings": SPACE, "trials": 3, "groups": 1}
    own |= WRONG[message]
    with pytest.raises(ConfigurationError) as caught:
        sk.Ensemble(own.pop("make"), own.pop("settings"), folder="nowhere", **own)
    assert message in str(caught.value)


def test_what_ranks_make_wrong_together_is_refused_on_all_of_them(tmp_path):
    def run(backend):
        own = {"groups": 1, "folder": tmp_path, "backend": backend, "keep": 2 * backend.rank}
        ensemble = sk.Ensemble(lambda settings, **place: None, [{}], **own)
        with pytest.raises(ConfigurationError, match="sweep.keep = "):
            ensemble.run()

    sk.run_ranks(2, run)


def test_optuna_is_named_where_it_is_missing(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "optuna", None)
    options = {"trials": 3, "sampler": "TPESampler", "groups": 1, "folder": tmp_path}

    def run(backend):
        sk.Ensemble(lambda settings, **place: None, SPACE, backend=backend, **options).run()

    with pytest.raises(ConfigurationError, match=r"needs Optuna .*pip install optuna"):
        sk.run_ranks(2, run)


# ---- who goes on --------------------------------------------------------------------------------


def trial_book(folder, rule, number):
    trials = [Trial(each, {"run.seed": each}) for each in range(number)]
    return Book(folder, SweepRecord({}, trials, {}), rule, number)


def losses_of(number):
    return [math.sin(12.9898 * each) for each in range(number)]


def worked(book, random, steps, last=10):
    """Let groups take and report orders in any order; {trial: the steps that it was sent to}."""
    sent, running = {}, []
    while True:
        order = book.next_order() if len(running) < 3 else None
        if order is not None:
            running.append(order)
            continue
        if not running:
            return sent
        order = running.pop(random.draw(st.integers(0, len(running) - 1)))
        number, step = order.trial.number, order.until or last
        sent.setdefault(number, []).append(step)
        loss = losses_of(40)[number] + step
        book.hear(Report(number, step, loss, is_over=order.until is None))


@pytest.mark.thorough
@settings(max_examples=25, deadline=None)
@given(st.data(), st.integers(1, 9), st.sampled_from([0.3, 0.5, 1.0]), st.booleans())
def test_who_goes_on_does_not_depend_on_who_is_first(
    tmp_path_factory, random, number, share, exchange
):
    rule = (Exchange if exchange else Halving)((3, 6), share)
    book = trial_book(tmp_path_factory.mktemp("book"), rule, number)
    sent = worked(book, random, rule.steps)
    order = sorted(range(number), key=lambda each: losses_of(40)[each])
    kept = order
    for step in (3, 6):
        num_kept = math.ceil(share * len(kept) - 1e-9)
        if exchange:
            sources = [kept[: max(num_kept, 1)][place % num_kept] for place in range(number)]
            assert [book.trials[each].source_at(step) for each in kept[num_kept:]] == sources[
                : number - num_kept
            ]
            continue
        assert all(sent[each][-1] == step for each in kept[num_kept:])
        kept = kept[:num_kept]
    assert all(sent[each] == [3, 6, 10] for each in kept) and book.is_complete
    assert all(len(set(steps)) == len(steps) for steps in sent.values()), "no step twice"


def test_failed_and_early_trials_are_no_part_of_a_comparison(tmp_path):
    book = trial_book(tmp_path, Halving((5,), 0.5), 4)
    orders = [book.next_order() for _ in range(4)]
    assert book.next_order() is None and not book.is_over
    book.hear(Report(0, error="ValueError: no"))
    book.hear(Report(1, 4, 0.5, is_over=True))  # by its patience
    book.hear(Report(2, 5, 0.9))
    assert book.next_order() is None, "trial 3 is not there yet"
    book.hear(Report(3, 5, None))
    assert [trial.status for trial in book.trials] == ["failed", "finished", "waiting", "stopped"]
    assert [order.until for order in orders] == [5] * 4 and book.next_order().until is None


def test_a_group_that_was_told_to_stop_ends_the_queue_and_keeps_its_trial(tmp_path):
    book = trial_book(tmp_path, Halving((), 0.5), 3)
    book.next_order()
    book.hear(Report(0, 2, 1.0, is_told=True))
    assert book.next_order() is None and book.is_over and not book.is_complete
    assert [trial.status for trial in read_record(tmp_path).trials] == ["waiting"] * 3


@pytest.mark.parametrize("until", [5, 30, 40])
def test_a_comparison_where_no_validation_is_before_the_end_is_refused(until):
    run = configuration_of(load_task("table"))().replace(
        {"run.steps": 30, "run.validate_every": 10}
    )
    check_run(run.run, None)
    check_run(run.run, 20)
    with pytest.raises(ConfigurationError, match=f"compare_at has step {until} of run.steps = 30"):
        check_run(run.run, until)
    with pytest.raises(ConfigurationError, match=r"run\.elastic of a trial"):
        check_run(run.replace({"run.elastic": True}).run, None)


def test_a_trial_that_has_diverged_has_no_loss():
    records = [
        {"step": 1},
        {"step": 2, "validation_loss": 0.5},
        {"step": 3, "validation_loss": 0.7},
    ]
    assert loss_of(records, False) == 0.7 and loss_of(records, True) == 0.5
    records.append({"step": 4, "validation_loss": None})
    assert loss_of(records, False) is None and loss_of(records, True) == 0.5
    assert loss_of([], False) is loss_of([], True) is None


# ---- the file -----------------------------------------------------------------------------------


def test_the_file_gives_back_what_was_written(tmp_path):
    trials = [
        Trial(
            0, {"a.b": 1.5, "a.c": "x", "a.d": [1, 2]}, "finished", 7, 0.25, [[3, 0.5]], [[3, 1]]
        ),
        Trial(1, {"a.b": 2.5}, "failed", error="ValueError: <no>\nsecond line"),
    ]
    curves = {0: {"validation_loss": numpy.array([[3, 0.5], [7, 0.25]]), "empty": numpy.empty(0)}}
    SweepRecord({"seed": 3}, trials, curves).write(tmp_path)
    found = read_record(tmp_path)
    assert found.about == {"seed": 3} and found.trials == trials
    assert found.curves[0].keys() == {"validation_loss"}
    assert (found.curves[0]["validation_loss"] == curves[0]["validation_loss"]).all()
    with h5py.File(tmp_path / "sweep.h5") as file:
        assert file["settings/a.b"][:].tolist() == [1.5, 2.5] and numpy.isnan(file["loss"][1])
    assert read_record(tmp_path / "nowhere") is None


@pytest.mark.thorough
def test_the_file_can_be_read_while_it_is_replaced(tmp_path):
    has_ended = threading.Event()
    records = [SweepRecord({}, [Trial(k, {}) for k in range(n)], {}) for n in (1, 40)]
    records[0].write(tmp_path)

    def write():
        for number in range(150):
            records[number % 2].write(tmp_path)
        has_ended.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not has_ended.is_set():
        assert len(read_record(tmp_path).trials) in (1, 40)
    writer.join()


def test_a_full_disk_does_not_end_an_ensemble(tmp_path, monkeypatch, capfd):
    book = trial_book(tmp_path, Halving((), 0.5), 2)
    with monkeypatch.context() as patch:
        patch.setattr(SweepRecord, "write", lambda self, folder: (_ for _ in ()).throw(OSError(28)))
        book.next_order()
        book.hear(Report(0, 5, 1.0, is_over=True))
    assert "is written again after each report" in capfd.readouterr().err
    assert read_record(tmp_path).trials[0].status == "waiting"
    book.hear(Report(1, 5, 1.0, is_over=True))
    assert [trial.status for trial in read_record(tmp_path).trials] == ["finished"] * 2


DAMAGE = {
    "no 'state'": lambda file: file.pop("state"),
    "no 'crc32'": lambda file: file.pop("crc32"),
    "is damaged": lambda file: file["state"].write_direct(file["state"][:] ^ 1),
}


@pytest.mark.parametrize("words", DAMAGE)
def test_a_damaged_file_is_named(words, tmp_path):
    trial_book(tmp_path, Halving((), 0.5), 2)
    with h5py.File(tmp_path / "sweep.h5", "r+") as file:
        DAMAGE[words](file)
    with pytest.raises(ConfigurationError, match=r"sweep\.h5") as caught:
        read_record(tmp_path)
    assert words in str(caught.value)


def test_a_sweep_is_shown_from_the_lowest_loss_on_and_its_texts_end_no_script(tmp_path):
    trials = [
        Trial(0, {"a.b": 1, "a.c": 5}, "failed", error="ValueError: </script>\nmore"),
        Trial(1, {"a.b": 2, "a.c": 5}, "finished", 4, 0.5),
        Trial(2, {"a.b": 3, "a.c": 5}, "stopped", 2, 0.1, sources=[[1, 1], [1, 2]]),
        Trial(3, {"a.b": 4, "a.c": 5}, "finished", 4, 0.25),
    ]
    curves = {3: {"validation_loss": numpy.array([[2, 0.5], [4, 0.25]])}}
    SweepRecord({}, trials, curves).write(tmp_path)
    sweep = read_sweep(tmp_path)
    assert [row["number"] for row in sweep.trials] == [3, 1, 2, 0] and sweep.tried == ["a.b"]
    assert sweep.trials[0]["curve"] == [[2, 0.5], [4, 0.25]]
    assert sweep.trials[2]["sources"] == [[1, 1]], "what it had itself is none"
    heads, *rows = [line.split() for line in describe_sweep(tmp_path).splitlines()[1:6]]
    assert heads == ["trial", "status", "step", "validation", "loss", "a.b"]
    assert rows[0] == ["3", "finished", "4", "0.25", "4"] and rows[3][3] == "none"
    page = page_of_sweep(sweep)
    assert page.count("</script>") == 2 and "drawTable();" in page


# ---- the command --------------------------------------------------------------------------------

FILE = """
[run]
steps = 10
[data]
path = "rows.npz"
features = ["x"]
target = ["y"]
[try.optimizer]
learning_rate = {log = [1e-4, 1e-2]}
[try]
batch.sequences = [8, 16]
[sweep]
trials = 3
"""
LINES = {
    ("steps = 10", "steps = -1"): "3: run.steps = -1; wanted an integer, at least 1",
    ("steps = 10", "stepz = 10"): "3: unknown configuration key run.stepz; did you mean run.steps?",
    ("log = [1e-4, 1e-2]", "log = [1e-2, 1e-4]"): "9: optimizer.learning_rate = {'log': [0.01,",
    ("1e-2]}", "1e-2], x = 1}"): "9: optimizer.learning_rate = {",
    ("[8, 16]", "[8, 0]"): "11: batch.sequences = 0; wanted an integer, at least 1",
    ("[8, 16]", "8"): "11: batch.sequences = 8; wanted a list of values",
    ("batch.sequences", "batch.sequence"): "11: unknown configuration key batch.sequence;",
    ("batch.sequences", "sequences"): "11: try.sequences = [8, 16]; wanted a table",
    ("trials = 3", "trial = 3"): "13: unknown configuration key sweep.trial; did you mean",
    ("trials = 3", "trials = -1"): "13: sweep.trials = -1; wanted an integer, at least 1",
}


@pytest.mark.parametrize("change", LINES, ids=lambda change: change[1])
def test_what_is_wrong_in_a_file_is_named_with_its_line(change, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sweep.toml").write_text(FILE.replace(*change))
    with pytest.raises(ConfigurationError) as caught:
        parted(Given.read("sweep.toml", ["--run.task=table"]))
    assert str(caught.value).startswith(f"sweep.toml:{LINES[change]}")


def test_a_file_says_which_trials_there_are_and_the_command_line_counts_more(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sweep.toml").write_text(FILE)
    arguments = ["--run.task=table", "--sweep.groups=4", "--sweep.compare_at=[5]", "--run.steps=20"]
    options, settings = parted(Given.read("sweep.toml", arguments))
    assert (options["groups"], options["trials"], options["compare_at"]) == (4, 3, (5,))
    assert settings["run.steps"] == [20] and settings["data.features"] == [["x"]]
    assert settings["batch.sequences"] == [8, 16]
    assert settings["optimizer.learning_rate"] == {"log": [1e-4, 1e-2]}
    with pytest.raises(ConfigurationError, match="batch.sequences is tried, and has one value too"):
        parted(Given.read("sweep.toml", [*arguments, "--batch.sequences=8"]))
