"""Segments: the runs of neighboring parameters of a unit that are of one group.

updated span   | weight | weight | norm | bias | bias |
segments       |------ none -----|----- no decay -----|      one update of the rule for each
"""

from typing import Any

from ...layout.flat import FlatLayout
from ...optim.groups import ParameterGroup


class Segments:
    """What a rank updates of a unit, cut where groups change.

    layout    of the unit
    updated   the elements of the layout that this rank updates
    groups    {name: group} of parameters that are of one
    """

    def __init__(self, layout: FlatLayout, updated: slice, groups: dict[str, ParameterGroup]):
        self._segments: list[tuple[slice, ParameterGroup | None]] = []
        for slot in layout.slots:
            start, stop = max(slot.offset, updated.start), min(slot.stop, updated.stop)
            if start < stop:
                self._add(start - updated.start, stop - updated.start, groups.get(slot.name))
        self._rule: Any = None
        self._applied: list[Any] = []

    def _add(self, start: int, stop: int, group: ParameterGroup | None):
        if self._segments and self._segments[-1][1] is group:
            start = self._segments.pop()[0].start
        self._segments.append((slice(start, stop), group))

    def update(
        self, rule, parameters, gradients, state: dict, step: int, learning_rate, gradient_scale
    ) -> None:
        """Apply the rule of each segment to it; as Rule.update."""
        if rule is not self._rule:
            groups = (group for _, group in self._segments)
            self._applied = [rule if group is None else group.applied(rule) for group in groups]
            self._rule = rule
        for (part, group), own in zip(self._segments, self._applied):
            own.update(
                parameters[part],
                gradients[part],
                {name: array[part] for name, array in state.items()},
                step,
                learning_rate if group is None else group.rate(own, step, learning_rate),
                gradient_scale,
            )
