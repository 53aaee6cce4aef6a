"""The position of a run in its stream: whatever its batches are, no sample is left out."""

import random
from math import ceil

import pytest

from shardkit import CheckpointError
from shardkit.testing.data import Position

CASES = 3000


def read_by(position, steps):
    """Samples of the endless stream, in the order of these steps."""
    return [position.of_step(step) + place for step in steps for place in range(position.batch)]


@pytest.mark.parametrize("number", range(CASES // 300))
def test_batches_of_any_sizes_read_the_stream_without_a_gap(number):
    draw = random.Random(number)
    for _ in range(300):
        samples, step, stored, read = draw.randint(1, 60), 0, {}, []
        for _ in range(draw.randint(1, 6)):
            begun = Position(0, 0, draw.randint(1, 70), samples).after(stored)
            steps = range(step, step + draw.randint(0, 5))
            read += read_by(begun, steps)
            step = steps.stop
            stored = begun.stored(step)
            assert stored["epoch"] * samples + stored["sample"] == len(read)
        assert read == list(range(len(read)))


@pytest.mark.parametrize("number", range(CASES // 300))
def test_epochs_end_with_the_batch_that_has_their_last_sample(number):
    draw = random.Random(number)
    for _ in range(300):
        samples, epochs = draw.randint(1, 60), draw.choice([0.5, 1.0, 1.1, 2.5, 3.0])
        first = Position(0, 0, draw.randint(1, 20), samples)
        whole = first.num_steps(0, epochs)
        step = draw.randint(0, whole)
        then = Position(0, 0, draw.randint(1, 20), samples).after(first.stored(step))
        last = then.num_steps(step, epochs)
        assert first.after(first.stored(step)).num_steps(step, epochs) == whole
        wanted = ceil(round(epochs * samples, 6))
        assert then.of_step(last) >= wanted
        assert last == step or then.of_step(last - 1) < wanted


def test_a_checkpoint_without_a_position_was_written_under_the_same_batch():
    for step in (0, 1, 7):
        old = Position(0, 0, 8, 21).after({"fingerprint": "x", "next_step": step})
        assert [old.of_step(step + n) for n in range(3)] == [8 * (step + n) for n in range(3)]


def test_other_samples_begin_with_the_next_epoch():
    stored = Position(0, 0, 8, 96).stored(14)  # epoch 1, sample 16
    halves = Position(0, 0, 8, 192).after(stored)
    assert halves.of_step(14) == 2 * 192
    at_the_end = Position(0, 0, 8, 192).after(Position(0, 0, 8, 96).stored(12))
    assert at_the_end.of_step(12) == 192


@pytest.mark.parametrize(
    "stored",
    [
        {"next_step": "x"},
        {"next_step": -1},
        {"next_step": 1.5},
        {"next_step": 1, "epoch": 0},
        {"next_step": 1, "epoch": 0, "sample": -3, "samples": 5},
        {"next_step": 1, "epoch": None, "sample": 0, "samples": 5},
        {"next_step": 1, "epoch": 0, "sample": 0, "samples": 0},
        {"next_step": 1, "epoch": 0, "sample": True, "samples": 5},
    ],
)
def test_what_is_no_position_is_refused(stored):
    with pytest.raises(CheckpointError, match="data_position"):
        Position(0, 0, 8, 96).after(stored)
