"""The life of a backend as a `with` block, and what it says of itself.

with MPICommunicationBackend() as backend:     initialize()
    ...                                        shutdown() at the end, unless it fails
"""

from abc import ABCMeta, abstractmethod
from typing import TYPE_CHECKING, Any, Self

from ..habits import refuse


class Lifetime(metaclass=ABCMeta):
    """The contract of what is initialized and shut down by all ranks together."""

    if TYPE_CHECKING:
        rank: int
        world_size: int

        @property
        def is_initialized(self) -> bool: ...

    @abstractmethod
    def initialize(self) -> None:
        """Make it usable; a second call does nothing. Collective."""

    @abstractmethod
    def shutdown(self) -> None:
        """Free what initialize() made; a second call does nothing. Collective."""

    def __enter__(self) -> Self:
        self.initialize()
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if error is None:  # else other ranks may be anywhere: they are told of the failure
            self.shutdown()

    def __repr__(self) -> str:
        life = "" if self.is_initialized else ", not initialized"
        return f"{type(self).__name__}(rank {self.rank} of {self.world_size}{life})"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            refuse("Backend", self, name)
