"""The settings of an ensemble: its folder and groups, which trials there are, what becomes of them.

The [sweep] section of a file of `shardkit sweep`, and the arguments of sk.Ensemble.
"""

from dataclasses import dataclass

from ..settings import Sections, setting


@dataclass(frozen=True, kw_only=True)
class SweepSettings:
    """Which trials there are, where they run, and which of them go on."""

    folder: str = setting(
        "runs/sweep",
        "folder of the ensemble: sweep.h5, and a run folder for each trial",
        is_common=True,
        is_place=True,
    )
    groups: int = setting(
        1, "groups of ranks, each of which trains a trial at a time", minimum=1, is_common=True
    )
    trials: int | None = setting(
        None, "trials that are drawn; none: every combination of the lists", minimum=1
    )
    seed: int = setting(0, "seed of what is drawn", minimum=0)
    compare_at: tuple[int, ...] = setting(
        (),
        "steps at which trials are compared by their last validation, ascending; none: all go on",
        "steps",
        minimum=1,
    )
    keep: float = setting(
        0.5, "share of the trials that go on after a comparison", above=0.0, maximum=1.0
    )
    exchange: bool = setting(
        False,
        "the others go on too, each from the weights and the optimizer state of one that is kept",
    )
    sampler: str | None = setting(
        None, "class of optuna.samplers, such as TPESampler, that draws; none: independent draws"
    )
    pruner: str | None = setting(
        None, "class of optuna.pruners, such as MedianPruner, that decides who goes on; none: keep"
    )
    retry: bool = setting(False, "run trials again that have failed before")


@dataclass(frozen=True)
class OnlySweep(Sections):
    """The section [sweep] of a file."""

    sweep: SweepSettings = SweepSettings()
