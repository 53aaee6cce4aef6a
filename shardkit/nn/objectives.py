"""Several losses, each of which trains a part of one module: the networks of a GAN, an actor and a
critic.

    discriminator  loss d --> gradients of discriminator.* alone --> step     all else rests
    generator      loss g --> gradients of generator.* alone     --> step     and passes gradients
"""

from collections.abc import Callable
from typing import Any

from ..arguments import require
from ..refusal import check_made, check_usable
from .autograd import Tensor
from .loss import FunctionLoss, Loss
from .module import Module


class Objectives(Loss):
    """Losses by the part of the model that each trains; as the loss of a model or configuration.

    Parameters
    ----------
    losses
        {name: function (prediction, y) -> what a loss returns}. Each trains the parameters NAME.*
        alone; what is not frozen belongs to one. A step is one of each, in this order.
    together
        All gradients are computed before the first step; False: each sees the steps before it.

    Notes
    -----
    Each has its own norm that clips, and counts its own steps; its rule is its own where a
    sk.ParameterGroup says so. Evaluated, the loss is the sum of all.
    """

    def __init__(
        self, losses: dict[str, Callable[[Any, Any], Any]], *, together: bool = False
    ) -> None:
        self.losses, self.together = losses, together
        check_made(self, self._check)

    def _check(self):
        losses = self.losses.values() if isinstance(self.losses, dict) else ()
        are_functions = [callable(f) and not isinstance(f, Loss) for f in losses]
        wanted = "{name: function (prediction, y) -> mean loss}"
        require(all(are_functions or [False]), "Objectives with losses", self.losses, wanted)
        require(type(self.together) is bool, "Objectives with together", self.together, "a bool")

    def total(self, prediction: Any, y: Any) -> Tensor:
        losses = map(FunctionLoss, self.losses.values())
        first, *others = (loss.total(prediction, y) for loss in losses)
        return sum(others, start=first)

    def count(self, y: Any) -> float:
        return FunctionLoss(None).count(y)


def owners_in(model: Module, loss: Any) -> dict[str, str]:
    """Return {name of a trained parameter: the objective that trains it}; {} of another loss.

    loss   in place of the model's own; None: that
    Errors: ConfigurationError if one has no parameters to train, or a parameter has none.
    """
    objectives = loss or model.loss
    if not isinstance(objectives, Objectives):
        return {}
    check_usable(objectives)
    trained = [name for name, p in model.named_parameters().items() if p.requires_grad]
    owners = {name: name.partition(".")[0] for name in trained}
    names, parts = list(objectives.losses), list(dict.fromkeys(owners.values()))
    _check_apart(model, owners)
    wanted = f"those of what is trained, {', '.join(parts)}; or freeze parts: frozen=..."
    require({*names} == {*parts}, "Objectives with the names", ", ".join(names), wanted)
    return owners


def _check_apart(model, owners):
    wanted = "a part of its own, with an objective, for what they share; or frozen=..."
    names = {p: name for name, p in model.named_parameters().items()}
    modules = model.named_modules()
    for part in dict.fromkeys(owners.values()):
        for name in map(names.get, modules[part].parameters() if part in modules else ()):
            other = owners.get(name, part)
            require(other == part, "Objectives with", f"{name} of {other} in {part}, too", wanted)
