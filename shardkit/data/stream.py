"""Batches of one data rank, read ahead by a thread while a step computes.

    batch(7):   wait for step 7 -> hand it out -> let the thread read step 8

Which samples a batch has is a function of (seed, purpose, position of the step): data rank r of n
asks for its part [first, first + count) of the global batch, and all parts together are the same on
any mesh.
"""

import time
from concurrent.futures import Future, ThreadPoolExecutor

import numpy

from ..arguments import require
from ..array.random import key_of
from ..layout.part import SamplePart
from ..tree import leaves
from .draw import Draw
from .order import EpochOrder
from .position import Position
from .samples import Samples, reader_of


class Stream:
    """The batches of one data rank, one batch ahead. A context manager that closes it.

    samples         that it reads
    global_batch    samples in the global batch of a step
    first, count    the part of this data rank in it
    position        where each step begins; go_on_from() sets it
    sample_part     which part of each sample this rank reads; None: whole ones
    waited_seconds  how long callers of batch() stood waiting for data, so far

    One thread at a time may call it. At most two batches are in memory: the one that was handed out
    and the next.
    """

    def __init__(
        self,
        samples: Samples,
        seed: int,
        purpose: str,
        *,
        global_batch: int,
        first: int,
        count: int,
        sample_part: SamplePart | None = None,
    ):
        self.waited_seconds = 0.0
        self.samples, self._samples_at = samples, reader_of(samples)
        self._key = key_of(seed, "draw", purpose)
        self._order = EpochOrder(len(samples), seed, purpose, samples.run_length)
        self.position = Position(0, 0, global_batch, len(samples))
        self._first = first
        self._count = count
        self._sample_part = sample_part
        self._reader = ThreadPoolExecutor(1, "shardkit-data")
        self._ahead: tuple[int, Future] | None = None  # step and its batch

    def go_on_from(self, stored: dict) -> None:
        """Let the steps follow those of a checkpoint, whatever their batches were.

        stored   what position.stored() returned for it; {}: a stream begins
        Errors: CheckpointError on what is no position.
        """
        self._ahead = None
        self.position = self.position.after(stored)

    def batch(self, step: int) -> tuple:
        """Return x, y of this step: `count` samples, fresh arrays.

        Any step may be asked for; the next one is cheap.
        Errors: those of the samples, raised by the step that they belong to.
        """
        began = time.perf_counter()
        if self._ahead is None or self._ahead[0] != step:
            self._ahead = step, self._reader.submit(self._read, step)
        future = self._ahead[1]
        self._ahead = None
        x, y = future.result()
        self._ahead = step + 1, self._reader.submit(self._read, step + 1)
        self.waited_seconds += time.perf_counter() - began
        return x, y

    def _read(self, step: int) -> tuple:
        first = self.position.of_step(step) + self._first
        positions = numpy.arange(first, first + self._count, dtype=numpy.int64)
        numbers = self._order.numbers(first, self._count)
        x, y = self._samples_at(numbers, Draw(self._key, positions), self._sample_part)
        found = {len(leaf) for leaf in leaves((x, y))}
        require(found == {self._count}, "samples read", found, f"{self._count}, as many as numbers")
        return x, y

    def close(self) -> None:
        """Let the thread end, and wait for it. Afterwards nothing can be read."""
        self._ahead = None
        self._reader.shutdown(wait=True, cancel_futures=True)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()
