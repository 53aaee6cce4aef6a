"""Dropout depends on the global sample alone; the forward context belongs to its thread and
block.
"""

import threading

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardkit.nn import ForwardContext, Tensor, current_context, forward_context, ops


def dropped(first, stop, p=0.4, path="blocks.0.dropout", seed=1, step=7):
    """Dropout of ones for samples [first, stop) of the global batch."""
    context = ForwardContext(training=True, seed=seed, step=step, first_sample=first)
    return ops.dropout(Tensor(numpy.ones((stop - first, 3, 5), "float32")), p, path, context).array


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 24), max_size=4))
def test_masks_are_equal_however_the_batch_is_cut(cuts):
    edges = [0, *sorted(cuts), 24]
    parts = [dropped(first, stop) for first, stop in zip(edges, edges[1:])]
    assert numpy.array_equal(numpy.concatenate(parts), dropped(0, 24))


@pytest.mark.parametrize("other", [{"path": "blocks.1.dropout"}, {"seed": 2}, {"step": 8}])
def test_masks_differ_between_layers_seeds_and_steps(other):
    assert not numpy.array_equal(dropped(0, 24), dropped(0, 24, **other))


def test_samples_have_masks_of_their_own():
    masks = dropped(0, 24).reshape(24, -1) > 0
    assert len({mask.tobytes() for mask in masks}) == 24


def test_the_mean_is_kept_and_the_share_of_zeros_is_p():
    y = dropped(0, 2000, p=0.25)
    deviation = (0.25 * 0.75 / y.size) ** 0.5
    assert abs((y == 0).mean() - 0.25) < 4 * deviation
    assert set(numpy.unique(y)) == {numpy.float32(0), numpy.float32(1 / 0.75)}


def test_nothing_is_dropped_outside_training_or_with_p_zero():
    x = Tensor(numpy.ones((2, 3), "float32"))
    assert ops.dropout(x, 0.5, "d", ForwardContext()) is x
    assert ops.dropout(x, 0.0, "d", ForwardContext(training=True)) is x


def test_the_gradient_passes_where_the_value_passed():
    x = Tensor(numpy.ones((4, 6), "float32"), requires_grad=True)
    y = ops.dropout(x, 0.5, "d", ForwardContext(training=True))
    y.sum().backward()
    assert y.dtype == numpy.float32
    numpy.testing.assert_array_equal(x.grad, y.array)  # for ones, both are mask / (1 - p)


def test_an_empty_batch_is_dropped_to_an_empty_batch():
    assert dropped(5, 5).shape == (0, 3, 5)


def test_the_context_is_that_of_the_innermost_block_and_ends_with_it():
    assert current_context() == ForwardContext(training=False, seed=0, step=0, first_sample=0)
    with forward_context(ForwardContext(training=True, step=1)):
        with pytest.raises(KeyError), forward_context(ForwardContext(step=2)):
            assert current_context().step == 2
            raise KeyError
        assert current_context().step == 1
    assert not current_context().training


def test_threads_do_not_see_each_others_context():
    seen = []
    with forward_context(ForwardContext(training=True)):
        thread = threading.Thread(target=lambda: seen.append(current_context().training))
        thread.start()
        thread.join()
    assert seen == [False]
