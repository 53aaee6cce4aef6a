"""Attention with a window beside the same without one: processor time, forward and backward.

    python benchmarks/window.py [--tokens 8192] [--window 512] [--repeats 9]

Both take turns in each repeat on one thread, so that a disturbance meets both; the medians, and the
median of the ratios of neighbors. Causal, 4 heads of 64, float32. Scores: how many there are of
those below the diagonal, which no code can fall below but by the ends of tiles.
"""

import argparse
import time
from statistics import median

import numpy
from report import Table, interleaved, machine, machine_text, save
from threadpoolctl import threadpool_limits

from shardkit.array import kernels

HEADS, HEAD_DIM = 4, 64


def calls_of(tokens, window):
    """Return {"forward": a call, "backward": a call} of attention with this window."""
    draw = numpy.random.default_rng(0)
    shape = 4, 1, HEADS, tokens, HEAD_DIM
    q, k, v, gradient = draw.standard_normal(shape, "float32")
    sight = HEAD_DIM**-0.5, 0, window
    y, log_sums = kernels.causal_attention(q, k, v, *sight)
    return {
        "forward": lambda: kernels.causal_attention(q, k, v, *sight),
        "backward": lambda: kernels.causal_attention_backward(
            gradient, q, k, v, y, log_sums, *sight
        ),
    }


def row(name, contenders, repeats):
    """Return a row of the table, and the seconds behind it."""
    seconds = interleaved(contenders, repeats, clock=time.process_time)
    ratios = [part / whole for part, whole in zip(seconds["window"], seconds["full"])]
    medians = [1e3 * median(seconds[side]) for side in ("full", "window")]
    return [name, *medians, median(ratios)], seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    about, rows, raw = machine(), [], {}
    tokens, reach = options.tokens, min(options.window, options.tokens)
    with threadpool_limits(1):
        sides = {"full": calls_of(tokens, None), "window": calls_of(tokens, options.window)}
        for name in ("forward", "backward"):
            contenders = {side: calls[name] for side, calls in sides.items()}
            found, raw[name] = row(name, contenders, options.repeats)
            rows.append(found)
    left = (reach * (reach + 1) / 2 + (tokens - reach) * reach) / (tokens * (tokens + 1) / 2)
    rows.append(["scores", None, None, left])
    columns = ["of a sequence", "full, ms", "window, ms", "window / full"]
    table = Table(f"Attention of {tokens:,} tokens, window {options.window}", columns, rows)
    settings = {"repeats": options.repeats, "threads": 1, "heads": HEADS, "head_dim": HEAD_DIM}
    title = "Attention with a window"
    path = save("window", title, [table], about=about, settings=settings, measured=raw)
    print(machine_text(about), table.markdown(), f"written to {path}", sep="\n\n")


if __name__ == "__main__":
    main()
