"""Matrices: the update of a unit by a rule that needs each matrix whole (optim/muon.py).

    gradients of the span --begin--> directions --all-gather--> of the unit
    matrices that the span touches, each whole: of_matrix      as often as ranks touch it
    updates of the span --update--> parameters                 element by element

A matrix is computed whole on every rank that updates a part of it, from the same numbers: so the
bits depend neither on the policy nor on the number of ranks. Ranks that update all elements (DDP)
send nothing, and compute every matrix. The others gather directions once per step, in a buffer of
gradients in flight.
"""

from ...errors import ShardingError
from ...optim.groups import ParameterGroup, rule_for
from ...optim.muon import matrix_rule_of
from .site import Site


class Matrices:
    """What a rank updates of a unit, all of whose parameters are matrices under such a rule.

    elements   applies a rule to the span element by element: Segments.update
    updated    the elements of the layout that this rank updates
    groups     {name: group} of parameters that are of one
    keeper     of the optimizer state: Whole or Shard
    """

    def __init__(
        self, site: Site, elements, updated: slice, groups: dict[str, ParameterGroup], keeper
    ):
        self._site, self._updated, self._groups, self._keeper = site, updated, groups, keeper
        self._elements = elements
        parts = [
            (slot, slice(max(slot.offset, updated.start), min(slot.stop, updated.stop)))
            for slot in site.layout.slots
        ]
        self._parts = [(slot, part) for slot, part in parts if part.start < part.stop]

    def update(
        self, rule, parameters, gradients, state: dict, step: int, learning_rate, gradient_scale
    ) -> None:
        """Apply the rule to the span; as Rule.update. Collective over the data axis."""
        pool, layout = self._site.pools.whole_gradients, self._site.layout
        whole = pool.take(layout.size)
        whole[layout.length :] = 0
        rules = [matrix_rule_of(rule_for(slot.name, rule, self._groups)) for slot, _ in self._parts]
        first = self._updated.start
        for (_, part), own in zip(self._parts, rules):
            here = slice(part.start - first, part.stop - first)
            of_part = {name: array[here] for name, array in state.items()}
            own.begin(gradients[here], of_part, whole[part], gradient_scale)
        self._keeper.complete(self._site, whole)
        for (slot, part), own in zip(self._parts, rules):
            matrix = own.of_matrix(whole[slot.offset : slot.stop].reshape(slot.shape))
            inside = slice(part.start - slot.offset, part.stop - slot.offset)
            whole[part] = matrix.reshape(-1)[inside]
        updates = whole[self._updated]
        self._elements(rule, parameters, updates, state, step, learning_rate, 1.0)
        pool.give(whole)


def check_matrices(parameters: dict, rule, groups: dict[str, ParameterGroup]) -> None:
    """Raise ShardingError unless all parameters under a rule for matrices are whole ones.

    parameters   {name: Parameter}, cut over the tensor axis
    """
    for name, parameter in parameters.items():
        own = matrix_rule_of(rule_for(name, rule, groups))
        if own is None or not parameter.requires_grad:
            continue
        kind, shape = type(own).__name__, tuple(parameter.global_shape)
        if len(shape) != 2:
            raise ShardingError(
                f"{name} has shape {shape}, but {kind} takes matrices alone; give it another rule: "
                f'parameter_groups=(sk.ParameterGroup("{name}", rule=sk.AdamW(lr=1e-3)),)'
            )
        if tuple(parameter.shape) != shape:
            raise ShardingError(
                f"{name} {shape} is cut over the tensor axis into {tuple(parameter.shape)}, but "
                f"{kind} needs whole matrices; use data and pipeline ranks instead, or give it "
                "another rule by sk.ParameterGroup(..., rule=...)"
            )
