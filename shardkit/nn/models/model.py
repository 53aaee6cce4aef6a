"""What the models of this folder have in common, GPT and MLP apart, which record their settings."""

from typing import TYPE_CHECKING, Any

from ...annotations import DTypeLike
from ...arguments import is_integer, require
from ..autograd import Tensor
from ..layers.basic import check_sizes, checked_dtype
from ..layers.pooling import MaxPool1d, MaxPool2d, MaxPool3d
from ..loss import CrossEntropy, Loss, MeanSquaredError
from ..metrics import MAE, RMSE, Accuracy, MacroF1
from ..module import Module

MAX_POOLS = (MaxPool1d, MaxPool2d, MaxPool3d)


class ReadyModel(Module):
    """A model with initial weights, a loss and metrics; each says itself what it is built with."""

    if TYPE_CHECKING:

        def forward(self, x: Any) -> Tensor: ...

    def _checked(self, owner: str, seed: int, dtype: DTypeLike, **sizes: int) -> str:
        """Return the name of the dtype. Errors: ConfigurationError on any of these arguments."""
        check_sizes(owner, **sizes)
        require(is_integer(seed), f"{owner} with seed", seed, "an integer")
        return checked_dtype(owner, dtype)

    def _finish_for_numbers(self, seed: int, loss: Loss | None = None) -> None:
        """Finish a model whose outputs are numbers; the loss is the mean squared error, or this."""
        self.loss = MeanSquaredError() if loss is None else loss
        self.metrics = {"rmse": RMSE(), "mae": MAE()}
        self.finish(seed)

    def _finish_for_classes(self, seed: int, classes: int) -> None:
        """Finish a model whose outputs are logits of classes."""
        self.loss = CrossEntropy()
        self.metrics = {"accuracy": Accuracy(), "macro_f1": MacroF1(classes)}
        self.finish(seed)
