"""What model.compile() does: the computing of a step is recorded once, compared once, and replayed
from then on.

    steps of one form    1st: plain    2nd: recorded    3rd: plain and replayed, compared    4th ...: replayed

Of a program only F, B and W are recorded, each unit and micro-batch by itself; gathers, messages,
reductions and the update stay what they are. A recording is calls on fixed memory
(array/recording.py). Its inputs are copied in (x, y) or received there; whole parameters and
gradient buffers are found anew in each step. All recordings use one memory, since only one runs at
a time.

On a GPU a recording is CUDA graphs (array/graphs.py), captured while the 2nd step is computed as
ever. They hold addresses: a step that begins with the buffers of units in other places than the 2nd
one is plain.

All ranks are in the same step of the same form, so they know without messages when to agree: after
the 2nd and the 3rd.
"""

import warnings

from ...array.graphs import GraphMemory
from ...array.replaying import RecordingMemory
from ...comm import CommunicationBackend
from ...schedule import Kind
from ..data.keepers import Pools
from .captured import CapturingWork
from .recorded import ComparingWork, Recording, RecordingWork, ReplayingWork
from .work import Work

MOST_RECORDINGS = 4  # of as many forms; the oldest is dropped for another
RECORDED, COMPARED = 2, 3  # numbers of the steps of a form


class Compiled:
    """Chooses what computes a step, and keeps the recordings.

    work        computes on tapes
    memory      of its units
    world       all ranks of the mesh
    overwrites  every gradient of a micro-batch goes into a buffer without contents
    reason      why nothing is replayed any more; None: all is well
    """

    def __init__(self, work: Work, memory: Pools, world: CommunicationBackend, *, overwrites: bool):
        self._work, self._buffers, self._arena, self._world, self._overwrites = (
            work,
            memory,
            memory.arena,
            world,
            overwrites,
        )
        self._is_on_gpu = memory.device.kind == "cuda"
        self._recordings: dict = {}
        self._current: Recording | None = None  # of the step in progress
        self._doubt: str | None = None  # what this rank found wrong in it
        self.reason: str | None = None
        self._memory = (GraphMemory if self._is_on_gpu else RecordingMemory)(
            memory.device, purpose="activations"
        )

    def forget(self) -> None:
        """Drop all recordings, and give their memory back."""
        self._recordings.clear()
        self._memory.clear()

    def begin(self, actions, step):
        """What computes these actions: has the members of Work."""
        computes = any(action.kind is Kind.FORWARD for action in actions)
        if not computes or step.form is None or self.reason is not None:
            self._current = None
            return self._work
        form = step.form, self._overwrites or step.first_gradient > 0
        if self._is_on_gpu:
            form = (
                step.form,
                step.first_gradient,
                actions,
            )  # all that buffers are taken for, in its order
        recording = self._current = self._recordings.pop(form, None) or Recording()
        self._recordings[form] = recording  # the last one
        while len(self._recordings) > MOST_RECORDINGS:
            del self._recordings[next(iter(self._recordings))]
        recording.num_steps += 1
        try:
            return self._worker(recording, step)
        except MemoryError:
            self._refuse("there is no memory for a recording")
            return self._work

    def _worker(self, recording, step):
        if recording.num_steps < RECORDED:
            return self._work
        if recording.num_steps == RECORDED:
            recording.places = self._places()
            return self._recording_work(recording, step)
        if recording.places != self._places():
            if recording.num_steps == COMPARED:
                self._refuse("parameters or gradients have moved since the step was recorded")
            return self._work
        replaying = ReplayingWork(self._work, recording, step)
        if recording.num_steps > COMPARED:
            return replaying
        return ComparingWork(self._work, replaying, self._refuse)

    def _recording_work(self, recording, step):
        if self._is_on_gpu:
            return CapturingWork(self._work, self._memory, recording, step, self._refuse)
        num_bytes = self._arena.num_bytes
        self._arena.clear()
        self._memory.reserve(num_bytes)
        return RecordingWork(self._work, self._memory, recording, step, self._refuse)

    def _places(self) -> tuple:
        """What a recording depends on beside its form."""
        return self._buffers.places(self._work.units.values()) if self._is_on_gpu else ()

    def _refuse(self, reason: str):
        self._doubt = self._doubt or reason

    def give_up(self) -> None:
        """The step has failed: what was recorded of its form is not whole."""
        self._recordings = {
            form: other for form, other in self._recordings.items() if other is not self._current
        }
        self._current = self._doubt = None

    def end(self, step) -> None:
        """The step has been computed. Collective after the two steps where something can turn out
        wrong.
        """
        recording, self._current = self._current, None
        if recording is None or recording.num_steps not in (RECORDED, COMPARED):
            return
        if step.failure is not None:
            self._refuse("memory ran out")
        doubts, self._doubt = self._world.all_gather_object(self._doubt), None
        if any(doubts):
            rank, doubt = next((rank, doubt) for rank, doubt in enumerate(doubts) if doubt)
            self.reason = f"{doubt} (rank {rank})"
            self.forget()
            if self._world.rank == 0:
                warnings.warn(f"the model goes on uncompiled: {self.reason}", stacklevel=2)
        if recording.num_steps == COMPARED:
            self._arena.clear()  # of the tapes of this step
