"""Attention of sequences that are cut over ranks, against the same over whole ones; float64.

Tolerance: 1e-12 of the largest value, for sums in another order.
"""

import hashlib
import time
from itertools import product

import numpy
import pytest
from cuts import slab_spans
from lossy_group import lost_in_turn

import shardkit as sk
from shardkit.nn import Tensor, ops
from shardkit.testing.parallel import (
    attention_by_heads,
    balanced_ring,
    check_table,
    cut_attention,
    even_spans,
    exchange_cut,
    exchange_rows,
    paired_spans,
    positions_of,
    ring_attention,
)

EVERY_SIZE = pytest.mark.parametrize("num_ranks", [1, 2, 3, 4, 5])
WAYS = {"ring": ring_attention, "balanced": balanced_ring, "heads": attention_by_heads}
CUTS = {
    "even": even_spans,
    "paired": paired_spans,
    "slabs": lambda length, num_ranks: slab_spans(length, num_ranks, 2 * num_ranks),
    "all to the last": lambda length, num_ranks: (*[()] * (num_ranks - 1), ((0, length),)),
}
# (queries, keys), heads and key heads, causal, window
FORMS = [
    ((13, 13), (2, 2), True, None),
    ((13, 13), (6, 2), False, None),
    ((40, 40), (3, 1), True, None),
    ((40, 40), (2, 1), True, 7),
    ((40, 40), (2, 2), True, 1),
    ((40, 40), (2, 2), False, 5),
    ((1, 1), (4, 2), True, None),
    ((2, 2), (2, 2), True, 3),
    ((9, 5), (4, 2), False, None),  # cross attention
    ((5, 9), (4, 4), True, None),
    ((9, 5), (4, 1), True, 6),
    ((3, 0), (2, 1), False, None),  # no keys at all
    ((0, 0), (2, 1), True, None),
]


def drawn(form, seed=0, dtype="float64"):
    """Return q, k, v and a gradient."""
    (queries, keys), (heads, key_heads), *_ = form
    rng = numpy.random.default_rng(seed)
    shapes = [(2, heads, queries, 4), (2, key_heads, keys, 4)]
    q, k, v, gradient = [rng.standard_normal(shapes[number]) for number in (0, 1, 1, 0)]
    return [x.astype(dtype) for x in (q, k, v, gradient)]


def serial(form, arrays):
    """Return y and the gradients of q, k and v by the definition, with a mask."""
    (queries, keys), _, causal, window = form
    *operands, gradient = arrays
    offset = numpy.arange(queries)[:, None] - numpy.arange(keys)
    mask = offset >= 0 if causal else numpy.ones(offset.shape, bool)
    if window is not None:
        mask &= abs(offset) < window
    tensors = [Tensor(x, requires_grad=True) for x in operands]
    y = ops.scaled_dot_product_attention(*tensors, mask, enable_gqa=True)
    y.backward(gradient)
    return [y.array, *[x.grad for x in tensors]]


def own_parts(form, arrays, cut, group):
    """Return the tables of queries and keys, and positions of this rank for each array."""
    tables = [cut(length, group.world_size) for length in form[0]]
    at_queries, at_keys = [positions_of(table[group.rank]) for table in tables]
    places = at_queries, at_keys, at_keys, at_queries
    return tables, [x[:, :, at] for x, at in zip(arrays, places)], places


def computed(way, form, arrays, cut, group):
    """Return y and the gradients of this rank, and the positions of their tokens."""
    tables, parts, (of_q, of_k, of_v, _) = own_parts(form, arrays, cut, group)
    tensors = [Tensor(x, requires_grad=True) for x in parts[:3]]
    y = way(*tensors, group, *tables, causal=form[2], window=form[3])
    y.backward(parts[3])
    return [y.array, *[x.grad for x in tensors]], (of_q, of_q, of_k, of_v)


def is_right(found, wanted):
    parts, places = found
    whole = [x[:, :, at] for x, at in zip(wanted, places)]
    return all(
        got.shape == right.shape and abs(got - right).max(initial=0) <= 1e-12 * largest
        for got, right, largest in zip(parts, whole, [1 + abs(x).max(initial=0) for x in wanted])
    )


@pytest.mark.strength(1)
@EVERY_SIZE
@pytest.mark.parametrize("name", WAYS)
def test_values_and_gradients_are_those_of_the_whole_sequence(name, num_ranks):
    def run(group):
        wrong = []
        for form in FORMS:
            arrays = drawn(form)
            wanted = serial(form, arrays)
            for cut in CUTS:
                if not is_right(computed(WAYS[name], form, arrays, CUTS[cut], group), wanted):
                    wrong.append((form, cut))
        return wrong

    assert sk.run_ranks(num_ranks, run) == [[]] * num_ranks


@EVERY_SIZE
@pytest.mark.parametrize("causal", [True, False])
def test_a_window_may_be_narrower_than_a_part_as_wide_and_wider(causal, num_ranks):
    part = 41 // num_ranks + 1  # of the first rank
    windows = {1, part - 1, part, part + 1, 2 * part + 1, 30, 40, 41, 99}
    forms = [((41, 41), (4, 4), causal, window) for window in sorted(windows - {0})]

    def run(group):
        wrong = []
        for form in forms:
            arrays = drawn(form)
            wanted = serial(form, arrays)
            for way in (ring_attention, balanced_ring, cut_attention):
                if not is_right(computed(way, form, arrays, even_spans, group), wanted):
                    wrong.append((form, way))
        return wrong

    assert sk.run_ranks(num_ranks, run) == [[]] * num_ranks


@pytest.mark.thorough(but=6)
@pytest.mark.parametrize("seed", range(40))
def test_drawn_attention_is_that_of_the_whole_sequence(seed):
    rng = numpy.random.default_rng(seed)
    num_ranks, key_heads = rng.integers(1, 7), rng.integers(1, 4)
    lengths = tuple(rng.integers(0, 60, 2).tolist())
    lengths = lengths if rng.random() < 0.5 else (lengths[0],) * 2
    window = None if rng.random() < 0.4 else int(rng.integers(1, 40))
    heads = (int(key_heads * rng.integers(1, 4)), int(key_heads))
    form = lengths, heads, bool(rng.random() < 0.6), window
    arrays = drawn(form, seed)
    wanted = serial(form, arrays)
    way, cut = WAYS[rng.choice(list(WAYS))], CUTS[rng.choice(list(CUTS))]
    found = sk.run_ranks(int(num_ranks), lambda group: computed(way, form, arrays, cut, group))
    assert all(is_right(each, wanted) for each in found), (form, way, cut)


# ---- messages ------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", ["even", "paired"])
@pytest.mark.parametrize(
    "form",
    [((13, 13), (6, 3), True, None), ((13, 13), (3, 3), False, None), ((40, 40), (3, 3), True, 7)],
    ids=["causal", "all", "window"],
)
@pytest.mark.parametrize("name", WAYS)
def test_each_message_counts(name, form, cut):
    """What a rank does not get is missed by one of them: no message is sent for nothing either."""
    arrays = drawn(form)
    wanted = serial(form, arrays)

    def run(group):
        return is_right(computed(WAYS[name], form, arrays, CUTS[cut], group), wanted)

    found = lost_in_turn(run, 3, sk.run_ranks)
    assert found and [each for each in found if not each[2]] == []


def test_blocks_in_another_order_are_noticed(monkeypatch):
    """A message from the wrong rank has the size of the right one here: three even parts."""
    form = ((12, 12), (2, 2), False, None)
    arrays = drawn(form)
    wanted = serial(form, arrays)

    class Swapped:
        def __init__(self, group):
            self._group, self._others = group, {}

        def __getattr__(self, name):
            return getattr(self._group, name)

        def isend(self, array, destination, tag):
            other = self._others.setdefault(tag, array.copy())  # the first one again and again
            return self._group.isend(other, destination, tag)

    run = lambda group: is_right(  # noqa: E731
        computed(ring_attention, form, arrays, even_spans, Swapped(group)), wanted
    )
    assert not all(sk.run_ranks(3, run))


@EVERY_SIZE
@pytest.mark.parametrize("causal", [True, False])
def test_the_bytes_of_the_ring_are_those_of_the_formula(num_ranks, causal):
    """Blocks go on as long as a rank ahead sees them, and their gradients come home after them."""
    form = ((13, 13), (4, 2), causal, None)
    arrays = drawn(form)
    counts = [sum(b - a for a, b in spans) for spans in even_spans(13, num_ranks)]
    token_bytes = 2 * 2 * 2 * 4 * 8  # keys and values, samples, key heads, D, float64
    last = num_ranks - 1

    def run(group):
        group.traffic.reset()
        computed(ring_attention, form, arrays, even_spans, group)
        return group.traffic.bytes_sent

    for rank, sent in enumerate(sk.run_ranks(num_ranks, run)):
        if causal:
            passed = sum(counts[: rank + 1]) if rank < last else 0
            home = sum(counts[:last]) if rank == last else 0
        else:
            passed = 13 - counts[(rank + 1) % num_ranks] if num_ranks > 1 else 0
            home = counts[(rank + 1) % num_ranks] if num_ranks > 1 else 0
        assert sent == token_bytes * (3 * passed + home)  # twice with their gradients, and home


@EVERY_SIZE
def test_the_bytes_of_a_balanced_ring_are_those_of_the_formula(num_ranks):
    """Second halves of q, k, v and y go to one rank, their gradients back, and blocks all round,
    but for the last tokens, which no other rank sees.
    """
    length, heads, key_heads = 21, 3, 1
    arrays = drawn(((length,) * 2, (heads, key_heads), True, None))
    even, pairs = [
        [set(positions_of(spans)) for spans in cut(length, num_ranks)]
        for cut in (even_spans, paired_spans)
    ]

    def run(group):
        group.traffic.reset()
        computed(
            balanced_ring,
            ((length,) * 2, (heads, key_heads), True, None),
            arrays,
            even_spans,
            group,
        )
        return group.traffic.bytes_sent

    item_bytes = 2 * 4 * 8  # samples, D, float64
    for rank, sent in enumerate(sk.run_ranks(num_ranks, run)):
        there, back = len(even[rank] - pairs[rank]), len(pairs[rank] - even[rank])
        swapped = (heads + 2 * key_heads + heads) * (there + back)
        travelling = [len(pairs[0] & even[0]), *map(len, pairs[1:])] if num_ranks > 1 else [0]
        following = travelling[(rank + 1) % num_ranks]
        in_ring = 2 * key_heads * (3 * (sum(travelling) - following) + following)
        assert sent == item_bytes * (swapped + in_ring)


@pytest.mark.parametrize("num_ranks", [2, 3, 4, 5])
def test_a_balanced_ring_computes_as_much_on_each_rank_in_each_hop(num_ranks):
    """Scores that a rank computes of each block, for even halves: within those of a diagonal."""
    half = 8
    table = paired_spans(2 * half * num_ranks, num_ranks)
    positions = [positions_of(spans) for spans in table]
    for rank, hop in product(range(num_ranks), repeat=2):
        keys = positions[(rank - hop) % num_ranks]
        seen = (positions[rank][:, None] >= keys).sum()
        assert seen == 2 * half * half + (half if hop == 0 else 0)


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_the_bytes_by_heads_are_those_of_the_formula(num_ranks):
    form = ((16, 16), (8, 4), True, None)
    arrays = drawn(form)

    def run(group):
        group.traffic.reset()
        computed(attention_by_heads, form, arrays, even_spans, group)
        return group.traffic.bytes_sent

    elements = 2 * 2 * (2 * 8 + 2 * 4) * 16 * 4 * (num_ranks - 1) // num_ranks**2
    assert sk.run_ranks(num_ranks, run) == [8 * elements] * num_ranks


def test_a_window_sends_nothing_further_than_it_reaches():
    form = ((40, 40), (2, 2), True, 6)
    arrays = drawn(form)

    def run(group):
        computed(ring_attention, form, arrays, even_spans, group)
        return group.traffic.calls.get("send", 0)

    # a block goes on once, in the backward again with its gradients, which come home
    assert sk.run_ranks(5, run) == [3, 4, 4, 4, 1]


def test_a_window_on_both_sides_sends_blocks_to_both_neighbors_and_no_further():
    form = ((40, 40), (2, 2), False, 6)
    arrays = drawn(form)

    def run(group):
        computed(ring_attention, form, arrays, even_spans, group)
        return group.traffic.calls.get("send", 0)

    # blocks to both, twice, sums with those to the next rank, and from both neighbors home
    assert sk.run_ranks(5, run) == [4, 7, 7, 7, 3]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("key_heads", [4, 3])  # by heads and in a ring, without a window
def test_a_window_sends_fewer_bytes(key_heads, causal):
    def sent(window):
        form = ((40, 40), (key_heads, key_heads), causal, window)
        arrays = drawn(form)

        def run(group):
            group.traffic.reset()
            computed(cut_attention, form, arrays, even_spans, group)
            return group.traffic.bytes_sent

        return sum(sk.run_ranks(4, run))

    full = sent(None)
    assert sent(4) < 0.75 * full and sent(40) == sent(100) == full


def test_of_a_block_the_keys_that_a_window_reaches_are_sent():
    """Five of ten keys, with their values, and their gradients in float64."""
    form = ((40, 40), (3, 3), True, 6)
    arrays = drawn(form)

    def run(group):
        group.traffic.reset()
        computed(cut_attention, form, arrays, even_spans, group)
        return group.traffic.bytes_sent

    message = 8 * 2 * 2 * 3 * 5 * 4
    assert sk.run_ranks(4, run) == [3 * message, 4 * message, 4 * message, message]


def test_pairs_of_spans_are_taken_where_a_window_is_wide():
    """They need halves of spans of other ranks, and a ring of blocks that all ranks see."""

    def run(group):
        sent = []
        for window in (None, 40, 36, 20, 5):
            form = ((40, 40), (1, 1), True, window)
            group.traffic.reset()
            computed(balanced_ring, form, drawn(form), even_spans, group)
            sent.append(group.traffic.bytes_sent)
        return sent

    full, all_seen, wide, half, narrow = map(sum, zip(*sk.run_ranks(4, run)))
    assert full == all_seen == wide > half > narrow


@pytest.mark.parametrize("length", [0, 1, 5, 22])
@EVERY_SIZE
def test_rows_go_to_another_table_and_back(length, num_ranks):
    whole = numpy.random.default_rng(0).standard_normal((3, length, 2))
    before, after = even_spans(length, num_ranks), paired_spans(length, num_ranks)

    def run(group):
        own, moved = [whole[:, positions_of(table[group.rank])] for table in (before, after)]
        x = Tensor(own, requires_grad=True)
        y = exchange_rows(x, group, 1, before, after)
        numpy.testing.assert_array_equal(y.array, moved)
        y.backward(moved)
        numpy.testing.assert_array_equal(x.grad, own)
        return group.traffic.calls.get("send", 0)

    assert all(count <= 2 for count in sk.run_ranks(num_ranks, run))  # one there, one back


# ---- bits ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [FORMS[0], FORMS[1], FORMS[3]], ids=["causal", "all", "window"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_with_slabs_the_bits_are_the_same_on_every_number_of_ranks(form, dtype):
    arrays = drawn(form, dtype=dtype)
    found = set()
    for num_ranks in (1, 2, 3, 4, 6, 12):

        def run(group):
            return computed(ring_attention, form, arrays, lambda s, n: slab_spans(s, n, 12), group)

        parts = [part for part, _ in sk.run_ranks(num_ranks, run)]
        joined = [numpy.concatenate(each, 2) for each in zip(*parts)]
        found.add(hashlib.sha256(b"".join(x.tobytes() for x in joined)).hexdigest())
    assert len(found) == 1


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("cut", ["even", "paired"])
def test_by_heads_the_bits_are_those_of_one_rank(num_ranks, cut):
    arrays = drawn(FORMS[2], dtype="float32")
    tensors = [Tensor(x, requires_grad=True) for x in arrays[:3]]
    y = ops.causal_attention(*tensors)
    y.backward(arrays[3])
    wanted = [y.array, *[x.grad for x in tensors]]

    def run(group):
        found = computed(attention_by_heads, FORMS[2], arrays, CUTS[cut], group)
        return [
            numpy.array_equal(got, right[:, :, at])
            for got, right, at in zip(found[0], wanted, found[1])
        ]

    assert sk.run_ranks(num_ranks, run) == [[True] * 4] * num_ranks


@pytest.mark.parametrize("cut", ["even", "paired"])
def test_the_bits_do_not_depend_on_who_comes_first(cut):
    arrays = drawn(FORMS[1])

    def run(group, slow=None):
        if group.rank == slow:
            time.sleep(0.02)
        found, _ = computed(ring_attention, FORMS[1], arrays, CUTS[cut], group)
        return b"".join(x.tobytes() for x in found)

    wanted = sk.run_ranks(3, run)
    for slow in range(3):
        assert sk.run_ranks(3, lambda group, slow=slow: run(group, slow)) == wanted


@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-5), ("bfloat16", 0.05)])
def test_narrow_floats_stay_near_and_keep_their_dtype(dtype, tolerance):
    dtype = pytest.importorskip("ml_dtypes").bfloat16 if dtype == "bfloat16" else dtype
    arrays = drawn(FORMS[2], dtype=dtype)
    wanted = serial(FORMS[2], [x.astype("float64") for x in arrays])

    def run(group):
        parts, places = computed(ring_attention, FORMS[2], arrays, paired_spans, group)
        for got, right, at in zip(parts, wanted, places):
            assert got.dtype == arrays[0].dtype
            assert (
                abs(got.astype("float64") - right[:, :, at]).max() <= tolerance * abs(right).max()
            )

    sk.run_ranks(3, run)


# ---- the choice, and what is refused -------------------------------------------------------------


@pytest.mark.parametrize("key_heads, num_ranks, verb", [(4, 2, "all_to_all"), (3, 2, "send")])
def test_attention_goes_by_heads_where_ranks_divide_them(key_heads, num_ranks, verb):
    form = ((8, 8), (key_heads, key_heads), True, None)
    arrays = drawn(form)
    wanted = serial(form, arrays)

    def run(group):
        found = computed(cut_attention, form, arrays, even_spans, group)
        return is_right(found, wanted), set(group.traffic.calls)

    for right, verbs in sk.run_ranks(num_ranks, run):
        assert right and verbs == {verb}


REFUSED = {
    "parts": ({"q": (1, 2, 3, 4)}, {}, "own|wanted one floating"),
    "key heads": ({"q": (1, 3, 4, 4)}, {}, "divide the heads"),
    "widths": ({"k": (1, 2, 4, 5), "v": (1, 2, 4, 5)}, {}, "wanted one floating"),
    "values": ({"v": (1, 2, 4, 3)}, {}, "wanted one floating"),
    "window": ({}, {"window": 0}, "from 1 on"),
    "table": ({}, {"table": (((0, 4),), ((5, 9),))}, "each element once"),
    "ranks": ({}, {"table": (((0, 8),),)}, "over 2 ranks"),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_before_anything_is_sent(name, way):
    shapes, settings, message = REFUSED[name]

    def run(group):
        q, k, v = [Tensor(numpy.ones(shapes.get(x, (1, 2, 4, 4)))) for x in "qkv"]
        form = dict(settings)
        with pytest.raises(sk.ShapeError, match=message):
            way(q, k, v, group, form.pop("table", even_spans(8, 2)), **form)
        return group.traffic.bytes_sent

    assert sk.run_ranks(2, run) == [0, 0]


def test_a_second_derivative_is_refused():
    def run(group):
        table = even_spans(4, 2)
        tensors = [Tensor(numpy.ones((1, 1, 2, 2)), requires_grad=True) for _ in range(3)]
        y = ring_attention(*tensors, group, table)
        with pytest.raises(sk.AutogradError, match="no second derivative"):
            sk.nn.grad(y.sum(), tensors[0], create_graph=True)

    sk.run_ranks(2, run)


# ---- spans, and the transposition ----------------------------------------------------------------


@pytest.mark.parametrize("length", [0, 1, 2, 7, 12, 100])
@EVERY_SIZE
def test_spans_hold_each_token_once(length, num_ranks):
    for cut in CUTS.values():
        table = cut(length, num_ranks)
        places = numpy.concatenate([positions_of(spans) for spans in table])
        assert sorted(places.tolist()) == list(range(length))
        check_table(
            "tokens", tuple([tuple([s for s in each if s[0] < s[1]]) for each in table]), num_ranks
        )


@pytest.mark.parametrize("num_ranks", [2, 3, 4])
def test_with_pairs_ranks_see_as_many_keys_as_each_other(num_ranks):
    table = paired_spans(24 * num_ranks, num_ranks)
    seen = [int((positions_of(spans) + 1).sum()) for spans in table]
    assert max(seen) == min(seen)


@EVERY_SIZE
@pytest.mark.parametrize("dims", [(0, 1), (1, 2), (2, 0), (-1, 1), (3, 0)])
def test_the_cut_goes_to_another_dim_and_back(dims, num_ranks):
    whole = numpy.random.default_rng(0).standard_normal((7, 4, 6, 3))
    before, after = [
        cut(whole.shape[dim], num_ranks) for cut, dim in zip((paired_spans, even_spans), dims)
    ]

    def run(group):
        own, moved = [
            numpy.take(whole, positions_of(table[group.rank]), dim)
            for table, dim in zip((before, after), dims)
        ]
        x = Tensor(own, requires_grad=True)
        y = exchange_cut(x, group, *dims, before, after)
        numpy.testing.assert_array_equal(y.array, moved)
        y.backward(moved)
        numpy.testing.assert_array_equal(x.grad, own)

    sk.run_ranks(num_ranks, run)
