"""mpiexec -n N python faulty_rank.py HOW WHERE PIPELINE FOLDER: train four steps and save; rank 1
goes wrong in the way HOW.

HOW     a key of WAYS, or: other (calls another collective than the rest), count (passes another
        count than the rest)
WHERE   start-up, forward, backward, reduction (all three in step 3), saving, exit
FOLDER  gets the checkpoint, the ledgers, and the file `struck`, made when the fault happens
"""

import os
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy  # noqa: E402
from builders import small_gpt, token_batch  # noqa: E402
from sabotage import no_memory  # noqa: E402

import shardkit as sk  # noqa: E402
from shardkit.nn import record  # noqa: E402
from shardkit.testing.comm import abort_on_error  # noqa: E402
from shardkit.testing.parallel import skips_of, training_state_of, units_of

WATCHDOG_SECONDS = 2.0


def gone():
    raise RuntimeError("the data is gone")


WAYS = {
    "raise": gone,
    "exit": lambda: sys.exit(3),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "memory": no_memory,
    "nan": lambda: None,  # the place itself makes the number
}


class Fault:
    """What happens at one place, once. Every rank comes by; rank 1 is the one that goes wrong."""

    def __init__(self, how, where, backend, folder):
        self.how, self.where, self.backend, self.folder = how, where, backend, folder
        self.is_due = False  # this place is to be struck the next time somebody comes by

    def pass_by(self, place) -> float:
        """1.0, or NaN where a number is to go wrong."""
        if not self.is_due or place != self.where:
            return 1.0
        self.is_due = False
        if self.how == "stop":  # until now a busy machine may take as long as it likes
            if place == "start-up":
                self.backend.barrier()  # ranks start one after the other
                time.sleep(0.3 * (self.backend.rank == 1))  # what it has sent is on its way
            self.backend.timeout = WATCHDOG_SECONDS
            self.backend.keep_ledger(self.folder / "ledger")
        if self.backend.rank == 1:
            (self.folder / "struck").touch()
        if self.how in ("other", "count"):
            self._call_collective()
        elif self.backend.rank == 1:
            WAYS[self.how]()
            return numpy.nan
        return 1.0

    def _call_collective(self):
        is_other = self.backend.rank == 1
        if is_other and self.how == "other":
            return self.backend.barrier()
        self.backend.all_reduce(numpy.zeros(4 if is_other else 5))

    def put_into(self, gpt, model):
        """Make the layers and units of this rank pass by."""
        block = gpt.blocks()[1 if model.mesh.coordinates.pipeline == 0 else -2][1]
        forward = block.forward

        def passing_forward(x, *arguments):
            out = forward(x, *arguments) * numpy.float32(self.pass_by("forward"))
            return record(
                out.array.copy(),
                (out,),
                lambda gradient, wanted: (gradient * numpy.float32(self.pass_by("backward")),),
            )

        block.forward = passing_forward
        unit = units_of(model)[-1]  # the one whose gradients are reduced first
        reduce = unit.reduce

        def passing_reduce(*arguments, **settings):
            factor = self.pass_by("reduction")
            done = reduce(*arguments, **settings)
            if factor != 1.0:
                unit.gradients.updated[:] = factor
            return done

        unit.reduce = passing_reduce
        boxes = training_state_of(model).counted_boxes

        def passing_boxes():
            self.pass_by("saving")
            return boxes()

        training_state_of(model).counted_boxes = passing_boxes


def main(how, where, pipeline, folder):
    numpy.seterr(all="ignore")  # NaN is the point here
    backend = sk.MPICommunicationBackend()
    backend.initialize()
    at = ["start-up"]
    with abort_on_error(backend, describe=lambda: at[0]):
        fault = Fault(how, where, backend, folder)
        fault.is_due = where == "start-up"
        fault.pass_by("start-up")
        gpt = small_gpt(layers=3)
        config = sk.ShardingConfiguration(
            backend,
            optimizer=sk.AdamW(lr=1e-2),
            max_gradient_norm=1.0,
            minimum_parameter_group_size=64,
        )
        model = sk.HybridShardedModel(gpt, config, pipeline)
        fault.put_into(gpt, model)
        for step in range(4):
            at[0], fault.is_due = f"step {step + 1}", step == 2
            loss = model.train(*sk.split_batch(model.mesh, *token_batch(step, 12)))
        at[0], fault.is_due = "saving", where == "saving"
        model.save_model(folder / "checkpoints")
        at[0], fault.is_due = "exit", where == "exit"
        fault.pass_by("exit")
        print(
            f"rank {backend.rank} ends with {skips_of(model).total} skipped, loss {loss:.6f}",
            flush=True,
        )
    backend.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
