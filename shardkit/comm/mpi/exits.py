"""What is printed when the program of a rank ends by an exception.

before initialize(), and until shutdown()      report_failure: one message, and the end of the job
                                               if this rank fails alone
after shutdown()                               one message; the others may finish what they do
                                               without this rank
in a process that a rank has forked            what the program prints itself: it is no rank
"""

import sys
from functools import cache

from ...forks import is_of_parent, own
from ..failure.agreement import describe_error
from ..failure.program import report_failure, trace_of
from .ending import ending


@cache
def exits() -> "Exits":
    """Return the exits of this process."""
    return Exits()


class Exits:
    """The excepthook of a process, while backends that guard their job exist, and after."""

    def __init__(self):
        self._backends: list = []
        own(self)
        self._previous_hook = None
        self._last = None  # the backend that was shut down last

    def add(self, backend) -> None:
        """Add a backend that guards its job; errors are reported through the oldest one."""
        if not self._backends and self._last is None:
            self._previous_hook, sys.excepthook = sys.excepthook, self._excepthook
        self._backends.append(backend)

    def remove(self, backend) -> None:
        """Remove a backend that is shut down."""
        self._last = backend
        if backend in self._backends:
            self._backends.remove(backend)

    def _excepthook(self, kind, error, traceback):
        if is_of_parent(self):
            return self._previous_hook(kind, error, traceback)
        if not self._backends or ending().has_begun:
            return self._say_after_shutdown(kind, error, traceback)
        try:
            code = report_failure(self._backends[0], error)
        except BaseException as another:  # the backend is half open or half closed
            self._backends[0].abort(
                f"rank {self._backends[0].rank} failed: {describe_error(error)} (and then, in "
                f"saying so, {describe_error(another)}){trace_of(error)}"
            )
        else:
            sys.exit(code)  # 2 where a setting was refused on all ranks

    def _say_after_shutdown(self, kind, error, traceback):
        last = self._last or self._backends[0]
        if last.world_size > 1 and isinstance(error, Exception):
            after = "MPI_Finalize" if ending().has_begun else "shutdown()"
            last.say(f"rank {last.rank} failed after {after}: {describe_error(error)}")
        self._previous_hook(kind, error, traceback)
