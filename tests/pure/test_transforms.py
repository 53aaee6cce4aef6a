"""Ready transforms do what they say, to a sample the same in any company, on any mesh and part."""

import numpy
import pytest

import shardkit as sk
from shardkit import transforms
from shardkit.testing.data import Draw, Mixture, Stream, reader_of
from shardkit.testing.task import ArraySamples, parts_of

NUM = 60
POSITIONS = numpy.random.default_rng(0).permutation(1000)[:NUM]
FRAMES = numpy.random.default_rng(1).integers(1, 200, (NUM, 3, 6, 5))
LABELS = FRAMES[:, :1] + 7
TABLE = {
    "flip": lambda x, y, draw: transforms.flip((x, y), draw, dim=-1),
    "flip dim 2": lambda x, y, draw: (transforms.flip(x, draw, 2, probability=0.9), y),
    "crop": lambda x, y, draw: transforms.crop((x, y), draw, padding=2),
    "crop along one": lambda x, y, draw: (transforms.crop(x, draw, 4, dims=(3,)), y),
    "noise": lambda x, y, draw: (transforms.noise(x, draw, 0.5), y),
    "mask": lambda x, y, draw: (transforms.mask(x, draw, 0.3, fill=-1), y),
}


def changed(name, dtype="float32", rows=slice(None), key=3):
    """Return what a transform makes of some of the frames and labels, told their draw."""
    draw = Draw(key, POSITIONS[rows])
    return TABLE[name](FRAMES[rows].astype(dtype), LABELS[rows], draw)


@pytest.mark.parametrize("name", TABLE)
def test_a_sample_is_changed_in_the_same_way_in_any_company(name):
    whole = changed(name)
    for rows in ([7], [3, 59, 0], [*range(NUM)][::-1]):
        for found, wanted in zip(changed(name, rows=rows), whole):
            assert numpy.array_equal(found, wanted[rows])
    assert not numpy.array_equal(changed(name, key=4)[0], whole[0])


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int16"])
def test_shapes_and_dtypes_stay_and_what_was_given_is_not_written(name, dtype):
    if (name, dtype) == ("noise", "int16"):
        with pytest.raises(sk.ConfigurationError, match="'int16'; wanted floating point"):
            changed(name, dtype)
        return
    before = FRAMES.copy(), LABELS.copy()
    x, y = changed(name, dtype)
    assert (x.dtype, x.shape) == (dtype, FRAMES.shape)
    assert (y.dtype, y.shape) == (LABELS.dtype, LABELS.shape)
    assert (FRAMES == before[0]).all() and (LABELS == before[1]).all()


def test_flipped_samples_are_reversed_with_their_targets():
    x, y = changed("flip")
    is_flipped = numpy.array([(a == b[..., ::-1]).all() for a, b in zip(x, FRAMES)])
    assert 15 < is_flipped.sum() < 45
    assert numpy.array_equal(x[~is_flipped], FRAMES[~is_flipped])
    assert numpy.array_equal(y[is_flipped], LABELS[is_flipped][..., ::-1])
    assert numpy.array_equal(y[~is_flipped], LABELS[~is_flipped])
    x, y = changed("flip dim 2")
    assert sum((a == b[:, ::-1]).all() for a, b in zip(x, FRAMES)) > 45 and (y == LABELS).all()


def test_a_crop_is_a_window_of_the_padded_sample_and_of_its_targets():
    x, y = changed("crop")
    seen = set()
    for number in range(NUM):
        padded = numpy.pad(FRAMES[number], [(0, 0), (2, 2), (2, 2)], mode="edge")
        labels = numpy.pad(LABELS[number], [(0, 0), (2, 2), (2, 2)], mode="edge")
        (place,) = [
            (top, left)
            for top in range(5)
            for left in range(5)
            if (padded[:, top : top + 6, left : left + 5] == x[number]).all()
        ]
        seen.add(place)
        assert (labels[:, place[0] : place[0] + 6, place[1] : place[1] + 5] == y[number]).all()
    assert {top for top, _ in seen} == {left for _, left in seen} == set(range(5))


def test_noise_has_the_deviation_that_it_says():
    x, y = changed("noise", "float64")
    noise = x - FRAMES
    assert abs(noise.std() - 0.5) < 0.02 and abs(noise.mean()) < 0.02 and (y == LABELS).all()
    assert len(numpy.unique(noise)) == noise.size


def test_a_mask_takes_the_share_that_it_says():
    gone = changed("mask")[0] == -1
    assert abs(gone.mean() - 0.3) < 0.03 and (gone != gone[:, :1]).any()
    assert numpy.array_equal(changed("mask")[0][~gone], FRAMES[~gone])


# ---- samples -------------------------------------------------------------------------------------

X = numpy.random.default_rng(2).normal(size=(50, 4, 6)).astype("float32")
Y = numpy.arange(50, dtype="float32")[:, None]


def flipped_and_noisy(x, y, draw):
    return transforms.noise(transforms.flip(x, draw), draw, 0.1), y


SOURCES = {
    "augmented": lambda: transforms.Augmented((X, Y), flipped_and_noisy),
    "mixed": lambda: transforms.mixup((X, Y), 0.4),
    "mixed of augmented": lambda: transforms.mixup(SOURCES["augmented"](), 0.4),
    "augmented twice": lambda: transforms.Augmented(
        SOURCES["augmented"](),
        lambda x, y, draw: (transforms.noise(x, draw, 1), y + draw.uniform(1)),
    ),
    "mixture": lambda: Mixture([SOURCES["mixed"](), SOURCES["augmented"]()], [1, 2]),
}


def batches(source, ranks, number=0, part=None):
    """Return x, y of steps 3 and 4 on one of so many ranks."""
    how = {"global_batch": 12, "first": number * 12 // ranks, "count": 12 // ranks}
    with Stream(source, 9, "training", sample_part=part, **how) as stream:
        return [stream.batch(step) for step in (3, 4)]


@pytest.mark.parametrize("name", SOURCES)
def test_batches_are_the_same_on_every_mesh_and_on_domain_ranks(name):
    whole = batches(SOURCES[name](), 1)
    assert not numpy.array_equal(whole[0][0], whole[1][0])
    for ranks in (2, 3, 4):
        parts = [batches(SOURCES[name](), ranks, number) for number in range(ranks)]
        for step in range(2):
            for which in range(2):
                found = numpy.concatenate([part[step][which] for part in parts])
                assert numpy.array_equal(found, whole[step][which])
    part = sk.SamplePart(1, 3, 2)
    for (x, y), (whole_x, whole_y) in zip(batches(SOURCES[name](), 1, part=part), whole):
        assert numpy.array_equal(x.array, whole_x[:, :, 2:4]) and (x.start, x.length) == (2, 6)
        assert numpy.array_equal(y, whole_y)


@pytest.mark.parametrize("name", SOURCES)
def test_samples_are_as_they_are_where_nothing_is_drawn(name):
    source, numbers = SOURCES[name](), numpy.arange(10)
    x, y = reader_of(source)(numbers)
    assert numpy.array_equal(x, X[:10]) and numpy.array_equal(y, Y[:10])
    x, _ = reader_of(source)(numbers, None, sk.SamplePart(0, 2, 1))
    assert numpy.array_equal(x.array, X[:10, :2]) and not source.reads_parts
    if name != "mixture":
        assert len(source) == 50 and source.fingerprint() == ArraySamples(X, Y).fingerprint()


def test_a_sample_is_mixed_with_one_of_the_whole_data_set_and_so_are_its_targets():
    numbers = numpy.arange(50)
    x, y = transforms.mixup((X, Y), 1.0).read(numbers, Draw(2, numbers))
    partners = set()
    for number in numbers:
        shares = (y[number] - Y) / (Y[number] - Y + (Y == Y[number]))  # one for each partner
        errors = [
            abs(x[number] - (share * X[number] + (1 - share) * X[other])).max()
            for other, share in enumerate(shares)
        ]
        partners.add(int(numpy.argmin(errors)))
        assert min(errors) < 1e-5 and 0 <= shares[numpy.argmin(errors)] <= 1
    assert len(partners) > 20


def test_what_is_held_out_is_mixed_into_nothing_that_is_trained_on():
    where = numpy.eye(50, dtype="float32")
    parts = parts_of(transforms.mixup((where, where), 1.0))
    trained, held_out = (parts[name].read(numpy.arange(len(parts[name])))[0] for name in parts)
    numbers = numpy.arange(45)
    for epoch in range(4):
        x, _ = parts["training"].read(numbers, Draw(epoch, numbers))
        assert not x[:, held_out.any(0)].any() and x[:, trained.any(0)].any(0).all()
        assert (x > 0).sum() > 60  # of 45 samples, so there are partners


def test_a_change_of_ones_own_is_told_partners():
    def cut(x, y, draw, others):
        return numpy.concatenate([x[:, :2], others[0][:, 2:]], 1), others[1]

    numbers = numpy.arange(50)
    source = transforms.Augmented((X, Y), cut, partners=True)
    x, y = source.read(numbers, Draw(4, numbers))
    which = y[:, 0].astype(int)
    assert len({*which}) > 20 and numpy.array_equal(x[:, :2], X[:, :2])
    assert numpy.array_equal(x[:, 2:], X[which, 2:])


def test_trees_are_mixed_leaf_by_leaf_and_transformed_by_functions():
    source = transforms.Augmented(
        ({"a": X, "b": (Y,)}, Y), lambda x, y, draw: ({**x, "a": -x["a"]}, y)
    )
    x, y = transforms.mixup(source).read(numpy.arange(8), Draw(1, numpy.arange(8)))
    assert x["a"].shape == (8, 4, 6) and numpy.allclose(x["b"][0], y)


class Streamed(ArraySamples):
    is_numbered = False


def one_hot(samples):
    return transforms.mixup(samples).read(POSITIONS[:3] % 50, Draw(0, POSITIONS[:3]))


REFUSED = {
    "dim 0": (lambda: transforms.flip(X, Draw(0, POSITIONS[:50]), 0), "dim = 0; wanted one behind"),
    "dim -3": (
        lambda: transforms.crop({"a": X}, Draw(0, POSITIONS[:50]), 1, dims=(1, -3)),
        r"dim = -3; .* an array \(50, 4, 6\)",
    ),
    "classes": (lambda: one_hot((X, Y[:, 0].astype(int))), r"'int64'; wanted .* numpy.eye\(10\)"),
    "a stream": (
        lambda: transforms.mixup(transforms.Augmented(Streamed(X, Y), flipped_and_noisy)),
        "by number, not of a stream",
    ),
    "padding": (lambda: transforms.crop(X, Draw(0, POSITIONS[:50]), -1), "an integer, at least 0"),
    "no such dim": (lambda: transforms.flip(X, Draw(0, POSITIONS[:50]), 3), "dim = 3; wanted one"),
    "a dim of labels": (
        lambda: transforms.crop((X, Y[:, 0]), Draw(0, POSITIONS[:50]), 1),
        r"dim = -2; .* an array \(50,\)",
    ),
    "probability": (
        lambda: transforms.flip(X, Draw(0, POSITIONS[:50]), probability=50),
        "probability = 50; wanted a number from 0 to 1",
    ),
    "share": (lambda: transforms.mask(X, Draw(0, POSITIONS[:50]), -0.1), "a number from 0 to 1"),
    "fill": (
        lambda: transforms.mask(FRAMES.astype("uint8"), Draw(0, POSITIONS), 0.1, fill=-1),
        "fill = -1; wanted one of uint8",
    ),
    "alpha": (lambda: transforms.mixup((X, Y), 0), "alpha = 0; wanted a finite number above 0"),
    "no change": (lambda: transforms.Augmented((X, Y), None), "change = None; wanted a function"),
    "x alone": (
        lambda: transforms.Augmented((X, Y), lambda x, y, draw: x[:2]).read(
            POSITIONS[:2] % 50, Draw(0, POSITIONS[:2])
        ),
        "ndarray.*that returns .x, y.",
    ),
    "nothing to change": (lambda: transforms.Augmented(X, flipped_and_noisy), "ndarray"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_done_is_refused(name):
    act, words = REFUSED[name]
    with pytest.raises(sk.ConfigurationError, match=words):
        act()
