"""model.trace(path): what all ranks do, from now until close(), in one file.

with model.trace("trace.json"):          # on all ranks
    for step in range(3):
        model.train(x, y)
"""

import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from ...comm.clocks import clock_offset
from ...comm.failure.agreement import collectively
from ...files.writing import check_can_write, write_whole
from ..step.recorder import CHECKPOINT, Recorder
from .trace_file import RankSpans, trace_file


class Trace:
    """A trace under way. A context manager that closes it; an error inside writes none.

    Making it, and close(), are collective over the mesh of the model.
    parts   of the model
    path    of the file, which rank 0 writes
    write   function (text) that writes it in the end, on rank 0; None: write it here
    Errors, on all ranks: OSError if it cannot be written here.
    """

    def __init__(self, parts, path, write: Callable[[str], None] | None = None):
        self.path = Path(path)
        self.recorder = Recorder()
        self._parts, self._world = parts, parts.engine.mesh.world
        self._write = write or self._write_here
        with collectively(self._world):
            if self._world.rank == 0 and write is None:
                check_can_write(self.path)  # before the work, not after it
        self._before = clock_offset(self._world)
        self._recording = ExitStack()
        self._recording.enter_context(parts.engine.listening.telling(self.recorder))

    def stop(self) -> None:
        """Record nothing any more, and write nothing. No communication."""
        self._recording.close()
        for pending in self.recorder.beside:
            until_now = self.recorder.now() - pending.began
            seconds = pending.write_seconds if pending.is_committed else until_now
            name = f"writing {Path(pending.folder).name}"
            self.recorder.add(name, CHECKPOINT, pending.began, seconds, "checkpoint file")
        self.recorder.beside.clear()

    def close(self) -> None:
        """Write the file; a second call does nothing. Collective."""
        if self._world is None:
            return
        world, self._world = self._world, None
        self.stop()
        after = clock_offset(world)
        mesh = self._parts.engine.mesh
        mine = RankSpans(
            mesh.rank,
            mesh.coordinates,
            mesh.hosts[mesh.rank],
            self._before,
            after,
            self.recorder.spans,
            mesh.names,
        )
        ranks = world.gather_object(mine)
        with collectively(world):
            if ranks is not None:
                self._write(json.dumps(trace_file(ranks, self._about())))

    def _write_here(self, text: str):
        write_whole(self.path, text.encode())

    def _about(self) -> dict:
        engine = self._parts.engine
        device = engine.device.kind
        return {
            "mesh": str(engine.mesh.shape),
            "policy": self._parts.policy.name,
            "schedule": engine.config.schedule,
            "clock": "monotonic clock of rank 0; the others by questions and answers before and "
            "after, and a straight line between",
            "device": device,
            "times": "of the rank's own work"
            if device == "cpu"
            else "of the host, which launches the work of the GPU",
        }

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        if error is None:
            self.close()
        else:
            self.stop()
