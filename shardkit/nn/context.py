"""What a forward pass happens in: its context (training or not, the seed, the step, which samples),
and its surroundings, which take part in the calls of modules.

Layers such as dropout read the context, so that it is no argument of every layer. Both hold for the
current thread: ranks that are threads have their own.

A `forward_context` block is one pass. Calls of a layer are counted in it, since each call draws
numbers of its own, and a second pass under an equal context counts, and draws, the same:

    with forward_context(context): drop(a), drop(b)    two masks
    with forward_context(context): drop(a), drop(b)    the same two: recomputation
"""

from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Protocol

from ..scoped import Scoped

MARKED_BELOW = -(1 << 30)  # numbers of tokens that begin a text; other negative ones are mistakes


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
        Number, in the global batch, of the first sample of the input; calls whose gradients are
        added make one batch.
    num_samples
        Of the input; None: each row along dim 0 of what the first module is given is one.
    texts
        What the pass knows of its texts (texts.py), where they are continued or several stand in a
        row; None: each row is whole, and one.
    observer
        Function (buffer, Observation) that takes what buffers observe in training (buffer.py);
        None: buffers apply it at once.
    parts
        How ranks share each sample, of which the input is a part; its run(block, x) runs each block
        of a model. None: the input are whole samples.
    is_unmarked
        No number of the input begins a text, which was seen on the host: no device is asked.
    """

    training: bool = False
    seed: int = 0
    step: int = 0
    first_sample: int = 0
    num_samples: int | None = None
    texts: Any = None
    observer: Any = None
    parts: Any = None
    is_unmarked: bool = False

    @property
    def is_cut(self) -> bool:
        """The input is a part of each sample, which was checked as a whole."""
        return self.parts is not None

    def observed_by(self, observer: Any) -> "ForwardContext":
        """Return this context with another observer."""
        return replace(self, observer=observer)


def hold_marks(ids: Any) -> bool:
    """Return whether any number of an array begins a text (texts.py)."""
    return ids.dtype.kind == "i" and bool((ids < MARKED_BELOW).any())


class _Pass:
    """A forward pass under a context, and how often each layer was called in it so far.

    num_rows      of what the first module was given, along dim 0; 0: that has none; None: not known
    home, block   the path and the number of the block that runs (None outside of a sharded model);
                  a layer that is not inside the path (None: no layer is) is shared by blocks, and
                  its calls are counted in each
    """

    __slots__ = ("block", "context", "counts", "home", "num_rows")

    def __init__(self, context: ForwardContext, counts: dict[str, int]):
        self.context = context
        self.counts = counts
        self.num_rows: int | None = None
        self.home: str | None = ""
        self.block: int | None = None

    def continued(self, context: ForwardContext) -> "_Pass":
        """Return the pass of a block inside of this one: this one, if it draws the same numbers."""
        if not self.context.training or _numbers_of(context) != _numbers_of(self.context):
            inner = _Pass(context, {})
        else:
            inner = _Pass(context, self.counts)
            inner.home, inner.num_rows = self.home, self.num_rows
        inner.block = self.block
        return inner

    def next_call(self, path: str) -> tuple[int, ...]:
        """Count a call of the layer of this path; return what tells it from its other calls."""
        number = self.counts.get(path, 0)
        self.counts[path] = number + 1
        is_at_home = self.home is not None and f"{path}.".startswith(self.home)
        return (number,) if is_at_home else (number, self.block or 0)


def _numbers_of(context: ForwardContext) -> tuple:
    """Return what decides which random numbers a pass draws."""
    where = context.first_sample, context.num_samples
    return (context.training, context.seed, context.step, *where)


_current = ContextVar("shardkit_forward_context", default=_Pass(ForwardContext(), {}))


def current_context() -> ForwardContext:
    """Return the context of the innermost `forward_context` block; not training outside of any."""
    return _current.get().context


class _Passing(Scoped):
    """A pass under a context, which begins with the block."""

    __slots__ = ()

    def __enter__(self) -> ForwardContext:
        self._token = _current.set(_current.get().continued(self._value))
        return self._value


def forward_context(context: ForwardContext) -> Scoped:
    """Run the block, a forward pass, under this context (this thread only)."""
    return _Passing(_current, context)


def run_block(home: str | None, number: int, block: Any, x: Any) -> Any:
    """Return block(x), with calls counted anew, so that no block of a model knows of the others.

    home     the path of the block; None if an earlier block is the same module
    number   of the block in the model
    """
    here = _current.get()
    here.counts = {}
    here.home, here.block = f"{home}." if home else home, number
    parts = here.context.parts
    return block(x) if parts is None else parts.run(block, x)


def go_on_apart(observer: Any) -> None:
    """Go on with the pass that runs as one of its own, whose calls others do not count.

    In a thread, or a copy of a context, of its own. observer: None: that of the pass.
    """
    here = _current.get()
    context = here.context if observer is None else here.context.observed_by(observer)
    apart = _Pass(context, {**here.counts})
    apart.home, apart.block = here.home, here.block
    apart.num_rows = here.num_rows
    _current.set(apart)
    _logits_are_late.set(False)


def is_sharded_pass() -> bool:
    """Return True in a forward pass of a sharded model, whose blocks write to nothing they keep."""
    return _current.get().block is not None


def note_input(args: tuple) -> None:
    """Note how many rows the first module of a pass in training is given."""
    here = _current.get()
    if here.num_rows is None and here.context.training:
        shape = getattr(args[0], "shape", ()) if args else ()
        here.num_rows = shape[0] if shape else 0


def num_rows_of_input(context: ForwardContext) -> int:
    """Return how many rows the first module of this pass was given; 0 if that is not known."""
    here = _current.get()
    return here.num_rows or 0 if here.context is context else 0


def next_call(path: str, context: ForwardContext) -> tuple[int, ...]:
    """Return what tells this call of a layer from its others in the pass.

    A context whose pass does not run is a pass of this one call.
    """
    here = _current.get()
    return here.next_call(path) if here.context is context else (0,)


_logits_are_late = ContextVar("shardkit_late_logits", default=False)
logits_are_late = _logits_are_late.get  # () -> True inside late_logits()


def late_logits() -> Scoped:
    """Inside, products with many columns are made when they are read (late.py; this thread only).

    What they are made of must last, and stay as it is, until the end of the block.
    """
    return Scoped(_logits_are_late, True)


_stream_dtype: ContextVar[Any] = ContextVar("shardkit_stream_dtype", default=None)
stream_dtype = _stream_dtype.get  # () -> the dtype of residual streams; None: as they come


def residual_streams_in(dtype: Any) -> Scoped:
    """Inside, blocks of transformers keep what their branches are added to in this dtype; None: in
    that of their weights (this thread only).
    """
    return Scoped(_stream_dtype, dtype)


OBJECTIVE: ContextVar[str | None] = ContextVar("shardkit_objective", default=None)


def current_objective() -> str | None:
    """Return the name of the objective whose gradients this pass is for; None in all others."""
    return OBJECTIVE.get()


class Surroundings(Protocol):
    """What takes part in calls of modules: a sharded model that lends them their parameters.

    lends   parameters are bound while their module is called, and released after
    """

    lends: bool

    def call(self, module, args: tuple, kwargs: dict):
        """Return module.forward(*args, **kwargs)."""

    def lend(self, parameter) -> None:
        """Bind a parameter that is released and about to be read, if it is known here."""


_surroundings: ContextVar[Surroundings | None] = ContextVar("shardkit_surroundings", default=None)
current_surroundings = _surroundings.get  # () -> Surroundings or None


def surrounded_by(surroundings: Surroundings) -> Scoped:
    """Let these take part in what modules do inside the block (this thread only)."""
    return Scoped(_surroundings, surroundings)
