"""Checked mode (SHARDKIT_CHECK=1): before every collective the ranks of the group compare what they
are about to call.

    rank 0   all_reduce(sum, 10 float32)         rank 0, 1, 3 raise: rank 2 called broadcast(root 0, 10 float32), the others
    rank 2   broadcast(root 0, 10 float32)                           all_reduce(sum, 10 float32)

The comparison is one collective of its own, the same whatever is called, so ranks that have
diverged meet in it; a rank whose arguments are refused tells the others there. It costs as much as
a small collective. The in-memory backend compares always: there it is free. Outside of checked mode
MPI backends compare the first calls of each group (mpi_verbs.py).
"""

from collections import Counter
from functools import wraps

from ..errors import CommunicationError

# What must be equal on all ranks, from the arguments of the protected verb.
SIGNATURES = {
    "_barrier": lambda: "barrier",
    "_all_reduce": lambda array, op: f"all_reduce({op.value}, {array.size} {array.dtype})",
    "_iall_reduce": lambda array, op: f"iall_reduce({op.value}, {array.size} {array.dtype})",
    "_broadcast": lambda array, root: f"broadcast(root {root}, {array.size} {array.dtype})",
    "_all_gather": lambda send, receive, counts: (
        f"all_gather({counts_text(counts)} {receive.dtype})"
    ),
    "_iall_gather": lambda send, receive, counts: (
        f"iall_gather({counts_text(counts)} {receive.dtype})"
    ),
    "_reduce_scatter": lambda send, receive, counts, op: (
        f"reduce_scatter({op.value}, {counts_text(counts)} {receive.dtype})"
    ),
    "_ireduce_scatter": lambda send, receive, counts, op: (
        f"ireduce_scatter({op.value}, {counts_text(counts)} {receive.dtype})"
    ),
    "_scatter": lambda send, receive, root, counts: (
        f"scatter(root {root}, {counts_text(counts)} {receive.dtype})"
    ),
    "_gather": lambda send, receive, root, counts: (
        f"gather(root {root}, {counts_text(counts)} {send.dtype})"
    ),
    "_all_to_all": lambda send, *rest: f"all_to_all({send.dtype})",
    "_split": lambda color, key: "split",
}
PUBLIC = (
    "all_reduce",
    "broadcast",
    "all_gather",
    "reduce_scatter",
    "scatter",
    "gather",
    "all_to_all",
    "split",
    "iall_reduce",
    "iall_gather",
    "ireduce_scatter",
    "broadcast_object",
    "gather_object",
)


def check_collectives(backend, exchange) -> None:
    """Make every collective of this backend compare signatures first.

    exchange   function (object) -> the objects of all ranks; collective over the backend
    Errors of the verbs, on all ranks: CommunicationError naming the ranks that call something else
    than most, or whose own arguments were refused; these have their ValueError or TypeError.
    """
    comparison = Comparison(backend, exchange)
    for name, signature in SIGNATURES.items():
        setattr(backend, name, comparison.before(getattr(backend, name), signature))
    for name in PUBLIC:
        setattr(backend, name, comparison.around(name, getattr(backend, name)))


class Comparison:
    """What the ranks of a group are about to call, compared on all of them."""

    def __init__(self, backend, exchange):
        self._backend, self._exchange = backend, exchange
        self._num_made = 0

    def before(self, verb, signature):
        """The protected verb, once all ranks have come to it with the same signature, and pieces
        that fit together.
        """

        @wraps(verb)
        def compared(*arguments):
            self._compare(
                signature(*arguments),
                arguments[2:4] if signature is SIGNATURES["_all_to_all"] else None,
            )
            return verb(*arguments)

        return compared

    def around(self, name, verb):
        """The public verb; where its arguments are refused before the others were met, they are
        told.
        """

        @wraps(verb)
        def telling(*arguments, **named):
            num_before = self._num_made
            try:
                return verb(*arguments, **named)
            except (ValueError, TypeError) as error:
                if self._num_made == num_before:
                    self._made((f"{name}, which is refused there: {error}", None))
                raise

        return telling

    def _compare(self, text, pieces):
        notes = self._made((text, pieces))
        texts = [text for text, _ in notes]
        if len(set(texts)) > 1:
            raise CommunicationError(difference(texts, self._backend))
        if pieces is not None:
            _check_pieces([pieces for _, pieces in notes], self._backend)

    def _made(self, note):
        self._num_made += 1
        return self._exchange(note)


def _check_pieces(counts, backend):
    """Errors: CommunicationError if a rank sends another than it expects; counts[r]: of what rank r
    sends, and receives.
    """
    for source, (sent, _) in enumerate(counts):
        for target, (_, expected) in enumerate(counts):
            if sent[target] != expected[source]:
                raise CommunicationError(
                    f"all_to_all on group {backend.group_key}: rank {backend.world_ranks[source]} sends "
                    f"{sent[target]} elements to rank {backend.world_ranks[target]}, which expects "
                    f"{expected[source]}; give both the same count"
                )


def difference(texts: list[str], backend) -> str:
    """Which ranks of the backend call something else than most, in a sentence; texts are what each
    rank calls.
    """
    usual = Counter(texts).most_common(1)[0][0]
    others = [
        f"rank {backend.world_ranks[rank]} called {text}"
        for rank, text in enumerate(texts)
        if text != usual
    ]
    first = backend.world_ranks[texts.index(usual)]
    return (
        f"the ranks of group {backend.group_key} make different calls: {'; '.join(others)}; rank {first} and "
        f"{texts.count(usual) - 1} more called {usual}; all ranks of a group must make the same calls in the same order"
    )


def counts_text(counts) -> str:
    """Counts for a signature: short when they are equal, as they mostly are."""
    return f"{len(counts)} x {counts[0]}" if len(set(counts)) == 1 else str(counts)
