"""Overlap of communication between data ranks with computation: whether it is worth its price.

    step    1        2      3        4      ...   12      13 ...
            without  with   without  with         with    whichever was faster, on all ranks

Overlap has a price: messages that are sent ahead need memory, and on a CPU node the copying takes
cores that compute. So "auto" measures, with the same bits in every step. Where all data ranks share
memory there is nothing to measure: each rank's own core does the copying.
"""

from statistics import median

import numpy

from ...comm.backend import CommunicationBackend
from ...comm.failure.agreement import agree
from ...comm.mesh import Mesh
from ...comm.operations import ReductionOperation
from ...layout.axes import COPIES

_WARM_UP = 2  # steps
_MEASURED = 10  # steps, half of them with overlap
_WORTHWHILE = 0.98  # of the time without: a smaller gain is noise, and not worth the memory


class Overlap:
    """The choice for the steps of one model; is_on holds for the next one.

    Making it is collective over the mesh.
    wanted        True, False or "auto"
    mesh          all its ranks make the same choice
    is_possible   False: there is nothing to overlap on this rank
    is_settled    the choice is made: steps are no longer tried with and without
    medians       {with overlap: seconds of a step on the slowest rank}, once measured
    """

    def __init__(self, wanted, mesh: Mesh, *, is_possible: bool):
        self._world: CommunicationBackend = mesh.world
        self.is_on = is_possible and wanted is True
        is_useful_here = is_possible and not mesh.group(COPIES).shares_memory
        is_tried = wanted == "auto" and agree(mesh.world, is_useful_here)  # on any rank
        self.is_settled = not is_tried
        self._steps_left = _WARM_UP + _MEASURED if is_tried else 0
        self._seconds: dict[bool, list[float]] = {False: [], True: []}
        self.medians: dict[bool, float] = {}

    def count(self, seconds: float) -> None:
        """Note the seconds of a step on this rank; after the last trial, choose.

        Collective over the mesh in the last trial.
        """
        if self.is_settled:
            return
        if self._steps_left <= _MEASURED:
            self._seconds[self.is_on].append(seconds)
        self._steps_left -= 1
        self.is_on = not self.is_on
        self.is_settled = not self._steps_left
        if self.is_settled:
            of_slowest = numpy.array([median(self._seconds[is_on]) for is_on in (False, True)])
            self._world.all_reduce(of_slowest, ReductionOperation.MAX)
            self.medians = dict(zip((False, True), of_slowest.tolist()))
            self.is_on = self.medians[True] < _WORTHWHILE * self.medians[False]

    def __str__(self):
        if not self.medians:
            return "on" if self.is_on else "off"
        with_it, without = (self.medians[is_on] * 1e3 for is_on in (True, False))
        return (
            f"{'on' if self.is_on else 'off'}: a step takes {with_it:.1f} ms with it and "
            f"{without:.1f} ms without"
        )
