"""Policies: what each data-parallel strategy shards, as one table.

            state     gradients   parameters   sent per step, x N (d-1)/d: N parameters, d ranks
    DDP     whole     whole       whole        2: all-reduce
    ZeRO-1  sharded   whole       whole        2: reduce-scatter + all-gather
    ZeRO-2  sharded   sharded     whole        2: reduce-scatter + all-gather
    FSDP    sharded   sharded     sharded      3: reduce-scatter + two all-gathers      (ZeRO-3)

The table is pure: it counts bytes. The code of each entry is a keeper in parallel/data/keepers.py.
Source: ZeRO (arXiv 1910.02054), section 5; PyTorch FSDP (arXiv 2304.11277).
"""

from dataclasses import dataclass, replace
from enum import Enum

from ..arguments import is_among, require


class Kept(Enum):
    """How much of an array each data rank keeps between two steps."""

    WHOLE = "whole"
    SHARD = "shard"

    def bytes_of(self, num_bytes: float, num_ranks: int) -> float:
        """Return the bytes that one of `num_ranks` ranks keeps of an array of `num_bytes`."""
        return num_bytes / num_ranks if self is Kept.SHARD else num_bytes


WHOLE, SHARD = Kept.WHOLE, Kept.SHARD


@dataclass(frozen=True)
class Policy:
    """How much of a unit's arrays each data rank keeps. `name` is what reports call it."""

    name: str
    parameters: Kept
    gradients: Kept
    state: Kept

    def bytes_per_rank(
        self,
        parameter_count: int,
        num_ranks: int,
        *,
        parameter_bytes: int = 4,
        gradient_bytes: int = 4,
        optimizer_bytes: int = 8,
    ) -> float:
        """Return the bytes of parameters, gradients and optimizer state that stay on each rank."""
        return parameter_count * (
            self.parameters.bytes_of(parameter_bytes, num_ranks)
            + self.gradients.bytes_of(gradient_bytes, num_ranks)
            + self.state.bytes_of(optimizer_bytes, num_ranks)
        )

    def on(self, num_ranks: int, *, rounds: bool = False) -> "Policy":
        """Return what this policy amounts to on `num_ranks` data ranks: one rank shares nothing.

        rounds   parameters are rounded when they are gathered: then even a single rank holds the
                 rounded ones only while it uses them
        """
        if num_ranks > 1:
            return self
        parameters = self.parameters if rounds else WHOLE
        return replace(self, parameters=parameters, gradients=WHOLE, state=WHOLE)


# fmt: off
POLICIES = {
    #                         parameters  gradients  state
    "ddp":   Policy("DDP",    WHOLE,      WHOLE,     WHOLE),
    "zero1": Policy("ZeRO-1", WHOLE,      WHOLE,     SHARD),
    "zero2": Policy("ZeRO-2", WHOLE,      SHARD,     SHARD),
    "fsdp":  Policy("FSDP",   SHARD,      SHARD,     SHARD),
}
# fmt: on


def policy_named(name: str) -> Policy:
    """Return the policy of this name. Errors: ConfigurationError if there is none."""
    require(is_among(name, POLICIES), "policy", name, " or ".join(map(repr, POLICIES)))
    return POLICIES[name]
