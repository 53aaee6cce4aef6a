"""The short road of the verbs that training calls most: arrays that the backend takes as they are.

    all_reduce(array)  --- is it plain? --- yes: one record in the ledger, the protected verb
                                |
                                no: GPU memory, half floats, counts, strides, or something that is
                                wrong
                                    --- ports and windows, and the errors: the road of backend.py

Around a small message the other road takes longer than the message. Both do the same with a plain
array.
"""

import numpy

from .operations import ReductionOperation

PLAIN_DTYPES = frozenset(
    map(
        numpy.dtype,
        (
            "float32",
            "float64",
            "int8",
            "int16",
            "int32",
            "int64",
            "uint8",
            "uint16",
            "uint32",
            "uint64",
        ),
    )
)


class PlainVerbs:
    """Mixed into CommunicationBackend. Each method returns True if it has done the verb, False if
    it has done nothing.
    """

    def _plain_all_reduce(self, array, op) -> bool:
        if not (is_plain(array) and is_carried(op) and self.is_initialized):
            return False
        self.progress.begin_collective(
            "all_reduce", self.group_key, self.world_ranks, array.dtype, array.size
        )
        try:
            self._all_reduce(flat(array), op)
            self._count_all_reduce(array.nbytes)
        except BaseException:
            self.progress.fail()
            raise
        self.progress.end()
        return True

    def _plain_all_gather(self, send, receive) -> bool:
        if not (
            is_plain(send)
            and is_plain(receive)
            and self._is_slice(send, receive, True)
            and self.is_initialized
        ):
            return False
        self.progress.begin_collective(
            "all_gather", self.group_key, self.world_ranks, receive.dtype, receive.size
        )
        try:
            self._all_gather(flat(send), flat(receive), [send.size] * self._world_size)
            self._count_all_gather(send.nbytes)
        except BaseException:
            self.progress.fail()
            raise
        self.progress.end()
        return True

    def _plain_reduce_scatter(self, send, receive, op, in_place) -> bool:
        if not (
            is_plain(send)
            and is_plain(receive)
            and is_carried(op)
            and self.is_initialized
            and self._is_slice(receive, send, in_place and self.adds_in_tree_order(send))
        ):
            return False
        self.progress.begin_collective(
            "reduce_scatter", self.group_key, self.world_ranks, receive.dtype, receive.size
        )
        try:
            self._reduce_scatter(flat(send), flat(receive), [receive.size] * self._world_size, op)
            self.traffic.add("reduce_scatter", send.nbytes - receive.nbytes)
        except BaseException:
            self.progress.fail()
            raise
        self.progress.end()
        return True

    def _is_slice(self, own, whole, may_be_inside) -> bool:
        """True if `own` is as long as one of equal slices of `whole`, and apart from it or, if it
        may, exactly its own slice.
        """
        return (
            own.dtype == whole.dtype
            and own.size * self._world_size == whole.size
            and (
                may_be_inside
                and self._address(own) == self._address(whole) + self._rank * own.nbytes
                or not numpy.may_share_memory(own, whole)
            )
        )

    def _address(self, array) -> int:
        """Of the first byte."""
        return array.ctypes.data


def is_plain(array) -> bool:
    """True for a NumPy array of numbers that can be read and written as they lie."""
    return type(array) is numpy.ndarray and array.dtype in PLAIN_DTYPES and array.flags.carray


def is_carried(op) -> bool:
    """True for what a backend does itself: an average is scaled afterwards."""
    return type(op) is ReductionOperation and op is not ReductionOperation.AVERAGE


def flat(array):
    """The elements, 1-D."""
    return array if array.ndim == 1 else array.reshape(-1)
