"""A whole run with its failures: against a simulation, and against what was published."""

import random

import pytest

import shardkit as sk
from shardkit.testing.plan import Interruptions, interruptions_of, read_cluster

CASES = [(10_000.0, 30.0, 60.0), (3000.0, 120.0, 300.0), (500.0, 100.0, 20.0)]


def simulated_share(stops, interval, seed, num_intervals=60_000):
    """Steps until so many checkpoints are written; a failure loses what is since the last, and may
    hit a restart too.
    """
    draw = random.Random(seed)
    clock, until_failure = 0.0, draw.expovariate(1 / stops.failure_seconds)
    for _ in range(num_intervals):
        needed = interval + stops.checkpoint_seconds
        while until_failure < needed:
            clock += until_failure
            until_failure = draw.expovariate(1 / stops.failure_seconds)
            needed = interval + stops.checkpoint_seconds + stops.restart_seconds
        clock += needed
        until_failure -= needed
    return num_intervals * interval / clock


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("longer", [0.5, 1.0, 3.0])
def test_the_useful_share_is_that_of_a_simulation(case, longer):
    stops = Interruptions(*case)
    interval = longer * stops.best_interval()
    found = simulated_share(stops, interval, seed=3)
    assert stops.useful_share(interval) == pytest.approx(found, rel=0.01)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_no_interval_is_better_than_the_best_by_more_than_a_thousandth(case):
    stops = Interruptions(*case)
    best = stops.best_interval()
    others = [stops.useful_share(best * (0.2 + 0.01 * step)) for step in range(400)]
    assert max(others) < 1.001 * stops.useful_share(best)


def test_checkpoints_that_take_longer_than_failures_come_leave_nothing():
    stops = Interruptions(10.0, 20.0)
    assert stops.best_interval() == 10.0
    assert 0 < stops.useful_share(10.0) < 0.2 and stops.useful_share(1e5) == 0.0


def test_llama_3_was_stopped_every_3_hours_and_useful_for_more_than_nine_tenths():
    """ArXiv 2407.21783, section 3.3.4; how long its restarts took is not published."""
    stops = interruptions_of(read_cluster("h100-80gb-roce"), 16384, checkpoint_seconds=2.44)
    assert stops.failure_seconds / 3600 == pytest.approx(3.1, abs=0.05)
    assert stops.restart_seconds == 0 and 0.97 < stops.useful_share(stops.best_interval()) < 0.98
    slow = Interruptions(stops.failure_seconds, 2.44, restart_seconds=600.0)
    assert 0.9 < slow.useful_share(slow.best_interval()) < 0.95


def test_hardware_that_says_nothing_of_failures_has_none():
    assert interruptions_of(read_cluster("h100-80gb-ndr"), 8, 1.0) is None
    assert interruptions_of(read_cluster("h100-80gb-roce"), 8, 0.0) is None


@pytest.mark.parametrize("figures", [(0.0, 1.0), (1.0, 0.0), (1.0, 1.0, -1.0), (float("nan"), 1.0)])
def test_figures_that_cannot_be_are_refused(figures):
    with pytest.raises(sk.ConfigurationError, match="wanted a finite number"):
        Interruptions(*figures)
