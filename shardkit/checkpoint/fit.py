"""Fit: how what is stored goes with a model and its optimizer rule.

    stored                    kept by AdamW                 what happens
    model/...                 model/...                     must have the same names, shapes, dtype
    optimizer/velocity/...    -                             unused: left out
    -                         optimizer/first_moment/...    missing: starts at zero, as state that
                                                            is younger than the run

The user is told what is unused or missing. A load of the parameters alone begins a new training.
"""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from ..errors import CheckpointError
from ..optim.average import AVERAGE
from ..optim.description import rule_text
from .format.description import state_since
from .format.values import differences, text_of, with_defaults, with_lists
from .paths import (
    BUFFERS,
    MODEL,
    OPTIMIZER,
    averaged_path,
    check_averaged,
    is_aged,
    of_model,
    parameter_of,
    state_names,
    state_of,
)
from .selection import AVERAGED, Match, Selection

Form = tuple[tuple[int, ...], str]  # global shape and dtype of a tensor
_UPDATES = {"lora_rank", "lora_alpha", "lora_layers"}  # what a GPT has of LoRA


@dataclass(frozen=True)
class Stored:
    """What there is to be loaded.

    where         for messages: the folder
    description   as check_description() takes it
    tensors       {path: (global shape, dtype)}
    """

    where: str
    description: dict
    tensors: dict[str, Form]

    @property
    def num_updates(self) -> int:
        """Steps that were taken, and not skipped."""
        return self.description["step"] - (self.description.get("skipped_steps") or 0)


@dataclass(frozen=True)
class Wanted:
    """The part of a checkpoint that a model takes.

    tensors       {path: (global shape, dtype)} of its parameters and buffers, and of all state that
                  its rule keeps
    model         its class and configuration, as in the manifest
    num_features  of its input; None: it has no input features
    optimizer     its rule, as describe_rule() returns it
    can_be_late   the rule can handle state that began after the run did
    selection     what is taken
    awaited       names of the parameters that await the values of a checkpoint: none of them may be
                  left out
    frozen        names of its parameters that keep their values, and have no state in `tensors`
    defaults      function () -> {class: {argument: data}} of the model and what it is made of: of
                  arguments that a checkpoint of before says nothing of
    """

    tensors: dict[str, Form]
    model: dict
    num_features: int | None
    optimizer: dict
    can_be_late: bool
    selection: Selection = Selection()
    awaited: frozenset[str] = frozenset()
    frozen: tuple[str, ...] = ()
    defaults: Callable[[], dict[str, dict]] = dict

    @property
    def dtype(self) -> str:
        """The dtype of the parameters."""
        return next(iter(of_model(self.tensors).values()))[1]

    def fit(self, stored: Stored) -> "Fit":
        """Compare with what is stored.

        Errors: CheckpointError if it is of another model, its state is not whole, or a part of the
        rule's state is missing.
        """
        _check_state(stored)
        if self.selection.only == AVERAGED:
            check_averaged(stored.where, stored.tensors)
        return self._fit_of_names(stored) if self.selection.is_partial else self._whole_fit(stored)

    def _whole_fit(self, stored: Stored) -> "Fit":
        """Return the fit of everything, but for state that only one side has."""
        there, kept = state_names(stored.tensors), state_names(self.tensors)
        missing, thawed = self._state_to_begin(stored)
        buffers = [tensor for tensor in self.tensors if tensor.startswith(BUFFERS)]
        has_buffers = any(tensor.startswith(BUFFERS) for tensor in stored.tensors)
        fit = Fit(
            stored,
            self,
            missing,
            unused_state=[name for name in there if name not in kept or name in missing],
            missing_buffers=[] if has_buffers else buffers,  # as of older models: none is stored
            thawed=thawed,
        )
        _check_same(
            stored.where,
            {
                tensor: form
                for tensor, form in stored.tensors.items()
                if fit.takes(tensor) and self._keeps(tensor)
            },
            {tensor: form for tensor, form in self.tensors.items() if fit.takes(tensor)},
        )
        self._check_features(stored)
        if fit.only is None and fit.state_since and missing and not self.can_be_late:
            raise CheckpointError(
                f"{stored.where} was written under {fit.old_rule} and does not go on under "
                f"{fit.new_rule}: state that begins in the middle of a run needs its learning rate "
                'apart, and it has no rate(); use only="model" to begin with its parameters, or '
                "the rule that wrote it"
            )
        return fit

    def _state_to_begin(self, stored: Stored) -> tuple[list[str], list[str]]:
        """Return the names of state that starts at zero, and the parameters that have thawed.

        All of it does where a part would be younger than the rest, but before the first update all
        is as old, and an average begins with the weights, at any time; where parameters were frozen
        there; and where some of them had another rule, so that state is stored for a part.
        """
        there, kept = state_names(stored.tensors), state_names(self.tensors)
        frozen = stored.description.get("frozen") or ()
        thawed = [name for name in frozen if name not in self.frozen]
        missing = [name for name in kept if name not in there]
        shared = {*kept} - {*missing}
        is_younger = stored.num_updates > 0 and is_aged(missing)
        lacks_some = any(
            tensor not in stored.tensors and parameter_of(tensor) in stored.tensors
            for tensor in self.tensors
            if state_of(tensor) in shared
        )
        return (kept if is_younger or thawed or lacks_some else missing), thawed

    def _keeps(self, tensor: str) -> bool:
        """Return False for state of a parameter of the model that has none of this name: it is
        frozen, or has another rule.
        """
        is_state = state_of(tensor) is not None
        return not is_state or tensor in self.tensors or parameter_of(tensor) not in self.tensors

    def _fit_of_names(self, stored: Stored) -> "Fit":
        """Return the fit of parameters and buffers by their names; features stay as they are."""
        match = self.selection.match(stored.where, self.tensors, stored.tensors)
        if not match.taken >= {MODEL + name for name in self.awaited}:
            raise CheckpointError(
                f"{stored.where} would leave parameters of the model without any values: it was "
                "made by from_checkpoint() and awaits all of them; build it without, to keep its "
                "own"
            )
        kept = replace(stored, description={**stored.description, "active_features": None})
        return Fit(kept, self, [], match=match)

    def _check_features(self, stored: Stored) -> None:
        """Raise CheckpointError if the stored model uses features that this one does not have."""
        active, num_features = stored.description["active_features"], self.num_features
        if active is None:
            return
        if num_features is None or not active or max(active) >= num_features:
            own = "no" if num_features is None else num_features
            raise CheckpointError(
                f"{stored.where} is of another model: active_features = {active} in the "
                f"checkpoint, but the model has {own} input features"
            )


@dataclass(frozen=True)
class Fit:
    """A checkpoint that goes with a model.

    missing_state   names that the rule keeps and the checkpoint lacks, or holds without others that
                    would be younger
    unused_state    names that the checkpoint holds and the rule does not keep
    missing_buffers paths of buffers that the model has and the checkpoint lacks: all or none
    match           what a load by names takes; None: all
    thawed          parameters that were frozen there, without state, and are trained here
    """

    stored: Stored
    wanted: Wanted
    missing_state: list[str]
    unused_state: list[str] = field(default_factory=list)
    missing_buffers: list[str] = field(default_factory=list)
    match: Match | None = None
    thawed: list[str] = field(default_factory=list)

    @property
    def only(self) -> str | None:
        """What a load takes that does not go on with everything: see Selection."""
        return self.wanted.selection.only

    def taken(self, owned) -> list:
        """Return those of the (tensor path, Piece, array) that are to be filled, by stored path."""
        taken = [part for part in owned if self.takes(part[0])]
        if self.only != AVERAGED:
            return taken
        frozen = self.stored.description.get("frozen") or ()
        return [(averaged_path(tensor, frozen), piece, array) for tensor, piece, array in taken]

    def takes(self, tensor: str) -> bool:
        """Return True if a tensor of the model is filled."""
        if self.match is not None:
            return tensor in self.match.taken
        if tensor in self.missing_buffers:
            return False
        state, left_out = state_of(tensor), (*self.missing_state, *self.unused_state)
        return state is None or self.only is None and state not in left_out

    def report(self) -> dict[str, list[str]]:
        """Return the names of what only one side has, as load_model returns them."""
        match = self.match or Match(frozenset())
        return {
            "missing_state": self.missing_state,
            "unused_state": self.unused_state,
            "missing_names": match.missing_names
            + [tensor.removeprefix(BUFFERS) for tensor in self.missing_buffers],
            "unexpected_names": match.unexpected_names,
        }

    @property
    def old_rule(self) -> str:
        """The rule that wrote it, as text."""
        rule = self.stored.description["optimizer"]
        return "no rule" if rule is None else rule_text(rule)

    @property
    def new_rule(self) -> str:
        """The rule of the model, as text."""
        return rule_text(self.wanted.optimizer)

    @property
    def state_since(self) -> int:
        """After how many updates the state was zero with which the rule goes on."""
        if not self.wanted.optimizer["state"]:
            return 0
        is_new = is_aged(self.missing_state)  # also where parameters have thawed
        return self.stored.num_updates if is_new else state_since(self.stored.description)

    def goes_on_from(self) -> dict:
        """Return the description with which the model goes on.

        It is the stored one; with parameters alone, that of a beginning.
        """
        optimizer = {**self.wanted.optimizer, "state_since": self.state_since}
        description = {**self.stored.description, "optimizer": optimizer}
        if is_aged(self.missing_state):  # all are as old as the model
            description["objectives"] = None
        if self.only is None:
            return description
        return {
            **description,
            "step": 0,
            "samples_seen": 0,
            "data_position": {},
            "skipped_steps": 0,
            "loss_scale": None,
            "last_loss": None,
            "evaluation": None,
            "objectives": None,
            "optimizer": {**optimizer, "state_since": 0},
        }

    def warn(self) -> None:
        """Warn the user of load_model() of other settings and other optimizer state."""
        for difference in (_model_difference(self), self._rule_difference()):
            if difference:
                warnings.warn(f"{self.stored.where} was written under {difference}", stacklevel=5)
        if self.missing_buffers:
            names = ", ".join(tensor.removeprefix(BUFFERS) for tensor in self.missing_buffers)
            warnings.warn(
                f"{self.stored.where} holds no buffers; {names} begin with their initial values",
                stacklevel=5,
            )

    def _rule_difference(self) -> str:
        """Name optimizer state that is missing or unused, but for parameters alone."""
        if self.only is not None or self.stored.description["optimizer"] is None:
            return ""
        notes = []
        if self.missing_state:
            aged = [name for name in self.missing_state if name != AVERAGE]
            if aged:
                notes.append(f"state that starts at zero: {', '.join(aged)}")
            if AVERAGE in self.missing_state:
                notes.append("averages that start at the weights")
        if self.unused_state:
            notes.append(f"state that is left out: {', '.join(self.unused_state)}")
        if notes and self.thawed:
            notes.append(f"{len(self.thawed)} parameters, frozen there, have none")
        if not notes:
            return ""
        return f"{self.old_rule} and goes on under {self.new_rule}; {'; '.join(notes)}"


def _model_difference(fit: Fit) -> str:
    """Name settings that shapes do not show, such as the number of heads.

    The seed of initial weights does not matter, nor do updates that a partial load leaves out.
    """
    models = fit.stored.description["model"], fit.wanted.model
    names = ("class", "configuration")
    if all([models[0][name] == models[1][name] for name in names]):
        return ""
    different = _settings_apart(models, fit.wanted.defaults())
    ignored = {"seed"} | (_UPDATES if fit.match is not None else set())
    told = [
        f"{where} = {text_of(then):.200} there and {text_of(now):.200} here"
        for name, where, then, now in different
        if name not in ignored
    ]
    return f"other settings of the model: {', '.join(told)}" if told else ""


def _settings_apart(models: tuple, defaults: dict) -> Iterator[tuple]:
    """Yield (setting, where in it, data there, data here) of what two models have otherwise."""
    known = with_lists(defaults)
    of_model = known.get(models[1].get("import", ""), {})

    def defaults_of(name):
        return known.get(name, {})

    described = [{"class": each["class"], **of_model, **each["configuration"]} for each in models]
    there, here = [with_defaults(with_lists(each), defaults_of) for each in described]
    for name in [name for name in there if name in here]:
        for found in differences(there[name], here[name], name):
            yield name, *found


def _check_state(stored: Stored) -> None:
    """Raise CheckpointError unless the state that is named is stored for all parameters, but for
    frozen ones and those that had another rule.
    """
    where, optimizer = stored.where, stored.description["optimizer"] or {}
    there = state_names(stored.tensors)
    named = optimizer.get("state", there) if optimizer else []
    if sorted(named) != sorted(there):
        raise CheckpointError(
            f"{where} says that it keeps {', '.join(named) or 'no optimizer state'}, but holds "
            f"{', '.join(there) or 'none'}"
        )
    frozen = {f"{MODEL}{name}" for name in stored.description.get("frozen") or ()}
    spared = {
        f"{OPTIMIZER}{name}/{each}"
        for name, names in optimizer.get("spared", {}).items()
        for each in names
    }
    for tensor, (shape, _) in of_model(stored.tensors).items():
        for name in () if tensor in frozen else there:
            state = f"{OPTIMIZER}{name}/{tensor.removeprefix(MODEL)}"
            found = _shape_of(stored.tensors, state)
            if found != (None if state in spared else shape):
                raise CheckpointError(
                    f"{where} holds a parameter {tensor} of shape {list(shape)}, but {state} is "
                    f"{_shape_text(found)}"
                )


def _check_same(where: str, stored: dict[str, Form], wanted: dict[str, Form]) -> None:
    """Raise CheckpointError unless names, shapes and dtypes are those of the model.

    The message names the first tensor that differs.
    """
    tensors = sorted(wanted.keys() | stored.keys())
    for tensor in tensors:
        here, there = _shape_of(wanted, tensor), _shape_of(stored, tensor)
        if here != there:
            raise CheckpointError(
                f"{where} is of another model: {tensor} is {_shape_text(there)} in the checkpoint "
                f"and {_shape_text(here)} in the model"
            )
    for tensor in tensors:
        own, found = wanted[tensor][1], stored[tensor][1]
        if own != found:
            raise CheckpointError(f"{where} holds {found} numbers, the model is {own}")


def _shape_of(tensors: dict[str, Form], tensor: str) -> tuple[int, ...] | None:
    return tensors[tensor][0] if tensor in tensors else None


def _shape_text(shape) -> str:
    return "missing" if shape is None else f"of shape {list(shape)}"
