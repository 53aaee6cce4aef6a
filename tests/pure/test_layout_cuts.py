"""Cuts: even parts of a dim."""

from hypothesis import given
from hypothesis import strategies as st

from shardkit.testing.layout import even_span, merged_blocks, minimum_for_stages


@given(st.integers(0, 50), st.integers(1, 9))
def test_even_spans_are_adjacent_and_the_first_ones_are_longer_by_one(length, num_parts):
    spans = [even_span(length, num_parts, part) for part in range(num_parts)]
    assert spans[0][0] == 0 and spans[-1][1] == length
    assert all(one[1] == two[0] for one, two in zip(spans, spans[1:]))
    sizes = [stop - start for start, stop in spans]
    assert sizes == sorted(sizes, reverse=True) and max(sizes) - min(sizes) <= 1


@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=12), st.integers(1, 99), st.integers(1, 12)
)
def test_the_minimum_for_stages_leaves_each_a_unit_wherever_one_element_would(
    sizes, minimum, num_stages
):
    found = minimum_for_stages(sizes, minimum, num_stages)
    num_units = len(merged_blocks(sizes, found))
    assert 1 <= found <= minimum
    assert num_units >= min(num_stages, len(merged_blocks(sizes, 1)))
    assert found == minimum or len(merged_blocks(sizes, minimum)) < num_stages
