"""Parameters, whose arrays are made late or never.

A parameter of a sharded model does not own its array: it is a view of a unit's flat buffer, bound
when the unit is gathered:

    fresh --first access to .array--> bound --release()--> released
      |                                 ^                     |
      +----------bind(view)-------------+------bind(view)-----+

A bound view may hold half floats: operations see a parameter of their dtype, while its gradient,
being a sum, stays float32. The owner of the view keeps the master weights, in the dtype that the
parameter was made with.

Initial values are a function of (seed, name, element index), so ranks can fill the parts that they
own from a parameter that stays fresh: a model larger than the memory of one node can be made on
every node.

A rank that computes with a part of a parameter only (tensor parallelism) has a SlicedParameter: a
box of the whole one, with the values that the whole one has there.
"""

import copy
from dataclasses import dataclass
from enum import Enum, auto
from math import prod
from operator import index
from typing import Any

import numpy

from ..annotations import Array, DTypeLike, PerDim, Shape
from ..array.arena import empty
from ..array.backend import is_device_array, plain_array, to_host, xp_of
from ..array.dtypes import check_holds, check_real, is_floating, is_half, named_dtype, wide
from ..array.places import PlaceOfView, place_in
from ..errors import AutogradError, ShapeError, ShardingError
from ..layout.box import Box, flat_range_to_boxes
from .autograd import Tensor, array_of, is_numbers
from .building import count_one
from .context import current_objective, current_surroundings
from .init import CHUNK, Copied, Initializer, Unread
from .tape import MemoryOfModel, VersionCounter


class _Memory(Enum):
    """Whose array a parameter has."""

    OWN = auto()  # its own, once it is made
    BOUND = auto()  # a view of the memory of another
    RELEASED = auto()  # none: it has given up its memory


_OWN, _BOUND, _RELEASED = _Memory  # as names, since access to members of an enum takes long

NOT_OF_MODEL = (
    "what a forward pass makes, or an object or function keeps, is not found; let __init__ make it "
    "an attribute of a module"
)


@dataclass(frozen=True)
class Extent:
    """Which box of a whole parameter this is.

    shape           of the box
    global_shape    of the whole
    planned_size    elements of the largest box that any rank holds
    """

    shape: Shape
    global_shape: Shape
    box: Box
    planned_size: int

    @classmethod
    def of_whole(cls, shape: Shape) -> "Extent":
        """Return that of a parameter of which no part is left out."""
        box = Box.whole(shape)
        return cls(shape, shape, box, box.size)

    @classmethod
    def of_box(cls, global_shape: Shape, box: Box, planned_size: int | None) -> "Extent":
        """Return that of a box; planned_size None: its own size. Errors: outside of the whole."""
        box.relative_to(Box.whole(global_shape))
        size = box.size if planned_size is None else planned_size
        return cls(box.shape, global_shape, box, size)


class Parameter(Tensor):
    """A tensor that is trained: first a shape, a dtype and an initializer, later an array.

    Parameters
    ----------
    shape
        Of the whole parameter; or its initial values, an array, as in PyTorch.
    init
        Its values, as a function of seed, name and element index; None: those given.
    dtype
        Floating point, that of its initial values.

    Attributes
    ----------
    name, seed
        Set by Module.finish; without them there are no initial values.
    claim
        How ranks share it on a mesh; None: not decided.
    requires_grad
        False: frozen; given, or decided before the model is sharded.

    Examples
    --------
    >>> scale = nn.Parameter((3,), nn.init.Fill(1.0))
    >>> scale.shape, scale.requires_grad
    ((3,), True)
    >>> nn.Parameter(np.ones(3)).array
    array([1., 1., 1.], dtype=float32)
    """

    __slots__ = (
        "name",
        "seed",
        "init",
        "claim",
        "_extent",
        "_dtype",
        "_array",
        "_state",
        "_requires_grad",
    )
    is_parameter = True

    def __init__(
        self,
        shape: PerDim | Array,
        init: Initializer | None = None,
        dtype: DTypeLike = "float32",
        *,
        requires_grad: bool = True,
    ) -> None:
        shape, init = shape_and_init("Parameter", shape, init)
        self._set_up(Extent.of_whole(shape), init, dtype)
        self.requires_grad = requires_grad

    def _set_up(self, extent: Extent, init: Initializer, dtype: DTypeLike) -> None:
        count_one()
        self._state = _OWN
        self._begin(requires_grad=True)
        self._extent = extent
        self._dtype = named_dtype(dtype)
        if not is_floating(self._dtype):
            raise AutogradError(
                f"a parameter of {self._dtype} cannot take a gradient; wanted floating point"
            )
        self.init = init
        self.name: str | None = None
        self.seed: int | None = None
        self.claim: Any = None
        self._array: Array | None = None

    # What it is, without making the array.

    @property
    def requires_grad(self) -> bool:
        return self._requires_grad

    @requires_grad.setter
    def requires_grad(self, value):
        is_laid_out = self._state is not _OWN and current_objective() is None
        if is_laid_out and bool(value) != self._requires_grad:
            raise ShardingError(
                f"requires_grad of {called(self)} cannot become {value}: it belongs to a sharded "
                "model, whose gradients and optimizer state are laid out; set it before the model "
                "is sharded, save a checkpoint and load it into such a model"
            )
        self._requires_grad = bool(value)

    @property
    def is_fresh(self) -> bool:
        """True while it has its initial values and no array yet."""
        return self._array is None and self._state is not _RELEASED

    @property
    def awaits_values(self) -> bool:
        """True while it is fresh, and its values are in a checkpoint that is not read yet."""
        return self.is_fresh and isinstance(self.init, Unread)

    @property
    def is_released(self) -> bool:
        """True while it has given up its memory, and its values cannot be read."""
        return self._state is _RELEASED

    @property
    def shape(self) -> Shape:
        return self._extent.shape

    @property
    def ndim(self) -> int:
        return len(self._extent.shape)

    @property
    def dtype(self) -> numpy.dtype[Any]:
        if self._state is _RELEASED:
            _borrow(self)
        return self._dtype if self._array is None else self._array.dtype

    @property
    def gradient_dtype(self) -> numpy.dtype[Any]:
        return wide(_lent_dtype(self))

    def empty_gradient(self) -> Array | None:
        """Return float32 memory for the gradient, also for x and weight of half floats."""
        gradient = super().empty_gradient()
        if gradient is None and is_half(_lent_dtype(self)):
            return empty(self.shape, self.gradient_dtype, xp_of(self.array))
        return gradient

    @property
    def global_shape(self) -> Shape:
        """The shape of the parameter that this is a box of; its own, if it is whole."""
        return self._extent.global_shape

    @property
    def box(self) -> Box:
        """Where this parameter lies in `global_shape`."""
        return self._extent.box

    @property
    def planned_size(self) -> int:
        """The elements of the largest box that any rank holds: units and stages are planned with
        it, so that ranks with boxes of different sizes plan alike.
        """
        return self._extent.planned_size

    # The array.

    @property
    def array(self) -> Array:
        """[*shape]; made from the initial values on the first access.

        Raises
        ------
        ShardingError
            Once released, unless the surroundings lend it its values, or while it awaits those of a
            checkpoint.
        """
        if self._state is _RELEASED:
            _borrow(self)
        if self._array is None:
            self._array = self.initial_span(0, self.size).reshape(self.shape)
        return self._array

    @array.setter
    def array(self, values):
        self._array = filled(self, values)
        self._memory.version += 1

    def initial_span(self, start: int, stop: int) -> Array:
        """Return elements [start, stop) in C order: [stop - start]; of the array once it has one.

        Raises
        ------
        ShardingError
            If it is released, or has no name and seed yet.
        """
        if self.is_released:
            raise ShardingError(
                f"{called(self)} was released: its values live in the shards of its ranks. "
                "Gather its unit first, or use the sharded model (predict, gather_full_parameters)"
            )
        if self._array is not None:
            return self._array.reshape(-1)[start:stop]
        return self._initial_values(start, stop)

    def _initial_values(self, start, stop):
        return self.init.span(*origin_of(self), start, stop, self._dtype)

    def bind(self, view: Array) -> None:
        """Use this memory from now on, with the values that it holds.

        Parameters
        ----------
        view
            [*shape], of the parameter's dtype or of half floats.

        Raises
        ------
        ShapeError
            On another shape or dtype.
        """
        if view.shape != self.shape or view.dtype != self._dtype and not is_half(view.dtype):
            raise ShapeError(
                f"{called(self)} is {self.shape} {self._dtype}, but was bound to a view of "
                f"{view.shape} {view.dtype}; slot and parameter must agree"
            )
        if self._state is _OWN:
            self.stale_views(LentMemory(called(self)))
        elif self._array is not None:
            self.stale_views()
        self._array = view
        self._state = _BOUND

    def release(self, *, views_last: bool = False) -> None:
        """Give up the memory; reading it is a ShardingError until bind() provides another.

        Parameters
        ----------
        views_last
            True: the memory keeps its values while there are views of it, and the next one has the
            same values; False: a backward through a view raises.
        """
        if self._state is _OWN:
            self.stale_views(LentMemory(called(self)))
        elif self._array is not None and not views_last:
            self.stale_views()
        self._array = None
        self._state = _RELEASED

    def renew(self) -> None:
        """Set it back to its state at creation: initial values, no memory, no gradient."""
        self.release()
        self._state = _OWN
        self.grad = None

    def __deepcopy__(self, memo: dict[int, Any]) -> "Parameter":
        """Return a copy in the same state, with memory of its own; the claim is shared."""
        made, arguments = self._making()
        copied = made(*arguments)
        array, grad = copy.deepcopy((self._array, self.grad), memo)
        facts = self.name, self.seed, self.requires_grad
        state = _RELEASED if self.is_released else _OWN
        copied.__setstate__((*facts, self.claim, array, state, grad))
        return copied

    def __reduce__(self) -> tuple:
        """Return how to make it again, with its values: of a sharded model only while it has them.

        Its gradient stays behind, as do memory and claim.
        """
        values = None if self.is_fresh else to_host(self.array).copy()
        facts = self.name, self.seed, self.requires_grad
        return *self._making(), (*facts, None, values, _OWN, None)

    def __setstate__(self, facts: tuple) -> None:
        self.name, self.seed, self.requires_grad, self.claim, *values, self.grad = facts
        self._array, self._state = values

    def _making(self):
        """Return (class, arguments) of a fresh one like it."""
        return Parameter, (self.shape, self.init, self._dtype)

    def __repr__(self) -> str:
        state = "fresh" if self.is_fresh else "released" if self.is_released else "bound"
        return f"{type(self).__name__}({self.name!r}, {self.shape}, {self._dtype}, {state})"


class LentMemory(MemoryOfModel):
    """Memory of a sharded model, with a parameter in it: shards, what ranks share, or rounded."""

    def seen(self, whole: Tensor, view: Tensor) -> Tensor:
        parameter: Any = whole if whole.is_parameter else whole._parameter
        place = place_in(parameter.array, view.array)
        if place is None:  # a copy
            return Tensor._made(view.array, view._node, VersionCounter())
        return ParameterView(parameter, place, view._node)

    def check_change(self) -> None:
        raise ShardingError(
            f"{self._name} was written to, but belongs to a sharded model, which keeps its values "
            "in shards, in memory that ranks share, or rounded; use set_parameters() or "
            "load_model() of that model, or write before it is sharded"
        )


class ParameterView(Tensor):
    """A view of a parameter, such as weight.T: found in the memory that the parameter has when it
    is read, since that of a sharded one is another's between forward and backward.
    """

    __slots__ = ("_parameter", "_place")
    _parameter: Any

    def __init__(self, parameter: Parameter, place: PlaceOfView, node):
        self._parameter = parameter
        self._place = place
        self._node = node
        self.grad = None
        self.grad_is_empty = False
        self.requires_grad = node is not None

    array = property(lambda self: self._place.seen_in(self._parameter.array))
    _memory = property(lambda self: self._parameter._memory)


def shape_and_init(kind: str, given, init) -> tuple[Shape, Initializer]:
    """Return both: of a shape and its initializer, or of values, for which init is None.

    Errors: TypeError on a shape alone, and on what is no initializer.
    """
    wanted = "an initializer, as nn.init.Normal(0.02), or values in place of the shape"
    if init is None:
        if not is_numbers(given):
            raise TypeError(f"{kind}({given!r}) has a shape and no values; wanted init=: {wanted}")
        values = to_host(Tensor(array_of(given)).array).copy()
        check_real(f"{kind}(values)", values.dtype)
        return values.shape, Copied(values)
    if not hasattr(init, "span"):
        raise TypeError(f"{kind} with init = {init!r}; wanted {wanted}")
    return tuple(map(index, (given,) if numpy.ndim(given) == 0 else given)), init


def _borrow(parameter):
    """Let the surroundings bind a released parameter, if there are any that know it."""
    surroundings = current_surroundings()
    if surroundings is not None:
        surroundings.lend(parameter)


def _lent_dtype(parameter) -> numpy.dtype[Any]:
    """Return the dtype of the memory that it has, of which it is made if it has none."""
    return parameter._dtype if parameter._array is None else parameter._array.dtype


def called(tensor) -> str:
    """Return what messages call a parameter or a buffer."""
    kind = "parameter" if tensor.is_parameter else "buffer"
    return f"a {kind} of shape {tensor.shape}" if tensor.name is None else f"{kind} {tensor.name}"


def origin_of(tensor) -> tuple[int, str]:
    """Return seed and name, on which the initial values of a parameter or buffer depend.

    Errors: ShardingError if it has none.
    """
    if not getattr(tensor.init, "needs_origin", True):
        return 0, ""
    if tensor.name is None or tensor.seed is None:
        raise ShardingError(
            f"{called(tensor)} has no name and seed yet, and its initial values depend on both; "
            "call finish(seed) on the model that it belongs to. If that is finished, this is none "
            f"of its own: {NOT_OF_MODEL}"
        )
    return tensor.seed, tensor.name


def fitting(tensor, values):
    """Return values that a parameter or buffer may be set to, as an array of the host or a GPU.

    Errors: ShapeError on another shape, or on no real numbers; ConfigurationError on numbers that
    its dtype does not hold.
    """
    values = array_of(values)
    if numpy.shape(values) != tensor.shape:
        raise ShapeError(
            f"{called(tensor)} has shape {tensor.shape}, but values of shape "
            f"{numpy.shape(values)} were given; the two must be equal"
        )
    values = values if is_device_array(values) else plain_array(values, called(tensor))
    check_real(f"what {called(tensor)} is set to", values.dtype)
    if values.dtype != tensor.dtype:
        check_holds(called(tensor), to_host(values), tensor.dtype)
    return values


def filled(tensor, values):
    """Return the array of a parameter or buffer, a new one if it is fresh, with these values in it.

    Errors: as fitting().
    """
    tensor._memory.check_change()
    values = fitting(tensor, values)
    is_fresh = tensor.is_fresh
    array = xp_of(values).empty(tensor.shape, tensor.dtype) if is_fresh else tensor.array
    xp = xp_of(array)
    array[...] = to_host(values) if xp is numpy else xp.asarray(values)
    return array


class SlicedParameter(Parameter):
    """A box of a parameter: its own `shape`, and the name and initial values of the whole.

    global_shape   of the whole parameter
    box            inside it
    planned_size   see Parameter; None: that of this box
    """

    __slots__ = ()

    def __init__(
        self,
        global_shape,
        box: Box,
        init: Initializer,
        dtype="float32",
        planned_size: int | None = None,
    ):
        self._set_up(Extent.of_box(tuple(global_shape), box, planned_size), init, dtype)

    @classmethod
    def of(cls, whole: Parameter, box: Box, planned_size: int | None = None) -> "SlicedParameter":
        """Return this box of a parameter, with its name, seed and values; lazy if that is fresh."""
        part = cls(whole.global_shape, box, whole.init, whole.dtype, planned_size)
        part.name = whole.name
        part.seed = whole.seed
        part.requires_grad = whole.requires_grad
        if not whole.is_fresh:
            part.array = whole.array[box.slices()]
        return part

    def _initial_values(self, start, stop):
        """Return elements [start, stop) of the box, from spans of the whole parameter."""
        values = numpy.empty(stop - start, self._dtype)
        at = 0
        for local in flat_range_to_boxes(self.shape, start, stop):
            part = Box(tuple(a + b for a, b in zip(local.offset, self.box.offset)), local.shape)
            for rows in self._whole_rows(part):
                values[at : at + rows.size] = rows.reshape(-1)
                at += rows.size
        return values

    def _whole_rows(self, box):
        """Yield a box of the whole parameter, a few rows at a time: [rows, *box.shape[1:]].

        Whole rows are made and cut, so that columns cost a few long spans instead of many short
        ones.
        """
        below = self.global_shape[1:]
        row = prod(below)
        inner = (slice(None), *box.slices()[1:])
        step = max(CHUNK // max(row, 1), 1)
        for start in range(box.offset[0], box.stop[0], step):
            stop = min(start + step, box.stop[0])
            span = self.init.span(*origin_of(self), start * row, stop * row, self._dtype)
            yield span.reshape(stop - start, *below)[inner]

    def _making(self):
        extent = self._extent
        whole, size = extent.global_shape, extent.planned_size
        return SlicedParameter, (whole, extent.box, self.init, self._dtype, size)
