"""How what is stored goes with a model and its optimizer rule.

    stored                         kept by AdamW                 what happens
    model/...                      model/...                     must be the same names, shapes and dtype
    optimizer/velocity/...         -                             unused: left out
    -                              optimizer/first_moment/...    missing: zero, and of age zero from here

What is unused or missing is said. Parameters alone can be asked for; a training then begins with
them.
"""

import warnings
from dataclasses import dataclass

from ..errors import CheckpointError, ConfigurationError
from ..optim.description import rule_text

_MODEL, _OPTIMIZER = "model/", "optimizer/"


@dataclass(frozen=True)
class Wanted:
    """What a model takes from a checkpoint.

    shapes        {path: global shape} of its parameters, and of all state that its rule keeps
    dtype         of all these
    model         its class and configuration, as in the manifest
    num_features  of its input; None: it has no such thing
    optimizer     its rule, as describe_rule() tells it
    can_be_late   the rule can be told that its state began after the run did
    only          "model": take the parameters alone; None: go on with everything
    """

    shapes: dict[str, tuple[int, ...]]
    dtype: str
    model: dict
    num_features: int | None
    optimizer: dict
    can_be_late: bool
    only: str | None = None

    def taken(self, owned) -> list:
        """Return those of the (tensor path, Piece, array) that are to be filled."""
        return [part for part in owned if self.only is None or part[0].startswith(_MODEL)]

    def fit(self, where: str, description: dict, stored: dict, dtypes: dict[str, str]) -> "Fit":
        """Compare with what is stored.

        where   for messages: the folder      description   as check_description() takes it
        stored  {path: global shape}          dtypes        {path: dtype}
        Errors: CheckpointError if it is of another model, its state is not whole, or a part of the
        rule's state is missing.
        """
        _check_state(where, description, stored)
        there, kept = state_names(stored), state_names(self.shapes)
        missing, unused = [
            [name for name in a if name not in b] for a, b in ((kept, there), (there, kept))
        ]
        absent = {
            f"{_OPTIMIZER}{name}/" for name in (*missing, *unused, *(kept if self.only else ()))
        }
        stored, shapes = [
            {tensor: shape for tensor, shape in table.items() if _state_of(tensor) not in absent}
            for table in (stored, self.shapes)
        ]
        check_same_tensors(where, stored, {dtypes[tensor] for tensor in stored}, shapes, self.dtype)
        self._check_features(where, description["active_features"])
        fit = Fit(where, description, self.model, self.optimizer, missing, unused, only=self.only)
        if self.only is None and missing and fit.num_updates:
            self._check_age(fit, [name for name in kept if name in there])
        return fit

    def _check_features(self, where: str, active: list[int] | None) -> None:
        """Errors: CheckpointError if the stored model looks at features that this one cannot
        choose.
        """
        if active is not None and (
            self.num_features is None or not active or max(active) >= self.num_features
        ):
            own = "no" if self.num_features is None else self.num_features
            raise CheckpointError(
                f"{where} is of another model: active_features = {active} in the checkpoint, but the model has "
                f"{own} input features"
            )

    def _check_age(self, fit: "Fit", found: list[str]) -> None:
        """Errors: CheckpointError unless all state of the rule has one age, and the rule can be
        told which.
        """
        if found:
            reason = f"it holds {', '.join(found)} but no {', '.join(fit.missing_state)}, which would be younger"
        elif not self.can_be_late:
            reason = "state that begins in the middle of a run needs its learning rate apart, and it has no rate()"
        else:
            return
        raise CheckpointError(
            f"{fit.where} was written under {fit.old_rule} and does not go on under {fit.new_rule}: {reason}; "
            'use only="model" to begin with its parameters, or the rule that wrote it'
        )


@dataclass(frozen=True)
class Fit:
    """A checkpoint that goes with a model.

    missing_state   names that the rule keeps and the checkpoint lacks
    unused_state    names that the checkpoint holds and the rule does not keep
    """

    where: str
    description: dict
    model: dict
    optimizer: dict
    missing_state: list[str]
    unused_state: list[str]
    only: str | None = None

    @property
    def old_rule(self) -> str:
        """The rule that wrote it, as text."""
        return (
            "no rule"
            if self.description["optimizer"] is None
            else rule_text(self.description["optimizer"])
        )

    @property
    def new_rule(self) -> str:
        """The rule of the model, as text."""
        return rule_text(self.optimizer)

    @property
    def num_updates(self) -> int:
        """Steps that were taken, and not skipped."""
        return self.description["step"] - (self.description.get("skipped_steps") or 0)

    @property
    def state_since(self) -> int:
        """After how many updates the state was zero with which the rule goes on."""
        if not self.optimizer["state"]:
            return 0
        return self.num_updates if self.missing_state else state_since(self.description)

    def goes_on_from(self) -> dict:
        """Return the description with which the model goes on: as stored; with parameters alone,
        that of a beginning.
        """
        optimizer = {**self.optimizer, "state_since": self.state_since}
        if self.only is None:
            return {**self.description, "optimizer": optimizer}
        return {
            **self.description,
            "step": 0,
            "samples_seen": 0,
            "skipped_steps": 0,
            "loss_scale": None,
            "last_loss": None,
            "optimizer": {**optimizer, "state_since": 0},
        }

    def warn(self) -> None:
        """Say what differs, for the caller of the caller: settings of the model, and which state
        the rules keep.
        """
        for said in (self._said_of_model(), self._said_of_rule()):
            if said:
                warnings.warn(f"{self.where} was written under {said}", stacklevel=4)

    def _said_of_model(self) -> str:
        """Settings that shapes do not show, such as the number of heads; the seed of initial
        weights does not matter.
        """
        there, here = [
            {"class": model["class"], **_listed(model["configuration"])}
            for model in (self.description["model"], self.model)
        ]
        different = [
            f"{name} = {there[name]!r} there and {here[name]!r} here"
            for name in there
            if name in here and name != "seed" and there[name] != here[name]
        ]
        return f"other settings of the model: {', '.join(different)}" if different else ""

    def _said_of_rule(self) -> str:
        """Nobody expects state beside parameters alone."""
        said = (
            [f"state that starts at zero: {', '.join(self.missing_state)}"]
            if self.missing_state
            else []
        )
        said += (
            [f"state that is left out: {', '.join(self.unused_state)}"] if self.unused_state else []
        )
        if not said or self.only is not None or self.description["optimizer"] is None:
            return ""
        return f"{self.old_rule} and goes on under {self.new_rule}; {'; '.join(said)}"


def check_only(only) -> None:
    """Errors: ConfigurationError, which is a ValueError, unless this is None or "model"."""
    if only not in (None, "model"):
        raise ConfigurationError(f'only = {only!r}; wanted None or "model"')


def model_shapes(shapes: dict) -> dict:
    """Return those of the parameters."""
    return {tensor: shape for tensor, shape in shapes.items() if tensor.startswith(_MODEL)}


def state_names(tensors) -> list[str]:
    """Return the names of optimizer state among these paths, in their order."""
    return list(
        dict.fromkeys(
            tensor.split("/", 2)[1] for tensor in tensors if tensor.startswith(_OPTIMIZER)
        )
    )


def state_since(description: dict) -> int:
    """Return after how many updates the stored optimizer state was zero."""
    return (description["optimizer"] or {}).get("state_since") or 0


def _state_of(tensor: str) -> str:
    """optimizer/first_moment/ of a path that begins so."""
    return "/".join(tensor.split("/", 2)[:2]) + "/"


def _check_state(where: str, description: dict, stored: dict) -> None:
    """Errors: CheckpointError unless the state that is named is there, for all parameters in their
    shapes.
    """
    there = state_names(stored)
    named = [] if description["optimizer"] is None else description["optimizer"].get("state", there)
    if sorted(named) != sorted(there):
        raise CheckpointError(
            f"{where} says that it keeps {', '.join(named) or 'no optimizer state'}, but holds "
            f"{', '.join(there) or 'none'}"
        )
    for name in there:
        for tensor, shape in stored.items():
            state = f"{_OPTIMIZER}{name}/{tensor.removeprefix(_MODEL)}"
            if tensor.startswith(_MODEL) and stored.get(state) != shape:
                raise CheckpointError(
                    f"{where} holds a parameter {tensor} of shape {list(shape)}, but {state} is "
                    f"{_describe(stored.get(state))}"
                )


def check_same_tensors(
    where: str, stored: dict, stored_dtypes: set[str], shapes: dict, dtype: str
) -> None:
    """Errors: CheckpointError, by the first tensor that differs, unless names, shapes and dtype are
    those of the model.
    """
    for tensor in sorted(shapes.keys() | stored.keys()):
        here, there = shapes.get(tensor), stored.get(tensor)
        if here != there:
            raise CheckpointError(
                f"{where} is of another model: {tensor} is {_describe(there)} in the checkpoint "
                f"and {_describe(here)} in the model"
            )
    if stored_dtypes - {dtype}:
        raise CheckpointError(
            f"{where} holds {min(stored_dtypes - {dtype})} numbers, the model is {dtype}"
        )


def _listed(value):
    """The same with lists for tuples, as JSON has them."""
    if isinstance(value, dict):
        return {name: _listed(below) for name, below in value.items()}
    return [_listed(below) for below in value] if isinstance(value, (list, tuple)) else value


def _describe(shape) -> str:
    return "missing" if shape is None else f"of shape {list(shape)}"
