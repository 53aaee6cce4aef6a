"""LSTM, GRU and RNN: layers over sequences, one after the other, in one direction or both.

Names and shapes of the parameters are PyTorch's: weight_ih_l0 [gates H, in], weight_hh_l0,
bias_ih_l0, bias_hh_l0, with _reverse for the direction from the end.
"""

from collections.abc import Callable
from typing import Any

from ...annotations import DTypeLike, Shape
from ...arguments import is_among, require
from ...array import fresh
from ...array.backend import xp_of
from ...errors import ConfigurationError, ShapeError
from ..autograd import Tensor
from ..init import Uniform
from ..module import Module, ModuleList, Parameter
from ..ops.activation import relu, tanh
from ..ops.arrangement import flip, stack
from ..ops.elementwise import add
from ..ops.linear import linear
from ..ops.recurrent import gru, lstm
from ..ops.shape import concatenate, getitem, squeeze, transpose, unsqueeze
from .basic import Dropout, check_sizes

_PARTS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


def _shapes(rows: int, num_in: int, num_hidden: int, bias: bool) -> dict[str, Shape]:
    """Return {part: shape} of the parameters of a layer, or a cell."""
    shapes: list[Shape] = [(rows, num_in), (rows, num_hidden)]
    return dict(zip(_PARTS, shapes + [(rows,)] * 2 if bias else shapes))


class Recurrent(Module):
    """What LSTM, GRU and RNN share: parameters, layers, directions.

    Parameters
    ----------
    input_size, hidden_size
        Features of x, and of the hidden state.
    num_layers
        Each on the outputs of the one below.
    bias
        Whether the products have biases, two each.
    batch_first
        x is [batch, time, features] instead of [time, batch, features].
    dropout
        Probability, on the outputs of all layers but the last.
    bidirectional
        A second run from the end; outputs stand side by side.
    dtype
        Of the parameters, such as "float32".

    Notes
    -----
    All values are drawn uniformly from +-1/sqrt(hidden_size).
    """

    _num_gates: int
    _num_states = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        dtype: DTypeLike = "float32",
    ) -> None:
        name = type(self).__name__
        check_sizes(name, input_size=input_size, hidden_size=hidden_size, num_layers=num_layers)
        if dropout and num_layers == 1:
            raise ConfigurationError(
                f"{name} with dropout = {dropout} and one layer; it comes after all layers but the "
                "last, so give num_layers of at least 2"
            )
        self.input_size, self.hidden_size = input_size, hidden_size
        self.num_layers, self.batch_first = num_layers, batch_first
        self.endings = ("", "_reverse") if bidirectional else ("",)
        rows = self._num_gates * hidden_size
        init = Uniform(hidden_size**-0.5)
        for layer in range(num_layers):
            num_in = input_size if layer == 0 else hidden_size * len(self.endings)
            for ending in self.endings:
                for part, shape in _shapes(rows, num_in, hidden_size, bias).items():
                    setattr(self, f"{part}_l{layer}{ending}", Parameter(shape, init, dtype))
        self.dropouts = ModuleList(Dropout(dropout, sample_dim=1) for _ in range(num_layers - 1))

    def check_input(self, x: Any) -> None:
        if x.ndim != 3 or x.shape[2] != self.input_size or x.shape[self.batch_first] == 0:
            order = "[batch, time" if self.batch_first else "[time, batch"
            raise ShapeError(
                f"{type(self).__name__} of x {x.shape}; wanted {order}, {self.input_size}], at "
                "least one step"
            )

    def _weights(self, layer, ending):
        """Return w_ih, w_hh, b_ih, b_hh of a layer and direction."""
        return [getattr(self, f"{part}_l{layer}{ending}", None) for part in _PARTS]

    def _starts(self, hx, x):
        """Return the states [batch, H] before the first step of each layer and direction, a tuple:
        those of hx [.., batch, H], of several as a tuple, or zeros where that is None.
        """
        count = self.num_layers * len(self.endings)
        shape = count, x.shape[not self.batch_first], self.hidden_size
        is_one = hx is None or self._num_states == 1
        several = (hx,) * self._num_states if is_one else hx
        return list(zip(*[_by_layer(type(self).__name__, each, shape, x) for each in several]))

    def forward(self, x: Tensor, hx: Any = None) -> tuple[Tensor, Any]:
        y, ends = self.run(x, hx, self.dropouts)
        last = tuple([stack(each) for each in zip(*ends)])
        return y, last if self._num_states > 1 else last[0]

    def run(
        self, x: Tensor, hx: Any, dropouts: Any, turn: Callable | None = None
    ) -> tuple[Tensor, list]:
        """Return the outputs of the last layer, and all states after the last step of each.

        Parameters
        ----------
        x, hx
            As forward() takes them.
        dropouts
            Of the outputs [time, batch, .] of each layer but the last.
        turn
            (compute, x, start, weights, is_reversed) -> what compute(x, start, weights) returns:
            the states [time, batch, H] of a layer in one direction, and a tuple of all states
            after the last step; the start is such a tuple. None: it is computed at once.
        """
        self.check_input(x)
        starts = iter(self._starts(hx, x))
        y = transpose(x, 0, 1) if self.batch_first else x  # [T, B, in]
        ends: list[tuple] = []
        for number in range(self.num_layers):
            outputs = []
            for ending in self.endings:
                given = flip(y, 0) if ending else y, next(starts), self._weights(number, ending)
                states, last = (
                    turn(self._layer, *given, ending != "") if turn else self._layer(*given)
                )
                outputs.append(flip(states, 0) if ending else states)
                ends.append(last)
            y = outputs[0] if len(outputs) == 1 else concatenate(outputs, 2)
            if number < self.num_layers - 1:
                y = dropouts[number](y)
        return (transpose(y, 0, 1) if self.batch_first else y), ends

    def _layer(self, x, start, weights):
        """Return the hidden states [T, B, H] of x [T, B, in], and all states after the last step.

        start   a tuple of states
        """
        raise NotImplementedError


def _by_layer(owner, states, shape, x):
    """Return states [layers * directions, batch, H] of this shape one by one; None: zeros."""
    if states is None:
        return [Tensor(fresh.zeros(shape[1:], x.dtype, xp_of(x.array)))] * shape[0]
    if states.shape != shape:
        raise ShapeError(f"{owner} with a state {states.shape}; wanted {shape}")
    return [getitem(states, number) for number in range(shape[0])]


class LSTM(Recurrent):
    """x -> (outputs, (h, c)): outputs of all steps, hidden states and cells after the last one.

    h and c are [num_layers * directions, batch, H]; (h0, c0) may be given, else they are 0
    For the other arguments see Recurrent.
    """

    _num_gates = 4
    _num_states = 2

    def _layer(self, x, start, weights):
        states, cell = lstm(x, *start, *weights)
        return states, (getitem(states, -1), cell)


class GRU(Recurrent):
    """x -> (outputs, h): outputs of all steps, and the hidden states after the last one.

    h is [num_layers * directions, batch, H]; h0 may be given, else it is 0
    For the other arguments see Recurrent.
    """

    _num_gates = 3

    def _layer(self, x, start, weights):
        states = gru(x, *start, *weights)
        return states, (getitem(states, -1),)


_NONLINEARITIES = {"tanh": tanh, "relu": relu}


class RNN(Recurrent):
    """x -> (outputs, h): h = nonlinearity(x W_ih^T + b_ih + h W_hh^T + b_hh), step after step.

    h is [num_layers * directions, batch, H]; h0 may be given, else it is 0.

    Parameters
    ----------
    input_size, hidden_size, num_layers
        As of Recurrent.
    nonlinearity
        "tanh" or "relu".
    **more
        As of Recurrent: bias, batch_first, dropout, bidirectional, dtype.
    """

    _num_gates = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        **more: Any,
    ) -> None:
        super().__init__(input_size, hidden_size, num_layers, **more)
        self._function = _nonlinearity("RNN", nonlinearity)

    def _layer(self, x, start, weights):
        states = _simple_steps(x, start[0], weights, self._function)
        return stack(states), (states[-1],)


def _nonlinearity(owner, name):
    is_known = is_among(name, _NONLINEARITIES)
    require(is_known, f"{owner} with nonlinearity", name, '"tanh" or "relu"')
    return _NONLINEARITIES[name]


def _simple_steps(x, hidden, weights, function) -> list[Tensor]:
    """Return the hidden state [B, H] after each step of x [T, B, in]."""
    w_ih, w_hh, b_ih, b_hh = weights
    from_input = linear(x, w_ih, b_ih)
    states = []
    for step in range(x.shape[0]):
        hidden = function(add(getitem(from_input, step), linear(hidden, w_hh, b_hh)))
        states.append(hidden)
    return states


class Cell(Module):
    """One step of a recurrent layer: (x [B, in], state [B, H]) -> state; without B for one sample.

    Parameters
    ----------
    input_size, hidden_size
        Features of x, and of the state, which is 0 if it is not given.
    bias
        Whether the products have biases, two each.
    dtype
        Of the parameters, such as "float32".

    Notes
    -----
    Parameters: weight_ih, weight_hh, bias_ih, bias_hh, drawn uniformly from +-1/sqrt(hidden_size).
    """

    num_gates: int

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, *, dtype: DTypeLike = "float32"
    ) -> None:
        check_sizes(type(self).__name__, input_size=input_size, hidden_size=hidden_size)
        self.hidden_size = hidden_size
        rows, init = self.num_gates * hidden_size, Uniform(hidden_size**-0.5)
        for name, shape in _shapes(rows, input_size, hidden_size, bias).items():
            setattr(self, name, Parameter(shape, init, dtype))

    def forward(self, x: Tensor, hx: Any = None) -> Any:
        is_single = x.ndim == 1
        rows = unsqueeze(x, 0) if is_single else x
        states = [self._state(each, rows, is_single) for each in self._given(hx)]
        weights = [getattr(self, name, None) for name in _PARTS]
        made = self._step(unsqueeze(rows, 0), states, weights)
        ends = [squeeze(each, 0) if is_single else each for each in made]
        return tuple(ends) if len(ends) > 1 else ends[0]

    def _step(self, x, states, weights) -> tuple[Tensor, ...]:
        """Return the states [B, H] after x [1, B, in]."""
        raise NotImplementedError

    def _given(self, hx):
        """Return the states that were given, one or two."""
        return (hx,)

    def _state(self, state, rows, is_single):
        shape = (rows.shape[0], self.hidden_size)
        if state is None:
            return Tensor(fresh.zeros(shape, rows.dtype, xp_of(rows.array)))
        state = unsqueeze(state, 0) if is_single else state
        if state.shape != shape:
            raise ShapeError(f"{type(self).__name__} with a state {state.shape}; wanted {shape}")
        return state


class LSTMCell(Cell):
    __doc__ = Cell.__doc__
    num_gates = 4

    def _given(self, hx):
        return (None, None) if hx is None else hx

    def _step(self, x, states, weights):
        hidden, cell = lstm(x, *states, *weights)
        return getitem(hidden, 0), cell


class GRUCell(Cell):
    __doc__ = Cell.__doc__
    num_gates = 3

    def _step(self, x, states, weights):
        return (getitem(gru(x, *states, *weights), 0),)


class RNNCell(Cell):
    """One step: nonlinearity(x W_ih^T + b_ih + h W_hh^T + b_hh), as Cell.

    Parameters
    ----------
    input_size, hidden_size, bias, dtype
        As of Cell.
    nonlinearity
        "tanh" or "relu".
    """

    num_gates = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        *,
        dtype: DTypeLike = "float32",
    ) -> None:
        super().__init__(input_size, hidden_size, bias, dtype=dtype)
        self._function = _nonlinearity("RNNCell", nonlinearity)

    def _step(self, x, states, weights):
        return (_simple_steps(x, *states, weights, self._function)[0],)
