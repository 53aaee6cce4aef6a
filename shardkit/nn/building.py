"""A limit on what is built from a file: layers = 10**9 in one ends early, and typed.

with at_most(200):
    GPT(**configuration)        ConfigurationError at the 201st parameter or buffer
"""

from contextvars import ContextVar

from ..errors import ConfigurationError
from ..scoped import Scoped

_LEFT: ContextVar[list[int] | None] = ContextVar("parameters and buffers left", default=None)


def at_most(number: int) -> Scoped:
    """Let so many parameters and buffers be made inside, and refuse the next."""
    return Scoped(_LEFT, [number])


def count_one() -> None:
    """Note that a parameter or buffer is made. Errors: ConfigurationError if it is one too many."""
    left = _LEFT.get()
    if left is not None:
        left[0] -= 1
        if left[0] < 0:
            raise ConfigurationError("it describes many more parameters than are stored")
