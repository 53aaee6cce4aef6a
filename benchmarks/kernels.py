"""Kernel by kernel: the fast twin against the plain one, PyTorch eager (if installed) and what the
machine allows.

    python benchmarks/kernels.py [--only adamw] [--repeats 31]

One thread. Every rival runs once in each repeat, so that a disturbance meets all of them; medians.
"f+b" is forward and backward, with fresh result arrays, as a training step has them. The limit is
the time in which the machine could move the arrays once (each input read, each output written, at
the speed of a copy larger than any cache, measured in the same run) or multiply the matrices,
whichever is longer; arrays that stay in a cache beat it. On a machine that others use too, believe
the ratios and not the milliseconds.
"""

import argparse
import math
from dataclasses import dataclass
from statistics import median
from types import SimpleNamespace
from typing import Callable

import numpy
from report import Table, interleaved, machine, machine_text, save
from threadpoolctl import threadpool_limits

import shardkit.array.kernels  # noqa: F401  fills the registry
from shardkit.array.registry import KERNELS

try:
    import torch
    import torch.nn.functional as F
except ImportError:
    torch = F = None

TOKENS = 2048
WIDTH = 512
HIDDEN = 2048
VOCABULARY = 8192
HEADS = 8
HEAD_DIM = 64
PARAMETERS = 4_000_000
RIVALS = {"cpu / plain": "plain", "cpu / torch eager": "torch", "cpu / torch fused": "torch fused"}


@dataclass(frozen=True)
class Case:
    """A kernel to time.

    rivals     {"cpu": ..., "plain": ..., "torch": ..., "torch fused": ...}, functions without
               arguments
    num_bytes  that have to be moved at least; num_flops in matrix products
    """

    rivals: dict[str, Callable]
    num_bytes: int
    num_flops: int = 0


def normal(*shape):
    return numpy.random.default_rng(math.prod(shape)).standard_normal(shape).astype("float32")


def implementations(slot: str) -> SimpleNamespace:
    """Return the implementations of all kernels in one slot of the registry, as attributes."""
    for entry in KERNELS.values():
        entry.load("cpu")
    return SimpleNamespace(**{name: getattr(entry, slot) for name, entry in KERNELS.items()})


cpu, reference = map(implementations, ("cpu", "reference"))


def ours(step):
    """Return step(implementations of the kernels), for both implementations."""
    return {"cpu": lambda: step(cpu), "plain": lambda: step(reference)}


def eager(function, *inputs, gradient=None):
    """Return PyTorch's function of these arrays, with gradients of those of floats if `gradient` is
    given; {} without PyTorch.
    """
    if torch is None:
        return {}
    tensors = [
        torch.tensor(x, requires_grad=gradient is not None and x.dtype.kind == "f") for x in inputs
    ]
    if gradient is None:
        return {"torch": lambda: function(*tensors)}
    leaves = [tensor for tensor in tensors if tensor.requires_grad]
    sent = torch.tensor(gradient)
    return {"torch": lambda: torch.autograd.grad(function(*tensors), leaves, sent)}


# ---- the cases, at the sizes of a block of width 512 ---------------------------------------------


def gelu():
    x = normal(TOKENS, HIDDEN)
    return Case(
        ours(lambda k: k.gelu(x)) | eager(lambda x: F.gelu(x, approximate="tanh"), x), 2 * x.nbytes
    )


def bias_gelu():
    x = normal(TOKENS, HIDDEN)
    g = normal(TOKENS, HIDDEN)
    b = normal(HIDDEN)
    return Case(
        ours(lambda k: (k.bias_gelu(x, b), k.bias_gelu_backward(g, x, b)))
        | eager(lambda x, b: F.gelu(x + b, approximate="tanh"), x, b, gradient=g),
        5 * x.nbytes,
    )


def swiglu():
    x = normal(TOKENS, HIDDEN)
    y = normal(TOKENS, HIDDEN)
    g = normal(TOKENS, HIDDEN)
    return Case(
        ours(lambda k: (k.swiglu(x, y), k.swiglu_backward(g, x, y)))
        | eager(lambda x, y: F.silu(x) * y, x, y, gradient=g),
        8 * x.nbytes,
    )


def dropout():
    x = normal(TOKENS, HIDDEN)
    return Case(
        ours(lambda k: k.dropout(x, 1, 0, 0.1)) | eager(lambda x: F.dropout(x, 0.1), x),
        2 * x.nbytes,
    )


def layer_norm():
    x = normal(TOKENS, WIDTH)
    r = normal(TOKENS, WIDTH)
    g = normal(TOKENS, WIDTH)
    w = normal(WIDTH)
    b = normal(WIDTH)

    def step(k):
        total, _, mean, inverse = k.add_layer_norm(x, r, w, b, 1e-5)
        k.layer_norm_backward(g, total, w, mean, inverse)

    return Case(
        ours(step)
        | eager(lambda x, r, w, b: F.layer_norm(x + r, (WIDTH,), w, b), x, r, w, b, gradient=g),
        7 * x.nbytes,
    )


def rms_norm():
    x = normal(TOKENS, WIDTH)
    r = normal(TOKENS, WIDTH)
    g = normal(TOKENS, WIDTH)
    w = normal(WIDTH)

    def step(k):
        total, _, inverse = k.add_rms_norm(x, r, w, 1e-6)
        k.rms_norm_backward(g, total, w, inverse)

    return Case(
        ours(step) | eager(lambda x, r, w: F.rms_norm(x + r, (WIDTH,), w), x, r, w, gradient=g),
        7 * x.nbytes,
    )


def softmax():
    x = normal(TOKENS, TOKENS)
    g = normal(TOKENS, TOKENS)
    return Case(
        ours(lambda k: k.softmax_backward(g, k.softmax(x)))
        | eager(lambda x: x.softmax(-1), x, gradient=g),
        5 * x.nbytes,
    )


def rotary():
    x = normal(8, TOKENS // 8, HEADS, HEAD_DIM)
    cos, sin = reference.rotary_tables(numpy.arange(TOKENS // 8), HEAD_DIM, 1e4, "float32")

    def torch_rotary(x, cos, sin):
        a, b = x.transpose(1, 2).chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    return Case(
        ours(lambda k: k.rotary(x.swapaxes(1, 2), cos, sin)) | eager(torch_rotary, x, cos, sin),
        2 * x.nbytes,
    )


def attention(sequence):
    samples = max(1, TOKENS // sequence)
    q, k, v, g = [normal(samples, sequence, HEADS, HEAD_DIM) + shift for shift in range(4)]
    scale = HEAD_DIM**-0.5

    def step(kernels):
        heads = [x.swapaxes(1, 2) for x in (q, k, v)]
        y, log_sums = kernels.causal_attention(*heads, scale, 0)
        kernels.causal_attention_backward(g.swapaxes(1, 2), *heads, y, log_sums, scale, 0)

    def masked(q, k, v):
        q, k, v = [x.transpose(1, 2) for x in (q, k, v)]
        scores = (q @ k.transpose(2, 3) * scale).masked_fill(hidden, -math.inf)
        return (scores.softmax(-1) @ v).transpose(1, 2)

    def fused(q, k, v):
        return F.scaled_dot_product_attention(
            *[x.transpose(1, 2) for x in (q, k, v)], is_causal=True
        ).transpose(1, 2)

    rivals = ours(step)
    if torch:
        hidden = torch.ones(sequence, sequence, dtype=bool).triu(1)
        rivals |= eager(masked, q, k, v, gradient=g) | {
            "torch fused": eager(fused, q, k, v, gradient=g)["torch"]
        }
    return Case(
        rivals, 12 * q.nbytes, 7 * samples * sequence**2 * HEADS * HEAD_DIM
    )  # 7 products, half of each visible


def cross_entropy():
    x = normal(TOKENS, VOCABULARY)
    y = numpy.arange(TOKENS) * 7919 % VOCABULARY

    def step(k):
        _, log_sums = k.cross_entropy(x, y)
        k.cross_entropy_backward(1 / TOKENS, x, y, log_sums)

    return Case(ours(step) | eager(F.cross_entropy, x, y, gradient=numpy.float32(1)), 3 * x.nbytes)


def embedding():
    g = normal(TOKENS, WIDTH)
    ids = numpy.arange(TOKENS) * 7919 % VOCABULARY
    w = normal(VOCABULARY, WIDTH)
    return Case(
        ours(lambda k: k.embedding_backward(g, ids, VOCABULARY))
        | eager(lambda w, ids: F.embedding(ids, w), w, ids, gradient=g),
        w.nbytes + g.nbytes,
    )


def adamw():
    p = normal(PARAMETERS)
    g = normal(PARAMETERS)
    m = numpy.zeros(PARAMETERS, "f4")
    v = numpy.zeros(PARAMETERS, "f4")
    rivals = ours(
        lambda k: k.adam(
            p,
            g,
            m,
            v,
            step=5,
            lr=1e-3,
            beta1=0.9,
            beta2=0.95,
            eps=1e-8,
            weight_decay=0.01,
            decoupled=True,
            gradient_scale=0.5,
        )
    )
    for name, options in (("torch", {}), ("torch fused", {"fused": True})) if torch else ():
        parameter = torch.nn.Parameter(torch.tensor(p))
        parameter.grad = torch.tensor(g)
        rivals[name] = torch.optim.AdamW([parameter], betas=(0.9, 0.95), **options).step
    return Case(rivals, 7 * p.nbytes)


def squares():
    x = normal(PARAMETERS)
    return Case(
        ours(lambda k: k.block_squares(x)) | eager(lambda x: torch.linalg.vector_norm(x), x),
        x.nbytes,
    )


def sum_of_four():
    buffers = [normal(PARAMETERS) for _ in range(4)]
    return Case(
        ours(lambda k: k.tree_sum(buffers)) | eager(lambda a, b, c, d: (a + b) + (c + d), *buffers),
        5 * buffers[0].nbytes,
    )


CASES = {
    "gelu": gelu,
    "bias + gelu, f+b": bias_gelu,
    "swiglu, f+b": swiglu,
    "dropout": dropout,
    "residual + layer norm, f+b": layer_norm,
    "residual + rms norm, f+b": rms_norm,
    "softmax, f+b": softmax,
    "rotary": rotary,
    "causal attention 256, f+b": lambda: attention(256),
    "causal attention 2048, f+b": lambda: attention(2048),
    "causal attention 4096, f+b": lambda: attention(4096),
    "causal attention 8192, f+b": lambda: attention(8192),
    "cross-entropy, f+b": cross_entropy,
    "embedding gradient": embedding,
    "adamw 4M, clipped": adamw,
    "squared norm 4M": squares,
    "sum of 4 x 4M": sum_of_four,
}


# ---- measuring -----------------------------------------------------------------------------------


def medians(seconds):
    """Return {name: median} of {name: seconds of each repeat}."""
    return {name: median(values) for name, values in seconds.items()}


def machine_limits(repeats):
    """Return the bytes per second of a copy that no cache holds, and the flops of a product 1024 x
    1024.
    """
    source = normal(16 << 20)
    target = normal(16 << 20)
    a = normal(1024, 1024)
    b = normal(1024, 1024)
    found = medians(
        interleaved(
            {"copy": lambda: numpy.copyto(target, source), "product": lambda: a @ b}, repeats
        )
    )
    return 2 * source.nbytes / found["copy"], 2 * 1024**3 / found["product"]


def measured(name, repeats, bytes_per_second, flops_per_second):
    """Return a row of the table, and the seconds behind it."""
    case = CASES[name]()
    seconds = interleaved(case.rivals, repeats)
    found = medians(seconds)
    limit = max(case.num_bytes / bytes_per_second, case.num_flops / flops_per_second)
    ratios = [found["cpu"] / found[rival] if rival in found else None for rival in RIVALS.values()]
    return [name, 1e3 * found["cpu"], *ratios, found["cpu"] / limit], seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="kernels whose name contains this")
    parser.add_argument("--repeats", type=int, default=31)
    options = parser.parse_args()
    if torch:
        torch.set_num_threads(1)
    about = machine()
    rows = []
    raw = {}
    with threadpool_limits(1):
        bytes_per_second, flops_per_second = machine_limits(options.repeats)
        for name in CASES:
            if options.only in name:
                row, raw[name] = measured(name, options.repeats, bytes_per_second, flops_per_second)
                rows.append(row)
    note = (
        f"In the same run: copy {bytes_per_second / 1e9:.3g} GB/s read and written, products "
        f"{flops_per_second / 1e9:.3g} GFLOP/s. Below 1 the fast twin wins; {TOKENS} tokens, "
        f"width {WIDTH}, {HEADS} heads, vocabulary {VOCABULARY}, float32."
    )
    table = Table("Kernels, one thread", ["kernel", "cpu, ms", *RIVALS, "cpu / limit"], rows, note)
    path = save(
        "kernels",
        "Kernels",
        [table],
        about=about,
        settings={"repeats": options.repeats, "threads": 1},
        measured=raw,
    )
    print(machine_text(about), table.markdown(), f"written to {path}", sep="\n\n")


if __name__ == "__main__":
    main()
