"""The context of a forward pass: training or not, the seed, the step, and which samples.

Layers such as dropout read it, so that it is no argument of every layer. It holds for the current
thread: ranks that are threads have their own.
"""

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class ForwardContext:
    """What a forward pass may depend on besides its inputs.

    training      layers such as dropout are active
    first_sample  number, in the global batch, of row 0 of the input
    texts         the pass over texts that are being continued (texts.py); None: the input is whole
    observer      function (buffer, Observation) that takes what buffers observe in training
                  (buffer.py); None: buffers apply it at once
    """

    training: bool = False
    seed: int = 0
    step: int = 0
    first_sample: int = 0
    texts: Any = None
    observer: Any = None

    def observed_by(self, observer) -> "ForwardContext":
        """Return this context with another observer."""
        return replace(self, observer=observer)


_current = ContextVar("shardkit_forward_context", default=ForwardContext())


def current_context() -> ForwardContext:
    """Return the context of the innermost `forward_context` block; not training outside of any."""
    return _current.get()


@contextmanager
def forward_context(context: ForwardContext):
    """Run the block under this context (this thread only)."""
    token = _current.set(context)
    try:
        yield context
    finally:
        _current.reset(token)
