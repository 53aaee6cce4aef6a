"""The tape: operations that were done, and the walk back over them.

    y --node--> TapeNode "gelu" --source--> TapeNode "matmul" --source--> w       a leaf Tensor
                                                              --source--> None    takes no gradient

A TapeNode is one operation: it knows where gradients go (its sources) and how to compute them
(`backward`), and owns no array itself. Nodes refer to older nodes only, so reference counting alone
frees an unused tape.

The walk visits nodes from the newest to the oldest, by the sequence number of their creation. This
order is topological, since a tensor is made before it is used. It needs no recursion, and it is the
same in every run, so gradients that meet are always added in the same order, with the same bits.
"""

import itertools
from contextvars import ContextVar
from functools import partial
from heapq import heappop, heappush
from typing import NamedTuple, Self

import numpy

from ..array import fresh
from ..errors import AutogradError, ShapeError
from ..scoped import Scoped

# Per thread: ranks may be threads.
_grad_enabled = ContextVar("shardkit_grad_enabled", default=True)
_sequence = itertools.count()  # only the order matters, never the value


def is_grad_enabled() -> bool:
    """Return True where operations are recorded: everywhere but inside no_grad()."""
    return _grad_enabled.get()


def no_grad() -> Scoped:
    """Record nothing inside the block (this thread only); also a decorator."""
    return Scoped(_grad_enabled, False)


def enable_grad() -> Scoped:
    """Record inside the block, though it stands inside no_grad(); also a decorator.

    For a forward pass that needs derivatives of its own (derivative.py), in prediction too.
    """
    return Scoped(_grad_enabled, True)


class VersionCounter:
    """How often some memory was changed in place, for all tensors that are views of it."""

    version = 0  # a class attribute: every operation makes a counter, which must be cheap
    is_parameter = False
    _parameter = None

    def anew(self, version: int) -> "VersionCounter":
        """Return one like this for other memory, which was changed so often."""
        counter = VersionCounter()
        counter.version = version
        return counter

    def seen(self, whole, view):
        """Return the tensor of a view of this memory, which an operation made of the whole."""
        return view

    def check_change(self) -> None:
        """Raise ShardingError if the memory is not to be changed through a tensor."""


class MemoryOfModel(VersionCounter):
    """Memory that a sharded model keeps, of one parameter or buffer.

    name   of it
    """

    def __init__(self, name: str, version: int = 0):
        self._name = name
        self.version = version

    def anew(self, version: int) -> Self:
        return type(self)(self._name, version)


class TapeNode:
    """One recorded operation.

    `sources` has one entry per input: a TapeNode, a leaf Tensor, or None (takes no gradient).
    """

    is_parameter = False
    __slots__ = (
        "order",
        "sources",
        "wanted",
        "backward",
        "saved",
        "is_one_pass",
        "gives_new",
        "differentiable",
        "array",
    )

    def __init__(
        self, sources, wanted, backward, saved, is_one_pass, gives_new=False, differentiable=None
    ):
        self.order = -next(_sequence)  # a min-heap of these yields the newest first
        self.sources = sources
        self.wanted = wanted
        self.backward = backward
        self.saved = saved  # [(what carries .version, version when recorded)]
        self.is_one_pass = is_one_pass  # all its gradients cost as much as one of them
        self.gives_new = gives_new  # nobody else holds its gradients
        self.differentiable = differentiable  # backward on Tensors, or None
        self.array = None  # what it made, if `backward` holds it anyway

    def release(self):
        """Drop everything, so that activations are freed during the walk."""
        self.sources = self.saved = ()
        self.backward = self.differentiable = self.array = None


class ParameterUse(NamedTuple):
    """An operation on the tape that computes with parameters.

    order        its place in the walk: smaller ones come first
    parameters   whose values its backward may read, or that it gives a gradient to
    trained      the latter
    """

    order: int
    parameters: list
    trained: list


def parameter_uses(output) -> list[ParameterUse]:
    """Return the operations below the output that use parameters, in the order of the walk."""
    stack = [output._node] if output._node is not None else []
    seen = set(stack)
    uses = []
    while stack:
        node = stack.pop()
        read = [each if each.is_parameter else each._parameter for each, _ in node.saved]
        parameters = [parameter for parameter in read if parameter is not None]
        trained = []
        for source in node.sources:
            if source is None:
                continue
            if source.is_parameter:
                trained.append(source)
            elif isinstance(source, TapeNode) and source not in seen:
                seen.add(source)
                stack.append(source)
        if parameters or trained:
            uses.append(ParameterUse(node.order, [*parameters, *trained], trained))
    uses.sort(key=lambda use: use.order)
    return uses


def _stop(order, function) -> TapeNode:
    """Return a node without gradients: the walk calls the function when it comes to its order."""

    def backward(gradient, wanted):
        function()
        return ()

    node = TapeNode((), (), backward, (), False)
    node.order = order
    return node


def walk(outputs, gradients, *, retain_graph=False, deferred=None, stops=(), keep=None):
    """Send the gradients from the outputs to all leaves, newest node first.

    outputs    nodes, or leaf Tensors; one that stands there twice gets the sum
    deferred   None, or a list that receives (node's backward, gradient, ...) in place of the
               gradients of parameters, which are computed later (see backward_inputs)
    stops      (order, function) to call on the way; no two of one order, and none of a node's
    keep       function (leaf, gradient, is new) in place of adding it to the leaf's .grad
    """
    pending = {}
    heap = []
    keep = keep or _accumulate
    _deliver(outputs, gradients, pending, heap, keep)
    for stop in [_stop(order, function) for order, function in stops]:
        pending[stop] = None
        heappush(heap, (stop.order, stop))
    while heap:
        node = heappop(heap)[1]
        check_unchanged(node.backward, node.saved)
        gradient = pending.pop(node)
        if deferred is None:
            gradients = node.backward(gradient, node.wanted)
        else:
            gradients = _split(node, gradient, deferred)
        if not isinstance(gradients, (tuple, list)) or len(gradients) != len(node.sources):
            raise AutogradError(_wrong_gradients(node, gradients))
        _deliver(node.sources, gradients, pending, heap, keep, node.gives_new)
        if not retain_graph:
            node.release()


def _wrong_gradients(node, gradients) -> str:
    got = f"{len(gradients)}" if isinstance(gradients, (tuple, list)) else type(gradients).__name__
    return (
        f"the backward of {operation_of(node.backward)} returned {got}; wanted a tuple of "
        f"{len(node.sources)}, a gradient or None for each parent"
    )


def _deliver(sources, gradients, pending, heap, keep, are_new=False):
    """Pass each gradient to its source: leaves add it, nodes collect all before their turn."""
    for source, gradient in zip(sources, gradients, strict=True):
        if source is None or gradient is None:
            continue
        if not isinstance(source, TapeNode):
            keep(source, gradient, are_new)
        elif source in pending:
            # Never in place: both may be shared.
            pending[source] = fresh.compute("add", pending[source], gradient)
        else:
            pending[source] = gradient
            heappush(heap, (source.order, source))


def _accumulate(leaf, gradient, is_new=False):
    """Add the gradient to leaf.grad: in place, unless the leaf hands it on."""
    if leaf.grad is None:
        leaf.grad = _first_of(leaf, gradient, is_new)
        return
    grad = leaf.grad
    if grad.shape != gradient.shape:
        raise ShapeError(
            f"a gradient of shape {gradient.shape} for a .grad of shape {grad.shape}; bind .grad "
            "to a view of the leaf's own shape"
        )
    if leaf._hands_on:
        leaf.grad = fresh.compute("add", grad, gradient)
    elif not leaf.grad_is_empty:
        fresh.add_to(grad, gradient)
    elif gradient is not grad:  # an operation may have computed it right there
        grad[...] = gradient
    leaf.grad_is_empty = False


def _first_of(leaf, gradient, is_new):
    """Return what a leaf keeps of its first gradient: itself if nobody minds, else a copy."""
    if isinstance(gradient, numpy.generic):
        return numpy.asarray(gradient)
    may_be_shared = leaf._hands_on and type(gradient) is numpy.ndarray and gradient.flags.carray
    is_kept = may_be_shared or is_new and gradient.flags.c_contiguous
    return gradient if is_kept else fresh.copy(gradient)


def check_unchanged(backward, saved):
    """Raise AutogradError if this node was used up, or if what it needs was overwritten."""
    if backward is None:
        raise AutogradError(
            "a second backward over a tape that the first has freed; pass retain_graph=True to the "
            "first, or compute the forward again"
        )
    for holder, version in saved:
        if holder.version != version:
            raise AutogradError(
                f"an array that the backward of {operation_of(backward)} needs was changed in "
                f"place {holder.version - version} time(s) since; change a copy, or run backward "
                "first"
            )


def alone(backward, gradient, wanted) -> tuple:
    """Return the gradient of the only parent: made the backward of an operation by partial()."""
    return (backward(gradient),)


def operation_of(backward) -> str:
    """Return the name of the operation that a backward belongs to."""
    backward = backward.args[0] if isinstance(backward, partial) else backward
    return backward.__qualname__.split(".")[0].lstrip("_")


def _split(node, gradient, deferred):
    """Return the gradients of a node that the walk needs now.

    Those of parameters are deferred; if one pass computes both, they are kept until then.
    """
    owed = tuple([source is not None and source.is_parameter for source in node.sources])
    if True not in owed:
        return node.backward(gradient, node.wanted)
    parameters = tuple([source if due else None for source, due in zip(node.sources, owed)])
    now = tuple([wanted and not due for wanted, due in zip(node.wanted, owed)])
    if node.is_one_pass and True in now:
        gradients = node.backward(gradient, node.wanted)
        kept = tuple([part if due else None for part, due in zip(gradients, owed)])
        deferred.append((lambda *_: kept, None, owed, parameters, ()))
        return tuple([part if wanted else None for part, wanted in zip(gradients, now)])
    deferred.append((node.backward, gradient, owed, parameters, node.saved))
    return node.backward(gradient, now) if True in now else (None,) * len(now)


class WeightGradients:
    """The second half of a split backward: parameter gradients still to be computed."""

    __slots__ = ("_deferred",)

    def __init__(self, deferred):
        self._deferred = deferred

    def run(self):
        """Add them to `.grad` of the parameters, in the order of the plain backward; only once."""
        if self._deferred is None:
            raise AutogradError(
                "the weight gradients of this backward were already computed; call run() only once"
            )
        deferred = self._deferred
        self._deferred = None
        deferred.reverse()  # popped from the end, so each is freed after use
        while deferred:
            backward, gradient, owed, parameters, saved = deferred.pop()
            check_unchanged(backward, saved)
            for parameter, part in zip(parameters, backward(gradient, owed), strict=True):
                if parameter is not None and part is not None:
                    _accumulate(parameter, part)
