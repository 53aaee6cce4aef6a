"""Trials that Optuna draws and ends, where it is installed."""

import pytest
from test_ensembles import statuses, training

import shardkit as sk
from shardkit import ConfigurationError

pytest.importorskip("optuna")
SPACE = {
    "run.seed": [0, 1],
    "optimizer.learning_rate": {"log": [1e-4, 1e-1]},
    "optimizer.warmup_steps": {"uniform": [0, 4]},
}


def on_ranks(num_ranks, folder, groups, **options):
    def run(backend):
        own = {"groups": groups, "folder": folder, "backend": backend, **options}
        return sk.Ensemble(training, SPACE, **own).run()

    return sk.run_ranks(num_ranks, run)[0]


@pytest.mark.parametrize("num_ranks, groups", [(2, 2), (1, 1)])
def test_optuna_draws_trials_and_goes_on_with_what_it_knows(num_ranks, groups, tmp_path):
    first = on_ranks(num_ranks, tmp_path, groups, trials=3, sampler="TPESampler")
    trials = on_ranks(num_ranks, tmp_path, groups, trials=5, sampler="TPESampler")
    assert statuses(trials) == ["finished"] * 5 and trials[:3] == first
    drawn = [trial.settings for trial in trials]
    assert len({each["optimizer.learning_rate"] for each in drawn}) == 5
    assert all(1e-4 <= each["optimizer.learning_rate"] <= 1e-1 for each in drawn)
    assert all(type(each["optimizer.warmup_steps"]) is int for each in drawn)


@pytest.mark.parametrize("sampler", [None, "RandomSampler"])
def test_a_pruner_ends_trials_at_the_comparisons(sampler, tmp_path):
    trials = on_ranks(
        1, tmp_path, 1, trials=6, sampler=sampler, pruner="SuccessiveHalvingPruner", compare_at=[2]
    )
    assert set(statuses(trials)) <= {"finished", "stopped"} and "finished" in statuses(trials)
    assert all(trial.step == {"finished": 8, "stopped": 2}[trial.status] for trial in trials)
    on_ranks(1, tmp_path / "never", 1, trials=4, pruner="NopPruner", compare_at=[2, 4])


@pytest.mark.parametrize("option", [{"sampler": "Tpe"}, {"sampler": "GridSampler"}])
def test_a_sampler_that_is_none_is_refused(option, tmp_path):
    with pytest.raises(ConfigurationError, match="sampler = .*wanted one"):
        on_ranks(2, tmp_path, 1, trials=2, **option)
