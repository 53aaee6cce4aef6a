"""Fourier transforms and spectral layers of a grid that is cut along one dim.

    transforms    along whole dims where they lie; along the cut one by transposition:
                  [own rows, columns] --> [rows, own columns] --transform--> and back

    layers        to_modes of the own rows, the cut dim too: terms of the few modes that are kept
                  --reduce-scatter--> own modes, times own matrices --all-gather--> all modes
                  --from_modes--> own rows

A layer sends modes alone: with m of n frequencies kept, 2 m / n of what a transposition would. The
sum over ranks is added as their tree, so its bits depend on how many they are; those of a
transform do too, as it may lie otherwise in memory. Source: the slab decomposition of parallel
FFTs; Fourier neural operators (arXiv 2010.08895).
"""

from ...comm.backend import CommunicationBackend
from ...errors import ShapeError
from ...layout.cuts import even_span
from ...nn.autograd import Tensor
from ...nn.ops import fft
from ...nn.ops.modes import Slab, from_modes, multiply_own_modes, to_modes
from ...nn.ops.shape import getitem
from ..conjugate import all_gather, reduce_scatter
from .spans import even_spans
from .transposition import exchange_cut

KEPT = 3  # the first dim of modes in [batch, channels, 2, *kept]

# name -> (the transform of one dim, of the others, whether the one comes first) where the one is
# the last dim of the transform, which is halved, and where it is not
_STEPS = {
    "rfftn": ((fft.rfft, fft.fftn, True), (fft.fft, fft.rfftn, False)),
    "irfftn": ((fft.irfft, fft.ifftn, False), (fft.ifft, fft.irfftn, True)),
    "fftn": ((fft.fft, fft.fftn, False),) * 2,
    "ifftn": ((fft.ifft, fft.ifftn, False),) * 2,
}


def cut_transform(
    name: str,
    x: Tensor,
    group: CommunicationBackend,
    cut_dim: int,
    length: int,
    dims: tuple[int, ...],
    sizes: tuple[int, ...] | None = None,
    norm: str = "backward",
) -> Tensor:
    """Return ops.name(x, sizes, dims, norm) of a signal or spectrum whose cut_dim is cut evenly.

    Collective over `group` in forward and backward, if cut_dim is one of dims.
    name       rfftn, irfftn, fftn or ifftn
    x          [..., own of length, ...] local; spectra [..., 2]
    cut_dim, dims   from 0, before the pair
    returns    cut along the same dim, evenly over its new length
    """
    own = even_span(length, group.world_size, group.rank)
    if x.shape[cut_dim] != own[1] - own[0]:
        raise ShapeError(
            f"{name} of x {x.shape} on rank {group.rank} of {group.world_size}, cut along dim "
            f"{cut_dim} of {length}; wanted {own[1] - own[0]} there, an even part"
        )
    if cut_dim not in dims:
        return getattr(fft, name)(x, sizes, dims, norm)
    along, of_others, comes_first = _STEPS[name][cut_dim != dims[-1]]
    size_of = dict(zip(dims, sizes or [None] * len(dims)))
    others = tuple([d for d in dims if d != cut_dim])

    def of_cut(x):
        return _transposed(along, x, group, cut_dim, length, size_of[cut_dim], norm)

    if not others:
        return of_cut(x)
    their_sizes = None if sizes is None else [size_of[d] for d in others]
    given = their_sizes, others, norm
    return of_others(of_cut(x), *given) if comes_first else of_cut(of_others(x, *given))


def _transposed(along, x, group, cut_dim, length, size, norm):
    """Return a transform along the cut dim, made on all of it and a part of another dim."""
    num_ranks = group.world_size
    num_dims = x.ndim if along is fft.rfft else x.ndim - 1
    if num_dims == 1:
        x = getitem(x, None)
        return getitem(_transposed(along, x, group, 1, length, size, norm), 0)
    sizes = {x.shape[dim]: dim for dim in range(num_dims) if dim != cut_dim}
    other = sizes[max(sizes)]
    parts = even_spans(x.shape[other], num_ranks)
    x = exchange_cut(x, group, cut_dim, other, even_spans(length, num_ranks), parts)
    y = along(x, size, cut_dim, norm)
    return exchange_cut(y, group, other, cut_dim, parts, even_spans(y.shape[cut_dim], num_ranks))


def cut_spectral_convolution(
    x: Tensor,
    weight: Tensor,
    modes: tuple[int, ...],
    group: CommunicationBackend,
    dim: int,
    length: int,
) -> Tensor:
    """Return from_modes(multiply_modes(to_modes(x), weight)) of a grid that is cut along one dim.

    Collective over `group` in forward and backward.
    x        [batch, in, *grid] local: own rows of `length` along the grid's dim, cut evenly
    weight   [in, out, *kept, 2], the same on all ranks; its gradient is a term of a sum over them
    returns  [batch, out, *grid] local
    """
    start, stop = even_span(length, group.world_size, group.rank)
    if x.shape[2 + dim] != stop - start:
        raise ShapeError(
            f"a spectral layer of x {x.shape} on rank {group.rank} of {group.world_size}, cut "
            f"along dim {2 + dim} of {length}; wanted {stop - start} there, an even part"
        )
    slab = Slab(dim, start, length)
    terms = to_modes(x, modes, slab)  # [batch, in, 2, *kept]
    num_kept = terms.shape[KEPT]
    own = slice(*even_span(num_kept, group.world_size, group.rank))
    terms = reduce_scatter(terms, group, KEPT)  # of own modes
    y = multiply_own_modes(terms, weight, own)  # [batch, out, 2, own, ...]
    return from_modes(all_gather(y, group, KEPT, num_kept), x.shape[2:], slab)
