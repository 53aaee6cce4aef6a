"""Where ranks that are threads meet: environments, groups, meetings and messages.

    rank 0  all_reduce #7  --> arrives, waits
    rank 2  all_reduce #7  --> arrives, waits
    rank 1  all_reduce #7  --> arrives last, does the work for all, wakes them

No rank waits for what can no longer come: a rank that fails wakes every waiter with its error, a
rank that leaves wakes those that need it, and a wait has a time limit. `Wait.needs` (world ranks)
is what makes these messages exact.
"""

import threading
import time
import weakref
from collections import defaultdict, deque
from math import inf

from ...errors import CommunicationError, CommunicationTimeout, PeerError
from ..ranks import in_words
from ..watch.progress import Awaited, Progress


class Wait:
    """Something that completes when other ranks have come; several threads may wait for it."""

    def __init__(self, what: str, needs):
        self.what = what
        self.needs = set(needs)
        self.done = threading.Event()
        self.error: tuple[type, str] | None = None

    def fail(self, kind: type, message: str) -> None:
        """Wake everyone with this error, unless it is complete already."""
        if not self.done.is_set():
            self.error = (kind, message)
            self.done.set()


class Meeting(Wait):
    """One collective of one group: what each rank has brought, then the result for each."""

    def __init__(self, what, needs, signature, first_rank):
        super().__init__(what, needs)
        self.signature, self.first_rank = signature, first_rank
        self.given: dict[int, object] = {}
        self.results = None


class Message(Wait):
    """One side of a message between two ranks: `array` is the sender's or the receiver's own
    memory.
    """

    def __init__(self, what, peer, array):
        super().__init__(what, {peer})
        self.array = array


class Environment:
    """What the ranks of one world share: who failed, who left, and who waits for what."""

    def __init__(self, world_size: int, timeout: float):
        self.world_size = world_size
        self.timeout = timeout
        self.lock = threading.RLock()
        self.joined: set[int] = set()
        self.left: set[int] = set()
        self.progress: dict[int, Progress] = {}  # of each rank
        self.worked: dict[int, float] = {}  # rank -> when it last got on with work of its own
        self.failures: list[tuple[int, BaseException]] = []  # in time
        self.world = Group(self, tuple(range(world_size)))
        self.parting = Group(self, tuple(range(world_size)))
        self._pending: set[Wait] = set()

    def limit(self, seconds: float) -> None:
        """Let a rank wait so long for the others in one verb, from now on."""
        self.timeout = seconds

    def join(self, rank: int, world_size: int, name: str) -> None:
        """Take the place of a rank. name   of the environment, for errors

        Errors: ValueError on another world size; CommunicationError if the rank is taken.
        """
        with self.lock:
            if self.world_size != world_size:
                raise ValueError(f"{name} has {self.world_size} ranks, not {world_size}")
            if rank in self.joined:
                raise CommunicationError(
                    f"rank {rank} of {name} is taken; give another environment_id"
                )
            self.joined.add(rank)

    def fail(self, rank: int, error: BaseException) -> None:
        """Wake every rank with a PeerError that names this one, which failed."""
        with self.lock:
            self.failures.append((rank, error))
            for wait in self._pending:
                wait.fail(PeerError, self._failure_text())
            self._pending.clear()

    def leave(self, rank: int) -> None:
        """Note that this rank will not communicate any more: ranks that need it are woken."""
        with self.lock:
            self.left.add(rank)
            for wait in [w for w in self._pending if rank in w.needs]:
                self._fail_for_absence(wait)

    def begin(self, wait: Wait) -> None:
        """Remember a wait, or fail it if it cannot complete. Called with the lock."""
        self._pending.add(wait)
        if self.failures:
            self.end(wait)
            wait.fail(PeerError, self._failure_text())
        elif wait.needs & self.left:
            self._fail_for_absence(wait)

    def end(self, wait: Wait) -> None:
        """Forget a wait that is over. Called with the lock."""
        self._pending.discard(wait)

    def wait(self, wait: Wait, seconds: float | None = None) -> None:
        """Block until it is complete.

        Errors: PeerError, CommunicationError, CommunicationTimeout.
        """
        seconds = self.timeout if seconds is None else seconds
        left = seconds
        while not wait.done.wait(left):
            left = self._worked_last(wait) + seconds - time.monotonic()
            if left > 0:
                continue
            with self.lock:
                wait.fail(CommunicationTimeout, self._late_text(wait, seconds))
                self.end(wait)
        if wait.error is not None:
            kind, message = wait.error
            raise kind(message)

    def check(self, awaited: Awaited) -> None:
        """Raise as wait() would, for a rank that looks itself whether a call is complete."""
        call = awaited.call
        needed = [rank for rank in call.ranks if rank in self.progress]
        made = {rank: self.progress[rank].num_calls(call.group) for rank in needed}
        late = {rank for rank in needed if made[rank] < (call.number or 0)}
        wait = Wait(awaited.doing, late)
        with self.lock:
            self.begin(wait)
            self.end(wait)
        left = self._worked_last(wait) + self.timeout - time.monotonic()
        if wait.error is None and awaited.seconds > self.timeout and left <= 0:
            wait.fail(CommunicationTimeout, self._late_text(wait, self.timeout))
        if wait.error is not None:
            kind, message = wait.error
            raise kind(message)

    def _late_text(self, wait: Wait, seconds: float) -> str:
        return f"{wait.what}: {in_words(sorted(wait.needs))} did not come within {seconds:g} s"

    def _worked_last(self, wait) -> float:
        """Return when all ranks that are missing had got on with work of their own; -inf: never."""
        with self.lock:
            return min((self.worked.get(rank, -inf) for rank in wait.needs), default=-inf)

    def _fail_for_absence(self, wait):
        gone = in_words(sorted(wait.needs & self.left))
        self.end(wait)
        wait.fail(
            CommunicationError,
            f"{wait.what}: {gone} returned or shut down without taking part; all ranks of a group "
            "must make the same calls in the same order",
        )

    def _failure_text(self):
        rank, error = self.failures[0]
        return f"rank {rank} failed: {type(error).__name__}: {error}"


class Environments:
    """Environments by their names: threads that share nothing else find each other here.

    One disappears with the last backend that refers to it.
    """

    def __init__(self):
        self._lock = threading.Lock()
        self._known: weakref.WeakValueDictionary[str, Environment] = weakref.WeakValueDictionary()

    def join(self, name: str, rank: int, world_size: int, timeout: float) -> Environment:
        """Return the environment of this name, in which this rank has a place from now on.

        A new one if there is none, or all ranks have left it. Errors: as Environment.join().
        """
        with self._lock:
            environment = self._known.get(name)
            if environment is None or len(environment.left) == environment.world_size:
                environment = self._known[name] = Environment(world_size, timeout)
            environment.join(rank, world_size, f"environment {name!r}")
        return environment


class Group:
    """Some ranks of an environment, in their order: the meetings and mailboxes of these ranks."""

    def __init__(self, environment: Environment, world_ranks: tuple[int, ...]):
        self.environment = environment
        self.world_ranks = world_ranks
        self._meetings: dict[int, Meeting] = {}
        # (source, destination, tag) -> sends, receives.
        self._mail = defaultdict(lambda: (deque(), deque()))

    def arrive(self, rank: int, number: int, signature: str, given, work) -> Meeting:
        """Take part in collective `number`. The last to arrive runs work(list of what each rank
        gave) for all.

        signature   verb and arguments that must be the same on all ranks
        Errors: CommunicationError, on all ranks of the meeting, if the signatures differ.
        """
        with self.environment.lock:
            meeting = self._meeting(rank, number, signature)
            meeting.given[rank] = given
            meeting.needs.discard(self.world_ranks[rank])
            is_last = not meeting.needs and not meeting.done.is_set()
            if not meeting.needs:
                del self._meetings[number]
                self.environment.end(meeting)
        if is_last:
            self._finish(meeting, work)
        return meeting

    def _meeting(self, rank, number, signature):
        if number not in self._meetings:
            what = f"collective #{number}, {signature}"
            self._meetings[number] = meeting = Meeting(what, self.world_ranks, signature, rank)
            meeting.needs.discard(self.world_ranks[rank])
            self.environment.begin(meeting)
        meeting = self._meetings[number]
        if meeting.signature != signature:
            meeting.fail(
                CommunicationError,
                f"collective #{number} differs between ranks: rank {meeting.first_rank} called "
                f"{meeting.signature}, rank {rank} called {signature}; all ranks of a group "
                "must make the same calls in the same order",
            )
        return meeting

    def _finish(self, meeting, work):
        try:
            meeting.results = work([meeting.given[rank] for rank in range(len(self.world_ranks))])
        except ValueError as error:  # pieces that do not fit together
            meeting.fail(CommunicationError, f"{meeting.what}: {error}")
        meeting.given.clear()  # a rank that goes on may use the memory of its array again
        meeting.done.set()

    def post(self, source: int, destination: int, tag: int, array, *, is_send: bool) -> Message:
        """Offer one side of a message; the second side copies.

        Messages of one source and tag keep their order.
        """
        what = f"send to rank {destination}" if is_send else f"receive from rank {source}"
        peer = self.world_ranks[destination if is_send else source]
        message = Message(f"{what}, tag {tag}, {array.size} elements", peer, array)
        with self.environment.lock:
            own, opposite = self._mail[source, destination, tag][:: 1 if is_send else -1]
            if opposite:
                self._deliver(
                    *((message, opposite.popleft()) if is_send else (opposite.popleft(), message))
                )
            else:
                own.append(message)
                self.environment.begin(message)
        return message

    def _deliver(self, sent, received):
        if sent.array.size != received.array.size or sent.array.dtype != received.array.dtype:
            text = (
                f"{sent.what} of {sent.array.dtype} met {received.what} of {received.array.dtype}; "
                "they must be equal"
            )
            sent.fail(CommunicationError, text)
            received.fail(CommunicationError, text)
        else:
            received.array[...] = sent.array
        for message in (sent, received):
            self.environment.end(message)
            message.array = None  # its rank may use that memory again
            message.done.set()
