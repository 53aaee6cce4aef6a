"""A run that goes on with other settings: what it reads, what it says, what it refuses."""

import random

import numpy
import pytest
from builders import TINY_RUN

import shardkit as sk
from shardkit import CheckpointError, ConfigurationError
from shardkit.testing.checkpoint import compare, find_checkpoint
from shardkit.testing.task import Language
from shardkit.testing.train import (
    CheckpointNews,
    changes,
    configuration_of,
    read_metrics,
    resumed,
    schedule_line,
    stored_settings,
    told_settings,
    train_run,
)

SEQUENCES = 12  # random runs with interruptions; each trains two to five times
LIMIT = 60


class Logged(sk.Samples):
    """Samples that note which of them are read."""

    def __init__(self, num, reads=None, mark=""):
        self.num, self.reads, self.mark = num, reads, mark

    def __len__(self):
        return self.num

    def read(self, numbers):
        if self.reads is not None:
            self.reads.append(numpy.array(numpy.asarray(numbers)))
        x = numpy.stack([numpy.sin(numbers + i) for i in range(3)], 1).astype("float32")
        return x, x.sum(1, keepdims=True)

    def fingerprint(self):
        return f"{self.num}{self.mark}"


class Rates(sk.Callback):
    """The learning rate of each report."""

    def __init__(self):
        self.rates, self.lines = {}, []

    def after_report(self, step, values):
        self.rates[step] = values["learning_rate"]


def trained(folder, num, ranks, settings, mark=""):
    """(samples in the order of the steps, steps in all, rates)."""
    reads, rates = [[] for _ in range(ranks)], Rates()
    began = []

    class Begin(sk.Callback):
        on_all_ranks = True

        def at_start(self, run):
            began.append(run.model.step_number)

    def run(backend):
        parts = Logged(num, reads[backend.rank], mark), Logged(5)
        given = {"batch.micro_batch": 1, "run.report_every": 1, **settings}
        given["run.validate_every"] = 1000
        callbacks = [rates, Begin()]
        training = sk.Training(
            sk.models.MLP([3, 4, 1]),
            parts,
            folder=folder,
            settings=given,
            callbacks=callbacks,
            backend=backend,
        )
        return training.run().steps

    (steps,) = set(sk.run_ranks(ranks, run, timeout=LIMIT))
    taken = steps - began[0]
    batches = [[of_rank[step] for of_rank in reads] for step in range(taken)]
    return [int(n) for batch in batches for part in batch for n in part], steps, rates.rates


@pytest.mark.parametrize("number", range(SEQUENCES))
@pytest.mark.thorough
def test_each_epoch_reads_each_sample_once_whatever_changes_between_starts(number, tmp_path):
    draw = random.Random(number)
    num = draw.randint(3, 50)
    visited, steps, same, batch = [], 0, True, None
    for _ in range(draw.randint(2, 4)):
        ranks = draw.choice([1, 2, 4])
        before, batch = batch, draw.choice([batch, batch, 4, 8, 16]) or 8
        same &= before in (None, batch)
        steps += draw.randint(1, 4)
        given = {"run.steps": steps, "batch.sequences": batch, "optimizer.decay_steps": 20}
        read, done, _ = trained(tmp_path / "run", num, ranks, given)
        assert done == steps
        visited += read
    whole = len(visited) // num * num
    for begin in range(0, whole, num):
        assert sorted(visited[begin : begin + num]) == list(range(num))
    assert len(set(visited[whole:])) == len(visited) - whole, "the begun epoch repeats a sample"
    if same:
        given = {"run.steps": steps, "batch.sequences": batch, "optimizer.decay_steps": 20}
        assert trained(tmp_path / "whole", num, 1, given)[0] == visited
        found = [find_checkpoint(tmp_path / name)[0] for name in ("run", "whole")]
        assert compare(*found, tolerance=0.0).is_equal


def test_some_random_sequences_change_nothing_and_some_do():
    """The sequences above have both kinds."""
    kinds = set()
    for number in range(SEQUENCES):
        draw = random.Random(number)
        draw.randint(3, 50)
        batch, same = None, True
        for _ in range(draw.randint(2, 4)):
            draw.choice([1, 2, 4])
            before, batch = batch, draw.choice([batch, batch, 4, 8, 16]) or 8
            same &= before in (None, batch)
            draw.randint(1, 4)
        kinds.add(same)
    assert kinds == {True, False}


def test_what_is_stored_is_where_the_data_go_on(tmp_path):
    trained(tmp_path, 10, 1, {"run.steps": 4, "batch.sequences": 6})
    position = find_checkpoint(tmp_path)[0].manifest["data_position"]
    assert {name: position[name] for name in ("next_step", "epoch", "sample", "samples")} == {
        "next_step": 4,
        "epoch": 2,
        "sample": 4,
        "samples": 10,
    }
    assert position["settings"]["batch.sequences"] == 6
    assert position["settings"]["optimizer.decay_steps"] == 4


def test_a_checkpoint_of_before_goes_on_as_it_did(tmp_path, monkeypatch):
    given = {"batch.sequences": 4, "optimizer.decay_steps": 9}
    with monkeypatch.context() as old:
        old.setattr(
            CheckpointNews,
            "data_position",
            lambda self, step: {"fingerprint": self.marks.training, "next_step": step},
        )
        first = trained(tmp_path / "run", 10, 2, {**given, "run.steps": 4})[0]
    then = trained(tmp_path / "run", 10, 1, {**given, "run.steps": 9})[0]
    assert first + then == trained(tmp_path / "whole", 10, 1, {**given, "run.steps": 9})[0]
    found = [find_checkpoint(tmp_path / name)[0] for name in ("run", "whole")]
    assert compare(*found, tolerance=0.0).is_equal


def test_what_cannot_be_known_of_a_checkpoint_of_before_is_said(tmp_path, monkeypatch, capsys):
    with monkeypatch.context() as old:
        old.setattr(
            CheckpointNews,
            "data_position",
            lambda self, step: {"fingerprint": self.marks.training, "next_step": step},
        )
        trained(tmp_path, 10, 1, {"batch.sequences": 4, "run.steps": 2})
    trained(tmp_path, 10, 1, {"batch.sequences": 8, "run.steps": 3})
    assert "does not say where its data went on" in capsys.readouterr().out
    trained(tmp_path, 10, 1, {"batch.sequences": 4, "run.steps": 4})
    assert "does not say where its data went on" not in capsys.readouterr().out


def test_other_held_out_samples_are_told_of(tmp_path, capsys):
    for num, steps in ((5, 1), (5, 2), (6, 3)):

        def run(backend, num=num, steps=steps):
            sk.Training(
                sk.models.MLP([3, 4, 1]),
                (Logged(10), Logged(num)),
                folder=tmp_path,
                settings={"run.steps": steps, "batch.sequences": 4, "batch.micro_batch": 1},
                backend=backend,
            ).run()

        sk.run_ranks(2, run)
        assert ("held-out samples are other ones" in capsys.readouterr().out) == (num == 6)


@pytest.mark.parametrize("batches", [(8, 16), (16, 8), (8, 8), (16, 24)])
@pytest.mark.thorough(but=2)
def test_epochs_are_as_long_under_another_batch(batches, tmp_path):
    num, (first, second) = 96, batches
    given = {"run.epochs": 2.0, "optimizer.decay_steps": 60, "run.checkpoint_every": 2}
    whole = 2 * num // first

    class Stop(sk.Callback):
        on_all_ranks = True

        def after_step(self, step, loss):
            if step == 4:
                raise KeyError("the job ends")

    def run(backend):
        training = sk.Training(
            sk.models.MLP([3, 4, 1]),
            (Logged(num), Logged(5)),
            folder=tmp_path,
            settings={
                **given,
                "batch.sequences": first,
                "batch.micro_batch": 1,
                "run.asynchronous_checkpoints": False,
            },
            callbacks=[Stop()],
            backend=backend,
        )
        with pytest.raises(KeyError):
            training.run()

    sk.run_ranks(1, run)
    at = find_checkpoint(tmp_path)[0].manifest["step"]
    read, steps, _ = trained(tmp_path, num, 1, {"run.epochs": 2.0, "batch.sequences": second})
    assert steps == at + -(-(2 * num - at * first) // second)
    assert len(set(read[: num - at * first])) == num - at * first
    assert first != second or steps == whole
    assert stored_settings(tmp_path, configuration_of_script()).run.steps == steps


def configuration_of_script():
    from shardkit.testing.task import task_of

    return task_of(sk.models.MLP([3, 4, 1]), (Logged(96), Logged(5)))


def test_a_fingerprint_that_does_not_tell_of_more_samples_begins_another_epoch(tmp_path):
    class Growing(Logged):
        def fingerprint(self):
            return "always the same"

    def run(num, steps):
        reads = []

        def on(backend):
            sk.Training(
                sk.models.MLP([3, 4, 1]),
                (Growing(num, reads), Logged(5)),
                folder=tmp_path,
                settings={"batch.sequences": 4, "run.steps": steps, "optimizer.decay_steps": 99},
                backend=backend,
            ).run()

        sk.run_ranks(1, on)
        return reads

    run(10, 2)
    reads = run(12, 5)
    assert sorted(numpy.concatenate(reads[:3]).tolist()) == list(range(12))


# ---- the schedule --------------------------------------------------------------------------------

ENDED = {"batch.sequences": 6, "run.steps": 4, "optimizer.floor": 0.0, "optimizer.warmup_steps": 0}


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("decay", ["linear", "cosine", "wsd"])
@pytest.mark.thorough(but=2)
def test_a_longer_run_than_its_schedule_to_zero_is_refused(decay, ranks, tmp_path):
    given = {**ENDED, "optimizer.decay": decay}
    trained(tmp_path, 20, ranks, given)
    with pytest.raises(ConfigurationError) as caught:
        trained(tmp_path, 20, ranks, {**given, "run.steps": 8})
    for words in ("learning rate is 0 from step 5 to step 8", "optimizer.decay_steps=8 stretches"):
        assert words in str(caught.value)
    assert find_checkpoint(tmp_path)[0].manifest["step"] == 4
    for more in ({"optimizer.decay_steps": 8}, {"optimizer.decay_steps": 8, "run.steps": 10}):
        if more["optimizer.decay_steps"] == more.get("run.steps", 8):
            rates = trained(tmp_path, 20, ranks, {**given, "run.steps": 8, **more})[2]
            assert sorted(rates) == [5, 6, 7, 8] and min(rates.values()) > 0
        else:
            with pytest.raises(ConfigurationError, match="from step 9 to step 10"):
                trained(tmp_path, 20, ranks, {**given, **more})


@pytest.mark.parametrize("more", [{"optimizer.floor": 0.5}, {"optimizer.decay": "constant"}])
def test_a_floor_or_no_schedule_lets_a_longer_run_go_on(more, tmp_path):
    trained(tmp_path, 20, 1, ENDED)
    rates = trained(tmp_path, 20, 1, {**ENDED, **more, "run.steps": 6})[2]
    assert min(rates.values()) > 0


def test_a_longer_run_at_the_floor_of_its_rate_says_so(tmp_path, capsys):
    given = {**ENDED, "optimizer.floor": 0.1}
    trained(tmp_path, 20, 1, given)
    assert "stretches" not in capsys.readouterr().out
    rates = trained(tmp_path, 20, 1, {**given, "run.steps": 6})[2]
    said = capsys.readouterr().out
    assert "the learning rate is 0.0003 from step 5 to step 6" in said
    assert "run.steps = 6 from here on, 4 before" in said
    assert [*rates.values()] == pytest.approx([3e-4] * 2)


def test_a_start_with_steps_at_a_rate_of_zero_is_warned_of_and_its_resume_goes_on(tmp_path, capsys):
    given = {**ENDED, "optimizer.decay_steps": 2}
    trained(tmp_path, 20, 1, given)
    assert "warning: the learning rate is 0 from step 3 to step 4" in capsys.readouterr().out
    trained(tmp_path, 20, 1, given)  # as a job that is started again


def test_more_epochs_than_the_schedule_has_are_refused(tmp_path):
    given = {"optimizer.floor": 0.0, "batch.sequences": 6, "optimizer.warmup_steps": 0}
    trained(tmp_path, 12, 1, {**given, "run.epochs": 2.0})
    with pytest.raises(ConfigurationError, match="learning rate is 0 from step 5 to step 8"):
        trained(tmp_path, 12, 1, {**given, "run.epochs": 4.0})


# ---- what changed settings do --------------------------------------------------------------------

OTHER = {
    "run.steps": 7,
    "run.threads": 3,
    "run.validation_batches": 3,
    "batch.sequences": 48,
    "batch.micro_batch": 2,
    "parallel.domain_grid": (2, 2),
    "parallel.domain_slabs": 4,
    "optimizer.learning_rate": 0.5,
    "optimizer.warmup_steps": 3,
    "optimizer.decay": "linear",
    "optimizer.decay_part": 0.5,
    "optimizer.decay_steps": 77,
    "optimizer.floor": 0.3,
    "optimizer.weight_decay": 0.3,
    "optimizer.decayed": "all",
    "optimizer.momentum": 0.3,
    "optimizer.beta1": 0.3,
    "optimizer.beta2": 0.3,
    "optimizer.ema_decay": 0.3,
    "optimizer.max_gradient_norm": 0.3,
    "model.sequence_length": 3,
    "model.dropout": 0.3,
}
CONFIGURATION = configuration_of(Language)
TOLD = {name for name, key in CONFIGURATION.keys().items() if "at_resume" in key.metadata}


def test_every_setting_that_tells_what_it_does_is_tried():
    assert set(OTHER) == TOLD and not any(
        "fixed" in CONFIGURATION.key(name).metadata for name in TOLD
    )


@pytest.mark.parametrize("name", sorted(OTHER))
def test_a_changed_setting_is_told_in_one_line(name):
    before = told_settings(CONFIGURATION())
    assert changes(before, CONFIGURATION()) == []
    (line,) = changes(before, CONFIGURATION().replace({name: OTHER[name]}))
    effect = CONFIGURATION.key(name).metadata["at_resume"]
    assert line.startswith(f"{name} = ") and line.endswith(f" before: {effect}")
    assert "\n" not in line and changes({}, CONFIGURATION()) == []


def test_the_lines_are_said_when_a_run_goes_on(tmp_path, capsys):
    trained(tmp_path, 20, 1, {"run.steps": 2, "batch.sequences": 6})
    trained(tmp_path, 20, 1, {"run.steps": 3, "batch.sequences": 12, "optimizer.floor": 0.2})
    said = capsys.readouterr().out
    for line in ("batch.sequences = 12 from here on, 6 before: the data go on", "optimizer.floor"):
        assert said.count(line) == 1
    trained(tmp_path, 20, 1, {"run.steps": 4})
    assert "batch.sequences =" not in capsys.readouterr().out


def test_a_setting_of_a_task_of_ones_own_is_told_too(tmp_path, capsys):
    class Own(sk.Task):
        class Settings:
            noise: float = 0.5

        def make_model(self):
            return sk.models.MLP([3, 4, 1])

        def samples(self, part):
            return Logged(10 if part == "training" else 5)

    for steps, noise in ((1, 0.5), (2, 0.75)):
        sk.run_ranks(
            1,
            lambda backend, steps=steps, noise=noise: sk.Training(
                Own,
                folder=tmp_path,
                settings={"run.steps": steps, "task.noise": noise, "batch.sequences": 4},
                backend=backend,
            ).run(),
        )
    assert "task.noise = 0.75 from here on, 0.5 before: it is a setting" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore:.*sequence_length")
def test_another_length_of_sequences_begins_the_next_epoch(tmp_path):
    (tmp_path / "a.txt").write_text("a text of some lines\n" * 60)
    paths = {"data.path": [str(tmp_path / "a.txt")], "run.folder": str(tmp_path / "run")}
    settings = configuration_of(Language)().replace({**TINY_RUN, **paths})
    sk.run_ranks(1, lambda backend: train_run(settings, backend))
    stored = stored_settings(tmp_path / "run")
    given = {**paths, "model.sequence_length": 4, "run.steps": 4}
    again = resumed(stored, given)
    sk.run_ranks(2, lambda backend: train_run(again, backend, resume=True))
    position = find_checkpoint(tmp_path / "run")[0].manifest["data_position"]
    assert (position["epoch"], position["sample"]) == (1, 2 * again.batch.sequences)


@pytest.mark.parametrize("stored", [[], "x", 7, {"epoch": "x"}])
def test_a_data_position_that_is_none_is_refused(stored, tmp_path, monkeypatch):
    def broken(self, step):
        return {"fingerprint": self.marks.training, "next_step": step, "epoch": stored}

    with monkeypatch.context() as old:
        old.setattr(CheckpointNews, "data_position", broken)
        trained(tmp_path, 20, 1, {"run.steps": 2, "batch.sequences": 6})
    with pytest.raises(CheckpointError, match="data_position"):
        trained(tmp_path, 20, 1, {"run.steps": 3, "batch.sequences": 6})


@pytest.mark.parametrize("before", [[], "x", 7, None])
def test_stored_settings_that_are_none_are_refused(before):
    with pytest.raises(CheckpointError, match="data_position"):
        changes(before, CONFIGURATION())


def test_the_curve_has_each_step_once_after_a_resume(tmp_path):
    for steps, batch in ((2, 6), (4, 12), (5, 6)):
        trained(tmp_path, 20, 1, {"run.steps": steps, "batch.sequences": batch})
    records = read_metrics(tmp_path / "metrics.jsonl")
    assert [r["step"] for r in records if "train_loss" in r] == [1, 2, 3, 4, 5]


def test_a_schedule_that_lasts_is_not_told_of():
    settings = CONFIGURATION().replace({"run.steps": 9, "optimizer.decay_steps": 9})
    assert schedule_line(settings) == schedule_line(settings, {}) == ""
