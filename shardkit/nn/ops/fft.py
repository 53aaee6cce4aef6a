"""Fourier transforms whose spectra are pairs of real numbers.

    x [batch, channels, n] --rfft--> [batch, channels, n/2 + 1, 2] --irfft--> [batch, channels, n]

The last dimension of a spectrum holds real and imaginary part, as torch.view_as_real shows them. So
a spectrum is a real Tensor: every operation on it has its ordinary gradient, and weights of complex
layers are real parameters. `dim` and the sizes count the dimensions before that last one. Tensors
of complex dtype are refused.

norm is "backward" (the inverse divides by the number of elements), "forward" (the transform does)
or "ortho" (both by its root). A gradient is the adjoint transform, with the dual norm.
"""

from functools import partial

from ...array.backend import xp_of
from ...array.dtypes import is_floating
from ...array.fourier import as_complex, as_pairs, signals, spectra, transform, weights
from ...array.halves import rounded, widened
from ...errors import ShapeError
from ..autograd import Tensor, record_linear, record_unary
from .arrangement import stack
from .contraction import einsum
from .elementwise import multiply
from .operands import check_floating
from .reduction import reduced_dims
from .shape import getitem

DUAL = {"backward": "forward", "ortho": "ortho", "forward": "backward"}


def rfft(x: Tensor, n: int | None = None, dim: int = -1, norm: str = "backward") -> Tensor:
    """Return the spectrum of real x along dim, frequencies 0 to n/2: [..., n // 2 + 1, ..., 2].

    n  x is cut or filled with zeros to this size first; None: its own
    """
    return rfftn(x, None if n is None else (n,), (dim,), norm)


def irfft(x: Tensor, n: int | None = None, dim: int = -1, norm: str = "backward") -> Tensor:
    """Return the real signal of size n along dim whose spectrum is x [..., 2].

    n  None: 2 (size - 1); the spectrum is cut or filled with zeros to n // 2 + 1
    """
    return irfftn(x, None if n is None else (n,), (dim,), norm)


def rfftn(x: Tensor, s=None, dim=None, norm: str = "backward") -> Tensor:
    """Return the spectrum of real x along several dims, the last of them halved: [..., 2].

    s    sizes along dim, to which x is cut or filled with zeros first; None: its own
    dim  None: all, or the last len(s)
    """
    _check("rfftn", x, norm)
    xp = xp_of(x.array)
    dims = _dims(x, x.shape, s, dim)
    sizes = _sizes("rfftn", [x.shape[d] for d in dims], s)
    shape, dtype = x.shape, x.dtype

    def backward(gradient):
        signal = signals(widened(gradient), sizes, dims, DUAL[norm], 0.5)
        return rounded(_resized(xp, signal, shape), dtype)

    def again(gradient, output):
        factors = weights(xp, shape, dims, sizes[-1], 0.5, dtype)
        signal = irfftn(multiply(gradient, factors), sizes, dims, DUAL[norm])
        return _resized_again(signal, shape)

    pairs = spectra(widened(x.array), sizes, dims, norm)
    return record_unary(rounded(pairs, dtype), x, backward, again, gives_new=True)


def irfftn(x: Tensor, s=None, dim=None, norm: str = "backward") -> Tensor:
    """Return the real signal along several dims whose spectrum is x [..., 2].

    s    sizes of the signal along dim; None: those of the spectrum, the last 2 (size - 1)
    dim  None: all, or the last len(s)
    """
    _check_pairs("irfftn", x, norm)
    xp = xp_of(x.array)
    shape, dtype = x.shape[:-1], x.dtype
    dims = _dims(x, shape, s, dim)
    own = [shape[d] for d in dims]
    sizes = _sizes("irfftn", [*own[:-1], 2 * (own[-1] - 1)], s)

    def backward(gradient):
        pairs = spectra(widened(gradient), sizes, dims, DUAL[norm], 2)
        return _resized(xp, rounded(pairs, dtype), (*shape, 2))

    def again(gradient, output):
        pairs = rfftn(gradient, sizes, dims, DUAL[norm])
        factors = weights(xp, shape, dims, sizes[-1], 2, dtype)
        return _resized_again(multiply(pairs, factors), (*shape, 2))

    signal = signals(widened(x.array), sizes, dims, norm)
    return record_unary(rounded(signal, dtype), x, backward, again, gives_new=True)


def fft(x: Tensor, n: int | None = None, dim: int = -1, norm: str = "backward") -> Tensor:
    """Return the spectrum of a complex signal x [..., 2] along dim: of the same form."""
    return fftn(x, None if n is None else (n,), (dim,), norm)


def ifft(x: Tensor, n: int | None = None, dim: int = -1, norm: str = "backward") -> Tensor:
    """Return the complex signal along dim whose spectrum is x [..., 2]."""
    return ifftn(x, None if n is None else (n,), (dim,), norm)


def fftn(x: Tensor, s=None, dim=None, norm: str = "backward") -> Tensor:
    """Return the spectrum of a complex signal x [..., 2] along several dims."""
    return _both_ways("fftn", "ifftn", x, s, dim, norm)


def ifftn(x: Tensor, s=None, dim=None, norm: str = "backward") -> Tensor:
    """Return the complex signal along several dims whose spectrum is x [..., 2]."""
    return _both_ways("ifftn", "fftn", x, s, dim, norm)


def _both_ways(name, adjoint, x, s, dim, norm):
    _check_pairs(name, x, norm)
    xp = xp_of(x.array)
    shape, dtype = x.shape[:-1], x.dtype
    dims = _dims(x, shape, s, dim)
    sizes = _sizes(name, [shape[d] for d in dims], s)

    def backward(gradient):
        back = as_pairs(transform(adjoint, as_complex(widened(gradient)), sizes, dims, DUAL[norm]))
        return _resized(xp, rounded(back, dtype), (*shape, 2))

    def again(gradient, output):
        back = _both_ways(adjoint, name, gradient, sizes, dims, DUAL[norm])
        return _resized_again(back, (*shape, 2))

    result = as_pairs(transform(name, as_complex(widened(x.array)), sizes, dims, norm))
    return record_unary(rounded(result, dtype), x, backward, again, gives_new=True)


def complex_multiply(x: Tensor, y: Tensor) -> Tensor:
    """Return the complex products of pairs x [..., 2] and y [..., 2], which broadcast."""
    check_floating("complex_multiply", x, y)
    a, b = [getitem(x, (..., part)) for part in (0, 1)]
    c, d = [getitem(y, (..., part)) for part in (0, 1)]
    return stack([a * c - b * d, a * d + b * c], -1)


def complex_einsum(equation: str, x: Tensor, y: Tensor) -> Tensor:
    """Return einsum of two operands of pairs [..., 2]; the equation names the dims before the pair.

    One product of real matrices: y stands in it as [[re, im], [-im, re]].
    """
    left, arrow, output = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if not arrow or len(terms) != 2:
        raise ShapeError(f'complex_einsum {equation!r}; wanted two operands, and "->"')
    q, p = [letter for letter in "zyxwvutsrqp" if letter not in equation][:2]
    real, imaginary = getitem(y, (..., 0)), getitem(y, (..., 1))
    matrices = stack([y, stack([-imaginary, real], -1)], -2)
    return einsum(f"{terms[0]}{q},{terms[1]}{q}{p}->{output}{p}", x, matrices)


def _resized(xp, array, shape):
    """Return the array, cut or filled with zeros at the end of each dim."""
    if array.shape == shape:
        return array
    out = xp.zeros(shape, array.dtype)
    common = tuple([slice(min(sizes)) for sizes in zip(array.shape, shape)])
    out[common] = array[common]
    return out


def _resized_again(x, shape):
    """Return _resized of a Tensor, recorded: its adjoint is to return to the shape before."""
    before = x.shape
    if before == shape:
        return x
    resized = partial(_resized, xp_of(x.array))
    return record_linear(resized(x.array, shape), x, resized, _resized_again, before)


def _dims(x, shape, s, dim):
    """Return the dims of a transform, counted from 0, in the order given."""
    is_pairs = len(shape) < x.ndim
    if dim is None:
        dim = range(len(shape) if s is None else len(s))
        dim = [len(shape) - len(dim) + d for d in dim]
    return reduced_dims(x, tuple([d - 1 if is_pairs and d < 0 else d for d in dim]))


def _sizes(name, own, s):
    """Return the sizes of a transform, each at least 1."""
    sizes = tuple(own) if s is None else tuple(s)
    if not sizes or len(sizes) != len(own) or min(sizes) < 1:
        raise ShapeError(
            f"{name} to sizes {sizes} along {len(own)} dims; wanted one each, at least 1"
        )
    return sizes


def _check(name, x, norm):
    if not is_floating(x.dtype):
        raise ShapeError(
            f"{name} of dtype {x.dtype}; wanted real numbers: a complex signal is a real Tensor of "
            "pairs [..., 2] here"
        )
    if norm not in DUAL:
        raise ShapeError(f"{name} with norm {norm!r}; wanted one of {', '.join(DUAL)}")


def _check_pairs(name, x, norm):
    _check(name, x, norm)
    if x.ndim < 2 or x.shape[-1] != 2:
        raise ShapeError(f"{name} of shape {x.shape}; wanted [..., 2], pairs of real and imaginary")
