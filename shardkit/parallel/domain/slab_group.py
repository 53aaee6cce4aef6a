"""Slabs of a rank as ranks of their own: each runs in a thread, and they take turns.

    rank 0   slab 0  ---| waits for 1   |------    One thread runs at a time. Where a slab waits
             slab 1     |---| waits for |          for another, the next one goes on, until the
                            | slab 2    |---       message is there: of a slab beside it a copy,
    rank 1   slab 2  ------------|---------        of another rank one by its backend.

To layers they are a group of as many ranks as there are slabs. Sums are those of the slabs of each
rank, then of the ranks: one tree, since both are powers of two.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextvars import ContextVar, copy_context
from itertools import product
from time import sleep
from typing import Any

import numpy

from ...array import fresh
from ...array.dtypes import wide
from ...array.kernels import tree_sum
from ...comm.backend import CommunicationBackend
from ...comm.collectives.ordered import ordered_all_reduce, ordered_reduce_scatter
from ...comm.operations import CompleteHandle, Handle

PAUSE_SECONDS = 2e-5  # between two looks for a message of another rank, if no slab can go on

_slab: ContextVar[int] = ContextVar("shardkit_slab")  # of this thread, among those of its rank


class SlabGroup:
    """What layers ask of a group of ranks, for slabs; all but run() inside of it.

    ranks       that have them, each as many
    num_slabs   of all ranks, a power of two
    """

    def __init__(self, ranks: CommunicationBackend, num_slabs: int):
        self.ranks = ranks
        self.world_size = num_slabs
        self.num_own = num_slabs // ranks.world_size
        self._pool = ThreadPoolExecutor(self.num_own, "slab")
        self._begin()

    def _begin(self):
        self._turns = _Turns(self.num_own)
        self._letters: dict[tuple, Any] = {}  # (from, to, tag, number) -> a copy of the message
        self._counts: dict[tuple, int] = {}  # of messages sent, and of those waited for
        self._given: dict[int, Any] = {}  # slab -> what it brings to a meeting
        self._made: dict[int, Any] = {}  # slab -> what it takes from it

    @property
    def own(self) -> int:
        """The number of this slab among those of its rank."""
        return _slab.get()

    @property
    def rank(self) -> int:
        """The number of this slab among all."""
        return self.ranks.rank * self.num_own + self.own

    def run(self, function: Callable[[int], Any]) -> list:
        """Return [function(number of a slab of this rank)], each in a context of its own.

        Collective over the ranks. Errors: the first that one raised; the others go no further.
        """
        self._begin()

        def of_slab(number):
            _slab.set(number)
            return function(number)

        numbers, turns = range(self.num_own), self._turns
        if self.num_own == 1:
            return [copy_context().run(of_slab, 0)]
        futures = [
            self._pool.submit(copy_context().run, turns.run, number, of_slab) for number in numbers
        ]
        turns.begin()
        wait(futures)
        if turns.failure is not None:
            raise turns.failure
        return [future.result() for future in futures]

    # ---- messages --------------------------------------------------------------------------------

    def isend(self, array: Any, destination: int, tag: int = 0) -> Handle:
        """Begin a send to a slab."""
        rank, place = divmod(destination, self.num_own)
        if rank != self.ranks.rank:
            handle = self.ranks.isend(array, rank, self._tag(self.own, place, tag))
            return _FromAfar(handle, self._turns)
        self._letters[self._numbered("sent", self.own, place, tag)] = fresh.copy(array)
        return CompleteHandle()

    def irecv(self, array: Any, source: int, tag: int = 0) -> Handle:
        """Post a receive of what a slab sends."""
        rank, place = divmod(source, self.num_own)
        if rank != self.ranks.rank:
            handle = self.ranks.irecv(array, rank, self._tag(place, self.own, tag))
            return _FromAfar(handle, self._turns)
        key = self._numbered("awaited", place, self.own, tag)
        return _FromBeside(array, self._letters, key, self._turns)

    def receive(self, array: Any, source: int, tag: int = 0) -> None:
        """Receive what a slab sends."""
        self.irecv(array, source, tag).wait()

    def _tag(self, sender: int, receiver: int, tag: int) -> int:
        return (tag * self.num_own + sender) * self.num_own + receiver

    def _numbered(self, what, *message) -> tuple:
        """Return a message with its number among those alike, as it is sent or awaited."""
        number = self._counts.get((what, *message), 0)
        self._counts[what, *message] = number + 1
        return *message, number

    def memory(self) -> Any:
        """Return None: arrays that travel may lie anywhere."""
        return None

    # ---- collectives -----------------------------------------------------------------------------

    def adds_in_tree_order(self, array: Any) -> bool:
        """Return True: every sum is that of the tree."""
        return True

    def all_reduce(self, array: Any) -> None:
        """Leave the sum over slabs in an array [n]."""

        def make(given):
            return [self.total(given)] * self.num_own

        array[...] = self._met(array, make)

    def total(self, arrays: Sequence[Any]) -> Any:
        """Return the sum of arrays [n] of own slabs over all slabs, as the tree over these.

        Collective over the ranks; half floats as float32.
        """
        sums = self._own_total(arrays)
        ordered_all_reduce(self.ranks, sums)
        return sums

    def _own_total(self, arrays):
        dtype = wide(arrays[0].dtype)
        return tree_sum([array.astype(dtype, copy=False) for array in arrays])

    def reduce_scatter(self, send: Any, receive: Any, *, in_place: bool = False) -> None:
        """Leave this slab's slice of the sum of arrays [n] in `receive`."""

        def make(given):
            sums = self._own_total(given)
            own = numpy.empty(receive.size * self.num_own, sums.dtype)
            ordered_reduce_scatter(self.ranks, sums, own)
            return numpy.split(own, self.num_own)

        receive[...] = self._met(send, make)

    def all_gather(self, send: Any, receive: Any, counts: Sequence[int] | None = None) -> None:
        """Leave what all slabs have in `receive`, in their order."""

        def make(given):
            own = numpy.concatenate([each.reshape(-1) for each in given])
            whole = numpy.empty(receive.size, receive.dtype)
            self.ranks.all_gather(own, whole, None if counts is None else self._by_rank(counts))
            return [whole] * self.num_own

        receive.reshape(-1)[...] = self._met(send, make)

    def all_to_all(
        self, send: Any, receive: Any, send_counts: Sequence[int], receive_counts: Sequence[int]
    ) -> None:
        """Send piece n of `send` to slab n; piece n of `receive` comes from it."""

        def make(given):
            sent = [_pieces(array, counts) for array, counts, _ in given]
            expected = [counts for *_, counts in given]
            pairs = [*self._pairs_by_rank()]
            there = [sent[own][first + its] for first, its, own in pairs]
            back = [(own, first + its) for first, own, its in pairs]
            sizes = [expected[to][slab] for to, slab in back]
            came = numpy.empty(sum(sizes), receive.dtype)
            of_ranks = [
                self._by_rank(each, self.num_own**2)
                for each in ([piece.size for piece in there], sizes)
            ]
            self.ranks.all_to_all(numpy.concatenate(there), came, *of_ranks)
            pieces = dict(zip(back, _pieces(came, sizes)))
            slabs = range(self.world_size)
            return [numpy.concatenate([pieces[to, slab] for slab in slabs]) for to in self._numbers]

        receive[...] = self._met((send, send_counts, receive_counts), make)

    @property
    def _numbers(self) -> range:
        return range(self.num_own)

    def _pairs_by_rank(self) -> Iterator[tuple[int, int, int]]:
        """Return (first slab of a rank, place of who receives, of who sends), in the order in which
        ranks exchange messages of their slabs.
        """
        firsts = range(0, self.world_size, self.num_own)
        return product(firsts, self._numbers, self._numbers)

    def _by_rank(self, counts, num: int = 0) -> list[int]:
        """Return the sums of as many counts for each rank; 0: one for each slab."""
        num = num or self.num_own
        return numpy.reshape(counts, (-1, num)).sum(1).tolist()

    def _met(self, given: Any, make: Callable[[list], list]) -> Any:
        """Return this slab's of make([what each own slab gives]), which the last to come makes."""
        self._given[self.own] = given
        if len(self._given) == self.num_own:
            made = make([self._given[number] for number in self._numbers])
            self._given.clear()
            self._made.update(enumerate(made))
        while self.own not in self._made:
            self._turns.pass_on()
        return self._made.pop(self.own)


def _pieces(array, counts) -> list:
    """Return views of an array [n], one after the other, of so many elements each."""
    return numpy.split(array, numpy.cumsum(counts)[:-1])


class _Turns:
    """Threads of which one runs at a time, in a circle.

    failure   the first error of one: the others raise it where they wait
    """

    def __init__(self, count: int):
        self._gates = [threading.Lock() for _ in range(count)]  # a thread waits at its own
        for gate in self._gates:
            gate.acquire()
        self._running = [*range(count)]
        self.failure: BaseException | None = None

    def begin(self) -> None:
        """Let the first one run."""
        self._gates[0].release()

    def run(self, number: int, function: Callable[[int], Any]) -> Any:
        """Return function(number), at its turns."""
        self._gates[number].acquire()
        try:
            self._check()
            return function(number)
        except BaseException as error:
            self.failure = self.failure or error
            raise
        finally:
            following = self._after(number)
            self._running.remove(number)
            if following != number:
                self._gates[following].release()

    def pass_on(self) -> None:
        """Let the others run until it is this one's turn again. Errors: that of another."""
        number = _slab.get()
        following = self._after(number)
        if following != number:
            self._gates[following].release()
            self._gates[number].acquire()
        self._check()

    def _check(self):
        if self.failure is not None:
            raise self.failure

    def _after(self, number) -> int:
        """Return the next one that runs; itself if no other does."""
        later = [each for each in self._running if each > number]
        return later[0] if later else self._running[0]

    @property
    def is_alone(self) -> bool:
        """True if there is one thread."""
        return len(self._gates) == 1


class _FromAfar(Handle):
    """A message to or from another rank, for which no slab waits while another can go on."""

    def __init__(self, handle: Handle, turns: _Turns):
        self._handle, self._turns = handle, turns

    def wait(self) -> None:
        while not self._turns.is_alone and not self._handle.test():
            self._turns.pass_on()
            sleep(PAUSE_SECONDS)
        self._handle.wait()

    def test(self) -> bool:
        return self._handle.test()


class _FromBeside(Handle):
    """A message of a slab of this rank."""

    def __init__(self, array: Any, letters: dict, key: tuple, turns: _Turns):
        self._array = array
        self._letters = letters
        self._key = key
        self._turns = turns
        self._is_here = False

    def wait(self) -> None:
        while not self.test():
            self._turns.pass_on()

    def test(self) -> bool:
        if not self._is_here and self._key in self._letters:
            self._array[...] = self._letters.pop(self._key)
            self._is_here = True
        return self._is_here
