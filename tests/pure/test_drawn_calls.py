"""Calls drawn at random, operation by operation, layer by layer, loss by loss, beside PyTorch's:
shapes with empty and long dims, arrays that lie elsewhere in memory, arguments of every kind.

Values and gradients in float64, and in float32 against PyTorch's float64. What PyTorch computes is
computed or refused by a named error; REFUSED says for which calls and why.
"""

import copy
import itertools
import math
from dataclasses import dataclass
from typing import Any, Callable

import numpy
import pytest
from torch_or_skip import torch

from shardkit import ShardkitError, nn
from shardkit.nn import ForwardContext, Tensor, forward_context, ops

F = torch.nn.functional
TOLERANCE = {"float64": 1e-10, "float32": 4e-5}
SOME, SWEEP = 12, 400  # drawn calls of a name
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:torch", "ignore:.*degrees of freedom")


@dataclass
class Call:
    """One call: ours and PyTorch's, of these floating arrays."""

    ours: Callable
    theirs: Callable
    arrays: list[numpy.ndarray]
    modules: tuple = ()


class Draw:
    """What a call is made of."""

    def __init__(self, name: str, number: int, dtype: str) -> None:
        self.rng = numpy.random.default_rng([number, *name.encode()])
        self.dtype = dtype

    def one_of(self, *choices: Any) -> Any:
        return choices[self.rng.integers(len(choices))]

    def number(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, max(low, high) + 1))

    def shape(self, low: int = 0, high: int = 4, least: int = 0) -> tuple[int, ...]:
        """Return small dims, at times one of some hundreds, at times an empty one."""
        sizes = [self.number(max(1, least), 5) for _ in range(self.number(low, high))]
        kind = self.rng.random()
        if sizes and kind < 0.1:
            sizes[self.number(0, len(sizes) - 1)] = self.number(200, 700)
        elif sizes and kind < 0.2 and not least:
            sizes[self.number(0, len(sizes) - 1)] = 0
        return tuple(sizes)

    def array(self, shape: tuple[int, ...], low: float | None = None) -> numpy.ndarray:
        """Return numbers in float32's grid, so that each dtype holds the same ones."""
        x = self.rng.standard_normal(shape)
        x = abs(x) + low if low is not None else x
        return x.astype("float32").astype(self.dtype)

    def ids(self, shape: tuple[int, ...], below: int) -> numpy.ndarray:
        return self.rng.integers(0, below, shape).astype(self.one_of("int32", "int64"))

    def dim(self, shape: tuple[int, ...]) -> int:
        return self.number(-len(shape), len(shape) - 1)

    def dims(self, shape: tuple[int, ...]) -> Any:
        """Return None, a dim, or several."""
        kind = self.number(0, 2)
        if kind == 0 or not shape:
            return None
        if kind == 1:
            return self.dim(shape)
        count = self.number(1, len(shape))
        chosen = self.rng.permutation(len(shape))[:count]
        return tuple(int(d) - (len(shape) if self.rng.random() < 0.5 else 0) for d in chosen)

    def broadcast(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return a shape that goes with this one."""
        sizes = [size if self.rng.random() < 0.7 else 1 for size in shape]
        return tuple(sizes[self.number(0, len(sizes)) if sizes else 0 :])

    def elsewhere(self, x: numpy.ndarray) -> numpy.ndarray:
        """Return the same numbers that lie elsewhere in memory: a transposed, strided or reversed
        view.
        """
        kind = self.number(0, 3)
        if kind == 1 and x.ndim > 1:
            return numpy.ascontiguousarray(x.T).T
        if kind == 2 and x.ndim:
            wide = numpy.full((*x.shape[:-1], 2 * x.shape[-1]), numpy.nan, x.dtype)
            wide[..., ::2] = x
            return wide[..., ::2]
        if kind == 3 and x.ndim:
            return numpy.ascontiguousarray(x[::-1])[::-1]
        return x


CALLS: dict[str, Callable[[Draw], Call]] = {}


def call(*names: str):
    def keep(make):
        for name in names:
            CALLS[name] = make if len(names) == 1 else (lambda d, name=name: make(d, name))
        return make

    return keep


def unary(names, theirs=torch, low=None, **more):
    for name in names.split():
        ours, other = getattr(ops, name), getattr(theirs, name)

        def make(d, ours=ours, other=other):
            return Call(ours, lambda x: other(x, **more), [d.array(d.shape(), low)])

        CALLS[name] = make


unary("abs arctan ceil cos erf exp expm1 floor negative relu round sigmoid sign sin square tanh")
unary("mish silu", F)
unary("gelu", F, approximate="tanh")
unary("log log1p reciprocal rsqrt sqrt", low=0.5)
CALLS["erf_gelu"] = lambda d: Call(ops.erf_gelu, F.gelu, [d.array(d.shape())])


@call("elu", "leaky_relu", "softplus", "hardtanh", "clamp", "clip")
def _with_numbers(d, name):
    a, b = sorted(d.rng.standard_normal(2).round(2).tolist())
    arguments = {
        "elu": (abs(a),),
        "leaky_relu": (abs(a),),
        "softplus": (abs(a) + 0.1, d.one_of(1.0, 20.0)),
        "hardtanh": (a, b + 0.01),
    }.get(name, d.one_of((a, b), (None, b), (a, None)))
    of = torch if name in ("clamp", "clip") else F
    return Call(
        lambda x: getattr(ops, name)(x, *arguments),
        lambda x: getattr(of, name)(x, *arguments),
        [d.array(d.shape())],
    )


@call("add", "subtract", "multiply", "divide", "maximum", "minimum", "power", "arctan2")
def _binary(d, name):
    shape = d.shape()
    first, second = d.array(shape), d.array(d.broadcast(shape))
    if name == "divide":
        second = numpy.where(abs(second) < 0.1, 1, second).astype(d.dtype)
    if name == "power":
        first = abs(first) + numpy.asarray(0.5, d.dtype)
    arrays = [first, second] if d.rng.random() < 0.5 or name in ("power",) else [second, first]
    if name == "divide":
        arrays = [first, second]
    theirs = getattr(torch, {"power": "pow", "arctan2": "atan2"}.get(name, name))
    return Call(getattr(ops, name), theirs, arrays)


@call("where", "masked_fill")
def _chosen(d, name):
    shape = d.shape()
    mask = d.rng.random(d.broadcast(shape)) < 0.5
    if name == "where":
        other = d.array(d.broadcast(shape))
        return Call(
            lambda x, y: ops.where(mask, x, y),
            lambda x, y: torch.where(torch.tensor(mask), x, y),
            [d.array(shape), other],
        )
    return Call(
        lambda x: ops.masked_fill(x, mask, -2.5),
        lambda x: x.masked_fill(torch.tensor(mask), -2.5),
        [d.array(shape)],
    )


@call("sum", "mean", "prod", "logsumexp", "max", "min")
def _reduced(d, name):
    shape = d.shape(least=1 if name in ("max", "min") else 0)
    dim, keep = d.dims(shape), d.rng.random() < 0.5

    def theirs(x):
        over = tuple(range(x.ndim)) if dim is None else dim
        if name == "prod":
            over = (over,) if isinstance(over, int) else over
            for one in sorted((o % x.ndim for o in over), reverse=True):
                x = x.prod(one, keepdim=keep)
            return x
        if name == "logsumexp" and over == ():
            return x
        if name in ("max", "min"):
            return getattr(torch, f"a{name}")(x, over, keepdim=keep)
        return getattr(torch, name)(x, over, keepdim=keep)

    return Call(lambda x: getattr(ops, name)(x, dim, keep), theirs, [d.array(shape)])


@call("var", "std", "variance")
def _spread(d, name):
    shape = d.shape(1)
    dim, keep, correction = d.dims(shape), d.rng.random() < 0.5, d.one_of(0, 1, 2, 0.5)
    if name == "variance":
        return Call(
            lambda x: ops.variance(x, dim, keep),
            lambda x: x.var(dim, correction=0, keepdim=keep),
            [d.array(shape)],
        )
    return Call(
        lambda x: getattr(ops, name)(x, dim, correction, keep),
        lambda x: getattr(x, name)(dim, correction=correction, keepdim=keep),
        [d.array(shape)],
    )


@call("norm")
def _norm(d):
    shape, p = d.shape(1, least=1), d.one_of(1, 2, 3, 0.5, math.inf)
    dim, keep = d.dims(shape), d.rng.random() < 0.5
    return Call(
        lambda x: ops.norm(x, p, dim, keep),
        lambda x: torch.linalg.vector_norm(x, p, dim, keepdim=keep),
        [d.array(shape)],
    )


@call("argmax", "argmin", "any", "all", "argsort")
def _places(d, name):
    shape = d.shape(1, least=1)
    dim, keep = d.dim(shape), d.rng.random() < 0.5
    if name == "argsort":
        return Call(
            lambda x: ops.argsort(x, dim, keep),
            lambda x: x.argsort(dim=dim, descending=keep, stable=True),
            [d.array(shape)],
        )
    if name in ("argmax", "argmin") and d.rng.random() < 0.3:
        dim, keep = None, False
    return Call(
        lambda x: getattr(ops, name)(x > 0 if name in ("any", "all") else x, dim, keep),
        lambda x: getattr(torch, name)(x > 0 if name in ("any", "all") else x, dim, keep),
        [d.array(shape)],
    )


@call("cumsum", "cumprod", "softmax", "log_softmax", "sort", "topk", "flip", "roll")
def _along(d, name):
    shape = d.shape(1, least=1 if name == "topk" else 0)
    dim = d.dim(shape)
    arguments = {
        "sort": (dim, d.rng.random() < 0.5),
        "topk": (d.number(1, shape[dim]), dim, d.rng.random() < 0.5),
        "flip": (d.dims(shape) or (0,),),
        "roll": d.one_of((d.number(-9, 9), dim), (d.number(-9, 9),)),
    }.get(name, (dim,))
    if name == "flip" and isinstance(arguments[0], int):
        arguments = ((arguments[0],),)
    return Call(
        lambda x: getattr(ops, name)(x, *arguments),
        lambda x: getattr(torch, name)(x, *arguments),
        [d.array(shape)],
    )


@call("reshape", "transpose", "permute", "unsqueeze", "squeeze", "flatten", "expand", "tile")
def _moved(d, name):
    shape = d.shape(1)
    x = d.array(shape)
    dim, other = d.dim(shape), d.dim(shape)
    start, end = sorted((dim % len(shape), other % len(shape)))
    if name == "squeeze":
        x = x.reshape(*shape[:start], 1, *shape[start:])
    if name == "expand":
        x = x[..., None]
    arguments: tuple = {
        "reshape": ((*shape[::-1],) if 0 in shape else (-1, shape[-1]),),
        "transpose": (dim, other),
        "permute": (tuple(d.rng.permutation(len(shape)).tolist()),),
        "unsqueeze": (d.number(-len(shape) - 1, len(shape)),),
        "squeeze": (start,),
        "flatten": (start, end),
        "expand": ((2, *shape, d.number(0, 3)),),
        "tile": (tuple(d.number(0, 3) for _ in range(d.number(1, 4))),),
    }[name]
    return Call(
        lambda x: getattr(ops, name)(x, *arguments),
        lambda x: getattr(x if name == "expand" else torch, "expand" if name == "expand" else name)(
            *(() if name == "expand" else (x,)), *arguments
        ),
        [x],
    )


@call("diagonal", "tril", "triu", "repeat_interleave", "repeat", "chunk", "split")
def _cut(d, name):
    shape = d.shape(2)
    x, dim = d.array(shape), d.dim(shape)
    size = shape[dim]
    first = d.number(0, size)
    a, b = d.rng.permutation(len(shape))[:2].tolist()
    arguments: tuple = {
        "diagonal": (d.number(-3, 3), a, b),
        "tril": (d.number(-3, 3),),
        "triu": (d.number(-3, 3),),
        "repeat_interleave": (d.number(0, 3), dim),
        "repeat": (tuple(d.number(0, 2) for _ in range(len(shape) + d.number(0, 2))),),
        "chunk": (d.number(1, 4), dim),
        "split": ((first, size - first), dim),
    }[name]
    is_method = name in ("repeat",)
    return Call(
        lambda x: getattr(ops, name)(x, *arguments),
        lambda x: x.repeat(*arguments) if is_method else getattr(torch, name)(x, *arguments),
        [x],
    )


@call("concatenate", "stack")
def _joined(d, name):
    shape = d.shape(1)
    dim = d.dim(shape)
    shapes = [list(shape) for _ in range(d.number(1, 4))]
    if name == "concatenate":
        for sizes in shapes:
            sizes[dim] = d.number(0, 4)
    return Call(
        lambda *x: getattr(ops, name)(x, dim),
        lambda *x: getattr(torch, "cat" if name == "concatenate" else "stack")(x, dim),
        [d.array(tuple(sizes)) for sizes in shapes],
    )


@call("getitem")
def _indexed(d):
    shape = d.shape(1, least=1)
    index: list = []
    for size in shape[: d.number(1, len(shape))]:
        start = d.number(-size, size)
        index.append(
            d.one_of(
                d.number(-size, size - 1),
                slice(start, None, d.number(1, 3)),
                slice(None, d.number(-size, size)),
                slice(None),
            )
        )
    if d.rng.random() < 0.3:
        index.insert(d.number(0, len(index)), None)
    if d.rng.random() < 0.3:
        index.append(Ellipsis)
    if d.rng.random() < 0.3:
        index = [d.ids((d.number(0, 4),), shape[0]).astype("int64")]
    elif d.rng.random() < 0.2:
        index = [d.rng.random(shape[0]) < 0.5]
    ours = tuple(index)
    theirs = tuple(torch.tensor(i) if isinstance(i, numpy.ndarray) else i for i in index)
    return Call(lambda x: x[ours], lambda x: x[theirs], [d.array(shape)])


@call("gather", "take_along_dim", "scatter_add", "index_select", "index_add", "embedding")
def _by_number(d, name):
    shape = d.shape(1, least=1)
    x, dim = d.array(shape), d.dim(shape)
    sizes = list(shape)
    sizes[dim] = d.number(0, 7)
    index = d.ids(tuple(sizes), shape[dim]).astype("int64")
    line = d.ids((sizes[dim],), shape[dim])
    if name in ("index_select", "index_add"):
        index = line
    if name == "embedding":
        table, ids = d.array((shape[0], d.number(1, 9))), d.ids(d.shape(0, 3), shape[0])
        return Call(
            lambda w: ops.embedding(w, ids),
            lambda w: F.embedding(torch.tensor(ids), w),
            [table],
        )
    if name in ("scatter_add", "index_add"):
        return Call(
            lambda x, s: getattr(ops, name)(x, dim, index, s),
            lambda x, s: getattr(torch, name)(x, dim, torch.tensor(index), s),
            [x, d.array(tuple(sizes))],
        )
    arguments = (index, dim) if name == "take_along_dim" else (dim, index)
    return Call(
        lambda x: getattr(ops, name)(x, *arguments),
        lambda x: getattr(torch, name)(
            x, *(torch.tensor(a) if isinstance(a, numpy.ndarray) else a for a in arguments)
        ),
        [x],
    )


@call("segment_sum", "segment_mean", "segment_max")
def _segments(d, name):
    shape = d.shape(1, 3)
    num = d.number(1, 6)
    ids = d.ids(shape[:1], num).astype("int64")
    reduce = {"segment_sum": "sum", "segment_mean": "mean", "segment_max": "amax"}[name]

    def theirs(x):
        index = torch.tensor(ids).reshape(-1, *[1] * (x.ndim - 1)).expand(x.shape)
        start = x.new_zeros(num, *x.shape[1:])
        return start.scatter_reduce(0, index, x, reduce, include_self=False)

    return Call(lambda x: getattr(ops, name)(x, ids, num), theirs, [d.array(shape)])


@call("matmul", "bmm", "outer", "linear", "einsum")
def _products(d, name):
    m, k, n = (d.one_of(0, 1, d.number(1, 9), d.number(1, 70)) for _ in range(3))
    batch = d.shape(0, 2)
    if name == "outer":
        return Call(ops.outer, torch.outer, [d.array((m,)), d.array((n,))])
    if name == "linear":
        arrays = [d.array((*batch, m, k)), d.array((n, k)), d.array((n,))]
        arrays = arrays[: d.number(2, 3)]
        return Call(ops.linear, F.linear, arrays)
    if name == "bmm":
        b = d.number(0, 4)
        return Call(ops.bmm, torch.bmm, [d.array((b, m, k)), d.array((b, k, n))])
    if name == "einsum":
        equation, shapes = d.one_of(
            ("ij,jk->ik", [(m, k), (k, n)]),
            ("ij,kj->ki", [(m, k), (n, k)]),
            ("bij,bjk->bki", [(3, m, k), (3, k, n)]),
            ("...ij,...j->...i", [(2, 3, m, k), (3, k)]),
            ("i,j,k->kij", [(2,), (3,), (4,)]),
            ("ijj->i", [(m, 3, 3)]),
            ("ij->", [(m, k)]),
            ("bhqd,bhkd->bhqk", [(2, 2, m, 4), (2, 2, n, 4)]),
        )
        return Call(
            lambda *x: ops.einsum(equation, *x),
            lambda *x: torch.einsum(equation, *x),
            [d.array(s) for s in shapes],
        )
    first = d.one_of((k,), (m, k), (*batch, m, k))
    second = d.one_of((k,), (k, n), (*d.broadcast(batch), k, n))
    return Call(ops.matmul, torch.matmul, [d.array(first), d.array(second)])


@call("pad")
def _padded(d):
    dims = d.number(1, 3)
    mode = d.one_of("constant", "reflect", "replicate", "circular")
    shape = (d.number(1, 3), d.number(1, 3), *(d.number(3, 6) for _ in range(dims)))
    low = -1 if mode == "constant" else 0
    amounts = tuple(d.number(low, 2) for _ in range(2 * dims))
    value = {"value": 1.5} if mode == "constant" else {}
    return Call(
        lambda x: ops.pad(x, amounts, mode, **value),
        lambda x: F.pad(x, amounts, mode, **value),
        [d.array(shape)],
    )


def _grid(d, dims, least=1):
    most = {1: 20, 2: 9, 3: 6}[dims]
    return tuple(d.number(least, most) for _ in range(dims))


def _each(d, dims, low, high):
    """Return one number, or one for each dim."""
    if d.rng.random() < 0.5:
        return d.number(low, high)
    return tuple(d.number(low, high) for _ in range(dims))


@call(*(f"{kind}{dims}d" for kind in ("conv", "conv_transpose") for dims in (1, 2, 3)))
def _convolution(d, name):
    dims, is_back = int(name[-2]), "transpose" in name
    groups = d.number(1, 3)
    c_in, c_out = groups * d.number(1, 3), groups * d.number(1, 3)
    kernel = tuple(d.number(1, 3) for _ in range(dims))
    stride, dilation = _each(d, dims, 1, 3), _each(d, dims, 1, 2)
    padding: Any = _each(d, dims, 0, 2)
    shape = (d.number(1, 3), c_in, *_grid(d, dims, 6 if not is_back else 2))
    more: dict[str, Any] = {"groups": groups, "dilation": dilation, "stride": stride}
    if is_back:
        more["output_padding"] = 0 if d.rng.random() < 0.5 else _less(d, dims, stride, dilation)
        weight = (c_in, c_out // groups, *kernel)
    else:
        weight = (c_out, c_in // groups, *kernel)
        if d.rng.random() < 0.2:
            padding = d.one_of("same", "valid")
            more["stride"] = 1
    more["padding"] = padding
    arrays = [d.array(shape), d.array(weight), d.array((c_out,))][: d.number(2, 3)]
    return Call(
        lambda *x: getattr(ops, name)(*x, **more), lambda *x: getattr(F, name)(*x, **more), arrays
    )


def _less(d, dims, stride, dilation):
    """Return output paddings that are smaller than a stride or a dilation."""
    stride, dilation = ((a,) * dims if isinstance(a, int) else a for a in (stride, dilation))
    return tuple(d.number(0, max(s, e) - 1) for s, e in zip(stride, dilation))


@call(*(f"{kind}_pool{dims}d" for kind in ("avg", "max") for dims in (1, 2, 3)))
def _pooled(d, name):
    dims = int(name[-2])
    kernel = tuple(d.number(1, 3) for _ in range(dims))
    padding = tuple(d.number(0, k // 2) for k in kernel)
    more: dict[str, Any] = {"ceil_mode": d.rng.random() < 0.5}
    if name.startswith("max"):
        more["dilation"] = _each(d, dims, 1, 2)
    else:
        more["count_include_pad"] = d.rng.random() < 0.5
        if dims > 1 and d.rng.random() < 0.3:
            more["divisor_override"] = d.number(1, 5)
    stride = d.one_of(None, _each(d, dims, 1, 3))
    shape = (d.number(1, 3), d.number(1, 3), *_grid(d, dims, 5))
    return Call(
        lambda x: getattr(ops, name)(x, kernel, stride, padding, **more),
        lambda x: getattr(F, name)(x, kernel, stride, padding, **more),
        [d.array(shape)],
    )


@call(*(f"adaptive_{kind}_pool{dims}d" for kind in ("avg", "max") for dims in (1, 2, 3)))
def _adapted(d, name):
    dims = int(name[-2])
    size = tuple(d.number(1, 7) for _ in range(dims))
    shape = (d.number(1, 3), d.number(1, 3), *_grid(d, dims))
    return Call(
        lambda x: getattr(ops, name)(x, size), lambda x: getattr(F, name)(x, size), [d.array(shape)]
    )


@call("interpolate")
def _resized(d):
    dims = d.number(1, 3)
    mode = d.one_of("nearest", {1: "linear", 2: "bilinear", 3: "trilinear"}[dims])
    more: dict[str, Any] = {"mode": mode}
    if mode != "nearest":
        more["align_corners"] = d.rng.random() < 0.5
    if d.rng.random() < 0.5:
        more["size"] = tuple(d.number(1, 9) for _ in range(dims))
    else:
        close = () if mode == "nearest" else (1.1, 1.3)  # of the same size as the old grid, often
        more["scale_factor"] = d.one_of(2.0, 0.5, 1.5, 3.0, 0.7, *close)
    shape = (d.number(1, 2), d.number(1, 3), *_grid(d, dims, 2))
    return Call(
        lambda x: ops.interpolate(x, **more), lambda x: F.interpolate(x, **more), [d.array(shape)]
    )


@call("layer_norm", "rms_norm", "add_layer_norm", "add_rms_norm", "group_norm", "swiglu")
def _normed(d, name):
    width = d.one_of(1, 2, d.number(3, 40), d.number(200, 300))
    shape = (*d.shape(1, 3), width)
    x, w, b = d.array(shape), d.array((width,)), d.array((width,))
    if name == "swiglu":
        return Call(ops.swiglu, lambda g, u: F.silu(g) * u, [x, d.array(shape)])
    if name == "group_norm":
        groups, each = d.number(1, 3), d.number(1, 3)
        c = groups * each
        x = d.array((d.number(1, 3), c, *d.shape(0, 3, least=2)))
        return Call(
            lambda x, w, b: ops.group_norm(x, groups, w, b),
            lambda x, w, b: F.group_norm(x, groups, w, b),
            [x, d.array((c,)), d.array((c,))],
        )
    if name == "layer_norm":
        return Call(ops.layer_norm, lambda x, w, b: F.layer_norm(x, (width,), w, b), [x, w, b])
    if name == "rms_norm":
        return Call(ops.rms_norm, lambda x, w: F.rms_norm(x, (width,), w, 1e-6), [x, w])
    y = d.array(shape)
    if name == "add_layer_norm":
        return Call(
            ops.add_layer_norm,
            lambda x, y, w, b: (x + y, F.layer_norm(x + y, (width,), w, b)),
            [x, y, w, b],
        )
    return Call(
        ops.add_rms_norm, lambda x, y, w: (x + y, F.rms_norm(x + y, (width,), w, 1e-6)), [x, y, w]
    )


@call("scaled_dot_product_attention", "causal_attention")
def _attention(d, name):
    batch, heads, rows, width = d.number(1, 3), d.number(1, 4), d.number(1, 70), d.number(1, 20)
    keys = d.number(1, 70)
    groups = d.one_of(1, heads)
    if name == "causal_attention":
        keys = rows
    q = d.array((batch, heads, rows, width))
    k, v = (d.array((batch, heads // groups, keys, width)) for _ in range(2))
    scale = d.one_of(None, 0.3)
    if name == "causal_attention":
        return Call(
            lambda q, k, v: ops.causal_attention(q, k, v, scale),
            lambda q, k, v: F.scaled_dot_product_attention(
                q, k, v, is_causal=True, scale=scale, enable_gqa=True
            ),
            [q, k, v],
        )
    mask = d.one_of(
        None,
        d.rng.random((rows, keys)) < 0.7,
        d.rng.random((batch, 1, 1, keys)) < 0.7,
        d.array((batch, heads, rows, keys)),
    )
    if mask is not None and mask.dtype == bool:
        mask[..., 0] = True  # PyTorch's row without a key is NaN, ours 0
    causal = mask is None and d.rng.random() < 0.5
    return Call(
        lambda q, k, v: ops.scaled_dot_product_attention(
            q, k, v, mask, 0.0, causal, scale, enable_gqa=True
        ),
        lambda q, k, v: F.scaled_dot_product_attention(
            q,
            k,
            v,
            None
            if mask is None
            else torch.tensor(mask).to(q.dtype if mask.dtype != bool else None),
            0.0,
            causal,
            scale=scale,
            enable_gqa=True,
        ),
        [q, k, v],
    )


@call(*(f"fft.{name}" for name in "fft ifft rfft irfft".split()))
def _transformed(d, name):
    shape = d.shape(1, 3, least=2)
    dim, norm = d.dim(shape), d.one_of("forward", "backward", "ortho")
    kind = name[4:]
    n = d.one_of(None, d.number(2, 9))
    parts = [d.array(shape), d.array(shape)][: 1 if kind == "rfft" else 2]

    def ours(*x):
        x = ops.stack(x, -1) if len(x) == 2 else x[0]
        return getattr(ops.fft, kind)(x, n, dim, norm)

    def theirs(*x):
        x = torch.complex(*x) if len(x) == 2 else x[0]
        y = getattr(torch.fft, kind)(x, n, dim, norm)
        return torch.view_as_real(y) if y.is_complex() else y

    return Call(ours, theirs, parts)


# ---------------------------------------------------------------------------------- the losses


REDUCTIONS = {  # ours is told by the method, PyTorch's by an argument
    "mean": lambda loss, x, y: loss(x, y),
    "sum": lambda loss, x, y: loss.total(x, y),
    "none": lambda loss, x, y: loss.items(x, y),
}


def losses(d, name, arrays, target=None, more=None, *, kinds=("mean", "sum", "none"), known=None):
    """Return the call of a loss of each; target None: the last array, whose gradient counts too.

    known: arguments that PyTorch wants as tensors.
    """
    kind, more, known = d.one_of(*kinds), more or {}, known or {}
    tensors = {key: torch.tensor(value) for key, value in known.items()}
    theirs = getattr(torch.nn, name)(**tensors, **{"reduction": kind, **more})
    ours = getattr(nn, name)(**known, **more)

    def split(given):
        return (given, target) if target is not None else (given[:-1], given[-1])

    def run_ours(*given):
        x, y = split(given)
        return REDUCTIONS[kind](ours, x[0] if len(x) == 1 else x, y)

    def run_theirs(*given):
        x, y = split(given)
        y = y if target is None else torch.tensor(y)
        y = y.to(x[0].dtype) if y.is_floating_point() else y
        x, rest = (x[:1], x[1:]) if name == "GaussianNLLLoss" else (x, ())
        return theirs.to(x[0].dtype)(*x, y, *rest)

    return Call(run_ours, run_theirs, arrays)


@call(*"L1Loss MSELoss HuberLoss SmoothL1Loss BCEWithLogitsLoss GaussianNLLLoss".split())
def _loss_with_gradients_of_targets(d, name):
    shape = d.shape(1, 3, least=1)
    more: dict[str, Any] = {}
    known = {}
    arrays = [d.array(shape), d.array(shape)]
    if name in ("HuberLoss", "SmoothL1Loss"):
        more["delta" if name == "HuberLoss" else "beta"] = d.one_of(1.0, 0.3)
    if name == "BCEWithLogitsLoss" and d.rng.random() < 0.5:
        known = {"pos_weight": d.array(shape[-1:], 0.2)}
    if name == "GaussianNLLLoss":
        more["full"] = d.rng.random() < 0.5
        arrays.insert(1, d.array(shape, 0.1))
    return losses(d, name, arrays, None, more, known=known)


@call("KLDivLoss", "CosineEmbeddingLoss")
def _loss_of_constant_targets(d, name):
    shape = (d.number(1, 6), d.number(1, 9))
    if name == "CosineEmbeddingLoss":
        y = numpy.where(d.rng.random(shape[0]) < 0.5, 1, -1)
        return losses(d, name, [d.array(shape), d.array(shape)], y, {"margin": d.one_of(0.0, 0.3)})
    is_log = d.rng.random() < 0.5
    more = {"log_target": is_log, **d.one_of({}, {"reduction": "batchmean"})}
    target = d.array(shape, None if is_log else 0.0).astype("float64")
    return losses(d, name, [d.array(shape)], target, more, kinds=("mean",))


@call("CrossEntropyLoss", "NLLLoss")
def _class_loss(d, name):
    classes, rest = d.number(1, 7), d.shape(0, 2, least=1)
    samples = d.number(1, 9)
    target = d.ids((samples, *rest), classes).astype("int64")
    if d.rng.random() < 0.5:
        target[d.rng.random(target.shape) < 0.4] = -100
        target.flat[0] = 0
    known = {"weight": d.array((classes,), 0.2)} if d.rng.random() < 0.5 else {}
    more = {}
    if name == "CrossEntropyLoss" and d.rng.random() < 0.3:
        more["label_smoothing"] = d.one_of(0.1, 0.5)
    x = d.array((samples, classes, *rest))
    return losses(d, name, [x], target, more, kinds=("mean", "sum"), known=known)


# ---------------------------------------------------------------------------------- the layers


def layers(ours, theirs, x, dtype):
    """Return the call of two layers with the same weights, whose gradients are compared too."""
    ours = ours.finish(1)
    for index, parameter in enumerate(ours.parameters()):
        random = numpy.random.default_rng(index).standard_normal(parameter.shape)
        parameter.array = (0.5 * random).astype("float32").astype(dtype)
    state = {name: torch.tensor(array) for name, array in ours.state_dict().items()}
    theirs.load_state_dict(state)
    return Call(ours, theirs.double(), [x], (ours, theirs))


@call("Linear", "LayerNorm", "RMSNorm", "GroupNorm")
def _row_layer(d, name):
    width = d.number(1, 40)
    x = d.array((*d.shape(1, 3), width))
    if name == "GroupNorm":
        width = d.number(1, 3) * d.number(1, 3)
        groups = d.one_of(1, width)
        x = d.array((d.number(1, 3), width, *d.shape(0, 2, least=2)))
        ours = nn.GroupNorm(groups, width, dtype=d.dtype)
        return layers(ours, torch.nn.GroupNorm(groups, width), x, d.dtype)
    if name == "Linear":
        out, bias = d.number(1, 9), d.rng.random() < 0.5
        ours = nn.Linear(width, out, bias=bias, dtype=d.dtype)
        return layers(ours, torch.nn.Linear(width, out, bias), x, d.dtype)
    more = {} if name == "LayerNorm" else {"eps": 1e-6}
    ours = getattr(nn, name)(width, dtype=d.dtype)
    return layers(ours, getattr(torch.nn, name)(width, **more), x, d.dtype)


@call(*(f"{kind}Norm{dims}d" for kind in ("Batch", "Instance") for dims in (1, 2, 3)))
def _channel_norm(d, name):
    dims, channels = int(name[-2]), d.number(1, 5)
    more = {
        "affine": d.rng.random() < 0.5,
        "track_running_stats": d.rng.random() < 0.5,
        "momentum": d.one_of(0.1, 0.5, None) if name.startswith("Batch") else d.one_of(0.1, 0.5),
    }
    x = d.array((d.number(2, 5), channels, *_grid(d, dims, 2)))
    if name == "BatchNorm1d" and d.rng.random() < 0.3:
        x = x[:, :, 0]
    ours = getattr(nn, name)(channels, dtype=d.dtype, **more)
    return layers(ours, getattr(torch.nn, name)(channels, **more), x, d.dtype)


@call(*(f"{kind}{dims}d" for kind in ("Conv", "ConvTranspose") for dims in (1, 2, 3)))
def _convolution_layer(d, name):
    dims, groups = int(name[-2]), d.number(1, 2)
    c_in, c_out, kernel = groups * d.number(1, 2), groups * d.number(1, 2), _each(d, dims, 1, 3)
    more: dict[str, Any] = {
        "groups": groups,
        "bias": d.rng.random() < 0.5,
        "stride": _each(d, dims, 1, 2),
        "padding": _each(d, dims, 0, 2),
        "dilation": _each(d, dims, 1, 2),
    }
    if "Transpose" not in name:
        more["padding_mode"] = d.one_of("zeros", "reflect", "replicate", "circular")
    x = d.array((d.number(1, 3), c_in, *_grid(d, dims, 5)))
    ours = getattr(nn, name)(c_in, c_out, kernel, dtype=d.dtype, **more)
    return layers(ours, getattr(torch.nn, name)(c_in, c_out, kernel, **more), x, d.dtype)


@call("LSTM", "GRU")
def _recurrent(d, name):
    sizes = d.number(1, 5), d.number(1, 5), d.number(1, 3)
    more = {
        "bias": d.rng.random() < 0.5,
        "batch_first": d.rng.random() < 0.5,
        "bidirectional": d.rng.random() < 0.5,
    }
    x = d.array((d.number(1, 6), d.number(1, 6), sizes[0]))
    ours = getattr(nn, name)(*sizes, dtype=d.dtype, **more)
    return layers(ours, getattr(torch.nn, name)(*sizes, **more), x, d.dtype)


@call("TransformerEncoderLayer")
def _encoder(d):
    heads = d.number(1, 3)
    width = heads * d.number(1, 4)
    more = {
        "dim_feedforward": d.number(1, 9),
        "dropout": 0.0,
        "activation": d.one_of("relu", "gelu"),
        "batch_first": d.rng.random() < 0.5,
        "norm_first": d.rng.random() < 0.5,
    }
    x = d.array((d.number(1, 6), d.number(1, 6), width))
    ours = nn.TransformerEncoderLayer(width, heads, dtype=d.dtype, **more)
    return layers(ours, torch.nn.TransformerEncoderLayer(width, heads, **more), x, d.dtype)


# ----------------------------------------------------------------------------- the comparison

NOT_COMPARED = {"InstanceNorm": ("num_batches_tracked",)}  # PyTorch's does not count

# Name: what PyTorch computes and we refuse, as the message begins.
REFUSED = {
    "mean": "mean over dims",  # of nothing: NaN in PyTorch
    "variance": "variance over dims",
    "var": "var over dims",
    "std": "var over dims",
    "logsumexp": "logsumexp over dims",
    "norm": "norm with p",
    "matmul": "matmul of",  # of a vector by a matrix
}


def flat(value):
    """Return the tensors of a result, those within tuples and lists too."""
    if isinstance(value, (tuple, list)):
        return [one for part in value for one in flat(part)]
    return [] if value is None else [value]


def results_of_theirs(drawn, sent, dtype):
    """{what: array} of PyTorch's call in a dtype: values, gradients, running statistics."""
    arrays = [torch.tensor(x.astype(dtype), requires_grad=True) for x in drawn.arrays]
    layer = copy.deepcopy(drawn.modules[1]).to(arrays[0].dtype) if drawn.modules else None
    values = flat((layer or drawn.theirs)(*arrays))
    found = {f"value {place}": value.detach().numpy() for place, value in enumerate(values)}
    draws = [torch.tensor(sent(value.shape).astype(dtype)) for value in values]
    total = sum((v * g).sum() for v, g in zip(values, draws) if v.requires_grad)
    if not isinstance(total, int):
        total.backward()
    leaves = dict(enumerate(arrays))
    if layer is not None:
        leaves |= dict(layer.named_parameters())
        found |= {name: buffer.numpy() for name, buffer in layer.named_buffers()}
    grads = {place: leaf.grad for place, leaf in leaves.items() if leaf.grad is not None}
    return found | {f"gradient of {place}": grad.numpy() for place, grad in grads.items()}


def results_of_ours(drawn, sent, elsewhere):
    arrays = [Tensor(elsewhere(x), requires_grad=True) for x in drawn.arrays]
    with forward_context(ForwardContext(training=True)):
        values = flat(drawn.ours(*arrays))
    found = {f"value {place}": value.array for place, value in enumerate(values)}
    draws = [sent(value.shape) for value in values]
    wanting = [(v, g) for v, g in zip(values, draws) if v.requires_grad]
    if wanting:
        sum((v * g.astype(v.dtype)).sum() for v, g in wanting).backward()
    leaves = dict(enumerate(arrays))
    for module in drawn.modules[:1]:
        leaves |= module.named_parameters()
        found |= {name: numpy.asarray(array) for name, array in module.state_dict().items()}
    grads = {place: leaf.grad for place, leaf in leaves.items() if leaf.grad is not None}
    return found | {f"gradient of {place}": grad for place, grad in grads.items()}


def num_values(results):
    return sum(what.startswith("value") for what in results)


def differs(found, wanted, dtype, allowed):
    """Return what is wrong with an array, or nothing; allowed() says how far PyTorch's is off."""
    found = numpy.asarray(found)
    if found.shape != wanted.shape:
        return f"shape {found.shape}, PyTorch {wanted.shape}"
    if wanted.dtype.kind == "f" and found.dtype.name != dtype:
        return f"{found.dtype}, wanted {dtype}"
    size = abs(wanted[numpy.isfinite(wanted)]).max(initial=1.0)
    for tolerance in (lambda: TOLERANCE[dtype] * size, allowed):
        close = numpy.isclose(found, wanted, rtol=0, atol=tolerance(), equal_nan=True)
        if close.all():
            return ""
    return f"{found[~close][:3]}, PyTorch {wanted[~close][:3]}"


def compare(name, number, dtype):
    """Return "alike", "refused: ...", "PyTorch refuses: ...", or what differs."""
    draw = Draw(name, number, dtype)
    drawn = CALLS[name](draw)
    seed = draw.number(0, 10**6)

    def sent(shape):  # the gradients that are sent back
        return Draw(str(tuple(shape)), seed, "float32").array(tuple(shape))

    try:
        wanted = results_of_theirs(drawn, sent, "float64")
    except (RuntimeError, IndexError, ValueError, TypeError) as error:
        return f"PyTorch refuses: {error}"
    try:
        found = results_of_ours(drawn, sent, draw.elsewhere)
    except (ShardkitError, TypeError) as error:
        return f"refused: {error}"

    def off(what):  # as far as PyTorch's float32 is, a row that is nearly constant for example
        if dtype == "float64":
            return 0.0
        return 4 * numpy.nanmax(abs(results_of_theirs(drawn, sent, dtype)[what] - wanted[what]))

    num_found, num_wanted = num_values(found), num_values(wanted)
    if num_found != num_wanted:
        return f"differs: {num_found} values, PyTorch {num_wanted}"
    for what, array in wanted.items():
        is_none = what.startswith("gradient") and what not in found  # none flows, PyTorch's is 0
        if is_none and not array.any() or what in NOT_COMPARED.get(name[:-2], ()):
            continue
        fault = differs(found[what], array, dtype, lambda what=what: off(what))
        if fault:
            return f"differs in {what}: {fault}"
    return "alike"


def check(name, numbers):
    """Fail unless the calls of these numbers are alike, or refused as REFUSED says."""
    faults, num_alike = [], 0
    for number, dtype in itertools.product(numbers, TOLERANCE):
        with numpy.errstate(all="ignore"):
            outcome = compare(name, number, dtype)
        num_alike += outcome == "alike"
        is_known = outcome.startswith(("alike", "PyTorch refuses"))
        if not is_known and not outcome.startswith(f"refused: {REFUSED.get(name, '?')}"):
            faults.append(f"{name}, call {number}, {dtype}: {outcome}")
    assert not faults, "\n".join(faults)
    assert num_alike > 0


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.thorough(but=30)
def test_drawn_calls_are_those_of_pytorch(name):
    check(name, range(SOME))


@pytest.mark.sweep
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", CALLS)
def test_many_drawn_calls_are_those_of_pytorch(name):
    check(name, range(SOME, SWEEP))
