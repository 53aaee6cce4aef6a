"""What a forward pass happens in: its context (training or not, the seed, the step, which samples),
and its surroundings, which take part in the calls of modules.

Layers such as dropout read the context, so that it is no argument of every layer. Both hold for the
current thread: ranks that are threads have their own.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class ForwardContext:
    """What a forward pass may depend on besides its inputs.

    Parameters
    ----------
    training
        Layers such as dropout are active.
    seed, step
        Of the run, which masks depend on.
    first_sample
        Number, in the global batch, of row 0 of the input.
    texts
        The pass over texts that are being continued (texts.py); None: the input is whole.
    observer
        Function (buffer, Observation) that takes what buffers observe in training (buffer.py);
        None: buffers apply it at once.
    """

    training: bool = False
    seed: int = 0
    step: int = 0
    first_sample: int = 0
    texts: Any = None
    observer: Any = None

    def observed_by(self, observer: Any) -> "ForwardContext":
        """Return this context with another observer."""
        return replace(self, observer=observer)


_current = ContextVar("shardkit_forward_context", default=ForwardContext())


def current_context() -> ForwardContext:
    """Return the context of the innermost `forward_context` block; not training outside of any."""
    return _current.get()


@contextmanager
def forward_context(context: ForwardContext) -> Iterator[ForwardContext]:
    """Run the block under this context (this thread only)."""
    token = _current.set(context)
    try:
        yield context
    finally:
        _current.reset(token)


_logits_are_late = ContextVar("shardkit_late_logits", default=False)
logits_are_late = _logits_are_late.get  # () -> True inside late_logits()


@contextmanager
def late_logits():
    """Inside, products with many columns are made when they are read (late.py; this thread only).

    What they are made of must last, and stay as it is, until the end of the block.
    """
    token = _logits_are_late.set(True)
    try:
        yield
    finally:
        _logits_are_late.reset(token)


class Surroundings(Protocol):
    """What takes part in calls of modules: a sharded model that lends them their parameters."""

    def call(self, module, args: tuple, kwargs: dict):
        """Return module.forward(*args, **kwargs)."""

    def lend(self, parameter) -> None:
        """Bind a parameter that is released and about to be read, if it is known here."""


_surroundings: ContextVar[Surroundings | None] = ContextVar("shardkit_surroundings", default=None)
current_surroundings = _surroundings.get  # () -> Surroundings or None


@contextmanager
def surrounded_by(surroundings: Surroundings):
    """Let these take part in what modules do inside the block (this thread only)."""
    token = _surroundings.set(surroundings)
    try:
        yield
    finally:
        _surroundings.reset(token)
