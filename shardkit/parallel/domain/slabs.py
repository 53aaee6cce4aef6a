"""Operations that are made for each slab by itself, and are one to what is around them.

    x [.., rows of a rank, ..] --cut--> a tape for each slab --joined--> y, and its gradient back
    gradients of parameters: of each slab, added as one tree over all slabs, on the first rank

So an array that a layer sees is never larger than a slab, on any number of ranks: bits that depend
on shapes are those of slabs. Other ranks than the first give exact zeros for parameters, as what
the engine adds over ranks has the bits of that one.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy

from ...array import fresh
from ...array.backend import xp_of
from ...errors import ShardingError
from ...layout.cuts import even_runs
from ...nn.autograd import Passage, Tensor, record
from ...nn.buffer import unobserved
from ...nn.context import go_on_apart
from ...nn.tape import walk
from .slab_group import SlabGroup

SUM = -1  # in place of a dim: what slabs return is added


def cut(array: Any, dim: int, num_slabs: int) -> list:
    """Return copies of the rows of each slab of a rank's array [..., own, ...].

    Slabs of a whole differ by one at most, the longer ones first, and so do those of a rank.
    """
    before = (slice(None),) * dim
    runs = even_runs(array.shape[dim], num_slabs)
    return [fresh.copy(array[(*before, slice(*run))]) for run in runs]


def through_slabs(
    group: SlabGroup,
    function: Callable[[Tensor], Any],
    x: Tensor,
    dim: int,
    joined: int | None,
    parameters: Sequence[Tensor] = (),
) -> Tensor:
    """Return function(x), made for each slab of x [..., own, ...] by itself.

    Collective over the ranks of the group, in forward and backward.
    dim          of x that is cut
    joined       dim of the results that is; None: they are the same in all slabs; SUM: a number
                 each, of which the first rank gets the sum over all slabs, and others 0
    parameters   that function reads; their gradients are sums over all slabs on the first rank, and
                 0 on others
    Errors: ShardingError unless a function returns one Tensor.
    """
    parts = [Passage(part, x.requires_grad) for part in cut(x.array, dim, group.num_own)]

    def of_slab(number):
        go_on_apart(None if number == 0 else unobserved)
        return function(parts[number])

    made = group.run(of_slab)
    if not all([isinstance(each, Tensor) for each in made]):
        raise ShardingError(
            "a block of a model in slabs passed on a tree of arrays; wanted one array, or "
            "domain_slabs = None"
        )
    array = _joined(group, [each.array for each in made], joined)
    learned = [each for each in parameters if each.requires_grad]
    if not made[0].requires_grad:
        return Tensor(array)

    def backward(gradient, wanted):
        gradients = _parted(group, gradient, [(each.shape, each.dtype) for each in made], joined)
        tables = group.run(lambda number: _gradients_of(made[number], gradients[number]))
        for_x = [table.get(id(part)) for table, part in zip(tables, parts)]
        for_x = fresh_joined(for_x, dim) if wanted[0] else None
        return for_x, None, *_summed(group, tables, learned)

    anchor = Tensor(numpy.zeros(1, made[0].dtype), requires_grad=True)  # so that a walk comes here
    sources = x, anchor, *learned
    return record(array, sources, backward, needs=parameters, is_one_pass=True, gives_new=True)


def fresh_joined(arrays: Sequence[Any], dim: int) -> Any:
    """Return the arrays of slabs as one, a new array."""
    return xp_of(arrays[0]).concatenate(arrays, axis=dim)


def _joined(group, arrays, dim):
    if dim is None:
        return arrays[0]
    if dim != SUM:
        return fresh_joined(arrays, dim)
    total = group.total([array.reshape(1).astype(float) for array in arrays])
    total = total if group.ranks.rank == 0 else total * 0.0
    return total.reshape(arrays[0].shape).astype(arrays[0].dtype)


def _parted(group, gradient, forms, dim):
    """Return the gradient of each slab's result, by that of what was joined of them."""
    if dim == SUM:
        return [gradient] * group.num_own
    if dim is not None:
        return cut(gradient, dim, group.num_own)
    return [gradient, *[numpy.zeros(*form) for form in forms[1:]]]


def _gradients_of(output, gradient) -> dict:
    """Return {id of a leaf: its gradient} of a slab's tape, which is used up."""
    found: dict[int, Any] = {}

    def keep(leaf, gradient, is_new=False):
        before = found.get(id(leaf))
        found[id(leaf)] = gradient if before is None else fresh.compute("add", before, gradient)

    walk((output._node or output,), (gradient,), keep=keep)
    return found


def _summed(group, tables, parameters):
    """Return the gradient of each parameter: on the first rank the sum over all slabs, else 0.

    A slab that does not use a parameter, as the token of a class, adds 0.
    """
    sums = []
    for parameter in parameters:
        shape, dtype = parameter.shape, parameter.gradient_dtype
        terms = [table.get(id(parameter)) for table in tables]
        terms = [fresh.zeros(shape, dtype) if term is None else term for term in terms]
        total = group.total([fresh.contiguous(term).reshape(-1) for term in terms])
        total = total.reshape(shape).astype(dtype, copy=False)
        sums.append(total if group.ranks.rank == 0 else fresh.zeros(shape, dtype))
    return sums
