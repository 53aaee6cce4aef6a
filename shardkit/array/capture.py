"""What code that runs under capture too asks or tells the CUDA graph that is made of it.

Of a computation that is captured (gpu/graphs.py) nothing is computed: its launches are noted. On
CPUs, and where nothing is captured, all of this does nothing.
"""

from contextvars import ContextVar
from typing import Any, Protocol

from ..errors import ShardingError
from ..scoped import Scoped


class Capture(Protocol):
    """What captures the computation of a thread."""

    def keep(self, arrays) -> None:
        """Keep these arrays for as long as the graph."""

    def workspace(self, num_bytes: int) -> Any:
        """Return scratch of so many bytes, which all graphs of the memory share."""


_recorder: ContextVar[Capture | None] = ContextVar("shardkit_graph_recorder", default=None)


def captured_by(recorder: Capture) -> Scoped:
    """Inside, what this thread computes is captured by the recorder."""
    return Scoped(_recorder, recorder)


def outside_of_graphs(reason: str) -> None:
    """Raise ShardingError with this reason under capture: arrays have no contents there yet."""
    if _recorder.get() is not None:
        raise ShardingError(reason)


def kept_for_graph(*arrays) -> None:
    """Under capture, keep these arrays, which the graph reads, for as long as the graph."""
    recorder = _recorder.get()
    if recorder is not None:
        recorder.keep(arrays)


def current_workspace(num_bytes: int):
    """Return scratch of so many bytes for all that is captured now; None where nothing is.

    The kernels of a graph run one after another, and so do the graphs of a thread.
    """
    recorder = _recorder.get()
    return None if recorder is None else recorder.workspace(num_bytes)
