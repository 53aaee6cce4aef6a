"""Spectral layers of a grid that is cut along one dim.

    to_modes of the own rows, the cut dim too: terms of the few modes that are kept
    --reduce-scatter--> own modes, times own matrices --all-gather--> all modes
    --from_modes--> own rows

A layer sends modes alone: with m of n frequencies kept, 2 m / n of what a transposition of the grid
would. The sum over ranks is added as their tree, so its bits depend on how many they are.
Source: Fourier neural operators (arXiv 2010.08895).
"""

from ...comm.backend import CommunicationBackend
from ...errors import ShapeError
from ...layout.cuts import even_span
from ...nn.autograd import Tensor
from ...nn.ops.modes import Slab, from_modes, multiply_own_modes, to_modes
from ..conjugate import all_gather, reduce_scatter

KEPT = 3  # the first dim of modes in [batch, channels, 2, *kept]


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
