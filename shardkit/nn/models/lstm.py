"""LSTM: layers over sequences, and a linear map of the last step or of each.

x [batch, time, features] --layers--> [batch, time, width] --head--> [batch, out_features]
"""

from ...annotations import DTypeLike, Shape
from ...arguments import is_among, require
from ..layers.basic import Dropout, Linear, input_tensor
from ..layers.recurrent import LSTM
from ..module import Module, ModuleList, numbered
from ..on_parts import partwise
from ..ops.shape import getitem
from .model import ReadyModel

READOUTS = ("last", "steps")


@partwise
class LSTMLayer(Module):
    """One layer over the sequence, and dropout on its outputs: a block."""

    def __init__(self, features: int, width: int, dropout: float, *, dtype):
        self.lstm = LSTM(features, width, batch_first=True, dtype=dtype)
        self.dropout = Dropout(dropout, sample_dim=0)

    def check_input(self, x):
        self.lstm.check_input(x)

    def forward(self, x):
        y, _ = self.lstm(input_tensor(x, self.lstm.weight_hh_l0.dtype))
        return self.dropout(y)


class LSTMHead(Module):
    """The answer from the last step, or one for each step."""

    def __init__(self, width: int, out_features: int, readout: str, *, dtype):
        self.readout = readout
        self.map = Linear(width, out_features, dtype=dtype)

    def forward(self, x):
        return self.map(getitem(x, (slice(None), -1)) if self.readout == "last" else x)


class LSTMModel(ReadyModel):
    """x [batch, time, features] -> [batch, out_features], or [batch, time, out_features].

    The loss is the mean squared error per element; metrics: RMSE, MAE.

    Parameters
    ----------
    features, out_features
        Of x, and of the output.
    width, layers
        Of the recurrent layers, each a block.
    readout
        "last": from the last step; "steps": one answer for each.
    dropout
        Probability, on the outputs of all layers but the last.
    seed, dtype
        Of the initial weights: an integer, and a name such as "float32".
    """

    def __init__(
        self,
        features: int,
        out_features: int,
        *,
        width: int = 64,
        layers: int = 2,
        readout: str = "last",
        dropout: float = 0.0,
        seed: int = 0,
        dtype: DTypeLike = "float32",
    ) -> None:
        sizes = {"features": features, "out_features": out_features}
        dtype = self._checked("LSTM", seed, dtype, **sizes, width=width, layers=layers)
        known = f"one of {', '.join(READOUTS)}"
        require(is_among(readout, READOUTS), "LSTM with readout", readout, known)
        self._readout, self._out_features = readout, out_features
        self.layers = ModuleList(
            LSTMLayer(
                width if index else features,
                width,
                dropout if index < layers - 1 else 0.0,
                dtype=dtype,
            )
            for index in range(layers)
        )
        self.head = LSTMHead(width, out_features, readout, dtype=dtype)
        self._finish_for_numbers(seed)

    def blocks(self) -> list[tuple[str, Module]]:
        return [*numbered("layers", self.layers), ("head", self.head)]

    def output_shape(self, input_shape: Shape) -> Shape | None:
        kept = input_shape[:1] if self._readout == "last" else input_shape[:2]
        return (*kept, self._out_features)
