"""What the run folder keeps about the ranks: where they are, and what their memory is used for.

ranks.json       the mesh and the node of each rank, written at each start
metrics.jsonl    memory_bytes {purpose: peak of each rank}, after the first report and at the end
"""

import json
import resource
import time

from ..comm.ranks import ranks_text
from ..comm.seats import seats_on_first
from ..environment import slurm_node
from ..parallel.model.callback import Callback
from ..parallel.model.sharded_model import parts_of

RANKS = "ranks.json"
ALL_AT_ONCE = "all at once"  # the peak of all purposes together
RESIDENT = "resident process"  # with Python, libraries and their buffers


class RanksRecord(Callback):
    """Writes it down. All methods are collective."""

    on_all_ranks = True

    def at_start(self, run):
        """Write ranks.json."""
        self._run, self._has_memory = run, False
        seats = seats_on_first(run.backend, run.settings.run.threads)
        nodes = run.backend.gather_object(slurm_node()) or []
        run.reporter.write(RANKS, json.dumps(_ranks(run, seats, nodes)))

    def after_report(self, step, values):
        """Record the memory of each rank, once."""
        if not self._has_memory:
            self._has_memory = True
            self._record_memory(step)

    def at_end(self, result):
        """Record it again, with what came later."""
        self._record_memory(self._run.model.step_number)

    def _record_memory(self, step):
        accounts = parts_of(self._run.model).engine.device.accounts
        resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        mine = {**accounts.peaks(), ALL_AT_ONCE: accounts.peak_bytes(), RESIDENT: resident}
        everyones = self._run.backend.gather_object(mine) or []
        names = dict.fromkeys(name for of_rank in everyones for name in of_rank)
        table = {name: [of_rank.get(name, 0) for of_rank in everyones] for name in names}
        self._run.reporter.record(step=step, memory_bytes=table)


def _ranks(run, seats, nodes) -> dict:
    """Return what ranks.json holds."""
    model, parts = run.model, parts_of(run.model)
    shape = model.mesh.shape
    return {
        "started": round(time.time(), 3),
        "first_step": model.step_number,
        "parameter_count": model.parameter_count,
        "policy": parts.policy.name,
        "schedule": model.sharding_configuration.schedule,
        "micro_batches": model.sharding_configuration.micro_batches,
        "bubble_fraction": parts.engine.bubble_fraction,
        "device": parts.engine.device.kind,
        "mesh": {axis: model.mesh.size(axis) for axis in shape.order},
        "ranks": [
            {
                "rank": rank,
                "node": node or seat.host,
                "cores": ranks_text(seat.cores),
                "threads": seat.threads,
                **shape.coordinates(rank).along,
            }
            for rank, (seat, node) in enumerate(zip(seats, nodes))
        ],
    }
