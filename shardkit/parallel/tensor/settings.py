"""Settings of the tensor axis."""

from dataclasses import dataclass

from ...settings import setting


@dataclass(frozen=True, kw_only=True)
class TensorSettings:
    """How tensor ranks share a layer (GPT only)."""

    sequence_parallel: bool = setting(
        False,
        "with several tensor ranks, norms and dropout see a slice of the sequence; other bits",
    )
