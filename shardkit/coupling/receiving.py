"""Receiving: what solver ranks send is taken into the buffer of a trainer, beside its training.

    records of rank 0, 1, 2 ... --in the order of their numbers, or as they come--> buffer
                                   while it has room: else they stay with the solver

On ranks that only train a thread does it, so that no solver waits for a step; on ranks that solve
too, their own calls do.
"""

from collections import Counter

from ..comm.mpi.post import Posted
from .attendant import Attendant
from .buffers import OrderedBuffer, SampleBuffer, open_buffer
from .desk import RECORD_TAG, NoteDesk
from .records import RecordForm, header_of
from .sides import Options, PutOrder, Sides


class Receiver:
    """One trainer's.

    attendant
        Takes what comes; its lock is held by who uses buffer or desk.
    form    of the records; None: no solver has put yet
    ends    after how many puts solver ranks have ended, as far as they have said so
    error   what solvers do wrong, in words; None: nothing
    first_put
        The number of puts with which the solver ranks began.
    """

    def __init__(self, desk: NoteDesk, sides: Sides, options: Options):
        self.desk, self.sides = desk, sides
        self.options = options
        self.attendant = Attendant(desk, self._turn, self._awaited)
        self.form: RecordForm | None = None
        self.first_put = 0
        self.error: str | None = None
        self.ends = PutOrder.of(len(sides.solvers))
        self._buffer: SampleBuffer | None = None
        self._sent: dict[int, int] = {}  # by each rank that has ended, to this trainer
        self._received = Counter[int]()  # from each rank that has said what it puts
        self._coming: tuple[Posted, int | None] | None = None  # with its slot
        self._next_number = 0
        self._is_discarding = False
        desk.listen(form=self._note_form, ends=self._note_end)
        if not sides.is_shared:
            self.attendant.start()

    # ---- what is there ---------------------------------------------------------------------------

    @property
    def buffer(self) -> SampleBuffer:
        """The records; not before there is a form."""
        assert self._buffer is not None
        return self._buffer

    @property
    def is_complete(self) -> bool:
        """True once all that the solver ranks have sent to this trainer is here."""
        return not self.unended and self.has_all(self._sent)

    def has_all(self, sent: dict[int, int]) -> bool:
        """Return True if so many records of each rank are here."""
        return all(self._received[rank] >= num_records for rank, num_records in sent.items())

    @property
    def unended(self) -> list[int]:
        """The solver ranks that may put more."""
        return [rank for rank in self.sides.solvers if self.ends.ends[rank] is None]

    def counts(self) -> dict[str, int]:
        """Return records received, dropped, and the bytes of the buffer."""
        if self._buffer is None:
            return {"received": 0, "dropped": 0, "buffer_bytes": 0}
        buffer = self._buffer
        counts = {"received": buffer.num_received, "dropped": buffer.num_dropped}
        return {**counts, "buffer_bytes": buffer.records.nbytes}

    # ---- doing -----------------------------------------------------------------------------------

    def _turn(self) -> bool:
        """Take what has come; return True if there was something. With the lock held."""
        heard = self.desk.hear()
        return self._receive() or heard

    def discard(self) -> None:
        """Take from now on what comes, and keep nothing of it."""
        with self.attendant.lock:
            self._is_discarding = True

    # ---- records ---------------------------------------------------------------------------------

    def deliver(self, record) -> None:
        """Take a record of this rank's own. Errors: BufferError if there is no room."""
        with self.attendant.lock:
            slot = None if self._buffer is None else self._buffer.slot()
            if slot is None:
                raise BufferError(
                    f"the buffer of {self.options.buffer_bytes:,} bytes is full; train on "
                    "batches() before the next put(), or set when_full"
                )
            self.buffer.records[slot] = record
            self.buffer.keep(slot)
            self._received[self.sides.rank] += 1

    def _receive(self) -> bool:
        if self._coming is not None and not self._take():
            return False
        if self.sides.is_shared or self.is_complete or not self._is_ready():
            return False
        source = self.desk.post.sender(RECORD_TAG, self._next_source())
        if source is None or not (source in self._received or self._is_discarding):
            return False  # of another form it has another size, and its rank is refused
        slot = None if self._is_discarding else self.buffer.slot()
        if slot is None and not self._is_discarding:
            return False
        place = None if slot is None else self.buffer.records[slot]
        posted = self.desk.post.arrival(RECORD_TAG, source, place)
        if posted is not None:
            self._coming = posted, slot
        elif slot is not None:  # its rank was lost just now
            self.buffer.release(slot)
        return posted is not None

    def _is_ready(self) -> bool:
        """Return True if a record may come."""
        is_open = self._buffer is not None and (not self.options.is_ordered or self._find_next())
        return self._is_discarding or is_open

    def _take(self) -> bool:
        """Keep the record that was coming; return False if it is not all here."""
        assert self._coming is not None
        posted, slot = self._coming
        if not posted.is_done():
            return False
        self._coming = None
        if posted.has_failed:  # what lies there is no record
            if slot is not None:
                self.buffer.release(slot)
            return True
        self._received[posted.source] += 1
        number = int(header_of(posted.array)["number"])
        self._next_number = max(self._next_number, number + len(self.sides.trainers))
        if slot is not None:
            self.buffer.keep(slot)
        return True

    def _awaited(self) -> str:
        """Return what a trainer waits for, where that is one rank's put."""
        put, rank = self.sides.put_of(self._next_number)
        return "" if self._next_source() is None else f"; put {put} of rank {rank} is the next"

    def _find_next(self) -> bool:
        """Go on to the next number that is put; return False if its ranks have all ended."""
        for _ in self.sides.solvers:  # after so many numbers the same ranks follow
            if self.ends.has(self._next_number):
                return True
            self._next_number += len(self.sides.trainers)
        return False

    def _next_source(self) -> int | None:
        """Return the rank whose record is the next in order; None: of any rank."""
        if not self.options.is_ordered or self._is_discarding:
            return None
        return self.sides.put_of(self._next_number)[1]

    # ---- notes -----------------------------------------------------------------------------------

    def _note_form(self, source, facts, body):
        form = RecordForm.from_text(facts["form"])
        self._received.setdefault(source, 0)
        if self.form is None:
            self.form, self.first_put = form, facts["first_put"]
            self._open()
        elif (self.form, self.first_put) != (form, facts["first_put"]):
            self._refuse(
                f"solver rank {source} puts {form} from put {facts['first_put']} on, another one "
                f"{self.form} from put {self.first_put} on; wanted the same on all"
            )

    def _open(self):
        assert self.form is not None
        options, record_bytes = self.options, self.form.record_bytes
        first = self.first_put * len(self.sides.solvers)
        self._next_number = first + (self.sides.place - first) % len(self.sides.trainers)
        self._buffer = open_buffer(
            options.buffer, options.when_full, options.buffer_bytes, record_bytes, options.seed
        )
        if self._buffer is None:
            self._refuse(
                f"buffer_bytes = {options.buffer_bytes:,} has no room for records of "
                f"{record_bytes:,} bytes; wanted at least two of them"
            )

    def _refuse(self, why: str):
        """Let all that read or put raise it."""
        self.error, self._is_discarding = why, True
        self.attendant.tell(self.sides.solvers, "refuse", why=why)

    def _note_end(self, source, facts, body):
        self.ends = self.ends.after(
            facts["puts"] if rank == source else None for rank in self.sides.solvers
        )
        self._sent[source] = facts["sent"]

    def problem_of(self, numbers) -> str | None:
        """Return why these samples, of this trainer, can never be read; None: they can."""
        if self.error is not None:
            return self.error
        if self._buffer is None or not numbers or self.options.buffer == "reservoir":
            return None
        capacity = len(self._buffer.records)
        if len(numbers) > capacity:
            return (
                f"a batch needs {len(numbers)} samples of this trainer, its buffer holds "
                f"{capacity}; set buffer_bytes to "
                f"{len(numbers) * self._buffer.records.shape[1]:,} or more"
            )
        first, (put, _) = min(numbers), self.sides.put_of(min(numbers))
        if isinstance(self._buffer, OrderedBuffer) and put < self.first_put:
            return (
                f"sample {first} is asked for, the solver began with "
                f"{self.first_put * len(self.sides.solvers)}: start it with first_put = {put} or "
                "less"
            )
        return None
