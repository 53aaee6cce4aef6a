"""The band around predictions: of the family of runs that a layout belongs to."""

from dataclasses import replace

import pytest
from published_runs import gpt

from shardkit.testing.plan import (
    BEYOND,
    CUT,
    MIXED,
    OWN,
    SHARDED,
    SHARDKIT,
    ModelShape,
    PlannedTraining,
    RunLayout,
    band_of,
    bands,
    print_search,
    read_cluster,
    search,
)

A100 = read_cluster("a100-80gb-hdr")
SMALL = gpt(24, 2304, 24)


@pytest.mark.parametrize(
    "layout, shape, cluster, family",
    [
        (RunLayout(data=64), SMALL, A100, SHARDED),
        (RunLayout(data=1024), SMALL, A100, BEYOND),  # more devices than any such run
        (RunLayout(8, 8, 8), SMALL, A100, CUT),
        (RunLayout(8, 8, 8), SMALL, read_cluster("h200-141gb-ndr"), BEYOND),  # no such run on it
        (RunLayout(8, 8, 8), gpt(128, 40960, 160), A100, BEYOND),
        (RunLayout(data=4), ModelShape(2, 64, 4, 64, 32), read_cluster("cpu-node"), OWN),
        (RunLayout(data=128), SMALL, read_cluster("cpu-node"), BEYOND),
    ],
)
def test_a_layout_gets_the_band_of_runs_like_it(layout, shape, cluster, family):
    assert band_of(layout, shape, cluster).family == family


def test_the_widest_band_is_that_of_what_nobody_ran():
    widest = bands()[BEYOND]
    for family in (SHARDED, CUT):
        band = bands()[family]
        assert widest.low <= band.low < band.high <= widest.high and band.rows > 10
    low, high = widest.around(2.0)
    assert low == 2 * widest.low and high == 2 * widest.high


def test_a_plan_prints_its_band_and_says_when_two_rows_are_within_it(capsys):
    found = search(SMALL, MIXED, A100, 32, 64)
    training = PlannedTraining(found, 1e9)
    print_search(training, 3)
    printed = capsys.readouterr().out
    assert "nine of ten runs" in printed and f"of {bands()[SHARDED].rows} {SHARDED}" in printed
    first, second = found.rows(2)
    is_close = second.cost.seconds < first.cost.seconds * 1.15
    assert ("within this band" in printed) is is_close
    low, high = training.between(first)
    assert low < first.cost.seconds < high
    far = replace(second, cost=replace(second.cost, seconds=10 * first.cost.seconds))
    print_search(PlannedTraining(replace(found, fitting=(first, far)), 1e9), 3)
    assert "within this band" not in capsys.readouterr().out


def test_one_row_alone_has_a_band(capsys):
    print_search(PlannedTraining(search(SMALL, SHARDKIT, A100, 1, 1), 1e9), 3)
    assert "nine of ten runs" in capsys.readouterr().out
