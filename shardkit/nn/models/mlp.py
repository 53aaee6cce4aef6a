"""MLP: layers of units, each fully connected to the one before."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...annotations import DTypeLike, Shape
from ...arguments import is_among, is_integer, require
from ...errors import ConfigurationError
from ..autograd import Tensor
from ..features import InputFeatures
from ..layers.basic import DenseLayer, check_sizes, checked_dtype
from ..layers.embedding import EmbeddedColumns
from ..loss import CrossEntropy, MeanSquaredError
from ..metrics import MAE, R2, RMSE, Accuracy, MacroF1
from ..module import Module, ModuleList, numbered
from ..ops.activation import gelu, relu, silu, tanh

ACTIVATIONS = {"gelu": gelu, "relu": relu, "tanh": tanh, "silu": silu}
TASKS = {"regression": MeanSquaredError, "classification": CrossEntropy}


class MLP(Module):
    """x [batch, sizes[0]] -> [batch, sizes[-1]], through layers of sizes[1], sizes[2], ... units.

    Parameters
    ----------
    sizes
        At least input and output.
    activation
        Between the layers: "gelu", "relu", "tanh" or "silu"; the last layer has none.
    task
        "regression": y [batch, sizes[-1]], the loss is the mean squared error per element;
        "classification": y [batch] class numbers, outputs are logits, the loss is the cross-entropy
        per sample. Metrics: RMSE, MAE, R2; accuracy, macro F1.
    seed, dtype
        Of the initial weights: an integer, and a name such as "float32".
    feature_names
        Of the columns of x; None: feature_0, feature_1, ...
    embeddings
        Rows and width of what the last columns of x look up, whose values are ids; sizes[0] counts
        such a column once; None: nothing.

    Examples
    --------
    >>> model = sk.models.MLP([4, 8, 1])
    >>> model.parameter_count
    49
    >>> model.predict(np.ones((2, 4))).shape
    (2, 1)
    """

    if TYPE_CHECKING:

        def forward(self, x: Any) -> Tensor: ...

    def __init__(
        self,
        sizes: Sequence[int],
        activation: str = "gelu",
        task: str = "regression",
        seed: int = 0,
        dtype: DTypeLike = "float32",
        feature_names: Sequence[str] | None = None,
        embeddings: Sequence[tuple[int, int]] | None = None,
    ) -> None:
        self._sizes = tuple(sizes)
        self._activation = activation
        self._task = task
        self._seed = seed
        self._dtype = checked_dtype("MLP", dtype)
        self._check()
        self.features = InputFeatures(self._sizes[0], feature_names, dtype=self._dtype)
        self.embedded = EmbeddedColumns(embeddings, dtype=self._dtype) if embeddings else None
        into = self._sizes[0] + sum(width - 1 for _, width in embeddings or ())
        ends = zip((into, *self._sizes[1:]), self._sizes[1:])
        last = len(self._sizes) - 2
        self.layers = ModuleList(
            DenseLayer(
                num_in,
                num_out,
                activation=ACTIVATIONS[activation] if index < last else None,
                dtype=self._dtype,
            )
            for index, (num_in, num_out) in enumerate(ends)
        )
        self.loss = TASKS[task]()
        self.metrics = self._own_metrics()
        self.finish(seed)

    def _check(self):
        """Raise ConfigurationError on arguments that mean nothing."""
        if len(self._sizes) < 2:
            raise ConfigurationError(
                f"MLP with sizes = {self._sizes}; wanted at least two, of input and output"
            )
        check_sizes("MLP", **{f"sizes[{index}]": size for index, size in enumerate(self._sizes)})
        for name, value, known in (
            ("activation", self._activation, ACTIVATIONS),
            ("task", self._task, TASKS),
        ):
            require(is_among(value, known), f"MLP with {name}", value, f"one of {', '.join(known)}")
        require(is_integer(self._seed), "MLP with seed", self._seed, "an integer")

    def _own_metrics(self):
        if self._task == "regression":
            return {"rmse": RMSE(), "mae": MAE(), "r2": R2()}
        return {"accuracy": Accuracy(), "macro_f1": MacroF1(self._sizes[-1])}

    def blocks(self) -> list[tuple[str, Module]]:
        embedded = [] if self.embedded is None else [("embedded", self.embedded)]
        return [("features", self.features), *embedded, *numbered("layers", self.layers)]

    def output_shape(self, input_shape: Shape) -> Shape | None:
        return (*input_shape[:-1], self._sizes[-1])
