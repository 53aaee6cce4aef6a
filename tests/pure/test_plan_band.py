"""The band around predictions: of the family of runs that a layout belongs to."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from published_runs import gpt

from shardkit.testing.plan import (
    BEYOND,
    KNOWN,
    MIXED,
    OWN,
    SHARDKIT,
    TUNED,
    UNKNOWN,
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
TINY = ModelShape(2, 64, 4, 64, 32)


@pytest.mark.parametrize(
    "layout, shape, cluster, program, family",
    [
        (RunLayout(data=64), SMALL, A100, "torch-fsdp", "torch-fsdp"),
        (RunLayout(8, 2, 8), SMALL, A100, "megatron", "megatron"),
        (RunLayout(data=1024), SMALL, A100, "megatron", "megatron" + BEYOND),  # more devices
        (RunLayout(8, 8, 8), gpt(128, 40960, 160), A100, "megatron", "megatron" + BEYOND),
        (RunLayout(), SMALL, read_cluster("b200-180gb-ndr"), "nemo-float8", "nemo" + BEYOND),
        (RunLayout(), SMALL, A100, "megatron-core", KNOWN),  # no rows that may choose
        (RunLayout(), SMALL, A100, "mixed", UNKNOWN),
        (RunLayout(), SMALL, A100, "tuned", TUNED),
        (RunLayout(), SMALL, A100, "of-a-file", UNKNOWN),
        (RunLayout(data=4), TINY, read_cluster("cpu-node"), "shardkit", OWN),
        (RunLayout(data=128), TINY, read_cluster("cpu-node"), "shardkit", UNKNOWN),
    ],
)
def test_a_layout_gets_the_band_of_its_program(layout, shape, cluster, program, family):
    assert band_of(layout, shape, cluster, program).family == family


def test_what_nobody_ran_has_a_wider_band():
    known = bands()
    assert known[UNKNOWN].low < known[KNOWN].low < known[KNOWN].high < known[UNKNOWN].high
    for band in known.values():
        beyond = band.beyond()
        assert beyond.low <= band.low < 1 < band.high <= beyond.high and band.rows > 0
    other = SimpleNamespace(is_compared=False)
    assert band_of(RunLayout(), other, A100, "megatron") == known[UNKNOWN].beyond()
    low, high = known[KNOWN].around(2.0)
    assert low == 2 * known[KNOWN].low and high == 2 * known[KNOWN].high


def test_a_plan_prints_its_band_and_says_when_two_rows_are_within_it(capsys):
    found = search(SMALL, MIXED, A100, 32, 64)
    training = PlannedTraining(found, 1e9)
    print_search(training, 3)
    printed = capsys.readouterr().out
    assert (
        "nine of ten runs" in printed and f"by {bands()[UNKNOWN].rows} runs of {UNKNOWN}" in printed
    )
    first, second = found.rows(2)
    is_close = (
        second.cost.seconds < first.cost.seconds * bands()[UNKNOWN].high / bands()[UNKNOWN].low
    )
    assert ("within this band" in printed) is is_close
    low, high = training.between(first)
    assert low < first.cost.seconds < high
    far = replace(second, cost=replace(second.cost, seconds=10 * first.cost.seconds))
    print_search(PlannedTraining(replace(found, fitting=(first, far)), 1e9), 3)
    assert "within this band" not in capsys.readouterr().out


def test_one_row_alone_has_a_band(capsys):
    print_search(PlannedTraining(search(SMALL, SHARDKIT, A100, 1, 1), 1e9), 3)
    assert "nine of ten runs" in capsys.readouterr().out
