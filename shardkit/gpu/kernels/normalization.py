"""Layer norm and RMS norm over rows, each with its gradient and with the addition before it."""

from ...array.registry import on_cuda
from .arrays import alike, by_rows, new, new_like, pack, plain, real, real_dtype, sum_pieces
from .launch import launch

FILE = "normalization.cu"
ROWS = 16  # of a piece of the sums over rows
# (width in packs, packs of a thread): registers hold the columns of a thread, of up to 512 and
# NUMBERS each
SHARES = ((512, 1), (1024, 2), (2048, 4))
NUMBERS = 16


def fits(gradient) -> bool:
    """Return False for rows too wide for a block's registers: above 8192 numbers, float64 4096."""
    packs, _ = _share(gradient)
    return packs is not None and packs * pack(gradient) <= NUMBERS


@on_cuda()
def layer_norm(x, weight, bias, eps, out=None):
    return _layer_norm(x, None, None, weight, bias, eps, out)


@on_cuda()
def add_layer_norm(x, branch, weight, bias, eps, out=(None, None)):
    total = new_like(x, out[0])
    return total, *_layer_norm(x, alike(branch, x), total, weight, bias, eps, out[1])


def _layer_norm(x, branch, total, weight, bias, eps, out):
    y = new_like(x, out)
    mean = _per_row(x)
    inverse = _per_row(x)
    inputs = plain(x), branch, total, alike(weight, x), alike(bias, x), float(eps)
    by_rows(FILE, "layer_norm", x, *inputs, y, mean, inverse)
    return y, mean, inverse


@on_cuda(fits=fits)
def layer_norm_backward(gradient, x, weight, mean, inverse, wanted=(True, True, True), out=None):
    return _backward(gradient, x, weight, mean, inverse, wanted, out)


@on_cuda()
def rms_norm(x, weight, eps, out=None):
    return _rms_norm(x, None, None, weight, eps, out)


@on_cuda()
def add_rms_norm(x, branch, weight, eps, out=(None, None)):
    total = new_like(x, out[0])
    return total, *_rms_norm(x, alike(branch, x), total, weight, eps, out[1])


def _rms_norm(x, branch, total, weight, eps, out):
    y = new_like(x, out)
    inverse = _per_row(x)
    by_rows(FILE, "rms_norm", x, plain(x), branch, total, alike(weight, x), float(eps), y, inverse)
    return y, inverse


@on_cuda(fits=fits)
def rms_norm_backward(gradient, x, weight, inverse, wanted=(True, True), out=None):
    return _backward(gradient, x, weight, None, inverse, (*wanted, False), out)[:2]


def _backward(gradient, x, weight, mean, inverse, wanted, out):
    """Return gradients of x, weight and bias; without a mean those of RMS norm, without bias."""
    for_x = new_like(x, out) if wanted[0] else None
    num_pieces = -(-x.shape[0] // ROWS)
    parts = [
        new(x, (num_pieces, x.shape[1]), real_dtype(x)) if is_wanted else None
        for is_wanted in wanted[1:]
    ]
    packs, threads = _share(x)
    moments = None if mean is None else real(mean, x), real(inverse, x)
    inputs = alike(gradient, x), plain(x), alike(weight, x), *moments
    sizes = *x.shape, ROWS
    file, grid = "normalization_backward.cu", (num_pieces,)
    results = for_x, *parts
    launch(x, file, "norm_backward", grid, (threads,), *inputs, *results, *sizes, PACKS=packs)
    return for_x, *[None if part is None else sum_pieces(part, x) for part in parts]


def _share(x):
    """Return (packs of a thread, threads) for rows of this width; no packs if it is too wide."""
    num_packs = -(-x.shape[1] // pack(x))
    packs = next((packs for widest, packs in SHARES if num_packs <= widest), None)
    return packs, max(32, -(-num_packs // (packs or 1) // 32) * 32)


def _per_row(x):
    return new(x, x.shape[:1], real_dtype(x))
