"""A checkpoint that cannot be written: training goes on, it is tried again and elsewhere, a resumed
run finds it there, and a run whose last one is lost fails and says so.
"""

import errno
import os
from contextlib import nullcontext
from pathlib import Path

import numpy
import pytest
from builders import TINY_RUN

import shardkit as sk
from shardkit import CheckpointError, ConfigurationError
from shardkit.testing.base import PeerError
from shardkit.testing.checkpoint import compare, find_checkpoint, rank_file
from shardkit.testing.checkpoint import saving as saving_module
from shardkit.testing.checkpoint import store as store_module
from shardkit.testing.comm import StopSignals
from shardkit.testing.parallel import optimizing
from shardkit.testing.parallel import saves as saves_module
from shardkit.testing.task import Language
from shardkit.testing.train import (
    TrainedRun,
    configuration_of,
    fallback_place,
    has_checkpoints,
    resumed,
    stored_settings,
    train_run,
)

STEPS = 8
NUMBERS = [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.ESTALE, errno.EACCES]
DOORS = {  # where a save meets the disk, and on which ranks
    "make the folder": (store_module, "make_folder"),
    "lay out": (rank_file, "lay_out"),
    "write values": (rank_file, "write_arrays"),
    "write the manifest": (saving_module, "write_manifest"),
}


class Full(sk.Callback):
    """A disk that takes nothing below a folder during some steps."""

    on_all_ranks = True

    def __init__(self, monkeypatch, folder, number, steps, door):
        self._folder, self._number, self._steps, self._step = str(folder), number, steps, 0
        module, name = DOORS[door]
        real = getattr(module, name)

        def checked(path, *arguments, **given):
            if self._step in self._steps and str(path).startswith(self._folder):
                if not str(path).endswith("rank-00000.h5"):  # where several ranks write: on one
                    raise OSError(self._number, os.strerror(self._number), str(path))
            return real(path, *arguments, **given)

        monkeypatch.setattr(module, name, checked)

    def after_step(self, step, loss):
        self._step = step


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "one.txt"
    path.write_text("".join(f"line {i} with the number {i * i}\n" for i in range(60)))
    return path


@pytest.fixture(autouse=True)
def without_delay(monkeypatch):
    monkeypatch.setattr(saves_module, "RETRY_SECONDS", 0.01)


def settings_of(folder, corpus, **changes):
    given = {
        "run.folder": str(folder / "run"),
        "data.path": [str(corpus)],
        "run.steps": STEPS,
        "run.checkpoint_every": 2,
        "run.keep_checkpoints": 2,
        "run.asynchronous_checkpoints": False,  # so that the step of each is known
        "optimizer.decay_steps": STEPS,
        **{name.replace("__", "."): value for name, value in changes.items()},
    }
    return configuration_of(Language)().replace({**TINY_RUN, **given})


def trained(settings, callbacks=(), *, resume=False):
    def on_rank(backend):
        return train_run(settings, backend, callbacks=callbacks, resume=resume)

    return sk.run_ranks(2, on_rank)[0]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, corpus):
    folder = tmp_path_factory.mktemp("undisturbed")
    trained(settings_of(folder, corpus))
    return find_checkpoint(folder / "run")[0]


def is_as(undisturbed, path):
    return compare(undisturbed, find_checkpoint(path)[0], tolerance=0.0).is_equal


@pytest.mark.strength(1)
@pytest.mark.parametrize("is_asynchronous", [True, False])
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.thorough
def test_a_disk_that_is_full_for_a_while_costs_no_step(
    tmp_path, corpus, undisturbed, monkeypatch, capsys, door, is_asynchronous
):
    number = NUMBERS[list(DOORS).index(door)]
    full = Full(monkeypatch, tmp_path, number, range(1, 6), door)
    settings = settings_of(tmp_path, corpus, run__asynchronous_checkpoints=is_asynchronous)
    assert trained(settings, [full]).steps == STEPS
    assert is_as(undisturbed, tmp_path / "run")
    left = {path.name for path in (tmp_path / "run" / "checkpoints").iterdir()}
    assert "step-00000008" in left and not any(name.endswith(".tmp") for name in left)
    said = capsys.readouterr()
    assert said.err.count(os.strerror(number)) == 1 and "training goes on" in said.err
    assert said.out.count("can be written again") == 1


@pytest.mark.parametrize("number", NUMBERS, ids=errno.errorcode.get)
@pytest.mark.thorough
def test_what_one_place_does_not_take_goes_to_the_other_and_is_found_there(
    tmp_path, corpus, undisturbed, monkeypatch, capsys, number
):
    place = fallback_place(tmp_path / "run", str(tmp_path / "other"))
    with monkeypatch.context() as context:
        run = tmp_path / "run"
        full = Full(context, run, number, range(3, 99), "write values")
        settings = settings_of(
            tmp_path, corpus, run__fallback_folder=str(tmp_path / "other"), run__steps=6
        )
        assert trained(settings, [full]).steps == 6
    assert (tmp_path / "run" / "checkpoints" / "step-00000002").is_dir()
    assert (place / "step-00000006").is_dir()
    assert f"it goes to {place}" in capsys.readouterr().err
    going_on = resumed(stored_settings(run), {"run.folder": str(run), "run.steps": STEPS})
    assert trained(going_on, resume=True).steps == STEPS
    assert "resumed at step 6" in capsys.readouterr().out
    assert is_as(undisturbed, run)
    with pytest.raises(ConfigurationError, match="already holds a run"):
        trained(settings)


@pytest.mark.thorough
def test_a_run_whose_only_checkpoint_is_elsewhere_is_evaluated_and_resumed(
    tmp_path, corpus, monkeypatch
):
    run = tmp_path / "run"
    full = Full(monkeypatch, run, errno.EROFS, range(99), "make the folder")
    trained(settings_of(tmp_path, corpus, run__fallback_folder=str(tmp_path / "other")), [full])
    assert not [*run.glob("checkpoints/step-*")] and has_checkpoints(run)
    assert sk.run_ranks(1, lambda backend: TrainedRun(run, {}, backend).step) == [STEPS]


def test_the_newest_valid_one_of_both_places_is_taken(tmp_path, corpus, monkeypatch):
    run, other = tmp_path / "run", tmp_path / "other"
    with monkeypatch.context() as context:
        full = Full(context, run, errno.ENOSPC, range(3, 5), "write values")
        trained(settings_of(tmp_path, corpus, run__fallback_folder=str(other)), [full])
    place = fallback_place(run, str(other))
    steps = {
        "run": sorted(path.name for path in run.glob("checkpoints/step-*")),
        "other": sorted(path.name for path in place.glob("step-*")),
    }
    assert steps["run"] == ["step-00000006", "step-00000008"] and len(steps["other"]) == 1
    for name in steps["run"]:  # damaged ones are passed over, for the one elsewhere
        os.truncate(run / "checkpoints" / name / "rank-00001.h5", 100)
    with pytest.warns(UserWarning, match="passed over"):
        (step,) = sk.run_ranks(1, lambda backend: TrainedRun(run, {}, backend).step)
    assert f"step-{step:08d}" == steps["other"][0]


@pytest.mark.parametrize("is_asynchronous", [True, False])
@pytest.mark.thorough(but=1)
def test_a_run_whose_last_checkpoint_is_lost_fails_and_says_what_is_lost(
    tmp_path, corpus, monkeypatch, is_asynchronous
):
    full = Full(monkeypatch, tmp_path, errno.ENOSPC, range(5, 99), "write values")
    settings = settings_of(
        tmp_path,
        corpus,
        run__last_save_seconds=0.3,
        run__asynchronous_checkpoints=is_asynchronous,
    )
    words = r"steps [35] to 8 are lost.*No space left on device.*newest is of step [24], in"
    with pytest.raises(CheckpointError, match=words) as caught:
        trained(settings, [full])
    assert caught.value.exit_code == 1
    checkpoints = tmp_path / "run" / "checkpoints"
    name = find_checkpoint(checkpoints)[0].folder.name
    assert name in str(caught.value)
    assert not [*checkpoints.glob("*.tmp")]


@pytest.mark.thorough
def test_the_last_one_waits_for_a_disk_that_gets_room(tmp_path, corpus, undisturbed, monkeypatch):
    tries = []
    real = rank_file.write_arrays

    def write(path, *arguments):
        if "step-00000008" in str(path) and Path(path).name == "rank-00001.h5":
            tries.append(path)
            if len(tries) < 4:
                raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return real(path, *arguments)

    monkeypatch.setattr(rank_file, "write_arrays", write)
    trained(settings_of(tmp_path, corpus))
    assert len(tries) == 4 and is_as(undisturbed, tmp_path / "run")


def test_what_a_script_saves_itself_raises_as_before(tmp_path, monkeypatch):
    def save(backend):
        model = sk.DDPModel(
            sk.models.GPT(11, 8, width=8, layers=1, heads=2), sk.ShardingConfiguration(backend)
        )
        Full(monkeypatch, tmp_path, errno.ENOSPC, range(99), "make the folder")
        with pytest.raises(OSError, match="No space left"):
            model.save_model(tmp_path)

    sk.run_ranks(1, save)


@pytest.mark.parametrize("is_asynchronous", [True, False])
def test_what_stands_in_the_way_of_the_last_save_is_not_waited_for(
    tmp_path, corpus, is_asynchronous
):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoints").touch()
    settings = settings_of(
        tmp_path,
        corpus,
        run__asynchronous_checkpoints=is_asynchronous,
        run__last_save_seconds=600.0,
    )
    with pytest.raises(CheckpointError, match=r"steps 1 to 8 are lost.*checkpoints"):
        trained(settings)


def test_a_signal_that_a_kill_follows_shortens_the_tries_of_the_last_save(
    tmp_path, corpus, monkeypatch
):
    monkeypatch.setattr(saves_module, "HURRIED_SECONDS", 0.2)
    full = Full(monkeypatch, tmp_path, errno.ENOSPC, range(STEPS + 1), "make the folder")
    settings = settings_of(tmp_path, corpus, run__last_save_seconds=600.0)

    def on_rank(backend):
        signals = StopSignals()
        signals.name = "SIGTERM"
        return train_run(settings, backend, signals=signals, callbacks=[full])

    with pytest.raises(CheckpointError, match="are lost|is lost|could not be written"):
        sk.run_ranks(2, on_rank)


# ---- optimize() ----------------------------------------------------------------------------------

RNG = numpy.random.default_rng(3)
X, Y = RNG.normal(size=(24, 5)), RNG.normal(size=(24, 2))
EPOCHS = 4  # of three steps each


def optimized(folder, callbacks=(), *, epochs=EPOCHS, stop_at=None):
    """Return (fitness history, best score, parameters as a list, steps), the same on both ranks."""

    def on_rank(backend):
        config = sk.ShardingConfiguration(backend, minimum_parameter_group_size=1)
        model = sk.models.MLP([5, 9, 2], dtype="float64", seed=4)
        optimizer = sk.FSDPOptimizer(sk.AdamW(lr=0.03), config, model=model)
        given = sk.OptimizationInputData(X, Y, epochs=epochs, batch_size=8)
        try:
            result = optimizer.optimize(
                given,
                folder=folder,
                callbacks=callbacks,
                stop=lambda: optimizer.model.step_number == stop_at,
            )
        except SystemExit as end:
            return end.code
        parameters = tuple(optimizer.model.gather_full_parameters())
        return result.fitness_history, result.best_fitness_score, parameters, result.iterations

    (same,) = set(sk.run_ranks(2, on_rank))
    return same


def steps_in(folder):
    return sorted(int(path.name[5:]) for path in (folder / "checkpoints").glob("step-*[0-9]"))


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.thorough(but=1)
def test_a_full_disk_costs_optimize_no_step_and_no_bit(tmp_path, monkeypatch, door):
    whole = optimized(None)
    full = Full(monkeypatch, tmp_path, errno.ENOSPC, range(1, 8), door)
    with pytest.warns(sk.ShardingWarning) as said:
        assert optimized(tmp_path, [full], stop_at=8) == 75
    texts = [str(each.message) for each in said]
    assert sum("no checkpoint in" in text and "training goes on" in text for text in texts) == 1
    assert sum("can be written again" in text for text in texts) == 1
    # of step 8, in an epoch, since it was tried again there; the stop finds it there
    assert steps_in(tmp_path) == [8]
    assert optimized(tmp_path) == whole


def test_what_is_lost_of_an_optimize_is_an_error_on_all_ranks(tmp_path):
    (tmp_path / "checkpoints").touch()
    with pytest.warns(sk.ShardingWarning, match="no checkpoint in"):
        with pytest.raises(CheckpointError, match=r"steps 1 to 12 are lost.*with this folder"):
            optimized(tmp_path)


def test_a_folder_that_never_took_a_file_ends_optimize_before_its_first_step(tmp_path, monkeypatch):
    """As a run of train(), whose folder is written into before it begins."""
    (tmp_path / "file").touch()
    steps = [0]
    monkeypatch.setattr(sk.ShardedModel, "train", lambda *_: steps.append(1))
    for folder in (tmp_path / "file", tmp_path / "file" / "run", Path("/proc/self/run")):
        with pytest.raises(CheckpointError, match="takes no checkpoints.*give optimize"):
            optimized(folder)
    assert steps == [0]


@pytest.mark.filterwarnings("error::shardkit.ShardingWarning")
def test_a_warning_that_is_an_error_is_one_of_all_ranks(tmp_path):
    """All meet it in the same save: nobody waits for rank 0."""
    (tmp_path / "checkpoints").touch()

    def on_rank(backend):
        backend.timeout = 500
        model = sk.models.MLP([5, 9, 2], dtype="float64", seed=4)
        config = sk.ShardingConfiguration(backend)
        optimizer = sk.FSDPOptimizer(sk.AdamW(lr=0.03), config, model=model)
        with pytest.raises((sk.ShardingWarning, PeerError), match="no checkpoint in"):
            optimizer.optimize(sk.OptimizationInputData(X, Y, batch_size=8), folder=tmp_path)
        return optimizer.model.step_number

    assert sk.run_ranks(2, on_rank) == [3, 3]


@pytest.mark.parametrize("lost", [(3,), (6,), (3, 6), (6, 9), (3, 6, 9)])
@pytest.mark.thorough(but=2)
def test_an_epoch_whose_checkpoint_is_lost_is_not_the_best_of_a_run_that_goes_on(
    tmp_path, monkeypatch, lost
):
    """Fitness 3, 1, 2, 4 after steps 3, 6, 9, 12; what cannot be written is tried once."""
    losses = {3: 3.0, 6: 1.0, 9: 2.0, 12: 4.0, 15: 5.0}
    monkeypatch.setattr(saves_module, "RETRY_SECONDS", 1e9)

    def measure(model, samples, batch_size, metrics=None):
        return sk.EvaluationResult(losses[model.step_number], 7)

    monkeypatch.setattr(optimizing, "evaluate_set", measure)
    with monkeypatch.context() as context:
        full = Full(context, tmp_path, errno.EDQUOT, lost, "write the manifest")
        with pytest.warns(sk.ShardingWarning, match="training goes on"):
            history, best, parameters, _ = optimized(tmp_path, [full])
    assert best == 1.0  # this process still has it
    left = {step: loss for step, loss in losses.items() if step not in lost and step <= 12}
    with pytest.warns(sk.ShardingWarning) if 6 in lost else nullcontext() as said:
        again = optimized(tmp_path, epochs=EPOCHS + 1)
    assert again[0] == (*history, 5.0) and again[1] == min(left.values())
    assert (again[2] == parameters) == (6 not in lost)
    if 6 in lost:
        assert any("with a fitness of 1" in str(each.message) for each in said)
    best_step = min(left, key=left.get)
    assert steps_in(tmp_path) == sorted({best_step, 12, 15})
