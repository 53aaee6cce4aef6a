"""A group of ranks that loses one of its messages that are not empty: what comes is zeros."""

RECEIVING = {"all_to_all": 1, "all_gather": 1, "reduce_scatter": 1, "all_reduce": 0}


class LossyGroup:
    """Passes everything on to a group, but zeros what the message of one number brings."""

    def __init__(self, group, lost=None):
        self._group, self._lost = group, lost
        self.num_messages = 0

    def __getattr__(self, name):
        if name not in RECEIVING:
            return getattr(self._group, name)

        def call(*arrays, **more):
            getattr(self._group, name)(*arrays, **more)
            received = arrays[RECEIVING[name]]
            self.arrived(received, self._number(received))

        return call

    def irecv(self, array, source, tag=0):
        return _Lossy(self, self._group.irecv(array, source, tag), array, self._number(array))

    def _number(self, array):
        """Return the number of this message; None: it is empty."""
        if array.size == 0:
            return None
        self.num_messages += 1
        return self.num_messages - 1

    def arrived(self, array, number):
        """Lose the message of this number, if it is the one."""
        if number is not None and number == self._lost:
            array[...] = 0


class _Lossy:
    """The handle of a message that may be lost."""

    def __init__(self, group, handle, array, number):
        self._group, self._handle, self._array, self._number = group, handle, array, number
        self._is_done = False

    def test(self):
        return self._handle.test()

    def wait(self):
        self._handle.wait()
        if not self._is_done:
            self._group.arrived(self._array, self._number)
        self._is_done = True


def lost_in_turn(run, num_ranks, run_ranks):
    """Return [(rank, number, whether any rank noticed)] of each message that a rank may lose.

    run   (group) -> True if what this rank computed is right
    """

    def counted(group):
        lossy = LossyGroup(group)
        assert run(lossy)
        return lossy.num_messages

    counts = run_ranks(num_ranks, counted)
    found = []
    for rank, count in enumerate(counts):
        for number in range(count):

            def losing(group, rank=rank, number=number):
                return run(LossyGroup(group, number if group.rank == rank else None))

            found.append((rank, number, not all(run_ranks(num_ranks, losing))))
    return found
