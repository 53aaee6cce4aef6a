"""Everything that shardkit raises on purpose, as one family under ShardkitError.

A message says what was wrong, what was got, what was wanted, and what to do. Errors that a caller
made by passing a bad value are also ValueError or TypeError, so that ordinary `except ValueError`
works. `exit_code` is what the command line returns for the error: 2 for usage and configuration, 75
for a stop that can be resumed, 1 for everything else.
"""

from os import PathLike


class ShardkitError(Exception):
    """Base of every error that shardkit raises on purpose."""

    exit_code = 1


class ConfigurationError(ShardkitError, ValueError):
    """A setting is unknown, of the wrong type, or contradicts another."""

    exit_code = 2


class LayoutError(ShardkitError, ValueError):
    """Boxes, spans or slots that do not fit together."""


class MeshError(ConfigurationError):
    """Axis sizes that do not multiply to the number of ranks, or an axis that does not exist."""


class ScheduleError(ShardkitError, ValueError):
    """An order that does not exist or cannot be had for these sizes; or a program that is malformed
    or would never end.
    """

    exit_code = 2  # what commands meet is the former, and the user's choice


class DeviceError(ShardkitError):
    """The device asked for is missing, or arrays of two devices were mixed."""


class DeviceMemoryError(DeviceError, MemoryError):
    """A GPU, or the page-locked memory beside it, has no room.

    Parameters
    ----------
    asked
        What there was no room for.
    held
        What takes the room, and what to do.
    """

    def __init__(self, asked: str, held: str):
        super().__init__(asked, held)
        self.asked, self.held = asked, held

    def __str__(self):
        return f"{self.asked}: {self.held}"


class CommunicationError(ShardkitError):
    """A backend used before initialize() or after shutdown(), a missing MPI, a peer that failed."""


class LaunchError(CommunicationError):
    """The ranks were started so that they cannot find each other; says how to start them."""


class CommunicationTimeout(CommunicationError, TimeoutError):
    """A peer never came; names the operation, its sequence number and the missing ranks."""


class PeerError(CommunicationError):
    """Another rank failed; carries that rank's own message, so that every rank can report it."""


class AutogradError(ShardkitError, RuntimeError):
    """A graph used twice, changed in place after use, or a gradient asked for where none exists."""


class ShapeError(ShardkitError, ValueError):
    """Arrays whose shapes or dtypes do not fit the operation."""


class ShardingError(ShardkitError, RuntimeError):
    """A sharded model used out of order, for example gradients asked for when none are pending."""


class StagesError(ConfigurationError, ShardingError):
    """A pipeline whose stages the units of the model cannot make."""


class ShardingWarning(UserWarning):
    """A sharded model costs more than it has to; says how much, and what to do."""


class NonFiniteError(ShardkitError, ArithmeticError):
    """Loss, gradients or logits are NaN or infinite: of too many steps in a row, or of a text."""


class OutOfMemoryError(ShardkitError, MemoryError):
    """A rank ran out of memory; names the rank and the bytes, and is raised on all ranks where they
    could be told.
    """


class StopVoted(ShardkitError):
    """The ranks have voted to stop before this step; `reasons` are the names of what was decided.
    Nothing is lost.
    """

    exit_code = 75

    @property
    def reasons(self) -> tuple[str, ...]:
        """What was decided, by name."""
        return self.args

    def __str__(self) -> str:
        return f"stopped before the next step: {', '.join(self.args)}"


class FeatureError(ShardkitError, ValueError):
    """A model without input features was asked for them, or a feature that does not exist."""


class FileError(ShardkitError):
    """A file that somebody wrote, and that is not what it should be.

    Parameters
    ----------
    message
        With the name of the file.
    path
        Of the file; None where several are meant, or none.
    field
        What in the file is wrong, as the file names it; "" for the whole.
    """

    def __init__(
        self, message: str = "", path: str | PathLike[str] | None = None, field: str = ""
    ) -> None:
        super().__init__(message)
        self.path = None if path is None else str(path)
        self.field = field


class InputError(FileError, ConfigurationError):
    """A file that a setting names, or that a run keeps, cannot be read as what it should be."""


class CheckpointError(FileError):
    """A checkpoint that is incomplete, damaged, or of another model."""


class CorpusError(FileError, ConfigurationError):
    """Text that cannot be read, is empty, or is shorter than one training sequence."""
