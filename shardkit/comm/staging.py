"""Windows: how elements that a channel cannot take pass through bounded host scratch.

    array on the GPU    [ window 0 | window 1 | window 2 | . ]       for each window:
                             |                                   load   GPU -> page-locked scratch
    host scratch        [ window ]  --- the verb --- [ window ]  run    the verb on the scratch
                                                         |       store  scratch -> GPU
    array on the GPU    [ window 0 | ...

Copies go on while ranks talk: the next window is loaded and the last one stored while one is in the
verb.

    time  ->    load 0 | load 1  | load 2  | load 3  |
                       | run 0   | run 1   | run 2   | run 3  |
                                 | store 0 | store 1 | store 2| store 3

Windows also widen half floats for reductions. Arrays that need neither go directly: one window, no
scratch. All ranks of one verb must go the same way: pass arrays of one kind (all host, or all GPU)
and one dtype.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy

from ..on_gpu import gpu_part

WINDOW_BYTES = 4 << 20
_IN_FLIGHT = 3  # windows: one is loaded, one is in the verb, one is stored


@dataclass(frozen=True, slots=True)
class Pieces:
    """Pieces of one array, one per rank that it is exchanged with: piece k is [starts[k], starts[k]
    + counts[k]).
    """

    port: Any
    counts: list[int]
    starts: list[int]

    def window(self, first: int, length: int) -> "Pieces":
        """Return the elements [first, first + length) of every piece, clipped to the piece."""
        counts = [min(max(count - first, 0), length) for count in self.counts]
        return Pieces(self.port, counts, [start + first for start in self.starts])

    def begin_load(self, scratch):
        """Load the pieces, one after the other, into scratch [sum of counts].

        Return a function that waits until they are there.
        """
        return self.port.begin_load(list(self._aligned(scratch)))

    def begin_store(self, scratch):
        """Store the pieces from scratch [sum of counts].

        Return a function that waits until they are there.
        """
        return self.port.begin_store(list(self._aligned(scratch)))

    def _aligned(self, scratch):
        offset = 0
        for start, count in zip(self.starts, self.counts):
            if count:
                yield start, scratch[offset : offset + count]
            offset += count


@dataclass(frozen=True, slots=True)
class StagedWindow:
    """What is done with one window. `load` and `store` begin copies and return a function that
    waits for them.
    """

    load: Callable
    run: Callable
    store: Callable


class Staging:
    """Scratch that is made once and reused, and the copies to and from the GPU.

    window_bytes   bound of each of the four scratch buffers; the same on all ranks
    copies         None: CudaCopies, made when the first GPU array comes
    """

    def __init__(self, *, window_bytes: int = WINDOW_BYTES, copies=None):
        self.window_bytes = window_bytes
        self._copies = copies
        self._scratch: dict[int, numpy.ndarray] = {}

    @property
    def copies(self):
        """CudaCopies or what stands for it."""
        if self._copies is None:
            self._copies = gpu_part("transports.device").CudaCopies()
            self._scratch.clear()  # it is ordinary memory, and copies want page-locked one
        return self._copies

    def scratch(self, slot: int, size: int, dtype):
        """Return [size] of dtype, contents undefined, valid until the next scratch of this slot."""
        num_bytes = size * dtype.itemsize
        if slot not in self._scratch or self._scratch[slot].nbytes < num_bytes:
            self._scratch[slot] = self._host_bytes(max(num_bytes, 1))
        return self._scratch[slot][:num_bytes].view(dtype)

    def in_place(self, port, run, *, loads: bool = True, stores: bool = True) -> None:
        """Call run(host [n]) on all elements of the port: directly, or window by window.

        loads, stores   False: run does not read, or does not change, the elements on this rank
        """
        if port.host is not None:
            return run(port.host)
        port.settle()
        length = self._window(port)
        windows = [
            self._one_array(
                port, first, min(length, port.size - first), run, number % _IN_FLIGHT, loads, stores
            )
            for number, first in enumerate(range(0, max(port.size, 1), length))
        ]  # an empty array takes part, once
        _flow(windows)

    def _one_array(self, port, first, size, run, slot, loads, stores) -> StagedWindow:
        scratch = self.scratch(slot, size, port.wire)
        piece = [(first, scratch)] if size else []
        return StagedWindow(
            lambda: port.begin_load(piece if loads else []),
            lambda: run(scratch),
            lambda: port.begin_store(piece if stores else []),
        )

    def exchange(self, send: Pieces, receive: Pieces, run, *, num_ranks: int, longest: int) -> None:
        """Call run(send, receive, send_part, receive_part) on a window of every piece at a time.

        longest   elements of the longest piece on any rank: all ranks go through the same number of
                  windows
        """
        send.port.settle()
        receive.port.settle()
        length = max(1, self.window_bytes // (num_ranks * send.port.wire.itemsize))
        _flow(
            [
                self._two_arrays(
                    send.window(first, length), receive.window(first, length), run, number % 2
                )
                for number, first in enumerate(range(0, max(longest, 1), length))
            ]
        )

    def _two_arrays(self, send, receive, run, turn) -> StagedWindow:
        outgoing = self.scratch(turn, sum(send.counts), send.port.wire)
        incoming = self.scratch(2 + turn, sum(receive.counts), receive.port.wire)
        return StagedWindow(
            lambda: send.begin_load(outgoing),
            lambda: run(outgoing, incoming, packed(send), packed(receive)),
            lambda: receive.begin_store(incoming),
        )

    def whole(self, port, *, load: bool):
        """Return all elements of the port as one host array, not bounded.

        It lives until a non-blocking verb is done.
        """
        if port.host is not None:
            return port.host
        port.settle()
        array = self._host_bytes(port.size * port.wire.itemsize).view(port.wire)
        if load:
            port.begin_load([(0, array)])()
        return array

    def messages(self, port, host) -> list:
        """Return `host`, which whole() gave for the port, in the parts of a blocking message."""
        length = self._window(port)
        return (
            [host]
            if port.host is not None
            else [host[first : first + length] for first in range(0, max(host.size, 1), length)]
        )

    def _window(self, port) -> int:
        """Return the number of elements of a window."""
        return max(1, self.window_bytes // port.wire.itemsize)

    def _host_bytes(self, num_bytes):
        if self._copies is None:  # half floats on the host: ordinary memory will do
            return numpy.empty(num_bytes, numpy.uint8)
        return self._copies.pinned(num_bytes, numpy.dtype(numpy.uint8))


def _flow(windows: list[StagedWindow]) -> None:
    """Run the windows in order; each loads while the one before runs, stores while the next does.

    When window k runs, window k - 2 is stored: scratch can be used again by the third window after
    it if the verb changes what was loaded, by the second one if it does not. Whatever happens, no
    copy is under way afterwards.
    """
    under_way = deque([windows[0].load()])
    stores: deque = deque()
    try:
        for number, window in enumerate(windows):
            if len(stores) == _IN_FLIGHT - 1:
                stores.popleft()()
            if number + 1 < len(windows):
                under_way.append(windows[number + 1].load())
            under_way.popleft()()
            window.run()
            stores.append(window.store())
    finally:
        for wait in (*under_way, *stores):
            wait()


def packed(part: Pieces) -> Pieces:
    """Return the same counts, one after the other from 0."""
    starts, offset = [], 0
    for count in part.counts:
        starts.append(offset)
        offset += count
    return Pieces(part.port, part.counts, starts)
