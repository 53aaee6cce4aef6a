"""The state of a model beside its weights: optimizer state, the rule that uses it, and counts.

    units of this rank --owned_boxes()--> (path, box, view), ...      what a checkpoint reads
                       --counted_boxes()-->                           what it writes

Every method is collective over the mesh, unless it says otherwise.
"""

from itertools import chain
from math import prod

from ...comm.backend import CommunicationBackend
from ...comm.same import alike
from ...nn.module import Module
from ...optim.description import describe_rule
from ...optim.groups import check_successor, groups_by_name, rule_for
from ...optim.late import on_state_since
from ...optim.rules import Rule
from ...refusal import check_usable
from ..fingerprint import describe
from ..tensor.claims import is_counted
from .averaged import Averages
from .buffers import Buffers
from .numerics import LossScale
from .votes import Skips


class State:
    """All that a checkpoint of one model holds.

    weights         of the same model (weights.py)
    buffers         of the same model (buffers.py)
    averages        of its weights, if the rule keeps some (averaged.py)
    rule            the optimizer rule that the next step applies; groups: with other constants
    other_rule      the same, if it is another than the configuration's; else None
    step_number     global batches trained on; where the data goes on
    samples_seen    trained on, over all data ranks
    skips           the steps that changed nothing
    state_since     after how many of the other steps the optimizer state was zero
    updates         {objective: how many its rule has made}; {"": ...} with one loss
    """

    def __init__(
        self,
        model: Module,
        world: CommunicationBackend,
        weights,
        buffers: Buffers,
        plan,
        groups,
    ):
        self.weights, self.rule = weights, plan.rule
        self.other_rule: Rule | None = None
        self.buffers = buffers
        self.averages = Averages(weights, plan.owners)
        self.loss_scale: LossScale = plan.loss_scale
        self.step_number = self.samples_seen = self.state_since = 0
        self.skips = Skips()
        self.updates = dict.fromkeys(plan.owners.values() or [""], 0)
        self._model, self._world = model, world
        self._groups = groups_by_name(model.named_parameters(), groups, plan.rule)

    # ---- what a checkpoint holds -----------------------------------------------------------------

    def owned_boxes(self) -> list[tuple]:
        """Return (path, piece of the whole tensor, 1-D view) of all that this rank keeps.

        No communication. Parameters that several tensor ranks hold are here on each of them: a rank
        reads these.
        """
        self.averages.check_not_in_use("load and copy")
        return self.weights.boxes_of() + self.buffers.boxes()

    def counted_boxes(self) -> list[tuple]:
        """Return the same without replicas: over all ranks they tile every tensor exactly once.

        No communication. A rank writes these.
        """
        self.weights.check()
        self.averages.check_not_in_use("save")
        parameters = self._model.named_parameters()
        boxes = self.weights.boxes_of(with_copies=False)
        counted = [box for box in boxes if is_counted(parameters[box[1].name])]
        return counted + self.buffers.boxes(counted=True)

    def tensors(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Return {path: (global shape, dtype)} of all a checkpoint holds: what has elements."""
        parameters, dtype = self._model.named_parameters(), self.weights.units[0].dtype
        tensors = {
            f"{group}/{name}": (parameters[name].global_shape, dtype)
            for name, states in self._states_of_parameters().items()
            for group in ("model", *(f"optimizer/{state}" for state in states))
            if prod(parameters[name].global_shape)
        }
        return tensors | self.buffers.tensors()

    @property
    def state_names(self) -> tuple[str, ...]:
        """The names of the optimizer state: of the rule, and of rules of groups."""
        return tuple(dict.fromkeys(chain.from_iterable(self._states_of_parameters().values())))

    def _states_of_parameters(self) -> dict[str, tuple[str, ...]]:
        """Return {parameter: the names of its state}; a frozen one has none."""
        return {
            name: rule_for(name, self.rule, self._groups).state_names if each.requires_grad else ()
            for name, each in self._model.named_parameters().items()
        }

    def description(self) -> dict:
        """Return what a checkpoint says about the rule.

        spared   {name of state: trained parameters whose rules keep none of it}, if there are any
        """
        frozen, names = set(self.frozen()), self.state_names
        states = self._states_of_parameters()
        trained = {name: kept for name, kept in states.items() if name not in frozen}
        described = {**describe_rule(self.rule), "state": list(names)}
        spared = {
            state: [name for name, kept in trained.items() if state not in kept] for state in names
        }
        spared = {state: names for state, names in spared.items() if names}
        return {**described, "spared": spared} if spared else described

    def frozen(self) -> list[str]:
        """Return the names of the parameters that keep their values."""
        parameters = self._model.named_parameters()
        return [name for name, parameter in parameters.items() if not parameter.requires_grad]

    # ---- going on from elsewhere -----------------------------------------------------------------

    def start_over(self) -> None:
        """Make parameters, optimizer state and buffers as the seed makes them."""
        self.buffers.start_over()
        self.weights.start_over()

    def counts(self) -> dict:
        """Return what a checkpoint says of the steps that were taken."""
        return {
            "step": self.step_number,
            "samples_seen": self.samples_seen,
            "skipped_steps": self.skips.total,
            "loss_scale": self.loss_scale.state(),
            "objectives": self.updates,
        }

    def restore(self, counts: dict, state_since: int = 0, *, awaits_values: bool = False) -> None:
        """Go on from counts(), after all owned boxes were written and gradients dropped.

        awaits_values   what was written are no values yet
        """
        self.state_since = state_since
        self.updates = _updates_of(counts, self.updates)
        self._tell_units_the_rule()
        self.step_number, self.samples_seen = counts["step"], counts["samples_seen"]
        self.skips = Skips(counts.get("skipped_steps", 0))
        self.loss_scale.restore(counts.get("loss_scale"))
        self.weights.replace(awaits_values=awaits_values)

    def copy_from(self, other: "State") -> None:
        """Take over the state of a model on the same mesh, under the same policy."""
        self.weights.wait_for_readers()
        for (_, _, mine), (_, _, theirs) in zip(self.owned_boxes(), other.owned_boxes()):
            mine[...] = theirs
        awaits_values = other.weights.awaits_values
        self.restore(other.counts(), other.state_since, awaits_values=awaits_values)

    def set_weights(self, vector) -> None:
        """Take the parameters from a whole vector. Errors: as Weights.set()."""
        self.averages.check_not_in_use("set parameters")
        self.weights.set(vector)

    def averaged(self):
        """Return a context in which the averages that the rule keeps are the weights. Collective.

        Errors, on all ranks: ShardingError if it keeps none, or in such a context.
        """
        return self.averages.in_use(self)

    def begin_averages(self) -> None:
        """Let the averages be the weights that were loaded, and replicas follow."""
        self.averages.begin()
        self.weights.settle()

    # ---- the rule --------------------------------------------------------------------------------

    def use_rule(self, rule) -> None:
        """Go on with another rule on the state that is there.

        Errors, on all ranks: ShardingError if it keeps other state, or is not the same on all.
        """
        with alike(self._world, call="use_rule") as facts:
            check_usable(rule)
            check_successor(self.rule, rule, self._groups)
            facts["the rule"] = describe(rule)
        self.rule = self.other_rule = rule
        self._tell_units_the_rule()

    def _tell_units_the_rule(self):
        for unit in self.weights.units:
            unit.use_rule(on_state_since(self.rule, self.state_since))

    def reset(self) -> None:
        """Clear the optimizer state, and count from the first step again; parameters stay."""
        self.clear()
        counts = {"step": 0, "samples_seen": self.samples_seen}
        self.restore(counts, awaits_values=self.weights.awaits_values)

    def clear(self, names=None) -> None:
        """Set the optimizer state of these names to zero; None: all. restore() comes next.

        No communication.
        """
        for unit in self.weights.units:
            unit.optimizer.clear(names)


def _updates_of(counts: dict, names) -> dict[str, int]:
    """Return {objective: updates}: as many as of the model, where they were not counted."""
    whole = counts["step"] - (counts.get("skipped_steps") or 0)
    known = counts.get("objectives") or {}
    return {name: known.get(name, whole) for name in names}
