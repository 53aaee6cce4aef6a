"""On one GPU: the training step against PyTorch, kernels and products against what the GPU can do,
copies against the bus.

    python benchmarks/gpu.py [--parts step,products,kernels,copies] [--size full] [--repeats 7]
    [--models 163M,219M,1.3G] [--torch-device cuda]

step       GPTs of 163 M parameters (the sizes of GPT-2 small, and a
           head of its own) on 16k tokens and of 1.3 G on 8k in bfloat16 from float32
           masters, and of 219 M on 8k in float32, TF32 and bfloat16 too; each as it is, and
           compiled to CUDA graphs. PyTorch with fused attention and fused AdamW, eager and by
           torch.compile, takes turns with shardkit, on the same weights and batches; a step is
           everything: batch, forward, backward, clipping to norm 1, AdamW, and the loss as a number
           on the host
products   matrices of 4096 x 4096: the limit that attention and steps are measured by; products
           with biases, and of several weights, at once and one by one
kernels    each by the bytes that it must read and write, beside copies of GPU memory in the same
           minute: of one that is large, and of as many bytes; attention by its multiplications,
           beside the products and PyTorch's FlashAttention
copies     what checkpoints and messages reach between GPU and host, beside one page-locked copy of
           the same bytes

Without PyTorch, or without its CUDA, its rows are left out. Times of products and kernels are those
of 20 calls between two CUDA events, launched while something long runs, on four sets of inputs in
turn; a kernel that waits for the GPU (the sort of embedding_backward) counts with its wait.
"""

import argparse
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy
from contestants import CLIP_NORM, LEARNING_RATE, Sizes, shardkit_gpt, token_batch
from report import Table, interleaved, machine, machine_text, save

import shardkit as sk
from shardkit.array import kernels, products
from shardkit.array.adjacent import stacked
from shardkit.array.device import Device
from shardkit.array.dtypes import dtype_named
from shardkit.parallel.model.sharded_model import parts_of

PARTS = ("step", "products", "kernels", "copies")
TOLERANCES = {
    "float32": 1e-4,
    "tf32": 1e-3,
    "bfloat16": 1e-2,
}  # relative, of losses, against shardkit in float32
WARM_UP_STEPS = 4  # a compiled step is replayed from the fourth on
NUMERICS = {
    "float32": {},
    "tf32": {"matmul_precision": "tf32"},
    "bfloat16": {"compute_dtype": "bfloat16"},
}


@dataclass(frozen=True)
class Scale:
    """How large everything is.

    models           that steps train, each with its numerics, the reference first
    rows, width      of what kernels get, [rows, width] mostly
    vocabulary       of cross-entropy and embeddings
    heads, sequence  of attention, with rows / sequence samples and heads of width / heads
    edge             of square products
    elements         of optimizer steps, copies and sums
    """

    models: tuple[tuple[Sizes, tuple[str, ...]], ...]
    rows: int
    width: int
    vocabulary: int
    heads: int
    sequence: int
    edge: int
    elements: int


SCALES = {
    "full": Scale(
        (
            (Sizes("163M", 50304, 768, 12, 12, 1024, 16), ("bfloat16",)),
            (Sizes("219M", 32768, 1024, 16, 12, 1024, 8), tuple(NUMERICS)),
            (Sizes("1.3G", 32768, 2048, 16, 24, 1024, 8), ("bfloat16",)),
        ),
        rows=8192,
        width=1024,
        vocabulary=32768,
        heads=16,
        sequence=1024,
        edge=4096,
        elements=1 << 26,
    ),
    "tiny": Scale(
        ((Sizes("tiny", 61, 16, 2, 2, 8, 2), tuple(NUMERICS)),),
        rows=16,
        width=16,
        vocabulary=61,
        heads=2,
        sequence=8,
        edge=32,
        elements=1 << 12,
    ),
}


CALLS = 20  # between two events
INPUTS = 4  # sets of inputs that calls take in turn, so that none finds its own in the cache


class Stopwatch:
    """Seconds of work on the GPU, without those that the host takes to launch it.

        stream   long products | begin | call | call | ... | call | end
        host     launches all of it while the products run

    edge   of the products
    """

    def __init__(self, device: Device, repeats: int, edge: int):
        self._cuda = device.xp.cuda
        self._repeats = repeats
        a, b, out = [device.xp.zeros((edge, edge), "float32") for _ in range(3)]
        self._long = lambda: products.matmul(a, b, out=out)
        self._long()
        self._long_seconds = self._between([self._long] * CALLS, 0) / CALLS

    def seconds(self, *works) -> float:
        """Return the seconds of one call, the median of some measurements of CALLS calls.

        works   that differ in their inputs, called in turn
        """
        calls = [works[number % len(works)] for number in range(CALLS)]
        self._launch(calls)  # compiles, and fills the pool
        num_long = 1 + int(2 * self._launch(calls) / max(self._long_seconds, 1e-6))
        measured = [self._between(calls, num_long) for _ in range(self._repeats)]
        return median(measured) / CALLS

    def _launch(self, calls) -> float:
        """Return the seconds that the host takes to launch the calls."""
        self._cuda.get_current_stream().synchronize()
        began = time.perf_counter()
        for call in calls:
            call()
        return time.perf_counter() - began

    def _between(self, calls, num_long: int) -> float:
        begin = self._cuda.Event()
        end = self._cuda.Event()
        stream = self._cuda.get_current_stream()
        stream.synchronize()
        for _ in range(num_long):
            self._long()
        stream.record(begin)
        for call in calls:
            call()
        stream.record(end)
        end.synchronize()
        return self._cuda.get_elapsed_time(begin, end) / 1e3


# ---- the training step ---------------------------------------------------------------------------


class Shardkit:
    """shardkit on one GPU, one rank."""

    def __init__(self, sizes: Sizes, numerics: str, *, is_compiled: bool = False):
        self._sizes = sizes
        self.losses = []
        self._backend = sk.InMemoryCommunicationBackend(
            0, 1, environment_id=f"benchmark {numerics} {time.monotonic_ns()}"
        )
        config = sk.ShardingConfiguration(
            self._backend,
            optimizer=sk.AdamW(lr=LEARNING_RATE),
            max_gradient_norm=CLIP_NORM,
            device="cuda",
            **NUMERICS[numerics],
        )
        self._model = sk.DDPModel(shardkit_gpt(sizes), config)
        if is_compiled:
            self._model.compile()

    def step(self):
        self.losses.append(self._model.train(*token_batch(self._sizes, len(self.losses))))

    def peak_bytes(self) -> int:
        """Return the size of the pool, which holds the most that was in use at any time."""
        return parts_of(self._model).engine.device.memory().pool_held

    def close(self):
        device = parts_of(self._model).engine.device
        self._model.close()
        self._backend.shutdown()
        self._model = None
        device.xp.get_default_memory_pool().free_all_blocks()


class Torch:
    """PyTorch: scaled_dot_product_attention, fused AdamW where it is fused; bfloat16 is autocast.

    is_compiled   forward and loss, and so backward, by torch.compile
    """

    def __init__(
        self,
        sizes: Sizes,
        numerics: str,
        weights: dict,
        device: str,
        *,
        is_compiled: bool = False,
    ):
        import torch
        from twins import GPT, mean_loss

        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = numerics == "tf32"
        self._torch = torch
        self._sizes = sizes
        self._device = device
        self._mean_loss = mean_loss
        self.losses = []
        self._is_half = numerics == "bfloat16"
        self._model = GPT(sizes, "sdpa")
        self._model.load_state_dict(
            {name: torch.from_numpy(array) for name, array in weights.items()}
        )
        self._model.to(device)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=LEARNING_RATE, fused=True)
        self._loss = torch.compile(self._loss_of) if is_compiled else self._loss_of

    def _loss_of(self, x, y):
        return self._mean_loss(self._model(x), y)

    def step(self):
        torch = self._torch
        x, y = [
            torch.from_numpy(part).to(self._device)
            for part in token_batch(self._sizes, len(self.losses))
        ]
        self._optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self._device, torch.bfloat16, enabled=self._is_half):
            loss = self._loss(x, y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), CLIP_NORM)
        self._optimizer.step()
        self.losses.append(loss.item())

    def peak_bytes(self) -> int:
        return self._torch.cuda.max_memory_reserved() if self._device == "cuda" else 0

    def close(self):
        self._model = self._optimizer = self._loss = None
        if self._device == "cuda":
            self._torch.cuda.empty_cache()
            self._torch.cuda.reset_peak_memory_stats()


def torch_device(asked: str) -> str | None:
    """Return the device of PyTorch, or None and why its rows are missing."""
    try:
        import torch
    except ImportError:
        return print("PyTorch is not installed: shardkit alone")
    if asked == "cuda" and not torch.cuda.is_available():
        return print("PyTorch sees no GPU: shardkit alone")
    return asked


def race_steps(
    sizes: Sizes, all_numerics: tuple[str, ...], repeats: int, asked: str
) -> tuple[Table, dict, list[str]]:
    """Return the table of training steps, their losses, and the losses that are wrong.

    all_numerics   the first one's losses are what the others are compared with
    """
    rows = []
    losses = {}
    wrong = []
    plain = shardkit_gpt(sizes)
    beside = torch_device(asked)
    weights = plain.state_dict()
    flops = plain.num_flops_per_token
    reference = f"shardkit, {all_numerics[0]}"
    for numerics in all_numerics:
        contenders = {
            f"shardkit, {numerics}": Shardkit(sizes, numerics),
            f"shardkit compiled, {numerics}": Shardkit(sizes, numerics, is_compiled=True),
        }
        if beside is not None:
            contenders[f"torch, {numerics}"] = Torch(sizes, numerics, weights, beside)
            contenders[f"torch compiled, {numerics}"] = Torch(
                sizes, numerics, weights, beside, is_compiled=beside == "cuda"
            )
        seconds = interleaved(
            {name: one.step for name, one in contenders.items()}, repeats, warm_up=WARM_UP_STEPS
        )
        first = median(seconds[f"shardkit, {numerics}"])
        for name, one in contenders.items():
            losses[name] = one.losses
            step = median(seconds[name])
            off = difference(one.losses, losses[reference])
            rows.append(
                [
                    name,
                    step * 1e3,
                    sizes.tokens / step,
                    sizes.tokens / step * flops / 1e12,
                    step / first,
                    one.peak_bytes() / 2**30 or None,
                    off,
                ]
            )
            if not off <= TOLERANCES[numerics]:
                wrong.append(f"losses of {name} differ by {off:.1e}")
        for one in contenders.values():
            one.close()
    columns = [
        "contestant",
        "ms per step",
        "tokens/s",
        "TFLOP/s",
        "step time / shardkit",
        "GiB of the GPU",
        "loss difference",
    ]
    millions = sum(array.size for array in weights.values()) / 1e6
    title = f"Training step, {millions:.4g} M parameters, {sizes.tokens} tokens"
    return Table(title, columns, rows), losses, wrong


def difference(losses, others) -> float:
    """Return the largest relative difference."""
    return max(abs(one / other - 1) for one, other in zip(losses, others))


# ---- products and kernels ------------------------------------------------------------------------


def random_array(device: Device, shape, dtype: str, seed: int = 0):
    """Return normal numbers of this dtype, rounded from float32."""
    values = numpy.random.default_rng(seed).standard_normal(shape, dtype="float32")
    return device.from_host(values).astype(dtype_named(dtype, device.xp))


def time_products(device: Device, scale: Scale, watch: Stopwatch) -> dict[str, float]:
    """Return {numerics: flops per second} of square products."""
    speeds = {}
    for numerics in NUMERICS:
        dtype = "bfloat16" if numerics == "bfloat16" else "float32"
        shape = scale.edge, scale.edge
        with products.precision("tf32" if numerics == "tf32" else "highest"):
            works = [_product(device, shape, dtype, seed) for seed in range(INPUTS)]
            speeds[numerics] = 2 * scale.edge**3 / watch.seconds(*works)
    return speeds


def _product(device: Device, shape, dtype: str, seed: int):
    a, b = [random_array(device, shape, dtype, INPUTS * half + seed) for half in range(2)]
    out = device.xp.empty(shape, a.dtype)
    return lambda: products.matmul(a, b, out=out)


def shared_products(device: Device, scale: Scale, dtype: str, seed: int) -> dict:
    """Return {what: (function of one kernel, function of several that compute the same)}."""
    width = scale.width
    x = random_array(device, (scale.rows, width), dtype, seed)
    unit = random_array(device, (3, width * width + width), dtype, seed + INPUTS)
    weights = [part[: width * width].reshape(width, width) for part in unit]
    biases = [part[width * width :] for part in unit]
    turned = stacked(weights).swapaxes(1, 2)

    def one_by_one(number):
        for weight, bias in zip(weights[:number], biases):
            y = products.matmul(x, weight.T)
            y += bias

    return {
        "one layer, with its bias": (
            lambda: products.matmul_and_row(x, weights[0].T, biases[0]),
            lambda: one_by_one(1),
        ),
        "queries, keys and values": (
            lambda: products.matmul_and_row(x, turned, stacked(biases)),
            lambda: one_by_one(3),
        ),
    }


def shared_table(device: Device, scale: Scale, watch: Stopwatch) -> Table:
    """Return times of products that are made at once, beside those of one after the other."""
    rows = []
    for dtype in ("float32", "bfloat16"):
        works = [shared_products(device, scale, dtype, seed) for seed in range(INPUTS)]
        for name in works[0]:
            times = [1e3 * watch.seconds(*[work[name][way] for work in works]) for way in range(2)]
            rows.append([f"{name}, {dtype}", *times])
    title = f"Products of {scale.rows} rows and {scale.width} columns at once"
    return Table(title, ["product", "ms", "ms of several kernels"], rows)


def copy_speed(device: Device, num_bytes: int, watch: Stopwatch) -> float:
    """Return the bytes per second that a copy within GPU memory reads and writes.

    num_bytes   both together
    """

    def work():
        source, target = [device.xp.zeros(max(num_bytes // 2, 1), "uint8") for _ in range(2)]
        return lambda: device.xp.cuda.runtime.memcpyAsync(
            target.data.ptr,
            source.data.ptr,
            source.nbytes,
            device.xp.cuda.runtime.memcpyDeviceToDevice,
            device.xp.cuda.get_current_stream().ptr,
        )

    return num_bytes / watch.seconds(*[work() for _ in range(INPUTS)])


def passes(device: Device, scale: Scale, dtype: str, seed: int) -> dict:
    """Return {kernel: (function, bytes that it must read and write)}.

    Each operand and each result counts once.
    """

    def of(*shape):
        return random_array(device, shape, dtype, seed)

    rows = scale.rows
    width = scale.width
    x = of(rows, width)
    g = of(rows, width)
    wide = of(rows, 4 * width)
    weight = of(width)
    bias = of(width)
    wide_bias = of(4 * width)
    logits = of(rows, scale.vocabulary)
    ids = device.from_host(numpy.arange(rows) * 7919 % scale.vocabulary)
    y, mean, inverse = kernels.layer_norm(x, weight, bias, 1e-5)
    _, root = kernels.rms_norm(x, weight, 1e-6)
    losses, log_sums = kernels.cross_entropy(logits, ids)
    one = device.xp.ones((), losses.dtype)
    heads = x.reshape(
        rows // scale.sequence, scale.sequence, scale.heads, width // scale.heads
    ).swapaxes(1, 2)
    cos, sin = kernels.rotary_tables(
        device.xp.arange(scale.sequence), width // scale.heads, 1e4, x.dtype
    )
    size = x.nbytes
    vocabulary_size = logits.nbytes
    return {
        "bias_gelu": (lambda: kernels.bias_gelu(wide, wide_bias), 8 * size),
        "bias_gelu_backward": (
            lambda: kernels.bias_gelu_backward(wide, wide, wide_bias),
            12 * size,
        ),
        "swiglu": (lambda: kernels.swiglu(wide, wide), 12 * size),
        "swiglu_backward": (lambda: kernels.swiglu_backward(wide, wide, wide), 20 * size),
        "layer_norm": (lambda: kernels.layer_norm(x, weight, bias, 1e-5), 2 * size),
        "add_layer_norm": (lambda: kernels.add_layer_norm(x, g, weight, bias, 1e-5), 4 * size),
        "layer_norm_backward": (
            lambda: kernels.layer_norm_backward(g, x, weight, mean, inverse),
            3 * size,
        ),
        "rms_norm": (lambda: kernels.rms_norm(x, weight, 1e-6), 2 * size),
        "rms_norm_backward": (lambda: kernels.rms_norm_backward(g, x, weight, root), 3 * size),
        "rotary": (lambda: kernels.rotary(heads, cos, sin), 2 * size),
        "dropout": (lambda: kernels.dropout(x, 7, 0, 0.1), 2 * size),
        "softmax": (lambda: kernels.softmax(logits), 2 * vocabulary_size),
        "cross_entropy": (lambda: kernels.cross_entropy(logits, ids), vocabulary_size),
        "cross_entropy_backward": (
            lambda: kernels.cross_entropy_backward(one, logits, ids, log_sums),
            2 * vocabulary_size,
        ),
        "embedding_backward": (
            lambda: kernels.embedding_backward(g, ids, scale.vocabulary),
            size + scale.vocabulary * width * x.itemsize,
        ),
    }


def flat_passes(device: Device, scale: Scale, seed: int) -> dict:
    """Return the passes of kernels on flat float32 buffers."""
    p, g, m, v, other = [random_array(device, scale.elements, "float32", seed) for _ in range(5)]
    v *= v
    size = p.nbytes
    return {
        "adam": (
            lambda: kernels.adam(
                p,
                g,
                m,
                v,
                step=5,
                lr=1e-3,
                beta1=0.9,
                beta2=0.999,
                eps=1e-8,
                weight_decay=0.01,
                decoupled=True,
            ),
            7 * size,
        ),
        "momentum": (
            lambda: kernels.momentum(p, g, m, lr=1e-3, beta=0.9, nesterov=False),
            5 * size,
        ),
        "sgd": (lambda: kernels.sgd(p, g, lr=1e-3), 3 * size),
        "block_squares": (lambda: kernels.block_squares(g), size),
        "tree_sum of 4": (lambda: kernels.tree_sum([p, g, m, other], out=other), 5 * size),
        "to_half": (lambda: kernels.to_half(g, 1024.0), size * 3 // 2),
    }


def attention_passes(device: Device, scale: Scale, dtype: str, seed: int) -> dict:
    """Return {attention: (function, multiplications and additions of its products)}.

    Products behind the diagonal do not count.
    """
    shape = scale.rows // scale.sequence, scale.heads, scale.sequence, scale.width // scale.heads
    q, k, v, g = [random_array(device, shape, dtype, 4 * seed + number) for number in range(4)]
    y, log_sums = kernels.causal_attention(q, k, v, shape[3] ** -0.5, 0)
    flops = (
        2 * shape[0] * shape[1] * shape[2] * (shape[2] + 1) * shape[3]
    )  # two products, half of each
    return {
        "causal_attention": (lambda: kernels.causal_attention(q, k, v, shape[3] ** -0.5, 0), flops),
        "causal_attention_backward": (
            lambda: kernels.causal_attention_backward(g, q, k, v, y, log_sums, shape[3] ** -0.5, 0),
            flops * 5 // 2,
        ),
    }


def _all_passes(device: Device, scale: Scale, dtype: str, seed: int) -> dict:
    flat = flat_passes(device, scale, seed) if dtype == "float32" else {}
    return passes(device, scale, dtype, seed) | flat


def _timed(watch: Stopwatch, make, *arguments) -> dict:
    """Return {kernel: (seconds, work)} of make(*arguments, seed), on several sets of inputs."""
    sets = [make(*arguments, seed) for seed in range(INPUTS)]
    return {
        name: (watch.seconds(*[one[name][0] for one in sets]), amount)
        for name, (_, amount) in sets[0].items()
    }


def kernel_tables(device: Device, scale: Scale, watch: Stopwatch, speeds: dict) -> list[Table]:
    """Return bytes per second beside those of a copy, and flops beside those of products."""
    limit = copy_speed(device, 2 * 4 * scale.elements, watch)
    like: dict[int, float] = {}  # {bytes: speed of a copy of as many}
    rows = []
    attention = []
    for dtype in ("float32", "bfloat16"):
        for name, (seconds, num_bytes) in _timed(watch, _all_passes, device, scale, dtype).items():
            if num_bytes not in like:
                like[num_bytes] = copy_speed(device, num_bytes, watch)
            speed = num_bytes / seconds
            rows.append(
                [
                    f"{name}, {dtype}",
                    seconds * 1e3,
                    speed / 1e9,
                    speed / limit,
                    speed / like[num_bytes],
                ]
            )
        timed = _timed(watch, attention_passes, device, scale, dtype)
        theirs = flash_seconds(scale, dtype, watch) if dtype == "bfloat16" else {}
        for name, (seconds, flops) in timed.items():
            flash = theirs.get(name)
            attention.append(
                [
                    f"{name}, {dtype}",
                    seconds * 1e3,
                    flops / seconds / 1e12,
                    flops / seconds / speeds[dtype],
                    flash and flash / seconds,
                ]
            )
    return [
        Table(
            f"Kernels beside a copy of {limit / 1e9:,.0f} GB/s",
            ["kernel", "ms", "GB/s", "of the copy", "of a copy of as many bytes"],
            rows,
            "A copy reads and writes; bytes of a kernel are those of its operands and results, "
            "each once.",
        ),
        Table(
            "Attention beside products",
            ["kernel", "ms", "TFLOP/s", "of the product", "of FlashAttention in PyTorch"],
            attention,
        ),
    ]


def flash_seconds(scale: Scale, dtype: str, watch: Stopwatch) -> dict[str, float]:
    """Return {attention: seconds of PyTorch's FlashAttention}; {} without PyTorch on a GPU."""
    try:
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel
    except ImportError:
        return {}
    if not torch.cuda.is_available():
        return {}
    shape = scale.rows // scale.sequence, scale.heads, scale.sequence, scale.width // scale.heads

    def random():
        return torch.randn(shape, device="cuda", dtype=getattr(torch, dtype), requires_grad=True)

    def work():
        q, k, v = [random() for _ in range(3)]
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        gradient = torch.randn_like(y)

        def forward():
            with torch.no_grad():
                torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

        def backward():
            torch.autograd.grad(y, (q, k, v), gradient, retain_graph=True)

        return {"causal_attention": forward, "causal_attention_backward": backward}

    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        works = [work() for _ in range(INPUTS)]
        return {name: watch.seconds(*[one[name] for one in works]) for name in works[0]}


# ---- copies between GPU and host -----------------------------------------------------------------


def copy_table(device: Device, scale: Scale, watch: Stopwatch, repeats: int) -> Table:
    """Return what the library reaches each way, beside one page-locked copy."""
    array = device.xp.zeros(scale.elements, "float32")
    pinned = device.pinned(scale.elements)
    pinned[:] = 0
    runtime = device.xp.cuda.runtime
    segment = min(1 << 18, scale.elements)
    rows = []
    spans = [
        (start, min(start + segment, scale.elements)) for start in range(0, scale.elements, segment)
    ]

    def plain(target, source, kind):
        return lambda: runtime.memcpy(target, source, array.nbytes, kind)

    def deliver():
        for start, stop in spans:
            window = device.copies.window(4 * (stop - start))
            device.copies.deliver(window.view("float32"), array[start:stop])
        device.copies.finish()

    def parts():
        for _ in device.copies.parts(array, spans):
            pass

    ways = {
        "GPU to host": (
            plain(pinned.ctypes.data, array.data.ptr, runtime.memcpyDeviceToHost),
            parts,
            "saving",
        ),
        "host to GPU": (
            plain(array.data.ptr, pinned.ctypes.data, runtime.memcpyHostToDevice),
            deliver,
            "loading",
        ),
    }
    for way, (limit, work, name) in ways.items():
        seconds = {
            key: median(values)
            for key, values in interleaved(
                {"limit": settled(device, limit), "ours": settled(device, work)}, repeats
            ).items()
        }
        rows += [
            [
                f"{way}, one copy",
                seconds["limit"] * 1e3,
                array.nbytes / seconds["limit"] / 1e9,
                None,
            ],
            [
                f"{way}, {name} in parts of {4 * segment >> 10} KiB",
                seconds["ours"] * 1e3,
                array.nbytes / seconds["ours"] / 1e9,
                seconds["limit"] / seconds["ours"],
            ],
        ]
    seconds = median(message_seconds(scale, repeats))
    rows.append(
        [
            "message between two ranks, through the host",
            seconds * 1e3,
            array.nbytes / seconds / 1e9,
            None,
        ]
    )
    return Table("Copies between GPU and host", ["copy", "ms", "GB/s", "of one copy"], rows)


def settled(device: Device, work):
    """Do the work, and wait for everything."""

    def all_of_it():
        work()
        device.xp.cuda.runtime.deviceSynchronize()

    return all_of_it


def message_seconds(scale: Scale, repeats: int) -> list[float]:
    """Return the seconds of each message between two ranks, threads that share the GPU."""

    def on_rank(backend):
        array = Device("cuda").zeros(scale.elements, purpose="message")
        seconds = []
        for _ in range(1 + repeats):
            backend.barrier()
            began = time.perf_counter()
            if backend.rank == 0:
                backend.isend(array, 1).wait()
            else:
                backend.irecv(array, 0).wait()
            backend.barrier()
            seconds.append(time.perf_counter() - began)
        return seconds[1:]

    return sk.run_ranks(2, on_rank)[0]


# ---- everything ----------------------------------------------------------------------------------


def gpu_text(device: Device) -> str:
    properties = device.xp.cuda.runtime.getDeviceProperties(device.ordinal)
    gibibytes = device.memory().total / 2**30
    return f"{properties['name'].decode()}, {gibibytes:.0f} GiB, CuPy {device.xp.__version__}"


def measure(asked, device: Device, about: dict) -> list[str]:
    """Measure what was asked for and save it after the longer parts; what is wrong, in words."""
    scale = SCALES[asked.size]
    watch = Stopwatch(device, asked.repeats, scale.edge)
    tables = []
    measured = {}
    wrong = []
    wanted = [part for part in PARTS if part in asked.parts.split(",")]
    if "step" in wanted:
        chosen = asked.models and asked.models.split(",")
        for sizes, all_numerics in scale.models:
            if chosen and sizes.name not in chosen:
                continue
            print(f"training steps of {sizes.name} ...", flush=True)
            table, losses, off = race_steps(sizes, all_numerics, asked.repeats, asked.torch_device)
            tables.append(table)
            measured[f"losses of {sizes.name}"] = losses
            wrong += off
            keep(asked, device, about, tables, measured)
    if "products" in wanted or "kernels" in wanted:
        print("products ...", flush=True)
        speeds = time_products(device, scale, watch)
        tables.append(
            Table(
                f"Products of {scale.edge} x {scale.edge}",
                ["arithmetic", "TFLOP/s"],
                [[name, speed / 1e12] for name, speed in speeds.items()],
            )
        )
    if "products" in wanted:
        tables.append(shared_table(device, scale, watch))
    if "kernels" in wanted:
        print("kernels ...", flush=True)
        tables += kernel_tables(device, scale, watch, speeds)
        keep(asked, device, about, tables, measured)
    if "copies" in wanted:
        print("copies ...", flush=True)
        tables.append(copy_table(device, scale, watch, asked.repeats))
    keep(asked, device, about, tables, measured)
    print("\n\n".join(table.markdown() for table in tables))
    return wrong


def keep(asked, device, about, tables, measured):
    save(
        "gpu",
        "One GPU",
        tables,
        about=about,
        measured=measured,
        settings={"GPU": gpu_text(device), "size": asked.size, "repeats": asked.repeats},
        folder=asked.out,
    )


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--models", help="those that steps train, by their names: 163M,1.3G")
    parser.add_argument("--size", default="full", choices=SCALES)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--torch-device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="of gpu.json; default: results")
    asked = parser.parse_args(arguments)
    try:
        device = Device("cuda")
    except sk.DeviceError as error:
        print(error)
        return 1
    about = machine()
    wrong = measure(asked, device, about)
    print("\n".join([machine_text(about), gpu_text(device), *wrong]), flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
