"""Derivatives as values: gradients of given tensors, which can be differentiated again.

    (u_x,) = grad(u.sum(), x, create_graph=True)
    (u_xx,) = grad(u_x.sum(), x, create_graph=True)
    loss = ((u_xx - f) ** 2).mean()               its backward reaches the parameters of u

A plain backward computes on arrays, with fused kernels. With create_graph=True every node of the
tape between outputs and inputs is asked for its `differentiable` gradient instead, which is made
of operations and so recorded itself. Only nodes that lead from the outputs to the inputs are
visited, and `.grad` of nothing is touched.
"""

from functools import partial
from heapq import heappop, heappush
from typing import Any

from ..array import fresh
from ..errors import AutogradError, ShapeError
from .autograd import Tensor, enable_grad, first_gradient, origin_of, output_of
from .ops.elementwise import add
from .ops.shape import cast
from .tape import TapeNode, check_unchanged, operation_of


def grad(
    outputs: Any,
    inputs: Any,
    gradient: Any = None,
    create_graph: bool = False,
    allow_unused: bool = False,
) -> tuple:
    """Return the gradients of the outputs with respect to each input: a tuple of Tensors.

    Parameters
    ----------
    outputs
        A Tensor, or several whose gradients are added up.
    inputs
        A Tensor, or several: leaves, parameters, or what operations made.
    gradient
        Of each output, of its shape, a Tensor or an array; may be left out for outputs of a single
        element (then it is 1).
    create_graph
        Record how the gradients are made, also inside no_grad(), so that they can be differentiated
        again; gradients given as Tensors keep their history.
    allow_unused
        Return None for an input that the outputs do not depend on, instead of raising.

    Raises
    ------
    AutogradError
        If no gradient flows to an input, or an operation on the way has no second derivative.
    ShapeError
        On a gradient of another shape.

    Notes
    -----
    The tape is kept, for a backward or another call.

    References
    ----------
    The interface is that of torch.autograd.grad.

    Examples
    --------
    >>> x = nn.Tensor(3.0, requires_grad=True)
    >>> (slope,) = nn.grad(x**3, x, create_graph=True)
    >>> nn.grad(slope, x)[0].item()
    18.0
    """
    inputs = _several(inputs)
    starts = _starts(_several(outputs), gradient, create_graph)
    targets = [origin_of(tensor) for tensor in inputs]
    if create_graph:
        with enable_grad():
            found = _sweep(starts, targets, _recorded, add)
    else:
        found = _sweep(starts, targets, _plain, partial(fresh.compute, "add"))
    gradients = tuple([found.get(target) for target in targets])
    for number, (tensor, part) in enumerate(zip(inputs, gradients)):
        if part is None and not allow_unused:
            raise AutogradError(
                f"input {number}, of shape {tensor.shape}, was not used to make the outputs, or "
                "takes no gradient: make it with requires_grad=True before it is used, or pass "
                "allow_unused=True to get None for it"
            )
    return gradients if create_graph else tuple([_leaf(part) for part in gradients])


def _several(tensors) -> tuple:
    return (tensors,) if isinstance(tensors, Tensor) else tuple(tensors)


def _leaf(array):
    return None if array is None else Tensor(array)


def _starts(outputs, gradient, create_graph):
    """Return [(origin, gradient)] of the outputs, checked; Tensors if the walk is recorded."""
    gradients = gradient if isinstance(gradient, (tuple, list)) else [gradient]
    if gradient is None:
        gradients = [None] * len(outputs)
    if len(gradients) != len(outputs):
        raise ShapeError(f"{len(gradients)} gradients for {len(outputs)} outputs; wanted one each")
    starts = []
    for output, given in zip(outputs, gradients):
        first = first_gradient(output, given)
        if create_graph:
            if not isinstance(given, Tensor):
                first = Tensor(first)
            else:
                first = given if given.dtype == output.dtype else cast(given, output.dtype)
        starts.append((origin_of(output), first))
    return starts


def _sweep(starts, targets, derive, plus) -> dict:
    """Return {target: gradient}, walking from the newest node to the oldest.

    derive   (node, gradient, wanted) -> a gradient or None for each source
    plus     adds two gradients
    """
    leading = _leading([origin for origin, _ in starts], targets)
    pending: dict[Any, Any] = {}
    heap: list[Any] = []

    def deliver(source, gradient):
        if source in pending:
            pending[source] = plus(pending[source], gradient)
            return
        pending[source] = gradient
        if isinstance(source, TapeNode):
            heappush(heap, (source.order, source))

    for origin, gradient in starts:
        if origin in leading:
            deliver(origin, gradient)
    kept = set(targets)
    while heap:
        node = heappop(heap)[1]
        gradient = pending[node] if node in kept else pending.pop(node)
        wanted = tuple([source in leading for source in node.sources])
        if True not in wanted:
            continue
        check_unchanged(node.backward, node.saved)
        for source, part, want in zip(node.sources, derive(node, gradient, wanted), wanted):
            if want and part is not None:
                deliver(source, part)
    return pending


def _leading(origins, targets) -> set:
    """Return the targets, and the nodes through which gradients of the origins reach them."""
    seen = set()
    stack = [origin for origin in origins if isinstance(origin, TapeNode)]
    while stack:
        node = stack.pop()
        check_unchanged(node.backward, ())  # raises if a backward has freed the tape
        if node not in seen:
            seen.add(node)
            stack += [source for source in node.sources if isinstance(source, TapeNode)]
    leading = set(targets)
    for node in sorted(seen, key=lambda node: node.order, reverse=True):  # the oldest first
        if any(source in leading for source in node.sources):
            leading.add(node)
    return leading


def _plain(node, gradient, wanted):
    """Return the gradients of a node as arrays, none in the memory of a `.grad`."""
    parts = node.backward(gradient, wanted)
    return [
        fresh.copy(part) if part is not None and _is_gradient_of(source, part) else part
        for source, part in zip(node.sources, parts, strict=True)
    ]


def _is_gradient_of(source, array):
    return isinstance(source, Tensor) and array is source.grad


def _recorded(node, gradient, wanted):
    """Return the gradients of a node as Tensors with a history."""
    if node.differentiable is None:
        raise AutogradError(
            f"no second derivative of {operation_of(node.backward)}: its gradient is not made of "
            "operations; use create_graph=False, other operations, or give `record` a "
            "`differentiable` gradient"
        )
    return node.differentiable(gradient, wanted, output_of(node))
