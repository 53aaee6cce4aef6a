"""Shared-memory channels between threads of this process.

Each has a heap of its own, as processes of one node have them.
"""

import threading
from types import SimpleNamespace

from shardkit.testing.comm import ArrayMemory, Heap, SharedMemoryChannel, new_mailbox, table_of

HEAP_BYTES = 1 << 26


class NoMessages:
    """What a shared-memory channel needs of the messages around which it is made."""

    communicator = levels = None

    def __init__(self, rank, size):
        self.rank, self.size, self.memory = rank, size, ArrayMemory()

    def probe(self):
        """Nothing is under way."""


def on_one_node(
    num_ranks: int, fn, time_limit: float = 110.0, heap_bytes: int = HEAP_BYTES
) -> list:
    """Call fn(channel, heap, rank) in a thread per rank; return the results in rank order.

    Errors: the first of a rank.
    """
    heaps = [Heap(heap_bytes) for _ in range(num_ranks)]
    addresses = [heap.memory.address for heap in heaps]
    mailboxes = [new_mailbox(heap) for heap in heaps]
    results, errors = [None] * num_ranks, []

    def run(rank):
        table = table_of(
            rank,
            [mailbox.ctypes.data for mailbox in mailboxes],
            addresses,
            heap_bytes,
            has_cores=False,
        )
        try:
            channel = SharedMemoryChannel(
                NoMessages(rank, num_ranks),
                table,
                SimpleNamespace(heap=heaps[rank]),
                lambda: None,
                calls_before_opening=0,
            )
            results[rank] = fn(channel, heaps[rank], rank)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(num_ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(time_limit)
        assert errors or not thread.is_alive(), "a channel hangs"
    for heap in heaps:
        heap.hide()
    if errors:
        raise errors[0]
    return results
