"""What a rank has asked NCCL for and its GPU has not done: what a wait for the GPU waits for.

    host     all_reduce | all_gather | kernels ... | to_host()            the calls return at once
    GPU      ........ all_reduce ........................                 waits for the other ranks
    noted                                          "wait for the GPU"     in the place of the oldest
                                                                          call that is not done

So the wait is a call of this rank like any other: in its ledger, under the time limit, and the
others that have not come to that call of NCCL are named. Meanwhile the host asks the event of CUDA,
and the communicators for what went wrong on other ranks; they are aborted where there is an error,
and when the job ends, so that no kernel spins on. Where the host waits in a way that is not seen
here (memory that is freed, a library), the watchdog asks for the oldest call itself.
Source: NCCL user guide, "Fault Tolerance", ncclCommGetAsyncError and ncclCommAbort.
"""

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from ...array.waits import unwatch, watch
from ...comm.watch.progress import Awaited, Call, Progress, UnderWay
from ...errors import CommunicationError

ASK_SECONDS = 0.01  # between two questions whether the communicators are well
ANSWER_SECONDS = 0.2  # that another thread waits for CUDA
_PART = 1 / 200  # of the time waited: how long the host sleeps until it asks again
_MOST_SECONDS = 0.002  # that it sleeps


@dataclass(frozen=True, slots=True)
class Asked:
    """One call of NCCL.

    call    the verb that made it
    carries dtype, and elements
    axis    of the mesh, or the key of the group
    end     the event after it
    """

    call: Call
    dtype: Any
    count: int
    axis: str
    end: Any

    def __str__(self):
        number = "" if self.call.number is None else f"{self.call.number}, "
        return f"{number}{self.call.verb} of {_short(self.count)} on {self.axis}"


class NcclCalls:
    """The calls of one rank on all groups of its world, and the watch over its waits.

    One lives in the Progress of the world while a group has a communicator.
    """

    def __init__(self, group, error_type: type[Exception], select_gpu):
        self._progress = group.progress
        self._look_at_others = group.look_at_others
        self._error_type, self._select_gpu = error_type, select_gpu
        self._thread = threading.get_ident()
        self._pending: deque[Asked] = deque()
        self._last: Asked | None = None
        self._communicators: list[Any] = []
        self._failed: BaseException | None = None
        self._is_waiting = self._is_ending = False
        self._question: threading.Thread | None = None  # to CUDA, by another thread
        self._answer: Call | None = None

    @classmethod
    def of(cls, group, error_type: type[Exception], select_gpu) -> "NcclCalls":
        """Return those of the group's world. No communication.

        select_gpu   function () that makes its GPU the current one of a thread
        """
        calls = group.progress.gpu.calls
        if calls is None:
            calls = cls(group, error_type, select_gpu)
            group.progress.gpu.use(calls)
        return calls

    def open(self, communicator) -> None:
        """Ask this communicator too whether all is well, and abort it with the others."""
        if not self._communicators:
            watch(self)
            self._progress.gpu.use(self)
        self._communicators.append(communicator)

    def close(self, communicator) -> None:
        """Leave the communicator, once all calls are done. Collective over its ranks."""
        try:
            if self._failed is None:
                self.clear(None)
        finally:
            self._communicators.remove(communicator)
            if not self._communicators:
                unwatch(self)
                self._progress.gpu.use(None)
        if self._failed is None:  # else it is aborted
            communicator.destroy()

    def give_up(self, communicator) -> None:
        """Leave a communicator whose calls nobody waits for: they are never done."""
        self._communicators.remove(communicator)
        if self._failed is None:
            with suppress(self._error_type):
                communicator.abort()

    # ---- calls -----------------------------------------------------------------------------------

    def note(self, port, axis: str, end) -> None:
        """Note what the verb under way has asked for; port: of the whole array."""
        call = self._progress.current
        if call is not None:
            self._forget_done()
            self._last = Asked(call, port.dtype, port.size, axis, end)
            self._pending.append(self._last)

    def oldest(self) -> Call | None:
        """Return the first call that the GPU has not done; None: it has done all.

        In any thread. Where CUDA does not answer, since it is busy in the thread of the calls, the
        first that is not known to be done.
        """
        pending = tuple(self._pending)
        if not pending:
            return None
        if self._question is None or not self._question.is_alive():
            self._question = threading.Thread(target=self._ask, args=(pending,), daemon=True)
            self._question.start()
        self._question.join(ANSWER_SECONDS)
        return pending[0].call if self._question.is_alive() else self._answer

    def _ask(self, pending: tuple[Asked, ...]) -> None:
        """Ask CUDA for the first of these that is not done. In a thread of its own."""
        self._select_gpu()
        self._answer = next((asked.call for asked in pending if not asked.end.done), None)

    def _forget_done(self) -> Asked | None:
        """Return the oldest that is not done, and forget what came before it."""
        while self._pending and self._pending[0].end.done:
            self._pending.popleft()
        return self._pending[0] if self._pending else None

    # ---- waits -----------------------------------------------------------------------------------

    def clear(self, event) -> None:
        """Wait until no call that is not done comes before the event; None: when all are done.

        Errors: CommunicationError where NCCL or another rank has failed.
        """
        if threading.get_ident() != self._thread:
            self._wait_beside(event)
        else:
            while not (event is not None and event.done) and (asked := self._forget_done()):
                self._wait_for(asked, event)
        self._check()

    def _wait_for(self, asked: Asked, event) -> None:
        """Wait for the event, or for this call before it."""
        doing = f"wait for the GPU; last NCCL call {self._last}"
        with meanwhile(self._progress, asked, doing, self._progress.site(1)):
            began, asks = time.monotonic(), 0.0
            self._is_waiting = True
            try:
                while self._is_ending or not (asked.end.done or event is not None and event.done):
                    waited = time.monotonic() - began
                    if waited >= asks:
                        asks = waited + ASK_SECONDS
                        self._look(asked, doing, waited)
                    time.sleep(min(waited * _PART, _MOST_SECONDS))
            except BaseException as error:
                self.abort(error)
                raise
            finally:
                self._is_waiting = False

    def _wait_beside(self, event) -> None:
        """Wait in another thread than that of the calls, which notes what it waits for itself."""
        while not event.done:
            self._check()
            time.sleep(_MOST_SECONDS)

    def _check(self) -> None:
        if self._failed is not None:
            raise CommunicationError(f"what the GPU computes will never be there: {self._failed}")

    def _look(self, asked: Asked, doing: str, waited: float) -> None:
        """Raise if NCCL has heard of an error, or another rank fails, leaves, or is too late."""
        if self._is_ending:  # this process is killed before the host goes on with wrong numbers
            return
        self._check()
        self._look_at_others(Awaited(asked.call, doing, waited))
        for communicator in self._communicators:
            try:
                communicator.check_async_error()
            except self._error_type as error:
                raise CommunicationError(
                    f"{doing}: NCCL says: {error}; a rank or a link has failed, and the ranks' own "
                    "messages, or NCCL_DEBUG=WARN in the environment, say which"
                ) from error

    def end_job(self) -> None:
        """Let no kernel spin on while the job is ended, if the host is where it can be held back.

        In any thread.
        """
        self._is_ending = True
        if self._is_waiting:
            self._abort()

    def abort(self, error: BaseException | None = None) -> None:
        """End the kernels of all communicators: nobody waits for them. In any thread."""
        self._failed = error or CommunicationError("NCCL's calls were given up")
        self._abort()

    def _abort(self) -> None:
        for communicator in tuple(self._communicators):
            with suppress(self._error_type):
                communicator.abort()


@contextmanager
def nccl_errors(module, group: str, verb: str) -> Iterator[None]:
    """Turn an error of NCCL in a verb of this group into a CommunicationError."""
    try:
        yield
    except module.NcclError as error:
        raise CommunicationError(
            f"{verb} on group {group}: NCCL says: {error}; NCCL_DEBUG=WARN in the environment "
            "makes it say more"
        ) from error


@contextmanager
def meanwhile(progress: Progress, asked: Asked, doing: str, site: int) -> Iterator[None]:
    """Inside, this rank waits for what it has asked of NCCL, perhaps in the midst of a verb.

    doing   what it does, in words, for reports
    site    number of the place that waits
    """
    call, outer = asked.call, progress.current
    if outer is not None:
        progress.end()
    noted = Call(doing, call.group, call.ranks, call.number)
    verb = f"the GPU, in {call.verb}"
    progress.resume(noted, verb, dtype=asked.dtype, count=asked.count, site=site)
    with UnderWay(progress):
        yield
    if outer is not None:
        progress.resume(outer)


def _short(count: int) -> str:
    """Return "3.1 M" for 3,100,000."""
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if count >= size:
            return f"{count / size:.3g}{unit}"
    return str(count)
