"""Where the ranks of a job keep their ledgers in a folder: which slot of which file (ledger.py)."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy

LEDGER_NAME = "node-{:05d}.ledger"  # of the first rank of the node


@dataclass(frozen=True)
class LedgerPlace:
    """The place of one rank.

    node   the first rank there, which names the file
    slot   in that file
    job    number of the job, so that what an earlier one left is not taken for it; 0: any
    """

    node: int = 0
    slot: int = 0
    job: int = 0

    def path(self, folder) -> Path:
        """Return the file in this folder."""
        return Path(folder) / LEDGER_NAME.format(self.node)


class LedgerPlaces:
    """The places of the ranks of a job.

    nodes   of each rank, the first rank of its node; None: all are on one
    job     see LedgerPlace
    """

    def __init__(self, nodes: Sequence[int] | None = None, job: int = 0):
        self.learn(nodes, job)

    def learn(self, nodes: Sequence[int] | None, job: int) -> None:
        """Take over what is known when the ranks have met."""
        self.nodes, self.job = nodes, job

    def of(self, rank: int) -> LedgerPlace:
        """Return the place of a rank: on its node, the slots are in the order of the ranks."""
        ((node, (slot,)),) = self.slots((rank,)).items()
        return LedgerPlace(node, slot, self.job)

    def slots(self, ranks: Sequence[int]) -> dict[int, list[int]]:
        """Return {node: slots there} of some ranks, those that the job has."""
        if self.nodes is None:
            return {0: list(ranks)}
        nodes = numpy.asarray(self.nodes)
        wanted = numpy.asarray(ranks, numpy.int64)
        wanted = wanted[wanted < nodes.size]
        found: dict[int, list[int]] = {}
        for node in numpy.unique(nodes[wanted]).tolist():
            there = numpy.flatnonzero(nodes == node)
            found[node] = numpy.flatnonzero(numpy.isin(there, wanted)).tolist()
        return found
