"""Arrays that are seen as one: only where every element of the view is one of theirs."""

import numpy
import pytest
from stand_in import pretended_gpu

from shardkit.testing.array import joined, stacked


@pytest.fixture
def flat():
    """24 numbers of a GPU."""
    with pretended_gpu():
        import cupy

        yield cupy.asarray(numpy.arange(24, dtype="float32"))


def parts(flat, *spans):
    return [flat[start:stop].reshape(-1, 2) for start, stop in spans]


def test_arrays_that_touch_are_joined(flat):
    view = joined(parts(flat, (2, 6), (6, 8), (8, 14)))
    assert view.get().tolist() == numpy.arange(2, 14).reshape(6, 2).tolist()
    view[...] = 0
    assert flat.get()[2:14].sum() == 0 and flat.get()[[1, 14]].tolist() == [1, 14]


@pytest.mark.parametrize("gap", [0, 2, 5])
def test_arrays_of_one_shape_that_are_evenly_spaced_are_stacked(flat, gap):
    starts = [number * (4 + gap) for number in range(3)]
    view = stacked(parts(flat, *[(start, start + 4) for start in starts]))
    assert view.shape == (3, 2, 2)
    assert view.get()[:, 0, 0].tolist() == starts and view.get()[:, 1, 1].tolist() == [
        start + 3 for start in starts
    ]


UNFIT = {
    "in another order": ("both", [(4, 8), (0, 4), (8, 12)]),
    "one twice": ("both", [(0, 4), (0, 4)]),
    "one over another": ("both", [(0, 4), (2, 6), (4, 8)]),
    "gaps": ("joined", [(0, 4), (6, 10), (12, 16)]),
    "uneven gaps": ("both", [(0, 4), (6, 10), (14, 18)]),
    "sizes": ("stacked", [(0, 4), (4, 6)]),
    "alone": ("both", [(0, 4)]),
    "nothing": ("both", [(0, 0), (0, 0)]),
}


@pytest.mark.parametrize("name", UNFIT)
def test_what_does_not_fit_together_is_no_view(flat, name):
    which, spans = UNFIT[name]
    given = parts(flat, *spans)
    assert which == "stacked" or joined(given) is None
    assert which == "joined" or stacked(given) is None


def test_dtypes_columns_gaps_and_other_memory_are_no_view(flat):
    first = flat[:4].reshape(2, 2)
    others = {
        "columns": flat[4:8].reshape(1, 4),
        "dtype": flat[4:8].view("int32").reshape(2, 2),
        "gaps inside": flat[4:12].reshape(2, 4)[:, :2],
        "turned": flat[4:8].reshape(2, 2).T,
        "host": numpy.zeros((2, 2), "float32"),
    }
    for name, other in others.items():
        assert joined([first, other]) is stacked([first, other]) is None, name
    assert joined([numpy.zeros((2, 2))] * 2) is stacked([numpy.zeros((2, 2))] * 2) is None


def test_blocks_of_memory_that_happen_to_touch_are_two(flat, monkeypatch):
    """A view over both would outlive one of them."""
    import cupy

    given = parts(flat, (0, 4), (4, 8))
    plain = type(given[0]).data.fget

    def data(x):
        pointer = plain(x)
        if x is given[1]:
            pointer.mem.ptr = pointer.ptr
        return pointer

    monkeypatch.setattr(cupy.ndarray, "data", property(data))
    assert joined(given) is stacked(given) is None
