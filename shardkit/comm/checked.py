"""Checked mode (SHARDKIT_CHECK=1): before every collective the ranks of the group compare what they are about to call.

    rank 0   all_reduce(sum, 10 float32)         rank 0, 1, 3 raise: rank 2 called broadcast(root 0, 10 float32), the others
    rank 2   broadcast(root 0, 10 float32)                           all_reduce(sum, 10 float32)

The comparison is one collective of its own, the same whatever is called, so ranks that have diverged meet in it. It costs as
much as a small collective. The in-memory backend compares always: there it is free.
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
    "_all_gather": lambda send, receive, counts: f"all_gather({counts_text(counts)} {receive.dtype})",
    "_iall_gather": lambda send, receive, counts: f"iall_gather({counts_text(counts)} {receive.dtype})",
    "_reduce_scatter": lambda send, receive, counts, op: f"reduce_scatter({op.value}, {counts_text(counts)} {receive.dtype})",
    "_ireduce_scatter": lambda send, receive, counts, op: f"ireduce_scatter({op.value}, {counts_text(counts)} {receive.dtype})",
    "_scatter": lambda send, receive, root, counts: f"scatter(root {root}, {counts_text(counts)} {receive.dtype})",
    "_gather": lambda send, receive, root, counts: f"gather(root {root}, {counts_text(counts)} {send.dtype})",
    "_all_to_all": lambda send, *rest: f"all_to_all({send.dtype})",
}


def check_collectives(backend, exchange) -> None:
    """Make every collective of this backend compare signatures first.

    exchange   function (text) -> the texts of all ranks; collective over the backend
    Errors of the verbs, on all ranks: CommunicationError naming the ranks that call something else than most.
    """
    for name, signature in SIGNATURES.items():
        setattr(backend, name, _compared(getattr(backend, name), signature, backend, exchange))


def _compared(verb, signature, backend, exchange):
    @wraps(verb)
    def compared(*arguments):
        texts = exchange(signature(*arguments))
        if len(set(texts)) > 1:
            raise CommunicationError(_difference(texts, backend))
        return verb(*arguments)
    return compared


def _difference(texts: list[str], backend) -> str:
    usual = Counter(texts).most_common(1)[0][0]
    others = [f"rank {backend.world_ranks[rank]} called {text}" for rank, text in enumerate(texts) if text != usual]
    first = backend.world_ranks[texts.index(usual)]
    return (f"the ranks of group {backend.group_key} make different calls: {'; '.join(others)}; rank {first} and "
            f"{texts.count(usual) - 1} more called {usual}; all ranks of a group must make the same calls in the same order")


def counts_text(counts) -> str:
    """Counts for a signature: short when they are equal, as they mostly are."""
    return f"{len(counts)} x {counts[0]}" if len(set(counts)) == 1 else str(counts)
