"""Data sets that give one sample for a number are samples: PyTorch's, Hugging Face's, one's own."""

import random
import sys
from collections import UserDict

import numpy
import pytest

import shardkit as sk
from shardkit.testing.data import Draw, Stream, reader_of
from shardkit.testing.task import as_samples, parts_of

X = numpy.random.default_rng(0).normal(size=(30, 4)).astype("float32")
Y = X.sum(1, keepdims=True)
NUMBERS = numpy.array([3, 29, 3, 0])


class Rows:
    """A data set by index, as people write it without any library."""

    def __init__(self, item=lambda n: (X[n], Y[n])):
        self.item = item

    def __len__(self):
        return len(X)

    def __getitem__(self, number):
        assert type(number) is int
        return self.item(number)


def drawn(number):
    """Return a sample with numbers of all generators of the process."""
    extra = [random.random(), numpy.random.random()]
    if "torch" in sys.modules:
        extra.append(float(sys.modules["torch"].rand(())))
    return X[number] + numpy.float32(sum(extra)), Y[number]


def of_torch():
    torch = pytest.importorskip("torch")
    return torch.utils.data.TensorDataset(torch.tensor(X), torch.tensor(Y))


def subset():
    torch = pytest.importorskip("torch")
    return torch.utils.data.Subset(of_torch(), range(30))


DATA = {
    "rows": Rows,
    "lists": lambda: Rows(lambda n: [X[n].tolist(), Y[n].tolist()]),
    "dicts": lambda: sk.IndexedSamples(Rows(lambda n: {"in": X[n], "out": Y[n]}), "in", "out"),
    "torch": of_torch,
    "a part of torch": subset,
}


@pytest.mark.parametrize("kind", DATA)
def test_samples_are_read_by_number(kind):
    samples = as_samples(DATA[kind]())
    x, y = samples.read(NUMBERS)
    assert len(samples) == 30 and samples.fingerprint() == as_samples(DATA[kind]()).fingerprint()
    assert numpy.allclose(x, X[NUMBERS]) and numpy.allclose(y, Y[NUMBERS])
    x, _ = reader_of(samples)(NUMBERS, None, sk.SamplePart(1, 2, 1))
    assert numpy.allclose(x.array, X[NUMBERS, 2:])


def test_trees_and_labels_are_stacked():
    items = Rows(lambda n: {"a": {"b": X[n], "c": (Y[n], n)}, "label": n, "name": "no number"})
    x, y = sk.IndexedSamples(items, "a", "label").read(NUMBERS)
    assert numpy.array_equal(x["b"], X[NUMBERS]) and numpy.array_equal(x["c"][0], Y[NUMBERS])
    assert x["c"][1].tolist() == y.tolist() == NUMBERS.tolist() and y.dtype.kind == "i"


def test_a_change_of_a_sample_changes_the_fingerprint():
    before = as_samples(Rows()).fingerprint()
    for change in (lambda n: (X[n], Y[n] + (n == 29)), lambda n: (X[n].astype("f8"), Y[n])):
        assert as_samples(Rows(change)).fingerprint() != before


def test_what_a_data_set_draws_is_new_in_each_epoch_and_the_same_on_every_mesh():
    def batches(ranks):
        found = []
        for rank in range(ranks):
            how = {"global_batch": 30, "first": rank * 30 // ranks, "count": 30 // ranks}
            with Stream(as_samples(Rows(drawn)), 0, "training", **how) as stream:
                found.append([stream.batch(step)[0] for step in (0, 1)])
        return [numpy.concatenate(parts) for parts in zip(*found)]

    first, second = batches(1)
    assert not set(first[:, 0].tolist()) & set(second[:, 0].tolist())
    for ranks in (2, 3):
        assert numpy.array_equal(batches(ranks), [first, second])
    samples = as_samples(Rows(drawn))
    assert numpy.array_equal(samples.read(NUMBERS)[0][0], samples.read(NUMBERS)[0][2])
    assert samples.fingerprint() == as_samples(Rows(drawn)).fingerprint()


def test_the_generators_of_the_process_go_on_as_if_nothing_was_read():
    def states():
        torch = sys.modules.get("torch")
        return random.random(), numpy.random.random(), torch and float(torch.rand(()))

    def seed():
        random.seed(1)
        numpy.random.seed(2)
        if "torch" in sys.modules:
            sys.modules["torch"].manual_seed(3)

    seed()
    wanted = states()
    seed()
    as_samples(Rows(drawn)).read(NUMBERS, Draw(0, NUMBERS))
    assert states() == wanted

    seed()
    with pytest.raises(ZeroDivisionError):
        as_samples(Rows(lambda n: 1 // 0)).read(NUMBERS)
    assert states() == wanted


def test_data_of_a_training_may_be_one_or_two_data_sets(tmp_path):
    assert {part: len(found) for part, found in parts_of(Rows()).items()} == {
        "training": 27,
        "validation": 3,
    }
    two = parts_of((Rows(), Rows(lambda n: (X[n], Y[n]))))
    assert [len(found) for found in two.values()] == [30, 30]


class OfIndex(sk.Task):
    """A task whose samples are data sets, and a mistake."""

    def make_model(self):
        return sk.models.MLP([4, 1])

    def samples(self, part):
        return Rows() if part == "training" else (X, Y)


def losses(folder, task, data=None):
    def on_rank(backend):
        settings = {"run.steps": 3, "batch.sequences": 4, "batch.micro_batch": 2}
        how = {"folder": folder, "settings": settings, "backend": backend}
        run = sk.Training(task, data, **how)
        run.run()
        return run.evaluate(Rows()).loss, run.predict(Rows(), folder.with_suffix(".h5"))

    return sk.run_ranks(2, on_rank)


def test_runs_of_a_script_and_of_a_task_take_data_sets(tmp_path):
    ours = losses(tmp_path / "task", OfIndex)
    assert len(set(map(str, ours))) == 1
    assert losses(tmp_path / "set", sk.models.MLP([4, 1]), (Rows(), (X, Y))) == ours
    assert losses(tmp_path / "arrays", sk.models.MLP([4, 1]), ((X, Y), (X, Y))) == ours


REFUSED = {
    "other shapes": (
        lambda n: (X[n][: n % 4], Y[n]),
        "'float32 .*wanted numbers of one shape",
    ),
    "texts": (lambda n: ("a text", Y[n]), "wanted numbers of one shape"),
    "other dtypes": (lambda n: ([n, n / 2] if n else [0, 0], n), "'float64 .*, 'int64 "),
    "three": (lambda n: (X[n], Y[n], n), "sample 3 is a tuple ; wanted a pair"),
    "keys": (lambda n: {"image": X[n], "label": n}, "a dict .'image', 'label'.; wanted a pair"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_samples_that_make_no_batch_are_refused(kind):
    item, words = REFUSED[kind]
    with pytest.raises(sk.ConfigurationError, match=words):
        as_samples(Rows(item)).read(NUMBERS)


class Own(Rows):
    """It draws by a generator of its own, whose numbers depend on what was read before."""

    def __init__(self):
        self.drawn = numpy.random.default_rng(0)

    def __getitem__(self, number):
        return X[number] + self.drawn.normal(), Y[number]


def test_a_generator_that_is_not_seeded_for_each_sample_is_noticed():
    with pytest.raises(sk.ConfigurationError, match="others when .* not by its own generator"):
        as_samples(Own()).fingerprint()


def test_a_data_set_may_read_another(tmp_path):
    inner = as_samples(Rows(drawn))

    def both(number):
        x, y = inner.read(numpy.array([number]))
        return x[0], y[0]

    x, _ = as_samples(Rows(both)).read(NUMBERS)
    assert numpy.array_equal(x, inner.read(NUMBERS)[0])


class NoLength:
    def __getitem__(self, number):
        return X[number], Y[number]


@pytest.mark.parametrize(
    "data",
    [
        NoLength(),
        (each for each in X),
        {"x": X},
        X,
        UserDict(x=X),
        "data.h5",
        [(X[0], Y[0])] * 3,
        3,
    ],
)
def test_what_has_no_numbered_samples_is_refused_by_its_type(data):
    with pytest.raises(sk.ConfigurationError, match=f"data of type {type(data).__name__}; wanted"):
        as_samples(data)
    with pytest.raises(sk.ConfigurationError, match="a length and dataset.number."):
        sk.IndexedSamples(data)
