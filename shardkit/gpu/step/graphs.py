"""CUDA graphs of a step, which model.compile() asks for (parallel/step/compilation.py).

    steps of one form    1st plain, 2nd captured, 3rd plain and replayed and compared, 4th replayed

Only F, B and W are captured, each unit and micro-batch by itself; gathers, messages, reductions and
the update stay what they are. In the 2nd step each action is computed twice: on a tape, whose
result goes on, and on a tape of its own under capture, which computes nothing: it leaves addresses
behind, and no numbers. So a capture that fails leaves the step as it was. The 3rd step compares the
bits of both.

Graphs hold addresses: inputs are copied to fixed arrays or received there, and a step that begins
with the buffers of units in other places than the 2nd one is plain. All ranks are in the same step
of the same form, so they know without messages when to agree: after the 2nd and the 3rd.
"""

import warnings

from ...array.backend import is_array
from ...comm.backend import CommunicationBackend
from ...nn.features import input_features
from ...nn.module import Module
from ...parallel.data.site import Pools
from ...parallel.step.inputs import Inputs, Results
from ...schedule.actions import Action, Kind
from ..graphs import GraphMemory
from .work import CapturingWork, ComparingWork, Recording, ReplayingWork

MOST_RECORDINGS = 4  # of as many forms; the oldest is dropped for another
CAPTURED, COMPARED = 2, 3  # numbers of the steps of a form


class CudaGraphs:
    """Wraps a runtime: chooses what computes a program, and keeps the recordings.

    pools    of its units
    world    all ranks of the mesh
    model    whose active features are part of what is captured
    reason   why nothing is replayed any more; None while all is well
    """

    def __init__(self, runtime, pools: Pools, world: CommunicationBackend, model: Module):
        self.flow, self.program = runtime.flow, runtime.program
        self._runtime = runtime
        self._work = runtime.flow.plain_work
        self._pools = pools
        self._world = world
        self._model = model
        self._memory = GraphMemory(pools.device, purpose="activations")
        self._recordings: dict = {}
        self._doubt: str | None = None  # what this rank found wrong in the step under way
        self.reason: str | None = None

    def forget(self) -> None:
        """Drop all recordings, and give their memory back."""
        self._recordings.clear()
        self._memory.clear()

    def run(self, actions: tuple[Action, ...], inputs: Inputs) -> Results:
        """Run the program on tapes or on graphs; ranks agree after the two steps where something
        can turn out wrong. Collective over the mesh.
        """
        computes = any(action.kind is Kind.FORWARD for action in actions)
        if not computes or inputs.loss is None or self.reason is not None:
            return self._runtime.run(actions, inputs)
        form = self._form(actions, inputs)
        recording = self._recordings.pop(form, None) or Recording()
        self._recordings[form] = recording  # the last one
        while len(self._recordings) > MOST_RECORDINGS:
            del self._recordings[next(iter(self._recordings))]
        recording.num_steps += 1
        try:
            self.flow.work = self._worker(recording, inputs)
            results = self._runtime.run(actions, inputs)
        except BaseException:
            self._recordings.pop(form, None)  # it is not whole
            self._doubt = None
            raise
        finally:
            self.flow.work = self._work
        self._agree(recording, results)
        return results

    def _form(self, actions, inputs):
        """Return what a recorded step depends on beside its numbers."""
        features = input_features(self._model)
        active = None if features is None else features.active
        loss = getattr(inputs.loss, "function", inputs.loss)
        return inputs.form, loss, active, inputs.first_gradient, actions

    def _worker(self, recording, inputs):
        try:
            return self._chosen(recording, inputs)
        except MemoryError:
            self._refuse("there is no memory for a recording")
            return self._work

    def _chosen(self, recording, inputs):
        places = self._pools.places(self._work.units)
        if recording.num_steps < CAPTURED:
            return self._work
        if recording.num_steps == CAPTURED:
            if not all(is_array(part) for each in inputs.micro_batches for part in each[:2]):
                self._refuse("x or y is a tree of arrays, and a graph reads one of each")
                return self._work
            recording.places = places
            return CapturingWork(self._work, self._memory, recording, inputs, self._refuse)
        if recording.places != places:
            if recording.num_steps == COMPARED:
                self._refuse("parameters or gradients have moved since the step was captured")
            return self._work
        replaying = ReplayingWork(self._work, recording, inputs)
        if recording.num_steps > COMPARED:
            return replaying
        return ComparingWork(self._work, replaying, self._refuse)

    def _refuse(self, reason: str):
        self._doubt = self._doubt or reason

    def _agree(self, recording, results):
        if recording.num_steps not in (CAPTURED, COMPARED):
            return
        if results.failure is not None:
            self._refuse("memory ran out")
        doubts, self._doubt = self._world.all_gather_object(self._doubt), None
        if any(doubts):
            rank, doubt = next((rank, doubt) for rank, doubt in enumerate(doubts) if doubt)
            self.reason = f"{doubt} (rank {rank})"
            self.forget()
            if self._world.rank == 0:
                warnings.warn(f"the model goes on uncompiled: {self.reason}", stacklevel=2)
        if recording.num_steps == COMPARED:
            self._pools.arena.clear()  # of the tapes of this step
