"""One table of how to call every kernel, for the tests that compare twins; and what these tests do
with its lines.
"""

import inspect
import math
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Callable

import numpy

from shardkit.testing.array import (
    KERNELS,
    ConvolutionWindow,
    adaptive,
    kernels,  # noqa: F401  fills the registry
    pooling,
)
from shardkit.testing.data import tables


def implementations(slot: str) -> SimpleNamespace:
    """Return the implementations of all kernels in one slot, loaded, as attributes."""
    for entry in KERNELS.values():
        entry.load("cpu")
        entry.load("cuda")
    return SimpleNamespace(**{name: getattr(entry, slot) for name, entry in KERNELS.items()})


reference, cpu, cuda = map(implementations, ("reference", "cpu", "cuda"))

ANY = [(0,), (1,), (7,), (3, 5), (2, 0, 3), (2, 3, 4), (65, 129), (70_001,)]
ROWS = [(0, 5), (1, 1), (3, 1), (5, 7), (2, 64), (33, 47), (4, 1025), (300, 512)]
VECTORS = [(0,), (1,), (7,), (257,), (70_001,)]
# batch, heads, key heads, queries, keys, head dim, first query
ATTENTION = [
    (1, 1, 1, 1, 1, 2, 0),
    (2, 3, 3, 5, 5, 4, 0),
    (0, 2, 2, 3, 3, 4, 0),
    (2, 4, 2, 0, 3, 4, 0),
    (2, 6, 2, 5, 9, 4, 4),
    (2, 4, 2, 3, 9, 4, 2),
    (1, 2, 1, 65, 65, 8, 0),
    (1, 2, 2, 130, 700, 16, 570),
    (1, 2, 1, 1030, 1030, 8, 0),
    (2, 4, 2, 5, 7, 8, 7),  # all keys
    (1, 2, 1, 9, 4, 8, 0),  # later queries see no more than there are
    (1, 1, 1, 300, 600, 8, 600),
    (1, 2, 1, 5, 9, 72, 1),  # tiles of two widths
    (2, 3, 3, 65, 65, 64, 65),  # one key more than whole panels
    (1, 2, 2, 101, 101, 48, 101),
    (1, 3, 1, 61, 61, 24, 0),  # a diagonal through every tile
    (1, 1, 1, 37, 50, 17, 13),
    (1, 4, 2, 2, 7, 5, 4),  # few queries
    (1, 1, 1, 800, 850, 33, 50),  # tiles that the diagonal does not meet
]
# the same, and the window
WINDOWED = [
    (1, 1, 1, 1, 1, 2, 0, 1),
    (2, 4, 2, 5, 5, 4, 0, 1),
    (2, 4, 2, 3, 9, 4, 2, 2),  # few queries
    (2, 6, 2, 5, 9, 4, 4, 3),
    (1, 2, 1, 9, 4, 8, 0, 6),  # later queries see keys at the end alone
    (1, 2, 1, 40, 30, 8, 10, 25),
    (1, 2, 1, 130, 130, 8, 0, 64),
    (1, 2, 2, 130, 700, 16, 570, 33),
    (1, 2, 1, 1030, 1030, 8, 0, 100),
    (1, 1, 1, 1030, 1900, 8, 900, 800),  # tiles in the middle
    (1, 1, 1, 300, 600, 72, 650, 400),
    (1, 1, 1, 100, 100, 4, 0, 1000),  # wider than there are keys
]
# texts that stand one behind the other: the same sizes, without a window
PACKED = [
    (2, 4, 2, 3, 3, 4, 0),  # few queries
    (3, 2, 1, 40, 40, 8, 0),
    (2, 2, 1, 130, 130, 17, 0),
    (2, 2, 2, 1030, 1030, 8, 0),  # rows that see nothing of the first tile
    (1, 1, 1, 300, 900, 24, 600),
]
MASKED = [
    (0, 2, 2, 3, 3, 4, 0),
    (2, 4, 2, 3, 9, 4, 9),
    (2, 4, 2, 5, 7, 8, 2),
    (2, 2, 1, 130, 130, 17, 0),
    (1, 2, 2, 260, 130, 8, 130),
    (1, 2, 1, 200, 1700, 8, 1700),  # tiles that are hidden
]
KEPT = [(1, 1, 1, 1, 1), (3, 4, 2, 5, 4), (5, 6, 2, 9, 17), (0, 2, 1, 3, 4), (33, 2, 2, 70, 64)]
# rows, their size, and columns beside each other, at least a vector of complex numbers
TRANSFORMED = [
    (0, 16, 8),
    (1, 4, 8),
    (3, 30, 9),
    (2, 64, 33),
    (70, 12, 8),
    (5, 250, 17),
    (2, 1024, 50),
]
BY_ROW = [(0, 3, 2), (1, 17, 9), (2, 0, 5), (3, 16, 1), (4, 64, 40), (9, 33, 31), (13, 600, 70)]
MERGED = [(0, 1, 2, 3), (1, 1, 1, 1), (2, 3, 5, 8), (1, 2, 33, 20), (2, 2, 3, 0)]
CELLS = [(0, 3), (1, 1), (3, 5), (33, 47)]
# steps, sequences, inputs, width
WALKS = [(1, 0, 2, 3), (1, 1, 1, 1), (3, 5, 2, 4), (9, 33, 5, 17), (70, 9, 33, 8)]
# samples, channels in and out, modes
SPECTRA = [(0, 2, 3, 4), (1, 1, 1, 1), (2, 0, 3, 5), (3, 5, 2, 4, 17), (2, 6, 9, 3, 5, 2)]
SPECTRA += [(1, 9, 2, 128), (5, 3, 4, 129), (2, 33, 1, 257)]
HEADS = [(0, 2, 3, 4), (1, 1, 1, 2), (2, 3, 5, 8), (2, 4, 33, 64)]
LINES = [(0, 2, 3), (1, 2, 1), (2, 4, 7), (3, 6, 33), (2, 2, 0), (4, 4, 1000)]
# samples, channels in and out, stride, grid
GRIDS = [
    (0, 1, 2, 1, 3),
    (1, 1, 1, 1, 2),
    (3, 2, 1, 2, 7, 5),
    (2, 5, 6, 1, 3, 17),
    (1, 3, 9, 3, 4, 5, 40),
    (2, 70, 5, 1, 60, 70),
]
POOLED = [(0, 2, 3), (1, 1, 1, 1), (2, 3, 17), (2, 0, 4, 5), (2, 2, 7, 40), (1, 3, 4, 5, 6)]


@dataclass(frozen=True)
class Line:
    """How to call a kernel: (n, shape) -> its positional arguments, where n(shape) makes normal
    numbers.

    in_place  numbers of the arguments that `out` may be (with several buffers: that the first may
              be)
    """

    shapes: list
    arguments: Callable
    keywords: dict = field(default_factory=dict)
    in_place: tuple = ()


def four(shape):
    return shape[0], 4 * shape[1]


def walk_of(n, s):
    """Return x, hidden, cell, w_ih, w_hh and bias of an LSTM."""
    steps, batch, inputs, width = s
    weights = n((4 * width, inputs)), n((4 * width, width)) / width
    return (
        n((steps, batch, inputs)),
        n((batch, width)),
        n((batch, width)),
        *weights,
        n((4 * width,)),
    )


def walked(n, s):
    """Return a gradient, what an LSTM was given, and gates, cells and states."""
    steps, batch, _, width = s
    x, _, _, w_ih, w_hh, _ = walk_of(n, s)
    gates = abs(n((steps, batch, 4 * width))) / 4
    gradient, cells = [n((steps + 1, batch, width)) for _ in range(2)]
    return gradient, x, w_ih, w_hh, gates, cells, n((steps + 2, batch, width))


def window_of(s):
    """Return the window of one of GRIDS, with two taps in each dimension."""
    return ConvolutionWindow(*[(number,) * len(s[4:]) for number in (s[3], 2, 1, 1)])


def grid_of(s):
    return (*s[:2], *s[4:])


def weight_of(s):
    return (s[2], s[1], *[2] * len(s[4:]))


def counts_of(s):
    return (s[0], s[2], *window_of(s).counts(s[4:], weight_of(s)[2:]))


def spectrum_of(s, channels):
    """Return the shape of a spectrum; channels: 1 for those in, 2 for those out."""
    return (s[0], s[channels], 2, *s[3:])


def matrices_of(s):
    return (*s[1:], 2)


def pools(s):
    """Return windows of three elements that overlap and reach into the padding, in one dimension
    windows that share it.
    """
    *rest, last = [pooling(size, 3, 2, 1, 1, (size - 1) // 2 + 1, True, False) for size in s[2:]]
    return (*rest, adaptive(s[-1], last.index.shape[1] + 1))


def pool_maxima_backward(n, s):
    y, chosen = reference.pool_maxima(n(s), pools(s))
    return n(y.shape), chosen, pools(s)


def targets(count, stop):
    return numpy.arange(count) * 7919 % max(stop, 1)


def attention(n, s):
    q, k, v = n((s[0], s[1], s[3], s[5])), n((s[0], s[2], s[4], s[5])), n((s[0], s[2], s[4], s[5]))
    return q, k, v, 0.4, *s[6:]


def firsts_of(s):
    """Return [B, S]: the first key that each query sees, where texts of many lengths stand."""
    begins = [[0, *range(7 * b + 2, s[4], 41 + 90 * b)] for b in range(s[0])]
    if s[4] > 1000:
        begins[-1] = [0, 1000]  # seen by rows of a tile that sees the first keys too
    queries = s[6] + numpy.arange(s[3])
    return numpy.stack(
        [numpy.array(b)[numpy.searchsorted(b, queries, "right") - 1] for b in begins]
    )


def packed(n, s):
    return *attention(n, s), None, firsts_of(s)


def masked(n, s, counts=(1, 1, 1), is_bool=True):
    """Return arguments with a mask of as many samples, heads and queries, if they are not one.

    Some rows see nothing, some the first keys alone, and some blocks of rows those at the end.
    """
    wanted = [max(1, size) if own else 1 for own, size in zip(counts, (s[0], s[1], s[3]))]
    numbers = n((*wanted, s[4]))
    sees = numbers < 0.8
    sees[..., 1:4, :] = False
    sees[..., 96:150, 5:] = False
    sees[..., 150:, :-9] = False
    mask = sees if is_bool else numpy.where(sees, numbers, -math.inf).astype(numbers.dtype)
    return *attention(n, s), None, None, mask


MASKS = [
    masked,
    partial(masked, counts=(1, 0, 0)),
    partial(masked, counts=(0, 0, 1)),
    partial(masked, counts=(0, 1, 1), is_bool=False),
    partial(masked, counts=(1, 1, 1), is_bool=False),
]


def attention_backward(n, s, attention=attention):
    q, k, v, *rest = attention(n, s)
    return n(q.shape), q, k, v, *reference.causal_attention(q, k, v, *rest), *rest


def kept_attention(n, s, window=None):
    """Queries, heads, key heads, capacity, head dim; three texts."""
    kept = n((3, s[2], s[3], s[4])), n((3, s[2], s[3], s[4]))
    counts = 1 + targets(s[0], s[3])
    return n((s[0], s[1], s[4])), *kept, targets(s[0], 3), counts, s[3], 0.4, window


def sums_of_blocks(n, s):
    return n(s), 3 * n(s[:3]), n(s), 3 * n(s[:3])


def layer_norm_backward(n, s):
    x, w = n(s), n(s[1:])
    return n(s), x, w, *reference.layer_norm(x, w, w, 1e-5)[1:]


def rms_norm_backward(n, s):
    x, w = n(s), n(s[1:])
    return n(s), x, w, *reference.rms_norm(x, w, 1e-6)[1:]


def cross_entropy_backward(n, s):
    x, t = n(s), targets(*s)
    t[::3] = -1
    return 0.7, x, t, reference.cross_entropy(x, t)[1], targets(s[0], 5) > 1


def shuffle(n, s):
    """Size, first and count; three slots."""
    (rounds,) = tables([s[0]], numpy.array([2**63 + 5], numpy.uint64))
    return rounds, *s, numpy.array([s[0] // 3, s[0] // 2, s[0]]), numpy.array([7, -3, 0])


def kept_rows(n, s):
    """Rows of two runs that are kept and, after two thirds, of one that is not."""
    rng, length = numpy.random.default_rng(1), 3
    kept = rng.integers(0, 256, (2 * length, s[1]), numpy.uint8)
    numbers = rng.integers(length, 3 * length, s[0])
    numbers[2 * s[0] // 3 + 1 :] = 3 * length
    slots = numpy.array([-1, 1, 0, -1], numpy.int32)
    return kept, slots, length, numbers, numpy.zeros(s, numpy.uint8)


ADAM = {
    "step": 3,
    "lr": 0.01,
    "beta1": 0.9,
    "beta2": 0.95,
    "eps": 1e-8,
    "weight_decay": 0.1,
    "gradient_scale": 0.3,
}
MOMENTUM = {"lr": 0.1, "beta": 0.9, "weight_decay": 0.01, "gradient_scale": 0.3}
TABLE = {
    "abs_backward": [Line(ANY, lambda n, s: (n(s), 2 * n(s)), in_place=(0, 1))],
    "adam": [
        Line(VECTORS, lambda n, s: (n(s), n(s), n(s), abs(n(s))), {**ADAM, "decoupled": decoupled})
        for decoupled in (False, True)
    ],
    "add_layer_norm": [
        Line(ROWS, lambda n, s: (n(s), n(s), n(s[1:]), n(s[1:]), 1e-5), in_place=(0, 1))
    ],
    "add_rms_norm": [Line(ROWS, lambda n, s: (n(s), n(s), n(s[1:]), 1e-6), in_place=(0, 1))],
    "add_row": [Line(ROWS, lambda n, s: (n(s), n(s[1:])), in_place=(0,))],
    "angle_backward": [
        Line(ANY, lambda n, s, d=d: (n(s), n(s).round(), n(s).round(), d), in_place=(0, 1, 2))
        for d in (1, -1)
    ],
    "arctan_backward": [Line(ANY, lambda n, s: (n(s), 2 * n(s)), in_place=(0, 1))],
    "attend_to_kept": [
        Line(KEPT, kept_attention),
        *[Line(KEPT[1:], partial(kept_attention, window=window)) for window in (1, 4)],
    ],
    "batch_norm": [Line(LINES, lambda n, s: (n(s), n(s[1]), n(s[1]), 1e-5))],
    "batch_norm_backward": [
        Line(LINES, lambda n, s: (n(s), n(s), n(s[1]), n(s[1]) / 9, abs(n(s[1])) + 0.5, 1e-5))
    ],
    "bias_gelu": [Line(ROWS, lambda n, s: (n(s), n(s[1:])), in_place=(0,))],
    "bias_gelu_backward": [Line(ROWS, lambda n, s: (n(s), n(s), n(s[1:])), in_place=(0, 1))],
    "block_squares": [Line(VECTORS, lambda n, s: (n(s),)), Line(VECTORS, lambda n, s: (n(s), 100))],
    "causal_attention": [
        Line(ATTENTION, attention),
        Line(WINDOWED, attention),
        Line(PACKED, packed),
        *[Line(MASKED, form) for form in MASKS],
    ],
    "causal_attention_backward": [
        Line(ATTENTION, attention_backward),
        Line(WINDOWED, attention_backward),
        Line(PACKED, partial(attention_backward, attention=packed)),
        *[Line(MASKED, partial(attention_backward, attention=form)) for form in MASKS],
    ],
    "clamp_backward": [Line(ANY, lambda n, s: (n(s), 2 * n(s), -0.5, 1.5), in_place=(0, 1))],
    "convolve": [
        Line(GRIDS, lambda n, s: (n(grid_of(s)), n(weight_of(s)), n(s[2]), window_of(s))),
        Line(GRIDS, lambda n, s: (n(grid_of(s)), n(weight_of(s)), None, window_of(s))),
    ],
    "convolve_input": [
        Line(GRIDS, lambda n, s: (n(counts_of(s)), n(weight_of(s)), n(s[1]), window_of(s), s[4:]))
    ],
    "convolve_weight": [
        Line(
            GRIDS,
            lambda n, s: (n(counts_of(s)), n(grid_of(s)), window_of(s), weight_of(s)[2:]),
        )
    ],
    "cross_entropy": [
        Line(ROWS, lambda n, s: (n(s), targets(*s))),
        Line(ROWS, lambda n, s: (n(s), targets(*s) - 1, targets(s[0], 5) > 1)),
    ],
    "cross_entropy_backward": [Line(ROWS, cross_entropy_backward, in_place=(1,))],
    "cross_entropy_with_gradient": [
        Line(ROWS, lambda n, s: (n(s), targets(*s)), in_place=(0,)),
        Line(ROWS, lambda n, s: (n(s), targets(*s) - 1, targets(s[0], 5) > 1), in_place=(0,)),
    ],
    "cos": [Line(ANY, lambda n, s: (4 * n(s),), in_place=(0,))],
    "cos_backward": [Line(ANY, lambda n, s: (n(s), 4 * n(s)), in_place=(0, 1))],
    "cube": [Line(ANY, lambda n, s: (n(s),), in_place=(0,))],
    "cube_backward": [Line(ANY, lambda n, s: (n(s), n(s)), in_place=(0, 1))],
    "divisor_backward": [Line(ANY, lambda n, s: (n(s), n(s).round(), n(s)), in_place=(0, 1, 2))],
    "dropout": [
        Line(ANY, lambda n, s: (n(s), 2**63 + 17, 5, 0.3), in_place=(0,)),
        Line([(0,), (5000,)], lambda n, s: (n(s), 3, 4 * 10**10 + 2, 0.0), in_place=(0,)),
    ],
    "dropout_mask": [Line(VECTORS, lambda n, s: (2**64 - 1, 6, 6 + s[0], 0.3))],
    "elu": [
        Line(
            ANY,
            lambda n, s: (
                2 * n(s),
                0.7,
            ),
            in_place=(0,),
        )
    ],
    "elu_backward": [Line(ANY, lambda n, s: (n(s), 2 * n(s), 0.7), in_place=(0, 1))],
    "embedding_backward": [
        Line(ROWS, lambda n, s: (n(s), targets(s[0], 11), 11)),
        Line(ROWS, lambda n, s: (n(s), targets(s[0], 11) % 2, 3)),  # many rows of an id
    ],
    "erf": [Line(ANY, lambda n, s: (2 * n(s),), in_place=(0,))],
    "erf_backward": [Line(ANY, lambda n, s: (n(s), 2 * n(s)), in_place=(0, 1))],
    "erf_gelu": [Line(ANY, lambda n, s: (2 * n(s),), in_place=(0,))],
    "erf_gelu_backward": [Line(ANY, lambda n, s: (n(s), 2 * n(s)), in_place=(0, 1))],
    "expm1_backward": [Line(ANY, lambda n, s: (n(s), 2 * n(s)), in_place=(0, 1))],
    "extreme_backward": [
        Line(ANY, lambda n, s, d=d: (n(s), n(s).round(), n(s).round(), d), in_place=(0, 1, 2))
        for d in (1, -1)
    ],
    "from_half": [Line(VECTORS, lambda n, s: ((3 * n(s)).astype("float16"), n(1).dtype))],
    "gelu": [Line(ANY, lambda n, s: (n(s),), in_place=(0,))],
    "gelu_backward": [Line(ANY, lambda n, s: (n(s), n(s)), in_place=(0, 1))],
    "group_gradient": [
        Line(
            LINES,
            lambda n, s: (
                (n(s), n(s), n(s[1]), *[abs(n((s[0], 2))) + 0.5] * 2, *[n((s[0], 2))] * 2) + (1e-5,)
            ),
        )
    ],
    "group_gradient_sums": [
        Line(LINES, lambda n, s: (n(s), n(s), n(s[1]), *[abs(n((s[0], 2))) + 0.5] * 2, 1e-5))
    ],
    "group_moments": [Line(LINES, lambda n, s: (n(s), s[1] // 2))],
    "group_norm": [Line(LINES, lambda n, s: (n(s), n(s[1]), n(s[1]), s[1] // 2, 1e-5))],
    "group_norm_backward": [
        Line(LINES, lambda n, s: (n(s), n(s), n(s[1]), *[abs(n((s[0], 2))) + 0.5] * 2, 1e-5))
    ],
    "gru_step": [Line(CELLS, lambda n, s: (n((s[0], 3 * s[1])), n((s[0], 3 * s[1])), n(s)))],
    "gru_step_backward": [Line(CELLS, lambda n, s: (n(s), abs(n(four(s))) / 4, n(s)))],
    "hardtanh_backward": [Line(ANY, lambda n, s: (n(s), 2 * n(s), -0.5, 1.5), in_place=(0, 1))],
    "largest_magnitude": [
        Line(VECTORS, lambda n, s: (n(s),)),
        Line(VECTORS, lambda n, s: (-abs(n(s)),)),
    ],
    "layer_norm": [Line(ROWS, lambda n, s: (n(s), n(s[1:]), n(s[1:]), 1e-5), in_place=(0,))],
    "layer_norm_backward": [Line(ROWS, layer_norm_backward, in_place=(0, 1))],
    "leaky_relu": [
        Line(
            ANY,
            lambda n, s: (
                2 * n(s),
                0.01,
            ),
            in_place=(0,),
        )
    ],
    "leaky_relu_backward": [Line(ANY, lambda n, s: (n(s), 2 * n(s), 0.01), in_place=(0, 1))],
    "lion": [
        Line(
            VECTORS,
            lambda n, s: (n(s), n(s), n(s)),
            {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "weight_decay": decay, "gradient_scale": 0.3},
        )
        for decay in (0.0, 0.1)
    ],
    "log1p_backward": [Line(ANY, lambda n, s: (n(s), abs(n(s)) + 0.1), in_place=(0, 1))],
    "lstm": [
        Line(WALKS, lambda n, s: walk_of(n, s)[:6]),
        Line(WALKS, lambda n, s: (*walk_of(n, s)[:5], None)),
    ],
    "lstm_backward": [Line(WALKS, walked, {"wants_x": True, "wants_weights": True})],
    "merge_attention": [Line(MERGED, sums_of_blocks, in_place=(0,))],
    "mish": [Line(ANY, lambda n, s: (4 * n(s),), in_place=(0,))],
    "mish_backward": [Line(ANY, lambda n, s: (n(s), 2 * n(s)), in_place=(0, 1))],
    "momentum": [
        Line(VECTORS, lambda n, s: (n(s), n(s), n(s)), {**MOMENTUM, "nesterov": nesterov})
        for nesterov in (False, True)
    ],
    "multiply_modes": [Line(SPECTRA, lambda n, s: (n(spectrum_of(s, 1)), n(matrices_of(s))))],
    "multiply_modes_input": [Line(SPECTRA, lambda n, s: (n(spectrum_of(s, 2)), n(matrices_of(s))))],
    "multiply_modes_weight": [
        Line(SPECTRA, lambda n, s: (n(spectrum_of(s, 2)), n(spectrum_of(s, 1))))
    ],
    "pool_maxima": [Line(POOLED, lambda n, s: (n(s).round(1), pools(s)))],
    "pool_maxima_backward": [Line(POOLED, pool_maxima_backward)],
    "product_by_row": [Line(BY_ROW, lambda n, s: (n(s[:2]), n(s[:0:-1])))],
    "reciprocal_backward": [Line(ANY, lambda n, s: (n(s), abs(n(s)) + 0.1), in_place=(0, 1))],
    "relu": [Line(ANY, lambda n, s: (n(s),), in_place=(0,))],
    "relu_backward": [Line(ANY, lambda n, s: (n(s), 2 * n(s)), in_place=(0, 1))],
    "rms_norm": [Line(ROWS, lambda n, s: (n(s), n(s[1:]), 1e-6), in_place=(0,))],
    "rms_norm_backward": [Line(ROWS, rms_norm_backward, in_place=(0, 1))],
    "rows_to_spectra": [Line(TRANSFORMED, lambda n, s: (n((s[0], s[1])), 0.5, 0.75))],
    "spectra_to_rows": [
        Line(TRANSFORMED, lambda n, s: (n((s[0], s[1] // 2 + 1, 2)), s[1], 0.5, 0.75)),
    ],
    "transform_columns": [
        Line(TRANSFORMED, lambda n, s, sign=sign: (n((s[0], s[1] // 2, s[2], 2)), sign))
        for sign in (-1, 1)
    ],
    "rotary": [Line(HEADS, lambda n, s: (n(s), n((s[2], s[3] // 2)), n((s[2], s[3] // 2))))],
    "rotary_tables": [
        Line([(0, 4), (5, 6)], lambda n, s: (numpy.arange(s[0]), s[1], 1e4, n(1).dtype))
    ],
    "rows_kept": [Line([(0, 3), (1, 1), (5, 7), (300, 128), (1025, 800)], kept_rows)],
    "rsqrt": [Line(ANY, lambda n, s: (abs(n(s)) + 0.1,), in_place=(0,))],
    "rsqrt_backward": [Line(ANY, lambda n, s: (n(s), abs(n(s)) + 0.1), in_place=(0, 1))],
    "scale_groups": [
        Line(LINES, lambda n, s: (n(s), n(s[1]), n(s[1]), *[abs(n((s[0], 2))) + 0.5] * 2, 1e-5))
    ],
    "segment_max": [Line(ROWS, lambda n, s: (n(s), targets(s[0], 11), 11))],
    "sgd": [
        Line(
            VECTORS,
            lambda n, s: (n(s), n(s)),
            {"lr": 0.1, "weight_decay": 0.01, "gradient_scale": 0.3},
        ),
        Line(VECTORS, lambda n, s: (n(s), n(s)), {"lr": 0.1}),
    ],
    "shuffled": [Line([(1, 1, 0), (5, 0, 5), (600, 3, 590), (4099, 0, 4099)], shuffle)],
    "sigmoid": [Line(ANY, lambda n, s: (n(s),), in_place=(0,))],
    "sigmoid_backward": [Line(ANY, lambda n, s: (n(s), abs(n(s))), in_place=(0, 1))],
    "sign": [Line(ANY, lambda n, s: (2 * n(s),), in_place=(0,))],
    "silu": [Line(ANY, lambda n, s: (n(s),), in_place=(0,))],
    "silu_backward": [Line(ANY, lambda n, s: (n(s), n(s)), in_place=(0, 1))],
    "softmax": [
        Line(ANY, lambda n, s: (n(s),), in_place=(0,)),
        Line([(3, 5), (2, 3, 4)], lambda n, s: (n(s), 0), in_place=(0,)),
    ],
    "softmax_backward": [
        Line(ANY, lambda n, s: (n(s), n(s)), in_place=(0, 1)),
        Line([(3, 5), (2, 3, 4)], lambda n, s: (n(s), n(s), 0), in_place=(0, 1)),
    ],
    "sin": [Line(ANY, lambda n, s: (4 * n(s),), in_place=(0,))],
    "sin_backward": [Line(ANY, lambda n, s: (n(s), 4 * n(s)), in_place=(0, 1))],
    "softplus": [
        Line(ANY, lambda n, s: (4 * n(s), 1.0, 20.0), in_place=(0,)),
        Line(ANY, lambda n, s: (4 * n(s), 3.0, 8.0), in_place=(0,)),
    ],
    "softplus_backward": [Line(ANY, lambda n, s: (n(s), 4 * n(s), 3.0, 8.0), in_place=(0, 1))],
    "sum_of_rows": [Line(ROWS, lambda n, s: (n(s),))],
    "sum_of_two": [Line(ANY, lambda n, s: (n(s), n(s)), in_place=(0, 1))],
    "three_halves": [Line(ANY, lambda n, s: (abs(n(s)),), in_place=(0,))],
    "three_halves_backward": [Line(ANY, lambda n, s: (n(s), abs(n(s))), in_place=(0, 1))],
    "swiglu": [Line(ANY, lambda n, s: (n(s), n(s)), in_place=(0, 1))],
    "swiglu_backward": [Line(ANY, lambda n, s: (n(s), n(s), n(s)), in_place=(0, 1, 2))],
    "sqrt_backward": [Line(ANY, lambda n, s: (n(s), abs(n(s)) + 0.1), in_place=(0, 1))],
    "square_backward": [Line(ANY, lambda n, s: (n(s), n(s)), in_place=(0, 1))],
    "tan_backward": [Line(ANY, lambda n, s: (n(s), n(s)), in_place=(0, 1))],
    "tanh": [Line(ANY, lambda n, s: (2 * n(s),), in_place=(0,))],
    "tanh_backward": [Line(ANY, lambda n, s: (n(s), n(s)), in_place=(0, 1))],
    "to_half": [
        Line(VECTORS, lambda n, s: (n(s),)),
        Line(VECTORS, lambda n, s: (n(s) * 10 ** (4 * n(s)), 0.7)),
    ],
    "tree_sum": [
        Line(VECTORS, lambda n, s, count=count: ([n(s) for _ in range(count)],))
        for count in (1, 2, 3, 4, 5, 7, 8)
    ],
    "where_else": [
        Line(ANY, lambda n, s, holds=holds: (n(s), n(s) > 0, -1.5, holds), in_place=(0,))
        for holds in (True, False)
    ],
    "where_of": [Line(ANY, lambda n, s: (n(s), n(s), n(s) > 0), in_place=(0, 1))],
}
EXACT = {
    "abs_backward",
    "adam",
    "add_row",
    "angle_backward",
    "arctan_backward",
    "clamp_backward",
    "cube",
    "cube_backward",
    "divisor_backward",
    "dropout",
    "dropout_mask",
    "embedding_backward",
    "extreme_backward",
    "from_half",
    "hardtanh_backward",
    "largest_magnitude",
    "leaky_relu",
    "leaky_relu_backward",
    "lion",
    "log1p_backward",
    "momentum",
    "pool_maxima",
    "pool_maxima_backward",
    "reciprocal_backward",
    "relu",
    "relu_backward",
    "rotary_tables",
    "rows_kept",
    "rsqrt",
    "rsqrt_backward",
    "segment_max",
    "sgd",
    "shuffled",
    "sigmoid_backward",
    "sign",
    "sqrt_backward",
    "square_backward",
    "sum_of_two",
    "tan_backward",
    "tanh_backward",
    "three_halves",
    "three_halves_backward",
    "to_half",
    "tree_sum",
    "where_else",
    "where_of",
}
# Their arguments are NumPy arrays, wherever the model is; CuPy has transforms of its own.
ON_HOST = {"rows_kept", "rows_to_spectra", "shuffled", "spectra_to_rows", "transform_columns"}
DEFINED_ALONE_ON_CUDA = ON_HOST | {  # products and whole arrays
    "abs_backward",
    "add_row",
    "angle_backward",
    "arctan_backward",
    "attend_to_kept",
    "batch_norm",
    "batch_norm_backward",
    "clamp_backward",
    "convolve",
    "convolve_input",
    "convolve_weight",
    "cos",
    "cos_backward",
    "cube",
    "cube_backward",
    "divisor_backward",
    "elu",
    "elu_backward",
    "erf_backward",
    "expm1_backward",
    "extreme_backward",
    "group_gradient",
    "group_gradient_sums",
    "group_moments",
    "group_norm",
    "group_norm_backward",
    "gru_step",
    "gru_step_backward",
    "hardtanh_backward",
    "leaky_relu",
    "leaky_relu_backward",
    "log1p_backward",
    "lstm",
    "lstm_backward",
    "merge_attention",
    "mish",
    "mish_backward",
    "multiply_modes",
    "multiply_modes_input",
    "multiply_modes_weight",
    "pool_maxima",
    "pool_maxima_backward",
    "product_by_row",
    "reciprocal_backward",
    "relu",
    "relu_backward",
    "rotary_tables",
    "rsqrt",
    "rsqrt_backward",
    "scale_groups",
    "sigmoid_backward",
    "sign",
    "sin",
    "sin_backward",
    "softplus",
    "softplus_backward",
    "sqrt_backward",
    "square_backward",
    "tan_backward",
    "tanh",
    "tanh_backward",
    "three_halves",
    "three_halves_backward",
    "where_else",
    "where_of",
}
IN_PLACE_RULES = {"adam", "lion", "momentum", "sgd"}
CASES = [
    (name, line, shape) for name, lines in TABLE.items() for line in lines for shape in line.shapes
]
ON_DEVICE = [name for name in TABLE if name not in ON_HOST]
DEVICE_CASES = [case for case in CASES if case[0] in ON_DEVICE]


# ---- calling -------------------------------------------------------------------------------------


def made(line, shape, dtype):
    """Return the arguments of a line, with the same numbers each time."""
    rng = numpy.random.default_rng(0)
    return line.arguments(lambda size: rng.standard_normal(size).astype(dtype), shape)


def results(kernel, arguments, line):
    """Return all results, and the arguments after the call: rules work in place, and nothing else
    may write.
    """
    returned = [
        numpy.float64(x) if isinstance(x, float) else x
        for x in as_tuple(kernel(*arguments, **line.keywords))
    ]
    return [
        array
        for array in [*returned, *flat(arguments)]
        if isinstance(array, (numpy.ndarray, numpy.float64))
    ]


def as_tuple(returned):
    return returned if isinstance(returned, tuple) else (returned,)


def flat(arguments):
    return [
        each
        for argument in arguments
        for each in (argument if isinstance(argument, list) else [argument])
    ]


def mapped(change, arguments):
    """Return the arguments with every floating-point array changed."""

    def one(x):
        if isinstance(x, list):
            return [one(each) for each in x]
        return change(x) if isinstance(x, numpy.ndarray) and x.dtype.kind == "f" else x

    return tuple([one(argument) for argument in arguments])


def bits(arrays):
    return [(array.shape, array.dtype.str, array.tobytes()) for array in arrays]


# ---- the same numbers, lying elsewhere -----------------------------------------------------------


def strided(x):
    """Return the same numbers as every other element of a larger array."""
    wide = numpy.full(tuple(2 * size for size in x.shape), numpy.nan, x.dtype)
    view = wide[tuple([slice(None, None, 2)] * x.ndim)]
    view[...] = x
    return view


def turned(x):
    """Return the same numbers with the first dimension last in memory."""
    return numpy.moveaxis(numpy.ascontiguousarray(numpy.moveaxis(x, 0, -1)), -1, 0)


def read_only(x):
    x = x.copy()
    x.flags.writeable = False
    return x


WITH_OUT = [
    name for name in TABLE if "out" in inspect.signature(getattr(reference, name)).parameters
]
WITH_OUT_ON_DEVICE = [name for name in WITH_OUT if name in ON_DEVICE]


def buffers_like(name, returned):
    """Return NaN-filled buffers for the results of a kernel, in the form that its `out` takes, and
    that part of the results.
    """
    default = inspect.signature(getattr(reference, name)).parameters["out"].default
    parts = returned[: len(default)] if isinstance(default, tuple) else returned[:1]
    buffers = tuple([numpy.full(part.shape, numpy.nan, part.dtype) for part in parts])
    return (buffers if isinstance(default, tuple) else buffers[0]), buffers, parts
