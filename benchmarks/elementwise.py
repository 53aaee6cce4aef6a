"""Elementwise operations: forward and backward of each, beside a copy of the same bytes.

    python benchmarks/elementwise.py [--only gelu] [--dtype float32] [--repeats 9]

A rate is the time of the copy by that of the operation: 1 is the speed of memory. Both take turns
in one arena, as in a training step, on one thread, in processor time; medians of the ratios of
neighbors. The copy
moves as many bytes as the operation reads and writes: inputs and results; for the backward the
gradient, the inputs and their gradients. The arrays of the first table do not fit into caches, and
the exit status is 1 if a rate there is below 0.5 for an operation that is not in BELOW, which says
why. In the second they lie in the last cache, where arithmetic counts.
"""

import argparse
import sys
import time
from statistics import median

import numpy
from report import Table, machine, machine_text, save
from threadpoolctl import threadpool_limits

from shardkit.nn import Tensor, ops
from shardkit.testing.array import Arena, Device

LEAST = 0.5
BEYOND_CACHES, IN_CACHE = 1 << 23, 1 << 20  # elements


def normal(size, seed):
    return numpy.random.default_rng(seed).standard_normal(size, dtype="float32")


def positive(size, seed):
    return abs(normal(size, seed)) + 0.1


PLAIN = (normal,)
ABOVE_0 = (positive,)
TWO = (normal, normal)
# {name: (operation, its inputs)}
OPERATIONS = {
    **{
        name: (getattr(ops, name), PLAIN)
        for name in (
            "abs arctan ceil cos elu erf erf_gelu exp expm1 floor gelu hardtanh leaky_relu mish "
            "negative relu round sigmoid sign silu sin softplus square tan tanh"
        ).split()
    },
    **{name: (getattr(ops, name), ABOVE_0) for name in "log log1p reciprocal rsqrt sqrt".split()},
    **{
        name: (getattr(ops, name), TWO)
        for name in "add arctan2 maximum minimum multiply subtract swiglu".split()
    },
    "divide": (ops.divide, (normal, positive)),
    "power of 3": (lambda x: ops.power(x, 3), PLAIN),
    "power of 1.7": (lambda x: ops.power(x, 1.7), ABOVE_0),
    "power of 1.5": (lambda x: ops.power(x, 1.5), ABOVE_0),
    "power of Tensors": (ops.power, (positive, normal)),
    "clamp": (lambda x: ops.clamp(x, -1.0, 1.0), PLAIN),
    "where": (lambda x, y: ops.where(MASK[: len(x.array)], x, y), TWO),
    "masked_fill": (lambda x: ops.masked_fill(x, MASK[: len(x.array)], 0.0), PLAIN),
    "greater": (lambda x, y: ops.compare("gt", x, y), TWO),
}
MASK = normal(BEYOND_CACHES, 9) > 0
# {name, or "name, backward": why its rate is below 0.5}
BELOW: dict[str, str] = {
    **dict.fromkeys(
        ["power of 1.7", "power of 1.7, backward", "power of Tensors"],
        "powers are NumPy's pow",
    ),
    "arctan2": "NumPy's arctan2",
    "power of Tensors, backward": "two powers and a logarithm",
    "erf": "40 operations an element, 0.39 to 0.65 by the load",
    "erf_gelu": "40 operations an element, 0.36 to 0.65 by the load",
}


def sides(name, num_elements, dtype):
    """Return [(title, step, bytes that it moves)] of an operation: forward, and backward."""
    operation, makers = OPERATIONS[name]
    arrays = [make(num_elements, seed) for seed, make in enumerate(makers)]
    leaves = [Tensor(ops.cast(Tensor(array), dtype).array, requires_grad=True) for array in arrays]
    y = operation(*leaves)
    moved = sum(leaf.array.nbytes for leaf in leaves) + y.array.nbytes
    found = [(name, lambda: operation(*leaves), moved)]
    if y.requires_grad:
        gradient = ops.cast(Tensor(normal(num_elements, 5)), dtype).array
        node = y._node
        inputs = sum(leaf.array.nbytes for leaf in leaves)
        found.append(
            (
                f"{name}, backward",
                lambda: node.backward(gradient, node.wanted),
                gradient.nbytes + 2 * inputs,
            )
        )
    return found


def rate(step, num_bytes, repeats) -> tuple[float, float]:
    """Return the time of a copy of so many bytes by that of a step, and that in milliseconds."""
    source = numpy.ones(max(1, num_bytes // 8), "float32")
    arena = Arena(Device("cpu"), purpose="activations")
    with arena.in_use():
        out = numpy.empty_like(source)
        ratios, seconds = [], []
        for turn in range(repeats + 3):
            copying = _seconds(lambda: numpy.copyto(out, source))
            of_step = _seconds(step)
            if turn >= 3:
                ratios.append(copying / of_step)
                seconds.append(of_step)
    return median(ratios), 1e3 * median(seconds)


def _seconds(step) -> float:
    began = time.process_time()
    step()
    return time.process_time() - began


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="operations whose name contains this")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--repeats", type=int, default=9)
    asked = parser.parse_args()
    about = machine()
    tables = []
    with threadpool_limits(1):
        for num_elements in (BEYOND_CACHES, IN_CACHE):
            tables.append(measured(asked, num_elements))
            print(tables[-1].markdown(), end="\n\n", flush=True)
    print(machine_text(about))
    slow = [row for row in tables[0].rows if row[2] < LEAST and not row[3]]
    for title, _, found, _ in slow:
        print(f"{title} has {found:.2f} of the rate of a copy; wanted at least {LEAST}")
    if not asked.only:
        settings = {"threads": 1, "repeats": asked.repeats}
        save("elementwise", "Elementwise operations", tables, about=about, settings=settings)
    return 1 if slow else 0


def measured(asked, num_elements) -> Table:
    """Return the rates of all operations that are asked for, the slowest first."""
    rows = []
    for name in OPERATIONS:
        if asked.only in name:
            for title, step, num_bytes in sides(name, num_elements, asked.dtype):
                found, milliseconds = rate(step, num_bytes, asked.repeats)
                rows.append([title, milliseconds, found, BELOW.get(title, "")])
    rows.sort(key=lambda row: row[2])
    columns = ["operation", "ms", "rate of a copy", "why it is below 0.5"]
    return Table(f"{num_elements:,} elements of {asked.dtype}", columns, rows)


if __name__ == "__main__":
    sys.exit(main())
