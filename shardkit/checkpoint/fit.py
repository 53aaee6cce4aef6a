"""Fit: how what is stored goes with a model and its optimizer rule.

    stored                    kept by AdamW                 what happens
    model/...                 model/...                     must have the same names, shapes, dtype
    optimizer/velocity/...    -                             unused: left out
    -                         optimizer/first_moment/...    missing: starts at zero, as state that
                                                            is younger than the run

The user is told what is unused or missing. A load of the parameters alone begins a new training.
"""

import warnings
from dataclasses import field

from ..errors import CheckpointError
from ..optim.average import AVERAGE
from ..optim.description import rule_text
from ..values import dataclass
from .format.description import state_since
from .format.values import text_of, with_lists
from .paths import (
    BUFFERS,
    MODEL,
    OPTIMIZER,
    averaged_path,
    check_averaged,
    is_aged,
    model_shapes,
    parameter_of,
    state_names,
    state_of,
    without_buffers,
    without_state,
    without_unused_state,
)
from .selection import AVERAGED, Match, Selection

_UPDATES = {"lora_rank", "lora_alpha", "lora_layers"}  # what a GPT has of LoRA


@dataclass(frozen=True)
class Wanted:
    """The part of a checkpoint that a model takes.

    shapes        {path: global shape} of its parameters, and of all state that its rule keeps
    dtype         of all these
    model         its class and configuration, as in the manifest
    num_features  of its input; None: it has no input features
    optimizer     its rule, as describe_rule() returns it
    can_be_late   the rule can handle state that began after the run did
    selection     what is taken
    buffers       {path: dtype} of its buffers, which are in `shapes` too
    awaited       names of the parameters that await the values of a checkpoint: none of them may be
                  left out
    frozen        names of its parameters that keep their values, and have no state in `shapes`
    """

    shapes: dict[str, tuple[int, ...]]
    dtype: str
    model: dict
    num_features: int | None
    optimizer: dict
    can_be_late: bool
    selection: Selection = Selection()
    buffers: dict[str, str] = field(default_factory=dict)
    awaited: frozenset[str] = frozenset()
    frozen: tuple[str, ...] = ()

    def fit(self, where: str, description: dict, stored: dict, dtypes: dict[str, str]) -> "Fit":
        """Compare with what is stored.

        where   for messages: the folder      description   as check_description() takes it
        stored  {path: global shape}          dtypes        {path: dtype}
        Errors: CheckpointError if it is of another model, its state is not whole, or a part of the
        rule's state is missing.
        """
        _check_state(where, description, stored)
        if self.selection.only == AVERAGED:
            check_averaged(where, stored)
        if self.selection.is_partial:
            return self._partial_fit(where, description, stored, dtypes)
        there = state_names(stored)
        kept = state_names(self.shapes)
        missing = [name for name in kept if name not in there]
        thawed = [name for name in (description.get("frozen") or ()) if name not in self.frozen]
        if self._begins_anew(description, missing) or thawed or self._lacks(stored, missing):
            missing = kept
        unused = [name for name in there if name not in kept or name in missing]
        missing_buffers = self._missing_buffers(where, stored, dtypes)
        stored = without_buffers(stored)
        left_out = {*missing, *unused, *(kept if self.selection.only else ())}
        stored = without_unused_state(without_state(stored, left_out), self.shapes)
        stored_dtypes = {dtypes[tensor] for tensor in stored}
        check_same_tensors(
            where,
            stored,
            stored_dtypes,
            without_state(without_buffers(self.shapes), left_out),
            self.dtype,
        )
        self._check_features(where, description["active_features"])
        fit = Fit(
            where,
            description,
            self.model,
            self.optimizer,
            missing,
            unused,
            only=self.selection.only,
            missing_buffers=missing_buffers,
            thawed=thawed,
        )
        if self.selection.only is None and fit.state_since and missing and not self.can_be_late:
            raise CheckpointError(
                f"{where} was written under {fit.old_rule} and does not go on under "
                f"{fit.new_rule}: state that begins in the middle of a run needs its learning rate "
                'apart, and it has no rate(); use only="model" to begin with its parameters, or '
                "the rule that wrote it"
            )
        return fit

    def _lacks(self, stored: dict, missing: list[str]) -> bool:
        """Return True if any state but `missing` is stored for some of these parameters, and not
        for others, which had another rule.
        """
        states = [tensor for tensor in self.shapes if state_of(tensor) is not None]
        wanted = [tensor for tensor in states if state_of(tensor) not in missing]
        return any(tensor not in stored and parameter_of(tensor) in stored for tensor in wanted)

    def _partial_fit(self, where, description, stored, dtypes) -> "Fit":
        """Return the fit of parameters and buffers by their names; features stay as they are."""
        here = {
            tensor: (shape, self.buffers.get(tensor, self.dtype))
            for tensor, shape in self.shapes.items()
        }
        there = {tensor: (shape, dtypes[tensor]) for tensor, shape in stored.items()}
        match = self.selection.match(where, here, there)
        if not match.taken >= {MODEL + name for name in self.awaited}:
            raise CheckpointError(
                f"{where} would leave parameters of the model without any values: it was made by "
                "from_checkpoint() and awaits all of them; build it without, to keep its own"
            )
        return Fit(
            where,
            {**description, "active_features": None},
            self.model,
            self.optimizer,
            [],
            [],
            only=self.selection.only,
            match=match,
        )

    def _missing_buffers(self, where: str, stored: dict, dtypes: dict[str, str]) -> list[str]:
        """Return the paths of all buffers if none is stored, as in checkpoints of older models.

        Errors: CheckpointError if some are stored, and not the model's.
        """
        there = {tensor: shape for tensor, shape in stored.items() if tensor.startswith(BUFFERS)}
        if not there:
            return list(self.buffers)
        here = {tensor: self.shapes[tensor] for tensor in self.buffers}
        for tensor in sorted(here.keys() | there.keys()):
            check_same_tensors(
                where,
                {tensor: there[tensor]} if tensor in there else {},
                {dtypes[tensor]} if tensor in there else set(),
                {tensor: here[tensor]} if tensor in here else {},
                self.buffers.get(tensor, ""),
            )
        return []

    def _check_features(self, where: str, active: list[int] | None) -> None:
        """Raise CheckpointError if the stored model uses features that this one does not have."""
        if active is None:
            return
        num_features = self.num_features
        if num_features is None or not active or max(active) >= num_features:
            own = "no" if num_features is None else num_features
            raise CheckpointError(
                f"{where} is of another model: active_features = {active} in the checkpoint, "
                f"but the model has {own} input features"
            )

    @staticmethod
    def _begins_anew(description: dict, missing: list[str]) -> bool:
        """Return True if all state must start at zero, since some would be younger than the rest.

        Before the first update all is as old. An average begins with the weights, at any time.
        """
        num_updates = description["step"] - (description.get("skipped_steps") or 0)
        return num_updates > 0 and is_aged(missing)


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

    where: str
    description: dict
    model: dict
    optimizer: dict
    missing_state: list[str]
    unused_state: list[str]
    only: str | None = None
    missing_buffers: list[str] = field(default_factory=list)
    match: Match | None = None
    thawed: list[str] = field(default_factory=list)

    def taken(self, owned) -> list:
        """Return those of the (tensor path, Piece, array) that are to be filled, by stored path."""
        taken = [part for part in owned if self._takes(part[0])]
        if self.only != AVERAGED:
            return taken
        frozen = self.description.get("frozen") or ()
        return [(averaged_path(tensor, frozen), piece, array) for tensor, piece, array in taken]

    def _takes(self, tensor: str) -> bool:
        if self.match is not None:
            return tensor in self.match.taken
        if tensor in self.missing_buffers:
            return False
        if not tensor.startswith(OPTIMIZER):
            return True
        return self.only is None and state_of(tensor) not in self.missing_state

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
        rule = self.description["optimizer"]
        return "no rule" if rule is None else rule_text(rule)

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
        is_new = is_aged(self.missing_state)  # also where parameters have thawed
        return self.num_updates if is_new else state_since(self.description)

    def goes_on_from(self) -> dict:
        """Return the description with which the model goes on.

        It is the stored one; with parameters alone, that of a beginning.
        """
        optimizer = {**self.optimizer, "state_since": self.state_since}
        if self.only is None:
            return {**self.description, "optimizer": optimizer}
        return {
            **self.description,
            "step": 0,
            "samples_seen": 0,
            "data_position": {},
            "skipped_steps": 0,
            "loss_scale": None,
            "last_loss": None,
            "evaluation": None,
            "optimizer": {**optimizer, "state_since": 0},
        }

    def warn(self) -> None:
        """Warn the user of load_model() of other settings and other optimizer state."""
        for difference in (self._model_difference(), self._rule_difference()):
            if difference:
                warnings.warn(f"{self.where} was written under {difference}", stacklevel=5)
        if self.missing_buffers:
            names = ", ".join(tensor.removeprefix(BUFFERS) for tensor in self.missing_buffers)
            warnings.warn(
                f"{self.where} holds no buffers; {names} begin with their initial values",
                stacklevel=5,
            )

    def _model_difference(self) -> str:
        """Name settings that shapes do not show, such as the number of heads.

        The seed of initial weights does not matter, nor do updates that a partial load leaves out.
        """
        ignored = {"seed"} | (_UPDATES if self.match is not None else set())
        there, here = [
            {"class": model["class"], **with_lists(model["configuration"])}
            for model in (self.description["model"], self.model)
        ]
        different = [
            f"{name} = {text_of(there[name]):.200} there and {text_of(here[name]):.200} here"
            for name in there
            if name in here and name not in ignored and there[name] != here[name]
        ]
        return f"other settings of the model: {', '.join(different)}" if different else ""

    def _rule_difference(self) -> str:
        """Name optimizer state that is missing or unused, but for parameters alone."""
        if self.only is not None or self.description["optimizer"] is None:
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


def _check_state(where: str, description: dict, stored: dict) -> None:
    """Raise CheckpointError unless the state that is named is stored for all parameters, but for
    frozen ones and those that had another rule.
    """
    there = state_names(stored)
    named = [] if description["optimizer"] is None else description["optimizer"].get("state", there)
    if sorted(named) != sorted(there):
        raise CheckpointError(
            f"{where} says that it keeps {', '.join(named) or 'no optimizer state'}, but holds "
            f"{', '.join(there) or 'none'}"
        )
    frozen = {f"{MODEL}{name}" for name in description.get("frozen") or ()}
    spared = (description["optimizer"] or {}).get("spared", {})
    spared = {f"{OPTIMIZER}{name}/{each}" for name, names in spared.items() for each in names}
    for tensor, shape in model_shapes(stored).items():
        for name in () if tensor in frozen else there:
            state = f"{OPTIMIZER}{name}/{tensor.removeprefix(MODEL)}"
            if stored.get(state) != (None if state in spared else shape):
                raise CheckpointError(
                    f"{where} holds a parameter {tensor} of shape {list(shape)}, but {state} is "
                    f"{_shape_text(stored.get(state))}"
                )


def check_same_tensors(
    where: str, stored: dict, stored_dtypes: set[str], shapes: dict, dtype: str
) -> None:
    """Raise CheckpointError unless names, shapes and dtype are those of the model.

    The message names the first tensor that differs.
    """
    for tensor in sorted(shapes.keys() | stored.keys()):
        here, there = shapes.get(tensor), stored.get(tensor)
        if here != there:
            raise CheckpointError(
                f"{where} is of another model: {tensor} is {_shape_text(there)} in the checkpoint "
                f"and {_shape_text(here)} in the model"
            )
    others = stored_dtypes - {dtype}
    if others:
        raise CheckpointError(f"{where} holds {min(others)} numbers, the model is {dtype}")


def _shape_text(shape) -> str:
    return "missing" if shape is None else f"of shape {list(shape)}"
