"""A channel that compares what the ranks of a group are about to call, before they call it.

    rank 0   all_reduce(sum, 10 float32)         rank 0, 1, 3 raise: rank 2 called broadcast(root 0,
    rank 2   broadcast(root 0, 10 float32)       10 float32), the others all_reduce(sum, 10 float32)

The comparison is one collective of its own, the same whatever is called, so ranks that have
diverged meet in it. In checked mode (SHARDKIT_CHECK=1) every collective is compared, and a rank
whose arguments are refused lets the others know; it costs as much as a small collective. Otherwise
MPI groups compare their first calls (mpi/comparing.py). Threads compare always: there it is free.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import CommunicationError
from .channel import ChannelCall, WrappedChannel, signature
from .watch.progress import UnderWay


@dataclass(frozen=True)
class Members:
    """Who is in a group, for messages.

    key           name of the group, the same on all its ranks
    world_ranks   of its ranks, in order
    """

    key: str
    world_ranks: Sequence[int]


class ComparedChannel(WrappedChannel):
    """A channel whose collectives begin once all ranks have come with equal arguments.

    compare   function (verb, its arguments, begins); collective; raises on all ranks if they differ
    """

    def __init__(self, inside, compare):
        super().__init__(inside)
        self.compare = compare

    def plan(self, verb, *arguments):
        return ComparedCall(self.inside.plan(verb, *arguments), self.compare, verb, arguments)

    def split(self, color, key):
        self.compare("split", (color, key), False)
        return self.inside.split(color, key)


class ComparedCall(ChannelCall):
    """A call that is made, or begun, when all ranks have come with equal arguments."""

    def __init__(self, inside: ChannelCall, compare, verb: str, arguments: tuple):
        self._inside, self._compare = inside, compare
        self._verb, self._arguments = verb, arguments

    def __call__(self):
        self._compare(self._verb, self._arguments, False)
        self._inside()

    def begin(self):
        self._compare(self._verb, self._arguments, True)
        return self._inside.begin()


class CallComparison:
    """Checked mode: what the ranks of a group are about to call, compared on all of them.

    exchange   function (object) -> the objects of all ranks; collective over the group
    """

    def __init__(self, members: Members, exchange):
        self._members, self._exchange = members, exchange
        self.num_made = 0

    def compare(self, verb: str, arguments: tuple, begins: bool) -> None:
        """Check that all ranks call the same, and that pieces fit together; begins: it is begun.

        Errors, on all ranks: CommunicationError naming the ranks that call something else than
        most, or whose own arguments were refused.
        """
        pieces = arguments[2:4] if verb == "all_to_all" else None
        notes = self.exchange((signature(verb, arguments, begins=begins), pieces))
        texts = [text for text, _ in notes]
        if len(set(texts)) > 1:
            raise CommunicationError(difference(texts, self._members))
        if pieces is not None:
            self._check_pieces([pieces for _, pieces in notes])

    def exchange(self, note) -> list:
        """Return the notes (text, pieces) of all ranks. Collective."""
        self.num_made += 1
        return self._exchange(note)

    def _check_pieces(self, counts):
        """Refuse pieces that do not fit; counts[r]: of what rank r sends, and receives."""
        world_ranks = self._members.world_ranks
        for source, (sent, _) in enumerate(counts):
            for target, (_, expected) in enumerate(counts):
                if sent[target] != expected[source]:
                    raise CommunicationError(
                        f"all_to_all on group {self._members.key}: rank {world_ranks[source]} "
                        f"sends {sent[target]} elements to rank {world_ranks[target]}, which "
                        f"expects {expected[source]}; give both the same count"
                    )


class ComparedUnderWay(UnderWay):
    """Around a collective verb in checked mode: other ranks hear of refused arguments."""

    def __init__(self, progress, comparison: CallComparison):
        super().__init__(progress)
        self._comparison = comparison
        self._num_before = 0

    def __enter__(self):
        self._num_before = self._comparison.num_made

    def __exit__(self, kind, error, traceback):
        is_refusal = isinstance(error, (ValueError, TypeError))
        if is_refusal and self._comparison.num_made == self._num_before:
            verb = self.progress.current.verb
            self._comparison.exchange((f"{verb}, which is refused there: {error}", None))
        super().__exit__(kind, error, traceback)


def difference(texts: list[str], members: Members) -> str:
    """Return a sentence that names the ranks that call something else than most.

    texts   what each rank calls
    """
    usual = Counter(texts).most_common(1)[0][0]
    others = [
        f"rank {members.world_ranks[rank]} called {text}"
        for rank, text in enumerate(texts)
        if text != usual
    ]
    first = members.world_ranks[texts.index(usual)]
    return (
        f"the ranks of group {members.key} make different calls: {'; '.join(others)}; rank {first} "
        f"and {texts.count(usual) - 1} more called {usual}; all ranks of a group must make the "
        "same calls in the same order"
    )
