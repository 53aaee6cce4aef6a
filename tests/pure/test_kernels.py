"""The kernels through their door: sums in a fixed order, rules as in PyTorch, bits that depend on
content alone.

The maths of the layer kernels is tested through the ops (test_ops_gradients), the fast twins
against the plain ones in test_kernel_parity; here is what only whole arrays show.
"""

import tracemalloc

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardkit.testing.array import CHUNK_ELEMENTS, KERNELS, kernels, products


def numbers(*shape, seed=0, dtype="float32"):
    return numpy.random.default_rng(seed).standard_normal(shape).astype(dtype)


# Elementwise work and work by rows is independent of how it is cut into pieces.

PARITY_LENGTH = CHUNK_ELEMENTS + 37


@pytest.mark.parametrize(
    "kernel",
    [
        lambda g, x: kernels.gelu(x),
        lambda g, x: kernels.silu(x),
        lambda g, x: kernels.sigmoid(x),
        kernels.gelu_backward,
        kernels.silu_backward,
    ],
    ids=["gelu", "silu", "sigmoid", "gelu_backward", "silu_backward"],
)
def test_elementwise_bits_do_not_depend_on_the_place_in_the_array(kernel):
    g, x = numbers(PARITY_LENGTH), numbers(PARITY_LENGTH, seed=1)
    whole = kernel(g, x)
    for start, stop in (
        (0, 1),
        (3, 50),
        (CHUNK_ELEMENTS - 5, CHUNK_ELEMENTS + 5),
        (1, PARITY_LENGTH),
    ):
        assert (
            kernel(g[start:stop].copy(), x[start:stop].copy()).tobytes()
            == whole[start:stop].tobytes()
        )


@pytest.mark.parametrize("width", [1, 3, 64, 257])
def test_each_row_of_a_norm_or_loss_has_the_bits_it_has_alone(width):
    x, w, b = (
        numbers(CHUNK_ELEMENTS // width + 5, width),
        numbers(width, seed=1),
        numbers(width, seed=2),
    )
    targets = numpy.arange(len(x)) % width
    whole = [
        *kernels.layer_norm(x, w, b, 1e-5),
        *kernels.rms_norm(x, w, 1e-6),
        *kernels.cross_entropy(x, targets),
    ]
    for row in (0, 1, len(x) - 6, len(x) - 5, len(x) - 1):
        one = slice(row, row + 1)
        alone = [
            *kernels.layer_norm(x[one], w, b, 1e-5),
            *kernels.rms_norm(x[one], w, 1e-6),
            *kernels.cross_entropy(x[one], targets[one]),
        ]
        for together, single in zip(whole, alone, strict=True):
            assert together[one].tobytes() == single.tobytes()


def test_results_do_not_depend_on_where_in_memory_the_inputs_lie():
    """Only content counts: every offset from a cache line gives the same bits."""
    x, w = numbers(33, 47), numbers(47, seed=1)

    def moved(array, offset):
        memory = numpy.empty(array.size + 32, array.dtype)
        view = memory[offset : offset + array.size].reshape(array.shape)
        view[...] = array
        return view

    def run(offset):
        a, b = moved(x, offset), moved(w, offset)
        y, mean, inverse = kernels.layer_norm(a, b, b, 1e-5)
        parts = [
            y,
            *kernels.layer_norm_backward(a, a, b, mean, inverse),
            kernels.gelu(a),
            kernels.softmax(a),
            *kernels.cross_entropy(a, numpy.arange(33)),
            kernels.block_squares(a.reshape(-1)),
        ]
        return b"".join(part.tobytes() for part in parts)

    assert len({run(offset) for offset in range(17)}) == 1


# Attention and rotary.


def test_no_query_sees_a_later_key():
    q, k, v = (numbers(2, 4, 6, 8, seed=s) for s in range(3))
    before, _ = kernels.causal_attention(q, k, v, 0.3, 0)
    k[:, :, 4:], v[:, :, 4:] = 100, -100
    after, _ = kernels.causal_attention(q, k, v, 0.3, 0)
    assert after[:, :, :4].tobytes() == before[:, :, :4].tobytes()
    assert abs(after[:, :, 4:] - before[:, :, 4:]).min() > 0


@pytest.mark.parametrize("first_query", [0, 1, 5])
def test_later_queries_alone_get_what_they_get_among_all(first_query):
    q, k, v = numbers(2, 4, 6, 8), numbers(2, 2, 6, 8, seed=1), numbers(2, 2, 6, 8, seed=2)
    whole, _ = kernels.causal_attention(q, k, v, 0.3, 0)
    part, _ = kernels.causal_attention(q[:, :, first_query:], k, v, 0.3, first_query)
    numpy.testing.assert_allclose(part, whole[:, :, first_query:], rtol=0, atol=1e-6)


def test_attention_of_no_queries_or_no_samples_is_empty_with_zero_gradients():
    for q, k in (
        (numbers(2, 4, 0, 8), numbers(2, 2, 3, 8)),
        (numbers(0, 4, 3, 8), numbers(0, 2, 3, 8)),
    ):
        y, log_sums = kernels.causal_attention(q, k, k, 1.0, 0)
        for_q, for_k, for_v = kernels.causal_attention_backward(y, q, k, k, y, log_sums, 1.0, 0)
        assert y.shape == for_q.shape == q.shape and not for_k.any() and not for_v.any()


def test_attention_of_a_head_has_the_bits_it_has_alone():
    q, k, v, gradient = [numbers(2, 4, 130, 40, seed=s) for s in range(4)]

    def run(*arrays):
        y, log_sums = kernels.causal_attention(*arrays[:3], 0.3, 0)
        return y, *kernels.causal_attention_backward(arrays[3], *arrays[:3], y, log_sums, 0.3, 0)

    together = run(q, k, v, gradient)
    alone = run(*[x[1:, 2:3] for x in (q, k, v, gradient)])
    assert [x[1:, 2:3].tobytes() for x in together] == [x.tobytes() for x in alone]


@pytest.mark.parametrize("first_query", [0, 3, 70])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_attention_reads_nothing_that_it_did_not_write(dtype, first_query, monkeypatch):
    pytest.importorskip("ml_dtypes")
    rng = numpy.random.default_rng(5)
    q, k, v, sent = [
        rng.standard_normal((1, 2, length, 19)).astype(dtype) for length in (67, 70, 70, 67)
    ]

    def computed():
        y, log_sums = kernels.causal_attention(q, k, v, 0.3, first_query)
        given = sent, q, k, v, y, log_sums, 0.3, first_query
        return y, log_sums, *kernels.causal_attention_backward(*given)

    def full_of_nan(shape, dtype):
        array = numpy.empty(shape, dtype)
        array.view("uint8").fill(255)  # NaN of every dtype, and of words
        return array

    expected = computed()
    monkeypatch.setitem(KERNELS["causal_attention"].cpu.__globals__, "empty", full_of_nan)
    for found, wanted in zip(computed(), expected, strict=True):
        assert found.tobytes() == wanted.tobytes()


def test_messages_are_looked_after_while_long_attention_is_computed():
    q, looks = numbers(1, 4, 1500, 8), []
    with products.doing_meanwhile(lambda: looks.append(None)):
        y, log_sums = kernels.causal_attention(q, q, q, 0.3, 0)
        kernels.causal_attention_backward(q, q, q, q, y, log_sums, 0.3, 0)
    assert len(looks) == 8


def test_attention_with_huge_scores_stays_finite():
    q = numbers(1, 1, 5, 4) * 1e4
    y, log_sums = kernels.causal_attention(q, q, q, 1.0, 0)
    assert numpy.isfinite(y).all() and numpy.isfinite(log_sums).all()


def test_attention_of_a_long_sequence_holds_a_tile_of_scores_at_a_time():
    """All scores of a head would be 144 MB, those of 512 queries 12 MB; what is packed of a head
    is 5 MB.
    """

    def run(q):
        y, log_sums = kernels.causal_attention(q, q, q, 0.3, 0)
        kernels.causal_attention_backward(q, q, q, q, y, log_sums, 0.3, 0)

    run(numbers(1, 1, 3, 8))  # compiles
    tracemalloc.start()
    run(numbers(1, 1, 6000, 8))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 7_000_000, peak


def test_rotated_products_depend_on_the_distance_of_positions_only():
    q, k = numbers(1, 1, 1, 8, dtype="float64"), numbers(1, 1, 1, 8, seed=1, dtype="float64")

    def product(at_q, at_k):
        turned = [
            kernels.rotary(x, *kernels.rotary_tables(numpy.array([at]), 8, 1e4, "float64"))
            for x, at in ((q, at_q), (k, at_k))
        ]
        return (turned[0] * turned[1]).sum()

    assert product(7, 3) == pytest.approx(product(1004, 1000), rel=1e-9)
    assert product(7, 3) != pytest.approx(product(7, 4), rel=1e-3)


def test_rotary_angles_of_far_positions_are_exact_in_float32():
    cos, sin = kernels.rotary_tables(numpy.array([1_000_003]), 4, 10000.0, "float32")
    assert cos.dtype == numpy.float32
    assert cos[0, 0] == numpy.float32(numpy.cos(1_000_003.0)) and sin[0, 1] == numpy.float32(
        numpy.sin(10_000.03)
    )


# Embedding.


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 9), max_size=60), st.integers(1, 5))
def test_every_gradient_row_is_added_to_the_row_of_its_id(ids, width):
    ids = numpy.array(ids, int)
    gradient = numbers(ids.size, width, dtype="float64")
    wanted = numpy.zeros((10, width))
    numpy.add.at(wanted, ids, gradient)
    numpy.testing.assert_allclose(
        kernels.embedding_backward(gradient, ids, 10), wanted, rtol=0, atol=1e-13
    )


def test_the_gradient_of_a_row_has_the_same_bits_whatever_other_rows_get():
    rng = numpy.random.default_rng(0)
    ids, gradient = rng.integers(0, 40, 900), numbers(900, 16)
    whole = kernels.embedding_backward(gradient, ids, 40)
    for row in (0, 17, 39):
        mine = ids == row
        alone = kernels.embedding_backward(gradient[mine], ids[mine], 40)
        assert mine.sum() > 9 and alone[row].tobytes() == whole[row].tobytes()


# Sums in a fixed order.


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7, 8])
def test_the_sum_is_the_tree_of_neighbors(count):
    buffers = [numbers(1000, seed=s) for s in range(count)]
    level = list(buffers)
    while len(level) > 1:
        level = [
            level[i] + level[i + 1] if i + 1 < len(level) else level[i]
            for i in range(0, len(level), 2)
        ]
    assert kernels.tree_sum(buffers).tobytes() == level[0].tobytes()


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_a_tree_continued_over_ranks_has_the_bits_of_the_whole(ranks):
    buffers = [numbers(500, seed=s) for s in range(8)]
    each = 8 // ranks
    partial = [kernels.tree_sum(buffers[r * each : (r + 1) * each]) for r in range(ranks)]
    assert kernels.tree_sum(partial).tobytes() == kernels.tree_sum(buffers).tobytes()


def test_the_sum_leaves_its_inputs_alone_and_may_go_into_one_of_them():
    buffers = [numbers(PARITY_LENGTH, seed=s) for s in range(3)]
    copies = [buffer.copy() for buffer in buffers]
    total = kernels.tree_sum(buffers)
    assert all(numpy.array_equal(a, b) for a, b in zip(buffers, copies))
    assert not any(numpy.shares_memory(total, buffer) for buffer in buffers)
    assert kernels.tree_sum(buffers, out=buffers[1]) is buffers[1]
    assert buffers[1].tobytes() == total.tobytes()


def test_the_sum_of_empty_buffers_is_empty_and_of_one_is_a_copy():
    assert kernels.tree_sum([numbers(0), numbers(0)]).shape == (0,)
    one = numbers(5)
    total = kernels.tree_sum([one])
    assert total is not one and numpy.array_equal(total, one)


@pytest.mark.parametrize("size", [0, 1, 255, 256, 257, 100_003])
def test_block_squares_are_the_sums_of_squares_of_the_blocks(size):
    x = numbers(size)
    wanted = [(x[i : i + 256].astype("float64") ** 2).sum() for i in range(0, size, 256)]
    got = kernels.block_squares(x)
    assert got.dtype == numpy.float64 and got.shape == (-(-size // 256),)
    numpy.testing.assert_allclose(got, wanted, rtol=1e-13)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 390), max_size=5))
def test_block_squares_have_the_same_bits_however_the_span_is_cut_at_blocks(cuts):
    x = numbers(100_003)
    edges = [0, *[256 * cut for cut in sorted(cuts)], x.size]
    parts = [kernels.block_squares(x[start:stop]) for start, stop in zip(edges, edges[1:])]
    assert numpy.concatenate(parts).tobytes() == kernels.block_squares(x).tobytes()


def test_padding_with_zeros_does_not_change_the_squares():
    x = numbers(300)
    padded = numpy.concatenate([x, numpy.zeros(212, "float32")])
    assert kernels.block_squares(padded).tobytes() == kernels.block_squares(x).tobytes()


def test_squares_beyond_float32_are_summed():
    assert kernels.block_squares(numpy.full(2, 1e30, "float32"))[0] == pytest.approx(2e60, rel=1e-6)


# Optimizer rules.


def run_adam(p, g, state, step, decoupled):
    kernels.adam(
        p,
        g,
        state[0],
        state[1],
        step=step,
        lr=0.01,
        beta1=0.9,
        beta2=0.95,
        eps=1e-8,
        weight_decay=0.1,
        decoupled=decoupled,
    )


RULES = {
    "sgd": (
        lambda p, g, s, step: kernels.sgd(p, g, lr=0.1, weight_decay=0.01),
        lambda torch, p: torch.optim.SGD([p], lr=0.1, weight_decay=0.01),
    ),
    "sgd without decay": (
        lambda p, g, s, step: kernels.sgd(p, g, lr=0.1, weight_decay=0.0),
        lambda torch, p: torch.optim.SGD([p], lr=0.1),
    ),
    "momentum": (
        lambda p, g, s, step: kernels.momentum(
            p, g, s[0], lr=0.1, beta=0.9, nesterov=False, weight_decay=0.01
        ),
        lambda torch, p: torch.optim.SGD([p], lr=0.1, momentum=0.9, weight_decay=0.01),
    ),
    "nesterov": (
        lambda p, g, s, step: kernels.momentum(
            p, g, s[0], lr=0.1, beta=0.9, nesterov=True, weight_decay=0.01
        ),
        lambda torch, p: torch.optim.SGD(
            [p], lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01
        ),
    ),
    "adam": (
        lambda p, g, s, step: run_adam(p, g, s, step, False),
        lambda torch, p: torch.optim.Adam([p], lr=0.01, betas=(0.9, 0.95), weight_decay=0.1),
    ),
    "adamw": (
        lambda p, g, s, step: run_adam(p, g, s, step, True),
        lambda torch, p: torch.optim.AdamW([p], lr=0.01, betas=(0.9, 0.95), weight_decay=0.1),
    ),
}
every_rule = pytest.mark.parametrize("rule", RULES)


def trained(rule, cuts=(), size=PARITY_LENGTH, dtype="float32", steps=3):
    """Parameters and state after some steps, each done in pieces."""
    p, state = numbers(size, dtype=dtype), [numpy.zeros(size, dtype) for _ in range(2)]
    edges = [0, *sorted(cuts), size]
    for step in range(1, steps + 1):
        g = numbers(size, seed=step, dtype=dtype)
        for span in map(slice, edges, edges[1:]):
            RULES[rule][0](p[span], g[span], [s[span] for s in state], step)
    return p, state


@every_rule
@pytest.mark.parametrize("dtype, tolerance", [("float64", 1e-14), ("float32", 1e-6)])
@pytest.mark.thorough(but=3)
def test_rules_do_what_torch_optim_does(rule, dtype, tolerance):
    torch = pytest.importorskip("torch")
    p = torch.nn.Parameter(torch.tensor(numbers(1001, dtype=dtype)))
    optimizer = RULES[rule][1](torch, p)
    for step in range(1, 6):
        p.grad = torch.tensor(numbers(1001, seed=step, dtype=dtype))
        optimizer.step()
    ours, _ = trained(rule, size=1001, dtype=dtype, steps=5)
    assert ours.dtype == dtype
    numpy.testing.assert_allclose(ours, p.detach().numpy(), rtol=0, atol=tolerance * 5)


@every_rule
@settings(max_examples=8, deadline=None)
@given(cuts=st.lists(st.integers(0, PARITY_LENGTH), max_size=5))
def test_updates_have_the_same_bits_however_the_span_is_cut(rule, cuts):
    whole, whole_state = trained(rule)
    parts, parts_state = trained(rule, cuts)
    assert whole.tobytes() == parts.tobytes()
    assert all(a.tobytes() == b.tobytes() for a, b in zip(whole_state, parts_state))


@every_rule
def test_updates_leave_gradients_alone_and_padding_zero(rule):
    p, g = numpy.zeros(100, "float32"), numpy.zeros(100, "float32")
    p[:60], g[:60] = numbers(60), numbers(60, seed=1)
    before = g.copy()
    g.flags.writeable = False
    RULES[rule][0](p, g, [numpy.zeros_like(p), numpy.zeros_like(p)], 1)
    assert numpy.array_equal(g, before) and not p[60:].any() and p[:60].all()


@pytest.mark.parametrize(
    "kernel",
    [
        lambda p, q: kernels.sgd(p, q, lr=0.1, weight_decay=0.1),
        lambda p, q: kernels.block_squares(p),
        lambda p, q: run_adam(p, q, [q, q], 1, True),
        lambda p, q: kernels.tree_sum([p, q, p, q], out=q),
    ],
    ids=["sgd", "block_squares", "adam", "tree_sum"],
)
def test_temporaries_do_not_grow_with_the_span(kernel):
    p, q = numbers(16 * CHUNK_ELEMENTS), numpy.ones(16 * CHUNK_ELEMENTS, "float32")  # 4 MB each
    tracemalloc.start()
    kernel(p, q)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2_000_000


def test_the_dropout_mask_of_probability_zero_keeps_and_slices_agree():
    assert kernels.dropout_mask(5, 0, 1000, 0.0).all()
    whole = kernels.dropout_mask(5, 0, 1000, 0.3)
    assert whole.dtype == bool and numpy.array_equal(
        kernels.dropout_mask(5, 301, 555, 0.3), whole[301:555]
    )
