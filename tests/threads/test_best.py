"""The best checkpoint of a run stays beside the newest ones, is named, and is taken where a
patience was set; who asks for another one gets that, or a sentence.
"""

import json
import math
import random
import shutil

import numpy
import pytest
from checkpoints import flip_bit

import shardkit as sk
from shardkit import CheckpointError, ConfigurationError
from shardkit.testing.checkpoint import CheckpointStore, checked_choice, describe
from shardkit.testing.comm import StopSignals
from shardkit.testing.report import describe_run, page_of, read_run_folder
from shardkit.testing.train import (
    TrainedRun,
    Validation,
    configuration_of,
    evaluate,
    fallback_place,
    first_settings,
    train_run,
)

X = numpy.random.default_rng(0).normal(size=(24, 3)).astype(numpy.float32)
Y = X[:, :1] * 2
SETTINGS = {
    "batch.sequences": 4,
    "batch.micro_batch": 1,
    "optimizer.decay_steps": 50,
    "optimizer.learning_rate": 1e-2,
    "parallel.policy": "ddp",  # so that each rank has all parameters
    "run.asynchronous_checkpoints": False,
}


class Watch(sk.Callback):
    """The parameters at each step."""

    def __init__(self):
        self.parameters = {}

    def at_start(self, run):
        self._run = run

    def after_step(self, step, loss):
        self.parameters[step] = self._run.model.local_parameter_shard


def scripted(monkeypatch, losses):
    """Let the validation of a step measure what the script says."""

    def measure(self):
        return losses.get(self._model.step_number, math.nan), {}

    monkeypatch.setattr(Validation, "measure", measure)


def made(folder, backend, callbacks=(), **settings):
    return sk.Training(
        sk.models.MLP([3, 4, 1]),
        ((X[:16], Y[:16]), (X[16:], Y[16:])),
        folder=folder,
        backend=backend,
        callbacks=callbacks,
        settings={**SETTINGS, **{name.replace("__", "."): v for name, v in settings.items()}},
    )


def trained(folder, ranks=1, use=lambda training: None, callbacks=(), **settings):
    """Return what `use` makes of the training on rank 0, after its run."""

    def on_rank(backend):
        training = made(folder, backend, callbacks, **settings)
        training.run()
        return use(training)

    return sk.run_ranks(ranks, on_rank)[0]


def steps_in(folder):
    return [int(path.name[5:]) for path in CheckpointStore(folder / "checkpoints").steps()]


def curve(losses):
    return dict(enumerate(losses, 1))


# ---- the kept ones, against a definition ---------------------------------------------------------


def kept_by_definition(losses, steps, validate, every, patience, keep, keep_every, minimum):
    """Return (steps that stay, the best of them or None, the last step)."""
    there, named, waited, lowest = {}, {}, 0, math.inf  # named: as the best, by each checkpoint
    for step in range(1, steps + 1):
        is_last, loss, is_best = step == steps, None, False
        best = min(((v, s) for s, v in there.items() if v is not None), default=None)
        if step % validate == 0 or is_last:
            loss = losses.get(step, math.nan)
            lowest, waited = (loss, 0) if loss < lowest - minimum else (lowest, waited + 1)
            loss = loss if math.isfinite(loss) else None
            is_best = loss is not None and (best is None or (loss, step) < best)
        is_over = patience is not None and waited >= patience
        if step % every == 0 or is_last or is_best and patience is not None or is_over:
            there[step] = loss
            best = min(((v, s) for s, v in there.items() if v is not None), default=(0, 0))
            named[step] = best[1]
            stay = {s for new in sorted(there)[-keep:] for s in (new, named[new])}
            there = {
                s: v for s, v in there.items() if s in stay or keep_every and s % keep_every == 0
            }
        if is_over:
            break
    best = min(((v, s) for s, v in there.items() if v is not None), default=(0, None))
    return sorted(there), best[1], step


def any_case(seed):
    draw = random.Random(seed)
    steps = draw.randint(3, 10)
    values = [0.5, 0.5, 1.0, 2.0, 3.0, -1.0, math.nan, math.inf]  # with ties
    losses = {step: draw.choice(values) + draw.choice([0, 0, 0.25]) for step in range(1, steps + 1)}
    return losses, {
        "run__steps": steps,
        "run__validate_every": draw.randint(1, 4),
        "run__checkpoint_every": draw.randint(1, 4),
        "run__patience": draw.choice([None, 1, 2, 3]),
        "run__keep_checkpoints": draw.randint(1, 3),
        "run__keep_every": draw.choice([None, None, 3, 5]),
        "run__asynchronous_checkpoints": draw.choice([False, False, True]),
        "run__minimum_improvement": draw.choice([0.0, 0.25, 0.6]),
    }


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[pytest.mark.sweep] * (seed >= 16)) for seed in range(64)]
)
@pytest.mark.thorough(but=3)
def test_best_and_newest_stay_and_are_found_with_their_own_bits(tmp_path, monkeypatch, seed):
    losses, settings = any_case(seed)
    draw = random.Random(seed)
    is_cut = draw.random() < 0.5
    scripted(monkeypatch, losses)
    arguments = [settings[f"run__{name}"] for name in ("steps", "validate_every")]
    arguments += [settings[f"run__{name}"] for name in ("checkpoint_every", "patience")]
    arguments += [settings[f"run__{name}"] for name in ("keep_checkpoints", "keep_every")]
    arguments += [settings["run__minimum_improvement"]]
    kept, best, last = kept_by_definition(losses, *arguments)
    watch = Watch()
    taken = {}

    def use(training):
        taken["after run"] = training.model.step_number
        oldest = steps_in(tmp_path)[0]
        for which in ("best", "newest", oldest) if best else ("newest", oldest):
            assert training.evaluate(checkpoint=which).samples == 8
            shard = training.model.local_parameter_shard
            assert (shard == watch.parameters[training.model.step_number]).all()
            taken[which] = training.model.step_number
        training.evaluate()
        taken[None] = training.model.step_number

    cut = draw.randint(1, last) if is_cut else None
    if cut is not None:
        interrupted_at(cut, tmp_path, settings, watch)
    trained(tmp_path, 1, use, [watch], **settings)
    whole = set(kept) | ({cut} if cut is not None else set())
    assert {best, last} - {None} <= set(steps_in(tmp_path)) <= whole
    if cut is None:
        assert steps_in(tmp_path) == kept
    default = best if settings["run__patience"] and best else last
    assert taken["after run"] == taken[None] == default
    assert taken.get("best") == best and taken["newest"] == last
    record = read_run_folder(tmp_path)
    assert (record.best or {}).get("step") == best and record.newest["step"] == last


def interrupted_at(step, folder, settings, watch):
    """Train up to a signal after this step, on two ranks."""
    signals = StopSignals()

    class Stop(sk.Callback):
        on_all_ranks = True

        def after_step(self, at, loss):
            if at == step:
                signals.name = "SIGUSR1"

    def on_rank(backend):
        given = made(folder, backend, **settings)._settings(False)
        return train_run(given, backend, signals=signals, callbacks=[Stop(), watch])

    sk.run_ranks(2, on_rank)


# ---- the run that ends by its patience -----------------------------------------------------------

SLOW = [4.0, 3.5, 3.25, math.nan, 2.75, 2.5, 2.4, math.inf, 2.3, 2.2]  # patience 2
STOPS = {0.0: 10, 0.25: 4, 0.5: 5, 0.75: 3}  # improvement: the step, of 10


@pytest.mark.strength(1)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("minimum", STOPS)
@pytest.mark.thorough(but=1)
def test_all_ranks_stop_where_no_loss_is_lower_by_enough(tmp_path, monkeypatch, ranks, minimum):
    scripted(monkeypatch, curve(SLOW))
    settings = {"run__steps": 10, "run__validate_every": 1, "run__patience": 2}
    settings |= {"run__minimum_improvement": minimum, "batch__sequences": 12}

    def ends(folder, **changes):
        def on_rank(backend):
            training = made(folder, backend, **settings | changes)
            result = training.run()
            return result.steps, result.is_interrupted

        (end,) = set(sk.run_ranks(ranks, on_rank))
        return end

    assert ends(tmp_path / "whole") == (STOPS[minimum], False)
    cuts = [step for step in (2, 4, 8) if step < STOPS[minimum]]
    for steps in (*cuts, 10):  # whatever was counted before a resume still counts
        assert ends(tmp_path / "cut", run__steps=steps) == (min(steps, STOPS[minimum]), False)


def test_a_stop_says_how_much_lower_the_losses_were_to_be(tmp_path, monkeypatch, capfd):
    scripted(monkeypatch, curve(SLOW))
    settings = {"run__steps": 10, "run__validate_every": 1, "run__patience": 2}
    trained(tmp_path, 2, **settings, run__minimum_improvement=0.75)
    said = capfd.readouterr().out
    assert "stopping: 2 validations without a lower loss by more than 0.75" in said
    assert steps_in(tmp_path)[-1] == 3 and "best checkpoint: step 3" in said
    losses = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [each["validation_loss"] for each in losses if "validation_loss" in each] == SLOW[:3]


OVERFITTING = curve([3.0, 2.0, 1.0, 1.5, 1.6, 1.7, 1.8, 1.9, 2.0])
IMPATIENT = {
    "run__steps": 9,
    "run__validate_every": 1,
    "run__checkpoint_every": 4,
    "run__patience": 4,
    "run__keep_checkpoints": 1,
}


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.thorough(but=2)
def test_an_overfitting_run_ends_at_its_best_on_every_mesh(tmp_path, monkeypatch, capfd, ranks):
    scripted(monkeypatch, OVERFITTING)

    def use(training):
        figures = training.evaluate()
        assert training.predict(X, tmp_path / "out.h5", checkpoint="newest")
        return figures, training.model.step_number

    figures, step_after = trained(tmp_path, ranks, use, **IMPATIENT)
    assert figures.step == 3 and step_after == 7 and steps_in(tmp_path) == [3, 7]
    said = capfd.readouterr().out
    assert "best checkpoint: step 3, validation loss 1, " in said
    assert "newest: step 7" in said and "the model is at the checkpoint of step 3" in said
    text = describe_run(tmp_path) + str(describe(tmp_path))
    assert "best checkpoint: step 3, validation loss 1, " in text
    assert "step-00000003" in text and "bytes, best" in text and "bytes, newest" in text
    assert '"best":{"step":3' in page_of([read_run_folder(tmp_path)])
    model = sk.load(tmp_path)
    err = capfd.readouterr().err
    assert "checkpoint of step 3, the best" in err and "newest is of step 7" in err
    other = sk.load(tmp_path, checkpoint="newest")
    assert capfd.readouterr().err == ""
    assert (model.predict(X) != other.predict(X)).any()
    copied = shutil.copytree(tmp_path, tmp_path / "elsewhere" / "copied")
    assert (sk.load(copied).predict(X) == model.predict(X)).all()
    assert (sk.load(copied / "checkpoints").predict(X) == model.predict(X)).all()
    assert (sk.load(copied, checkpoint=7).predict(X) == other.predict(X)).all()


@pytest.mark.filterwarnings("ignore:.*passed over")
def test_a_best_one_that_is_damaged_or_gone_is_passed_over(tmp_path, monkeypatch):
    scripted(monkeypatch, OVERFITTING)
    trained(tmp_path, **IMPATIENT | {"run__keep_checkpoints": 9})
    assert steps_in(tmp_path) == [1, 2, 3, 4, 7]
    best = tmp_path / "checkpoints" / "step-00000003"
    file = best / "rank-00000.h5"
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)

    def load(backend):
        sharded = sk.FSDPModel(sk.models.MLP([3, 4, 1]), sk.ShardingConfiguration(backend))
        return sharded.load_model(tmp_path, only="model", checkpoint="best")

    taken = sk.run_ranks(2, load)[0]
    assert taken["step"] == 4 and "step-00000003" in taken["skipped"][0]
    assert "checkpoint of step 4, the best" in taken["chosen"]
    shutil.rmtree(best)
    assert sk.run_ranks(2, load)[0]["skipped"] == []
    assert describe(tmp_path).text.splitlines()[2].endswith("best")  # of step 4


@pytest.mark.filterwarnings("ignore:.*passed over")
def test_a_run_whose_newest_was_the_best_and_is_damaged_has_the_best_of_before(
    tmp_path, monkeypatch
):
    scripted(monkeypatch, curve([5.0, 4.0, 1.0, 3.0, 2.0, 0.5]))
    every = {"run__validate_every": 1, "run__checkpoint_every": 1, "run__keep_checkpoints": 2}
    trained(tmp_path, **every, run__steps=6)
    assert steps_in(tmp_path) == [3, 5, 6]
    flip_bit(tmp_path / "checkpoints" / "step-00000006" / "rank-00000.h5")
    scripted(monkeypatch, curve([5.0, 4.0, 1.0, 3.0, 2.0, 1.5, 1.5]))
    trained(tmp_path, 2, **every, run__steps=7)
    manifest = json.loads((tmp_path / "checkpoints/step-00000007/manifest.json").read_text())
    assert manifest["validation"]["best_step"] == 3 and steps_in(tmp_path) == [3, 6, 7]


def test_a_longer_run_goes_on_from_the_newest_and_keeps_the_best_of_before(tmp_path, monkeypatch):
    scripted(monkeypatch, OVERFITTING)
    trained(tmp_path, **IMPATIENT)
    (tmp_path / "metrics.jsonl").unlink()  # what is the best does not stand there
    longer = IMPATIENT | {"run__steps": 12, "run__patience": None}
    scripted(monkeypatch, {step: 5.0 + step for step in range(1, 13)})
    at_last = trained(tmp_path, 2, lambda training: training.model.step_number, **longer)
    assert at_last == 12 and steps_in(tmp_path) == [3, 12], "without a patience: the newest"
    manifest = json.loads((tmp_path / "checkpoints/step-00000012/manifest.json").read_text())
    assert manifest["validation"] == {"loss": 17.0, "best_step": 3, "patience": None}


def test_a_best_one_that_was_written_elsewhere_is_found_there(tmp_path, monkeypatch):
    scripted(monkeypatch, OVERFITTING)
    run, fallback = tmp_path / "run", tmp_path / "spare"
    settings = {**IMPATIENT, "run__fallback_folder": str(fallback)}
    trained(run, **settings)
    there = fallback_place(run, str(fallback))
    there.mkdir(parents=True)
    shutil.move(run / "checkpoints" / "step-00000003", there)
    record = read_run_folder(run)
    assert record.best["step"] == 3 and record.best["folder"].startswith(str(there))
    again = trained(run, 2, lambda training: training.model.step_number, **settings)
    assert again == 3


def test_validations_without_a_checkpoint_are_named_as_such(tmp_path, monkeypatch, capfd):
    scripted(monkeypatch, curve([1.0, 0.25, 3.0, 2.0, 2.5, 2.75]))
    settings = {"run__steps": 6, "run__validate_every": 1, "run__checkpoint_every": 2}
    trained(tmp_path, **settings | {"run__checkpoint_every": 3})
    said = capfd.readouterr().out
    assert "best checkpoint: step 6, validation loss 2.75" in said and "the newest too" in said
    assert "the validation of step 2 had 0.25, and no checkpoint of that step is there" in said


# ---- what is asked for ---------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["Best", "", -1, 1.5, True, ["best"], b"best"])
def test_a_choice_that_means_nothing_is_refused(which):
    with pytest.raises(ConfigurationError, match='wanted "best", "newest", a step, or None'):
        checked_choice(which)


def test_a_choice_that_is_not_there_is_refused_with_those_that_are(tmp_path, monkeypatch):
    scripted(monkeypatch, {})  # NaN everywhere
    trained(tmp_path, run__steps=4, run__checkpoint_every=2, run__patience=3)
    with pytest.raises(CheckpointError, match="no checkpoint of step 3 .* there are 2, 4"):
        sk.load(tmp_path, checkpoint=3)
    with pytest.raises(CheckpointError, match="was validated .* take newest"):
        sk.load(tmp_path, checkpoint="best")
    sk.load(tmp_path)  # the newest, since there is no best
    one = tmp_path / "checkpoints" / "step-00000002"
    sk.load(one)
    with pytest.raises(ConfigurationError, match="is one checkpoint, so there is none to choose"):
        sk.load(one, checkpoint="best")


def test_evaluation_of_a_run_folder_takes_what_is_asked_for(tmp_path, monkeypatch):
    from shardkit.testing.task import TableMLP

    rows = tmp_path / "rows.csv"
    numbers = "\n".join(",".join(map(str, row)) for row in numpy.hstack([X, Y]).tolist())
    rows.write_text(f"a,b,c,y\n{numbers}\n")
    given = {
        **SETTINGS,
        "run.task": "table",
        "run.folder": str(tmp_path / "run"),
        "data.path": str(rows),
        "data.target": ["y"],
        "run.steps": 6,
        "run.validate_every": 1,
        "run.checkpoint_every": 2,
        "run.patience": 2,
    }
    scripted(monkeypatch, curve([2.0, 1.0, 5.0, 6.0, 7.0, 8.0]))
    settings = first_settings(configuration_of(TableMLP), given)
    sk.run_ranks(1, lambda backend: train_run(settings, backend))

    def measure(which):
        def on_rank(backend):
            run = TrainedRun(tmp_path / "run", {}, backend, checkpoint=which)
            figures = evaluate(run, run.samples(None))
            run.close()
            return figures.step, run.chosen

        return sk.run_ranks(2, on_rank)[0]

    assert measure(None)[0] == measure("best")[0] == measure(2)[0] == 2
    assert measure("newest")[0] == 4
    assert "step 2, the best, validation loss 1; the newest is of step 4" in measure(None)[1]
