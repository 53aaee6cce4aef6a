"""Agreement on the next collective, where the code of a model decides on their order.

    rank 0   wants to gather 3   yes   gather 3   wants to gather 4   |
    rank 1   wants to gather 3   yes   gather 3   wants to gather 7   | all of them raise
    rank 2   wants to gather 3   yes   gather 3   its forward raised  |

Each turn is a message of 8 bytes, so that no rank waits in a collective that another one never
comes to.
"""

from collections.abc import Callable

import numpy

from ...comm.backend import CommunicationBackend
from ...comm.failure.agreement import raise_together
from ...errors import ShardingError

_FAILED, _END = -1, -2  # beside numbers of collectives


class Turns:
    """The turns of one rank.

    group      the ranks that agree; all methods but begin() are collective over it
    describe   number of a collective -> what this rank is about to do, for messages
    """

    def __init__(self, group: CommunicationBackend, describe: Callable[[int], str]):
        self._group = group
        self._describe = describe
        self._mine = numpy.empty(1, numpy.int64)
        self._everyones = numpy.empty(group.world_size, numpy.int64)
        self._error: Exception | None = None

    @property
    def have_ended(self) -> bool:
        """True once a turn has raised on all ranks: until begin(), all turns raise that again,
        without communication, even if a module has caught it.
        """
        return self._error is not None

    def begin(self) -> None:
        """Begin a program. No communication."""
        self._error = None

    def take(self, number: int) -> None:
        """Wait until all ranks come to this collective next.

        Errors, on all ranks: what a rank has failed with; ShardingError if some come to another.
        """
        self._take(number, None)

    def end(self) -> None:
        """Wait until all ranks are done with what they compute. Errors: as take()."""
        self._take(_END, None)

    def fail(self, error: Exception) -> None:
        """Raise this rank's error, and on the others the same or a PeerError, at their turns."""
        self._take(_FAILED, error)

    def _take(self, number, error):
        if self._error is not None:
            raise self._error
        self._mine[0] = number
        self._group.all_gather(self._mine, self._everyones)
        if number != _FAILED and (self._everyones == number).all():
            return
        try:
            if (self._everyones == _FAILED).any():
                raise_together(self._group, error)
            self._refuse(number)
        except Exception as common:
            self._error = common
            raise

    def _refuse(self, number):
        """Raise ShardingError: ranks are at different turns. Collective."""
        texts = self._group.all_gather_object(
            "be done" if number == _END else self._describe(number)
        )
        rank = next(rank for rank, text in enumerate(texts) if text != texts[0])
        raise ShardingError(
            f"data rank {rank} does not call the modules of the model in the order of data rank 0: "
            f"it is about to {texts[rank]}, and data rank 0 to {texts[0]}. Under FSDP that order "
            "must not depend on the data: call them alike on all ranks, train with ZeRO-2, or set "
            "minimum_parameter_group_size to the size of the model, which is gathered at once then"
        )
