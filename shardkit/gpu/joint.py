"""Products of one x with several weights that lie side by side on a GPU, made at once.

    x [rows, in] --one product--> whole | q | k | v | ---> parts: views, each an input by itself
    gradients    <--one or few--- whole | q | k | v | <--- their gradients, each in its place

Weights that touch are read as one of all columns, so `whole` is [rows, columns of all], and each
gradient is one product too. Weights of one size with biases in between are evenly spaced: `whole`
is [number, rows, columns], one batched product, and the gradient of x is a sum of products.

An operation that computes the gradient of a part writes it where it belongs (GradientPlace). What
does not know of places has its gradient copied there.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate
from math import prod
from typing import Any

from ..array import halves, products
from ..array.adjacent import joined, stacked
from ..array.arena import empty
from ..array.backend import xp_of
from ..nn.autograd import Tensor, kept, no_grad, record
from ..nn.context import current_surroundings
from ..nn.ops.joint_parts import JointPart

View = Callable[[Any], Any]


def joint_linear(
    x: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None],
    views: Sequence[View],
    *,
    is_dense: bool = False,
) -> "list[JointPart] | None":
    """Return [view(x weight^T + bias), ...] by one product; None where it takes several.

    x                 [..., in], on a GPU
    weights, biases   [out, in] and [out] or None of each part
    views             [..., out] -> a view of it, of each part
    is_dense          parts must not have gaps between rows
    """
    form = _form_of(x, weights, biases, is_dense)
    if form is None:
        return None
    leading, width = x.shape[:-1], x.shape[-1]
    num_rows = prod(leading)
    read = form.seen([weight.array for weight in weights])
    rows = x.array.reshape(num_rows, width)
    whole = _product(form, rows, read, [bias.array for bias in biases if bias is not None])
    again, needs = kept(x) if weights[0].requires_grad else (None, ())
    dtype, xp = whole.dtype, xp_of(whole)

    def lay(array):
        """Return the views of the parts of an array like `whole`."""
        return [
            view(part.reshape(*leading, part.shape[-1]))
            for view, part in zip(views, form.parts(array))
        ]

    places = _Places(lambda: empty(form.shape(num_rows), dtype, xp), lay)

    def by_row():
        with no_grad():
            return again().array.reshape(num_rows, width)

    def backward(gradient, wanted):
        places.complete(gradient)
        num = len(weights)
        for_x, for_weights, for_biases = None, (None,) * num, (None,) * num
        if wanted[0]:
            for_x = _for_x(form, gradient, [weight.array for weight in weights])
            for_x = for_x.reshape(*leading, width)
        if any(wanted[1 : 1 + num]):
            for_weights = _for_weights(form, gradient, by_row(), weights)
        if any(wanted[1 + num :]):
            for_biases = _for_biases(form, gradient, biases)
        return (for_x, *for_weights, *for_biases)

    output = record(whole, (x, *weights, *biases), backward, needs=(*needs, *weights))
    return [
        JointPart.of(_part(array, output, places, number), GradientPlace(places, number))
        for number, array in enumerate(lay(whole))
    ]


def _part(array, output, places, number):
    """Return a part of the output, recorded: its gradient goes to its place."""
    return record(array, (output,), lambda gradient, wanted: (places.deliver(number, gradient),))


# ---- how weights lie -----------------------------------------------------------------------------


class _Joined:
    """Weights that touch: [rows, columns of all]."""

    seen = staticmethod(joined)
    dims = (0,)  # over which the gradients of biases are summed

    def __init__(self, sizes):
        stops = list(accumulate(sizes))
        self._spans = [slice(stop - size, stop) for size, stop in zip(sizes, stops)]
        self._columns = stops[-1]

    def shape(self, num_rows):
        return num_rows, self._columns

    def parts(self, whole):
        """Return what belongs to each part of [rows, columns of all]."""
        return [whole[:, span] for span in self._spans]

    def parts_of_sum(self, whole):
        """Return what belongs to each part of the gradients [columns of all, ...]."""
        return [whole[span] for span in self._spans]


class _Stacked:
    """Weights of one size, evenly spaced: [number, rows, columns]."""

    seen = staticmethod(stacked)
    dims = (1,)

    def __init__(self, sizes):
        self._number, self._columns = len(sizes), sizes[0]

    def shape(self, num_rows):
        return self._number, num_rows, self._columns

    def parts(self, whole):
        return [whole[number] for number in range(self._number)]

    parts_of_sum = parts


def _form_of(x, weights, biases, is_dense):
    """Return how the weights lie; None if they do not lie so that one product takes them."""
    surroundings = current_surroundings()
    if surroundings is not None and surroundings.lends:
        return None  # modules that are called one by one are gathered so
    if (
        any(weight.dtype != x.dtype or weight.shape[1] != x.shape[-1] for weight in weights)
        or len({weight.requires_grad for weight in weights}) > 1
        or len({None if bias is None else bias.requires_grad for bias in biases}) > 1
    ):
        return None
    arrays = [weight.array for weight in weights]
    for form in (_Stacked,) if is_dense else (_Joined, _Stacked):
        if form.seen(arrays) is not None:
            return form([weight.shape[0] for weight in weights])
    return None


# ---- arithmetic ----------------------------------------------------------------------------------


def _product(form, rows, weights, biases):
    """Return the output of all parts; biases are added at once if they lie as their weights do."""
    turned = weights.swapaxes(-1, -2)
    at_once = form.seen(biases) if biases else None
    if at_once is not None:
        return products.matmul_and_row(rows, turned, at_once)
    whole = products.matmul(rows, turned)
    for part, bias in zip(form.parts(whole), biases):
        part += bias
    return whole


def _for_x(form, gradient, weights):
    """Return the gradient of x [rows, in]."""
    together = form.seen(weights)
    if together is not None and together.ndim == 2:
        return products.matmul(gradient, together)
    first, *others = zip(form.parts(gradient), weights)
    total = products.matmul(*first)
    for operands in others:
        products.add_product(*operands, total)
    return total


def _for_weights(form, gradient, rows, weights):
    """Return the gradients of the weights, by one product, in their memory where it can be."""
    turned = gradient.swapaxes(-1, -2)
    there, memory = _memory_of(form, weights)
    if there is not None:
        products.matmul(turned, rows, out=there)
        return memory
    shape = (*turned.shape[:-1], rows.shape[1])
    together = empty(shape, weights[0].gradient_dtype, xp_of(gradient))
    return form.parts_of_sum(products.matmul(turned, rows, out=together))


def _for_biases(form, gradient, biases):
    """Return the gradients of the biases, by one sum."""
    there, memory = _memory_of(form, biases)
    dtype = biases[0].gradient_dtype
    if there is None or not there.flags.c_contiguous:
        total = halves.total(gradient, form.dims, dtype=dtype)
        if there is None:
            return form.parts_of_sum(total)
        there[...] = total
    else:
        total = halves.total(gradient, form.dims, dtype=dtype, there=there)
        if total is not there:
            there[...] = total
    return memory


def _memory_of(form, tensors):
    """Return (one view of the memory that waits for the gradients, each); None: there is none."""
    memory = [tensor.grad if tensor.grad_is_empty else None for tensor in tensors]
    if any(each is None for each in memory):
        return None, None
    return form.seen(memory), memory


# ---- gradients of parts --------------------------------------------------------------------------


class _Places:
    """The gradient of `whole` in a backward, until all parts have brought theirs.

    make   () -> a new array like `whole`
    lay    array -> the views of its parts
    """

    def __init__(self, make, lay):
        self._make, self._lay = make, lay
        self._whole: Any = None
        self._views: list = []
        self._lent: set[int] = set()
        self._written: set[int] = set()

    def _begin(self):
        self._whole = self._make()
        self._views = self._lay(self._whole)
        self._lent, self._written = set(), set()

    def take(self, number: int):
        """Return the place of a part, once in a backward; None after that."""
        if self._whole is None:
            self._begin()
        if number in self._lent:
            return None
        self._lent.add(number)
        return self._views[number]

    def holds(self, number: int, gradient) -> bool:
        """Return True if the gradient of a part lies in its place."""
        return self._whole is not None and gradient is self._views[number]

    def deliver(self, number: int, gradient):
        """Take the gradient of a part; return that of `whole` for the first one, else None.

        A part that comes again is of another backward, after one that failed.
        """
        if self._whole is None or number in self._written:
            self._begin()
        if gradient is not self._views[number]:
            self._views[number][...] = gradient
        self._written.add(number)
        return self._whole if len(self._written) == 1 else None

    def complete(self, gradient) -> None:
        """Hand over the gradient of `whole`; parts that nothing used have 0."""
        if gradient is not self._whole:
            return  # it was handed over before: weights have their turn
        for number, view in enumerate(self._views):
            if number not in self._written:
                view[...] = 0
        self._whole, self._views = None, []


class GradientPlace:
    """Where the gradient of one part belongs; a PlaceOfPart."""

    __slots__ = ("_places", "_number")

    def __init__(self, places: _Places, number: int):
        self._places, self._number = places, number

    def take(self) -> Any:
        """Return the memory for the gradient, once in a backward; None after that."""
        return self._places.take(self._number)

    def take_after(self, gradient: Any) -> Any:
        """Return the memory for what is made of a gradient, element by element or pair by pair:
        its own if that is the place.
        """
        return gradient if self._places.holds(self._number, gradient) else self.take()
