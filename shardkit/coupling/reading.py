"""Reading: trainers read the samples of a batch together, from the buffers of all of them.

    want    each tells all which samples it reads: on tensor and pipeline ranks the same ones
    have    each waits until it has those whose home it is, and tells so, or that they never come
    give    each sends what it has to those that want it

So the mesh is not known to solvers or buffers, and all ranks go on with the batch or none does.
"""

from collections import deque
from functools import partial
from typing import Any

import numpy

from ..data.samples import STREAM
from ..errors import CommunicationError, ShardingError, StopVoted
from .desk import EMPTY
from .moments import Moments, added, from_stored, moments_of, to_stored
from .predicting import WaitingSolvers
from .receiving import Receiver
from .sides import PutOrder

GO, LATER = "go", "later"  # what a trainer has to say of its samples
OVER, ABSENT = "over", "absent"
REFUSED = "refused"
Told = tuple[dict[str, Any], numpy.ndarray]  # facts and body of a note
_KEPT_READS = 8  # whose moments are kept: a run reads one batch ahead


class Reading:
    """One trainer's part.

    order     of puts, as all trainers have agreed on it
    ended_by  why the stream is over; None: it goes on, or all solvers have finished
    """

    def __init__(self, receiver: Receiver, waiting: WaitingSolvers):
        self._receiver, self._sides = receiver, receiver.sides
        self._waiting = waiting
        self._trained = 0  # samples; who waits for the next one is idle
        self.order = PutOrder.of(len(self._sides.solvers))
        self.ended_by: str | None = None
        self._moments: deque[tuple[int, Moments]] = deque([(0, {})], _KEPT_READS)
        self._told: dict[tuple[str, int], deque] = {}
        for kind in ("want", "have", "give"):
            self._told |= {(kind, rank): deque() for rank in self._sides.trainers}
            receiver.desk.listen(**{kind: partial(self._note, kind)})

    # ---- moments ---------------------------------------------------------------------------------

    def moments(self, samples: int | None = None) -> Moments:
        """Return those of the first so many samples; None: of all that were read."""
        if samples is None:
            return self._moments[-1][1]
        found = [moments for end, moments in self._moments if end <= samples]
        return found[-1] if found else {}

    @property
    def num_read(self) -> int:
        """Samples of the stream up to the last one that was read."""
        return self._moments[-1][0]

    def go_on_from(self, samples: int, moments: Moments) -> None:
        """Count from here on."""
        self._moments = deque([(samples, moments)], _KEPT_READS)

    def go_behind(self, samples: int) -> None:
        """Note that the model has been trained on so many: for the next one, it waits idle."""
        self._trained = samples

    def finish(self) -> None:
        """Read no more: nothing is kept of what comes, and no model follows."""
        self._receiver.discard()
        with self._receiver.attendant.lock:
            self._waiting.finish()

    # ---- reading ---------------------------------------------------------------------------------

    def read(self, samples: numpy.ndarray, *, waits: bool) -> dict[str, numpy.ndarray] | None:
        """Return the fields of these samples. Collective over the trainers.

        None: they are not all there yet. waits   until they are
        Errors: StopVoted if the stream ends before them; ShardingError if they can never be read;
        CommunicationError if a trainer is lost. On all trainers.
        """
        told = self._meet("want", samples.astype(numpy.int64).view(numpy.uint8))
        wants = [body.view(numpy.int64) for _, body in told]
        numbers = self._agree(numpy.unique(numpy.concatenate(wants)).tolist(), waits)
        return None if numbers is None else self._exchange(wants, numbers)

    def _agree(self, samples: list[int], waits: bool) -> dict[int, int] | None:
        """Return {sample: number}, once all have theirs."""
        while True:
            numbers = {sample: self._number(sample) for sample in samples}
            mine = self._sides.at_home(n for n in numbers.values() if n is not None)
            is_over = None in numbers.values()
            status, why = self._status(sorted(mine), is_over, waits, first=samples[0])
            ends = self._receiver.ends.ends
            form = None if self._receiver.form is None else str(self._receiver.form)
            own = {"status": status, "why": why, "ends": ends, "form": form}
            told = [facts for facts, _ in self._meet("have", **own)]
            for facts in told:
                self.order = self.order.after(facts["ends"])
            if numbers == {sample: self._number(sample) for sample in samples}:
                break
        self._judge(told)
        if any(facts["status"] == LATER for facts in told):
            return None
        return {sample: number for sample, number in numbers.items() if number is not None}

    def _judge(self, told: list[dict]) -> None:
        """Raise what all raise."""
        for facts in told:
            if facts["status"] == REFUSED:
                raise ShardingError(facts["why"])
        forms = {facts["form"] for facts in told} - {None}
        if len(forms) > 1:  # no trainer has heard of both by now
            both = " and ".join(sorted(forms))
            raise ShardingError(f"solver ranks put {both}; wanted the same on all")
        over = [facts["why"] for facts in told if facts["status"] == OVER]
        if over:
            self.ended_by = self.ended_by or next(filter(None, over), None)
            raise StopVoted(STREAM)

    def _number(self, sample: int) -> int | None:
        return self.order.number(sample) if self._receiver.options.is_ordered else sample

    def _status(
        self, mine: list[int], is_over: bool, waits: bool, *, first: int
    ) -> tuple[str, str | None]:
        """Return what is with these numbers, and why.

        first   sample of the batch
        """
        if self._receiver.error is not None:  # also where the stream is over by now
            return REFUSED, self._receiver.error
        if is_over:
            return OVER, None
        found: list[tuple[str, str | None]] = []

        def is_settled() -> bool:
            status = self._found(mine) or ((LATER, None) if not waits else None)
            found.extend([] if status is None else [status])
            if status is None and first <= self._trained:
                self._waiting.judge(mine)
            return status is not None

        def needed() -> set[int]:
            return {*self._receiver.unended, *self._sides.trainers}

        try:
            self._receiver.attendant.wait(is_settled, needed, "the next batch")
        except CommunicationError as error:
            if self._receiver.desk.lost(self._sides.trainers):
                raise
            return OVER, str(error)
        return found[0]

    def _found(self, mine: list[int]) -> tuple[str, str | None] | None:
        """Return it if it is known; with the lock held."""
        receiver = self._receiver
        problem = receiver.problem_of(mine)
        if problem is not None:
            return REFUSED, problem
        is_over = receiver.is_complete
        if is_over and receiver.options.buffer == "reservoir":
            return OVER, None
        if receiver.form is not None and receiver.buffer.can_serve(mine):
            return GO, None
        if receiver.options.is_ordered and not all(map(receiver.ends.has, mine)):
            return ABSENT, None
        return (OVER, None) if is_over else None

    def _exchange(self, wants, numbers: dict[int, int]) -> dict[str, numpy.ndarray]:
        form = self._receiver.form
        assert form is not None
        asked = [[numbers[sample] for sample in want.tolist()] for want in wants]
        told = self._give(asked, sorted(self._sides.at_home({*numbers.values()})))
        own = numpy.array(asked[self._sides.place], numpy.int64)
        records = numpy.empty((len(own), form.record_bytes), numpy.uint8)
        moments = self._moments[-1][1]
        for place, (facts, body) in enumerate(told):
            records[own % len(told) == place] = body.reshape(-1, form.record_bytes)
            moments = added(moments, from_stored(facts["moments"]))
        self._moments.append((max(numbers) + 1, moments))
        return form.read(records)

    def _give(self, asked: list[list[int]], mine: list[int]) -> list[Told]:
        """Send to each trainer those of mine that it asked for; return what all have sent."""
        receiver = self._receiver
        with receiver.attendant.lock:
            slots = receiver.buffer.take(mine)
        place = dict(zip(mine, slots))
        records = receiver.buffer.records
        assert receiver.form is not None
        fields = receiver.form.read(records[slots], stamps=False)
        moments = to_stored(moments_of(fields))
        for rank, of_rank in zip(self._sides.trainers, asked):
            wanted = [place[number] for number in self._sides.at_home(of_rank)]
            receiver.attendant.tell([rank], "give", records[wanted].reshape(-1), moments=moments)
        with receiver.attendant.lock:
            receiver.buffer.done(slots)
        return self._heard("give")

    # ---- notes between trainers ------------------------------------------------------------------

    def _note(self, kind: str, source: int, facts: dict[str, Any], body: numpy.ndarray) -> None:
        self._told[kind, source].append((facts, body))

    def _meet(self, kind: str, body: Any = EMPTY, **facts: Any) -> list[Told]:
        """Send it to all trainers; return what all have sent, in their order."""
        self._receiver.attendant.tell(self._sides.trainers, kind, body, **facts)
        return self._heard(kind)

    def _heard(self, kind: str) -> list[Told]:
        queues = [self._told[kind, rank] for rank in self._sides.trainers]
        self._receiver.attendant.wait(
            lambda: all(queues), lambda: self._sides.trainers, "the next batch"
        )
        return [queue.popleft() for queue in queues]
