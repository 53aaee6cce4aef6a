"""What a source draws at random is new in each epoch, and the same on every mesh and after a
restart.
"""

import numpy
import pytest

import shardkit as sk
from shardkit.testing.data import Draw, Mixture, Selected, Stream, reader_of, split_rows

NUM = 4


class Noisy(sk.Samples):
    """Rows with noise that is drawn in training, and none elsewhere."""

    def __init__(self, length=NUM):
        self.length = length
        self.told = []  # (number, position, sum of its noise); in validation no position

    def __len__(self):
        return self.length

    def read(self, numbers, draw=None):
        x = numpy.repeat(numbers[:, None].astype("f4"), 3, 1)
        positions = [None] * len(numbers) if draw is None else draw.positions.tolist()
        noise = numpy.zeros(x.shape) if draw is None else draw.normal(3)
        self.told += zip(numbers.tolist(), positions, noise.sum(1).tolist())
        x += noise.astype("f4")
        return x, x.sum(1, keepdims=True)

    def fingerprint(self):
        return f"{self.length:x}"


class ByNumber(Noisy):
    """A read that knows numbers alone, as before."""

    def read(self, numbers):
        return Noisy.read(self, numbers)


def trained(folder, num_ranks=1, steps=6, batch=4, source=Noisy, **settings):
    """Return what the source of each rank was told in training, and in validation."""

    def on_rank(backend):
        training, held_out = source(), source()
        chosen = {
            "run.steps": steps,
            "batch.sequences": batch,
            "batch.micro_batch": batch // num_ranks,
            **settings,
        }
        data = training, held_out
        model = sk.models.MLP([3, 1])
        sk.Training(model, data, folder=str(folder), settings=chosen, backend=backend).run()
        return training.told, held_out.told

    return sk.run_ranks(num_ranks, on_rank)


def by_position(ranks, steps=6, batch=4):
    """Return {position: (number, noise)} of the steps of a run, from all ranks."""
    found = {}
    for told, _ in ranks:
        for number, position, noise in told:
            if position is not None and position < steps * batch:
                assert found.setdefault(position, (number, noise)) == (number, noise)
    return found


@pytest.mark.thorough
def test_noise_is_new_in_each_epoch_and_the_same_on_every_mesh(tmp_path):
    whole = by_position(trained(tmp_path / "1"))
    assert sorted(whole) == list(range(24))
    assert len({noise for _, noise in whole.values()}) == 24  # six epochs of four samples
    assert by_position(trained(tmp_path / "2", 2)) == whole
    assert by_position(trained(tmp_path / "4", 4)) == whole


def test_a_run_that_goes_on_draws_what_it_would_have_drawn(tmp_path):
    whole = by_position(trained(tmp_path / "whole"))
    first = by_position(trained(tmp_path / "cut", steps=3), steps=3)
    rest = trained(tmp_path / "cut", 2, steps=6)
    rest = by_position(rest)
    assert min(rest) == 12 and first | rest == whole


def test_validation_is_told_no_position(tmp_path):
    ((told, held_out),) = trained(tmp_path)
    assert held_out and all(position is None for _, position, _ in held_out)
    assert any(position is not None for _, position, _ in told)


def test_a_read_of_numbers_alone_is_called_as_before(tmp_path):
    ((told, _),) = trained(tmp_path, source=ByNumber)
    assert len(told) >= 24 and all(position is None for _, position, _ in told)


def sources():
    first, second = Noisy(9), Noisy(3)
    selected = Selected(first, split_rows(9, 30.0)[0])
    return {
        "part": (selected, [first]),
        "mixture": (Mixture([first, second], [1, 3]), [first, second]),
        "part of a mixture": (
            Selected(Mixture([first, second], [1, 3]), split_rows(36, 30.0)[0]),
            [first, second],
        ),
        "mixture with one that knows numbers": (Mixture([first, ByNumber(3)], [1, 3]), [first]),
    }


@pytest.mark.parametrize("name", sources())
def test_sources_of_sources_hand_the_draw_on(name):
    source, inner = sources()[name]
    with Stream(source, 0, "training", global_batch=6, first=2, count=4) as stream:
        x, _ = stream.batch(5)
    told = [position for each in inner for _, position, _ in each.told]
    expected = range(32, 36) if "numbers" not in name else told
    assert sorted(position for position in told if position < 38) == sorted(expected)
    assert None not in told and x.shape == (4, 3)
    plain, _ = source.read(numpy.arange(4))
    assert (plain == plain.round()).all()  # no noise


class Wrapped(Noisy):
    """A source that draws, and hands its draw on to the source that it wraps, before or after."""

    def __init__(self, source, *, is_first):
        super().__init__()
        self.read_inner, self.is_first = reader_of(source), is_first

    def read(self, numbers, draw=None):
        noise = draw.normal(3) if self.is_first else 0
        x, _ = self.read_inner(numbers, draw)
        noise = noise if self.is_first else draw.normal(3)
        return numpy.stack([noise, x - x.round()]), None


@pytest.mark.parametrize("is_first", [False, True])
def test_a_mixture_draws_other_numbers_than_what_it_is_wrapped_in(is_first):
    inner = Noisy()
    (outer, _), _ = Wrapped(Mixture([inner], [1]), is_first=is_first).read(
        numpy.arange(4), Draw(0, numpy.arange(4))
    )
    within = [noise for _, _, noise in inner.told]
    assert abs(outer.sum(1) - within).min() > 1e-6


def test_a_read_with_any_keywords_is_told_too():
    class Open(Noisy):
        def read(self, numbers, **rest):
            return Noisy.read(self, numbers, **rest)

    source = Open()
    reader_of(source)(numpy.arange(2), Draw(0, numpy.array([5, 6])))
    assert [position for _, position, _ in source.told] == [5, 6]


class OfPositions(Noisy):
    """A read as it was written when positions were told."""

    def read(self, numbers, positions=None):
        return Noisy.read(self, numbers)


@pytest.mark.parametrize("make", [lambda samples: samples, lambda samples: Mixture([samples], [1])])
def test_a_read_that_takes_positions_is_refused_on_all_ranks(tmp_path, make):
    def on_rank(backend):
        data = make(OfPositions()), Noisy()
        settings = {"run.steps": 1, "batch.sequences": 4, "batch.micro_batch": 2}
        how = {"folder": tmp_path / "run", "settings": settings, "backend": backend}
        sk.Training(sk.models.MLP([3, 1]), data, **how).run()

    with pytest.raises(
        sk.ConfigurationError, match="OfPositions.read .* takes them.; wanted draw=None"
    ):
        sk.run_ranks(2, on_rank)
