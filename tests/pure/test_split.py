"""What is held out for validation comes from everywhere, and is never trained on."""

import numpy
import pytest

from shardkit import Samples
from shardkit.testing.base import CorpusError
from shardkit.testing.data import Selected, split_documents, split_rows


class Rows(Samples):
    """Row n is n."""

    run_length = 7

    def __init__(self, num):
        self.num = num

    def __len__(self):
        return self.num

    def read(self, numbers):
        return numbers.copy(), -numbers

    def fingerprint(self):
        return "rows"


@pytest.mark.parametrize("percent", [0.1, 5.0, 50.0, 99.0])
@pytest.mark.parametrize("num_rows", [2, 3, 10, 101, 20000])
def test_each_row_is_in_one_part_and_no_part_is_empty(num_rows, percent):
    for run_length in (1, 7, 1000):
        parts = [Selected(Rows(num_rows), r) for r in split_rows(num_rows, percent, run_length)]
        rows = [part.read(numpy.arange(len(part)))[0] for part in parts]
        assert all(len(r) for r in rows)
        assert numpy.array_equal(numpy.sort(numpy.concatenate(rows)), numpy.arange(num_rows))
        assert parts[0].fingerprint() != parts[1].fingerprint()


def test_whole_runs_are_held_out_and_come_from_everywhere():
    training, held = split_rows(10**5 + 3, 5.0, 10)
    assert not (held.starts % 10).any() and not (training.starts % 10).any()
    assert abs(len(held) - 5000) < 20
    assert numpy.histogram(held.starts, 10, (0, 10**5))[0].min() > 10


def test_the_rows_of_a_large_table_are_split_without_a_list_of_them():
    training, held = split_rows(10**10, 5.0, 1000)
    assert len(held.starts) <= 1024 and len(training) + len(held) == 10**10
    assert abs(len(held) / 10**10 - 0.05) < 1e-4


def test_a_row_cannot_be_split():
    with pytest.raises(CorpusError, match="1 row cannot be split"):
        split_rows(1, 5.0)


SIZES = {
    "one": [1000],
    "equal": [50] * 100,
    "a long one": [5] * 20 + [5000] + [7] * 30,
    "three": [10, 400, 90],
}


@pytest.mark.parametrize("percent", [1.0, 5.0, 50.0])
@pytest.mark.parametrize("name", SIZES)
def test_documents_are_held_out_whole_or_their_end(name, percent):
    sizes = SIZES[name]
    training, held = split_documents(sizes, [True] * len(sizes), percent)
    lengths = numpy.zeros(len(sizes), int)
    for document, first, stop in [*training.tolist(), *held.tolist()]:
        lengths[document] += stop - first
    assert lengths.tolist() == sizes
    for document, first, stop in held.tolist():
        assert stop == sizes[document] and (first == 0 or sizes[document] > percent * 0.01 * 400)
    num_held = (held[:, 2] - held[:, 1]).sum()
    assert percent / 200 < num_held / sum(sizes) <= percent / 100 + len(sizes) / sum(sizes)


def test_held_out_documents_come_from_everywhere_and_groups_are_never_cut():
    sizes = [50 + 7 * i % 40 for i in range(400)]
    _, held = split_documents(sizes, [True] * 400, 5.0)
    assert all(((held[:, 0] >= i) & (held[:, 0] < i + 100)).any() for i in range(0, 400, 100))
    training, held = split_documents([1000, 10, 10], [False] * 3, 50.0)
    assert training.tolist() == [[0, 0, 1000]] and held.tolist() == [[1, 0, 10], [2, 0, 10]]
