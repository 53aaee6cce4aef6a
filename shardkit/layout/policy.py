"""Policies: what each data-parallel strategy shards, as one table.

            state     gradients   parameters   sent per step, x N (d-1)/d: N parameters, d ranks
    DDP     whole     whole       whole        2: all-reduce
    ZeRO-1  sharded   whole       whole        2: reduce-scatter + all-gather
    ZeRO-2  sharded   sharded     whole        2: reduce-scatter + all-gather
    FSDP    sharded   sharded     sharded      3: reduce-scatter + two all-gathers      (ZeRO-3)
    HSDP    as FSDP in groups of g neighbors   3 in the group, d = g; and between the d/g groups an
                                               all-reduce of N/g

The table is pure: it counts bytes. The code of each entry is a keeper in parallel/data/keepers.py.
Source: ZeRO (arXiv 1910.02054), section 5; PyTorch FSDP (arXiv 2304.11277), whose HYBRID_SHARD is
HSDP.
"""

from dataclasses import dataclass, replace
from enum import Enum

from ..arguments import is_among, is_integer, require
from ..errors import ConfigurationError, MeshError
from .cuts import divisors

SIZES = (4, 4, 8)  # bytes of a parameter, its gradient and its state: float32, and AdamW's moments


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
    """How much of a unit's arrays each data rank keeps. `name` is what reports call it.

    in_groups   groups of neighbors on the data axis share one copy each; False: all ranks share one
    """

    name: str
    parameters: Kept
    gradients: Kept
    state: Kept
    in_groups: bool = False

    def parts_per_rank(self, parameter_count: int, num_ranks: int, sizes=SIZES) -> list[float]:
        """Return the bytes of parameters, of gradients and of optimizer state that each rank keeps.

        num_ranks   that share one copy: sharing() of the data ranks
        sizes       bytes of one parameter, of its gradient and of its state
        """
        parts = (self.parameters, self.gradients, self.state)
        return [
            parameter_count * kept.bytes_of(size, num_ranks) for kept, size in zip(parts, sizes)
        ]

    def bytes_per_rank(self, parameter_count: int, num_ranks: int, sizes=SIZES) -> float:
        """Return the sum of parts_per_rank()."""
        return sum(self.parts_per_rank(parameter_count, num_ranks, sizes))

    def sharing(
        self, num_ranks: int, shard_ranks: int | None = None, per_node: int | None = None
    ) -> int:
        """Return how many neighbors of `num_ranks` data ranks share one copy.

        shard_ranks   the setting; None: the data ranks of a node
        per_node      data ranks on each node; None: not as many on each
        Errors: ConfigurationError if the setting is not of this policy; MeshError if the groups do
        not divide the data ranks, or nodes do not say how large they are.
        """
        if not self.in_groups:
            if shard_ranks is not None:
                raise ConfigurationError(
                    f"shard_ranks = {shard_ranks!r}, but {self.name} has no groups of ranks; "
                    "choose policy hsdp, or leave shard_ranks out"
                )
            return num_ranks
        if shard_ranks is None:
            return _ranks_of_node(num_ranks, per_node)
        require(is_integer(shard_ranks, at_least=1), "shard_ranks", shard_ranks, "an integer >= 1")
        if num_ranks % shard_ranks:
            raise MeshError(
                f"shard_ranks = {shard_ranks} does not divide {num_ranks} data ranks into groups; "
                f"choose one of {_divisors_text(num_ranks)}"
            )
        return shard_ranks

    def on(self, num_ranks: int, *, rounds: bool = False) -> "Policy":
        """Return what this policy amounts to where `num_ranks` share a copy: one shares nothing.

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
    "hsdp":  Policy("HSDP",   SHARD,      SHARD,     SHARD, in_groups=True),
}
# fmt: on


def policy_named(name: str) -> Policy:
    """Return the policy of this name. Errors: ConfigurationError if there is none."""
    require(is_among(name, POLICIES), "policy", name, " or ".join(map(repr, POLICIES)))
    return POLICIES[name]


def check_tree(num_ranks: int, sharing: int) -> None:
    """Check that groups of `sharing` of so many data ranks are whole branches of the tree of sums.

    Then a sum within each and another one over them have the bits of the sum over all
    (comm/collectives/ordered.py).
    Errors: MeshError
    """
    if sharing < num_ranks and sharing & (sharing - 1):
        powers = [number for number in divisors(num_ranks) if not number & (number - 1)]
        raise MeshError(
            f"groups of {sharing} of {num_ranks} data ranks add gradients in another order than "
            "all ranks together, so the bits would be others; choose shard_ranks among "
            f"{_listed(dict.fromkeys([*powers, num_ranks]))}, or deterministic = false"
        )


def _ranks_of_node(num_ranks: int, per_node: int | None) -> int:
    if num_ranks == 1:
        return 1
    if per_node is None or per_node == 1:
        nodes = "each node has one" if per_node else "nodes have different numbers"
        raise MeshError(
            f"hsdp shards over the data ranks of a node, but {nodes} of the {num_ranks}; set "
            f"shard_ranks to one of {_divisors_text(num_ranks)}"
        )
    return per_node


def _divisors_text(number: int) -> str:
    return _listed(divisors(number))


def _listed(numbers) -> str:
    return ", ".join(map(str, numbers))
