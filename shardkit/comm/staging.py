"""Windows: how elements that cannot be handed to the backend directly pass through bounded host scratch.

    array on the GPU    [ window 0 | window 1 | window 2 | . ]       for each window:
                             |                                          load   GPU -> page-locked scratch
    host scratch        [ window ]  --- the verb --- [ window ]         run    the verb on the scratch
                                                         |              store  scratch -> GPU
    array on the GPU    [ window 0 | ...

The same road widens half floats for reductions. Arrays that need neither take the direct road: one window, no scratch.
All ranks of one verb must take the same road: pass arrays of one kind (all host, or all GPU) and one dtype.
"""
from dataclasses import dataclass

import numpy

from .device import CudaCopies


@dataclass(frozen=True, slots=True)
class Part:
    """Pieces of one array, one per rank that it is exchanged with: piece k is [starts[k], starts[k] + counts[k])."""

    port: object
    counts: list[int]
    starts: list[int]

    def window(self, first: int, length: int) -> "Part":
        """Of every piece the elements [first, first + length), clipped to the piece."""
        counts = [min(max(count - first, 0), length) for count in self.counts]
        return Part(self.port, counts, [start + first for start in self.starts])

    def load(self, scratch):
        """scratch [sum of counts]: the pieces, one after the other."""
        for start, piece in self._aligned(scratch):
            self.port.load(start, piece)

    def store(self, scratch):
        """The pieces, from scratch [sum of counts]."""
        for start, piece in self._aligned(scratch):
            self.port.store(start, piece)

    def _aligned(self, scratch):
        offset = 0
        for start, count in zip(self.starts, self.counts):
            if count:
                yield start, scratch[offset:offset + count]
            offset += count


class Staging:
    """Scratch that is made once and reused, and the copies to and from the GPU.

    window_bytes   bound of each of the two scratch buffers; the same on all ranks
    copies         None: CudaCopies, made when the first GPU array comes
    """

    def __init__(self, *, window_bytes: int = 8 << 20, copies=None):
        self.window_bytes = window_bytes
        self._copies = copies
        self._scratch: dict[str, numpy.ndarray] = {}

    @property
    def copies(self):
        """CudaCopies or what stands for it."""
        if self._copies is None:
            self._copies = CudaCopies()
        return self._copies

    def scratch(self, role: str, size: int, dtype):
        """size -> [size] of dtype, contents undefined, valid until the next scratch of this role."""
        num_bytes = size * dtype.itemsize
        if role not in self._scratch or self._scratch[role].nbytes < num_bytes:
            self._scratch[role] = self._host_bytes(max(num_bytes, 1))
        return self._scratch[role][:num_bytes].view(dtype)

    def in_place(self, port, run) -> None:
        """run(host [n]) on all elements of the port: directly, or window by window."""
        if port.host is not None:
            return run(port.host)
        window = max(1, self.window_bytes // port.wire.itemsize)
        for first in range(0, max(port.size, 1), window):               # an empty array still takes part, once
            scratch = self.scratch("in place", min(window, port.size - first), port.wire)
            port.load(first, scratch)
            run(scratch)
            port.store(first, scratch)

    def exchange(self, send: Part, receive: Part, run, *, num_ranks: int, longest: int) -> None:
        """run(send, receive, send_part, receive_part) on host arrays: directly, or a window of every piece at a time.

        longest   elements of the longest piece on any rank: all ranks go through the same number of windows
        """
        if send.port.host is not None and receive.port.host is not None:
            return run(send.port.host, receive.port.host, send, receive)
        window = max(1, self.window_bytes // (num_ranks * send.port.wire.itemsize))
        for first in range(0, max(longest, 1), window):
            self._one_window(send.window(first, window), receive.window(first, window), run)

    def _one_window(self, send, receive, run):
        outgoing = self.scratch("send", sum(send.counts), send.port.wire)
        incoming = self.scratch("receive", sum(receive.counts), receive.port.wire)
        send.load(outgoing)
        run(outgoing, incoming, packed(send), packed(receive))
        receive.store(incoming)

    def whole(self, port, *, load: bool):
        """All elements of the port as one host array that lives until a non-blocking verb is done; not bounded."""
        if port.host is not None:
            return port.host
        array = self._host_bytes(port.size * port.wire.itemsize).view(port.wire)
        if load:
            port.load(0, array)
        return array

    def _host_bytes(self, num_bytes):
        if self._copies is None:                         # half floats on the host: ordinary memory will do
            return numpy.empty(num_bytes, numpy.uint8)
        return self._copies.pinned(num_bytes, numpy.dtype(numpy.uint8))


def packed(part: Part) -> Part:
    """The same counts, one after the other from 0."""
    starts, offset = [], 0
    for count in part.counts:
        starts.append(offset)
        offset += count
    return Part(part.port, part.counts, starts)
