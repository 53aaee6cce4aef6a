"""Layers of science: ours beside PyTorch's, forward and backward, on one thread.

    python benchmarks/layers.py [--only conv] [--repeats 21]

Both take turns in each repeat, so that a disturbance meets both; medians of processor time, and the
median of the ratios of neighbors. Above 1 ours is faster. float32; the same arrays on both sides;
ours in an arena, as in every step of a model.
The peak is what one forward and backward allocates at most beside its inputs, measured in a process
of its own for each side. A new layer is a function in CASES that returns (our step, PyTorch's
step).
"""

import argparse
import json
import math
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import numpy
from report import Table, interleaved, machine, machine_text, save
from threadpoolctl import threadpool_limits

from shardkit.nn import Tensor, ops
from shardkit.testing.array import Arena, Device


def normal(*shape):
    return numpy.random.default_rng(math.prod(shape)).standard_normal(shape).astype("float32")


def steps(ours, theirs, *inputs):
    """Return a forward and backward of each function of Tensors, from the same arrays.

    theirs   torch -> its function
    Each returned function imports what it needs, so that a process measures one side alone; it
    returns y and the gradient of the first input.
    """

    arena = Arena(Device("cpu"), purpose="activations")

    def our_step():
        leaves = [Tensor(x, requires_grad=True) for x in inputs]
        with arena.in_use():
            y = ours(*leaves)
            y.backward(numpy.ones(y.shape, y.dtype))
        return y.array, leaves[0].grad

    def their_step():
        import torch

        torch.set_num_threads(1)
        leaves = [torch.from_numpy(x).requires_grad_() for x in inputs]
        y = theirs(torch)(*leaves)
        y.backward(torch.ones_like(y))
        return y.detach().numpy(), leaves[0].grad.numpy()

    return our_step, their_step


def convolution(shape, num_out, window, name="conv", **more):
    """Return the case of a convolution over x of this shape."""
    num_dims = len(shape) - 2
    channels = (num_out, shape[1] // more.get("groups", 1))
    if name == "conv_transpose":
        channels = (shape[1], num_out)
    inputs = normal(*shape), normal(*channels, *[window] * num_dims), normal(num_out)
    function = f"{name}{num_dims}d"
    return steps(
        lambda *given: getattr(ops, function)(*given, **more),
        lambda torch: lambda *given: getattr(torch.nn.functional, function)(*given, **more),
        *inputs,
    )


def group_norm(shape, groups):
    """Return the case of a group norm over x of this shape."""
    return steps(
        lambda x, weight, bias: ops.group_norm(x, groups, weight, bias),
        lambda torch: lambda x, *given: torch.nn.functional.group_norm(x, groups, *given),
        *[normal(*shape), normal(shape[1]), normal(shape[1])],
    )


def batch_norm(shape):
    """Return the case of a batch norm in training."""
    return steps(
        lambda x, weight, bias: ops.batch_norm(x, weight=weight, bias=bias)[0],
        lambda torch: (
            lambda x, *given: torch.nn.functional.batch_norm(x, None, None, *given, training=True)
        ),
        *[normal(*shape), normal(shape[1]), normal(shape[1])],
    )


def on_grid(name, shape, **more):
    """Return the case of an operation on x alone, of this name in both libraries."""
    return steps(
        lambda x: getattr(ops, name)(x, **more),
        lambda torch: lambda x: getattr(torch.nn.functional, name)(x, **more),
        normal(*shape),
    )


def recurrent(name, steps_, batch, num_in, width):
    """Return the case of an LSTM or GRU of one layer."""
    gates = {"lstm": 4, "gru": 3}[name] * width
    states = [normal(batch, width)] * (2 if name == "lstm" else 1)
    weights = [normal(gates, size) / math.sqrt(size) for size in (num_in, width)]
    weights += [normal(gates), normal(gates)]
    inputs = [x.astype("float32") for x in (normal(steps_, batch, num_in), *states, *weights)]
    rest = True, 1, 0.0, False, False, False  # biases, layers, dropout, training, two ways, batch

    def ours(*given):
        y = getattr(ops, name)(*given)
        return y[0] if name == "lstm" else y

    def theirs(torch):
        def run(x, *given):
            before = [state[None] for state in given[:-4]]
            before = tuple(before) if name == "lstm" else before[0]
            return getattr(torch, name)(x, before, given[-4:], *rest)[0]

        return run

    return steps(ours, theirs, *inputs)


def fourier(shape):
    """Return the case of a transform of the grid of x to its spectrum, and back."""
    sizes, dims = shape[2:], tuple(range(2, len(shape)))
    return steps(
        lambda x: ops.fft.irfftn(ops.fft.rfftn(x, dim=dims), sizes, dims),
        lambda torch: lambda x: torch.fft.irfftn(torch.fft.rfftn(x, dim=dims), sizes, dims),
        normal(*shape),
    )


def attention(shape, **more):
    """Return the case of attention between q, k and v of this shape."""
    return steps(
        lambda *given: ops.scaled_dot_product_attention(*given, **more),
        lambda torch: (
            lambda *given: torch.nn.functional.scaled_dot_product_attention(
                *given, **{key: _as_torch(torch, value) for key, value in more.items()}
            )
        ),
        *[normal(*shape), normal(*shape) * 0.5, normal(*shape) * 2],
    )


def _as_torch(torch, value):
    return torch.from_numpy(value) if isinstance(value, numpy.ndarray) else value


CASES = {
    "conv2d 3x3, 32 to 32, 16 x 64 x 64": lambda: convolution((16, 32, 64, 64), 32, 3, padding=1),
    "conv2d 3x3, 64 to 64, 1 x 256 x 256": lambda: convolution((1, 64, 256, 256), 64, 3, padding=1),
    "conv2d 3x3 stride 2, 32 to 64": lambda: convolution(
        (16, 32, 64, 64), 64, 3, stride=2, padding=1
    ),
    "conv2d 3x3, 64 to 64, 16 x 16 x 16": lambda: convolution((16, 64, 16, 16), 64, 3, padding=1),
    "conv2d 3x3, 128 to 128, 16 x 8 x 8": lambda: convolution((16, 128, 8, 8), 128, 3, padding=1),
    "conv2d 3x3, 256 to 256, 16 x 4 x 4": lambda: convolution((16, 256, 4, 4), 256, 3, padding=1),
    "conv2d 3x3, 24 to 24, 4 x 96 x 96": lambda: convolution((4, 24, 96, 96), 24, 3, padding=1),
    "conv2d 3x3, 192 to 192, 4 x 14 x 14": lambda: convolution((4, 192, 14, 14), 192, 3, padding=1),
    "conv2d 5x5, 64 to 64, 16 x 16 x 16": lambda: convolution((16, 64, 16, 16), 64, 5, padding=2),
    "conv2d 5x5, 24 to 24, 4 x 64 x 64": lambda: convolution((4, 24, 64, 64), 24, 5, padding=2),
    "conv2d 3x3 stride 2, 64 to 128, 16 x 16 x 16": lambda: convolution(
        (16, 64, 16, 16), 128, 3, stride=2, padding=1
    ),
    "conv2d 1x1, 64 to 128, 16 x 16 x 16": lambda: convolution((16, 64, 16, 16), 128, 1),
    "conv2d 1x1, 64 to 64": lambda: convolution((16, 64, 32, 32), 64, 1),
    "conv2d 3x3 depthwise, 64": lambda: convolution((16, 64, 32, 32), 64, 3, padding=1, groups=64),
    "conv1d 5, 64 to 64": lambda: convolution((16, 64, 512), 64, 5, padding=2),
    "conv3d 3x3x3, 16 to 16, 4 x 16 x 32 x 32": lambda: convolution(
        (4, 16, 16, 32, 32), 16, 3, padding=1
    ),
    "conv3d 3x3x3, 32 to 32, 2 x 16 x 32 x 32": lambda: convolution(
        (2, 32, 16, 32, 32), 32, 3, padding=1
    ),
    "conv_transpose2d 2x2 stride 2, 64 to 32": lambda: convolution(
        (16, 64, 32, 32), 32, 2, "conv_transpose", stride=2
    ),
    "group norm of 8 groups, 16 x 32 x 64 x 64": lambda: group_norm((16, 32, 64, 64), 8),
    "group norm of 4 groups, 2 x 16 x 16 x 32 x 32": lambda: group_norm((2, 16, 16, 32, 32), 4),
    "max_pool2d 2x2, 16 x 32 x 64 x 64": lambda: on_grid(
        "max_pool2d", (16, 32, 64, 64), kernel_size=2
    ),
    "avg_pool2d 2x2, 16 x 32 x 64 x 64": lambda: on_grid(
        "avg_pool2d", (16, 32, 64, 64), kernel_size=2
    ),
    "interpolate nearest, 16 x 32 x 32 x 32 by 2": lambda: on_grid(
        "interpolate", (16, 32, 32, 32), scale_factor=2
    ),
    "interpolate bilinear, 16 x 32 x 32 x 32 by 2": lambda: on_grid(
        "interpolate", (16, 32, 32, 32), scale_factor=2, mode="bilinear"
    ),
    "batch norm, 16 x 32 x 64 x 64": lambda: batch_norm((16, 32, 64, 64)),
    "lstm of 128 steps, 32 x 64 to 128": lambda: recurrent("lstm", 128, 32, 64, 128),
    "lstm of 128 steps, 16 x 32 to 256": lambda: recurrent("lstm", 128, 16, 32, 256),
    "lstm of 128 steps, 8 x 64 to 128": lambda: recurrent("lstm", 128, 8, 64, 128),
    "gru of 128 steps, 32 x 64 to 128": lambda: recurrent("gru", 128, 32, 64, 128),
    "rfft and irfft, 32 x 64 x 1024": lambda: fourier((32, 64, 1024)),
    "rfft and irfft in 2-D, 8 x 32 x 64 x 64": lambda: fourier((8, 32, 64, 64)),
    "rfft and irfft in 3-D, 2 x 16 x 32 x 32 x 32": lambda: fourier((2, 16, 32, 32, 32)),
    "attention to all, 8 x 8 x 256 x 32": lambda: attention((8, 8, 256, 32)),
    "causal attention, 8 x 8 x 256 x 32": lambda: attention((8, 8, 256, 32), is_causal=True),
    "attention with a mask, 8 x 8 x 256 x 32": lambda: attention(
        (8, 8, 256, 32), attn_mask=normal(256, 256) < 1
    ),
}


def measured(name, repeats, has_peaks):
    """Return a row of the table, and the seconds behind it."""
    sides = dict(zip(("ours", "torch"), CASES[name]()))
    seconds = interleaved(sides, repeats, warm_up=2, clock=time.process_time)
    ratios = [theirs / ours for ours, theirs in zip(seconds["ours"], seconds["torch"])]
    medians = [1e3 * median(seconds[side]) for side in ("ours", "torch")]
    peaks = [peak(name, side) if has_peaks else None for side in (0, 1)]
    return [name, *medians, median(ratios), *peaks], seconds


def peak(name, side) -> float:
    """Return the MiB that a step needs beside what a first, tiny one has loaded."""
    command = [sys.executable, __file__, "--peak", name, str(side)]
    return json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)


def print_peak(name, side):
    """Print by how many MiB a step raises the memory of this process at most."""
    convolution((1, 2, 4, 4), 2, 3)[side]()  # loads libraries, and what is compiled
    step = CASES[name]()[side]
    Path("/proc/self/clear_refs").write_text("5")  # the highest mark starts at what is used now
    before = status_kib("VmHWM")
    step()
    print((status_kib("VmHWM") - before) / 1024)


def status_kib(field) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="layers whose name contains this")
    parser.add_argument("--repeats", type=int, default=21)
    parser.add_argument("--quick", action="store_true", help="leave out the peaks of memory")
    parser.add_argument("--peak", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peak:
        return print_peak(options.peak[0], int(options.peak[1]))
    about = machine()
    rows, raw = [], {}
    with threadpool_limits(1):
        for name in CASES:
            if options.only in name:
                row, raw[name] = measured(name, options.repeats, not options.quick)
                rows.append(row)
                print(*row, sep="  ", flush=True)
    columns = ["layer", "ours, ms", "torch, ms", "torch / ours", "ours, MiB", "torch, MiB"]
    rows.sort(key=lambda row: row[3])
    title = "Layers, forward and backward, one thread, what is lost first"
    table = Table(title, columns, rows)
    settings = {"repeats": options.repeats, "threads": 1}
    path = save("layers", "Layers", [table], about=about, settings=settings, measured=raw)
    print(machine_text(about), table.markdown(), f"written to {path}", sep="\n\n")


if __name__ == "__main__":
    main()
