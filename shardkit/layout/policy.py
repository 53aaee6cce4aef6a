"""Policy: what is sharded over the data axis. The four data-parallel strategies as four rows of one
table.

                 optimizer state   gradients    parameters     sent per rank and step, N parameters on d ranks
    DDP          whole             whole        whole          all-reduce                             2 N (d-1)/d
    ZeRO-1       sharded           whole        whole          reduce-scatter + all-gather            2 N (d-1)/d
    ZeRO-2       sharded           sharded      whole          reduce-scatter + all-gather            2 N (d-1)/d
    FSDP, ZeRO-3 sharded           sharded      sharded        reduce-scatter + two all-gathers       3 N (d-1)/d

Source: ZeRO (arXiv 1910.02054), section 5; PyTorch FSDP (arXiv 2304.11277).
"""

from dataclasses import dataclass, replace

from ..arguments import is_among, require


@dataclass(frozen=True)
class Policy:
    """What is sharded over the data axis. `name` is how the strategy is called in reports."""

    name: str
    shard_optimizer_state: bool
    shard_gradients: bool
    shard_parameters: bool

    def bytes_per_rank(
        self,
        parameter_count: int,
        num_ranks: int,
        *,
        parameter_bytes: int = 4,
        gradient_bytes: int = 4,
        optimizer_bytes: int = 8,
    ) -> float:
        """Bytes of parameters, gradients and optimizer state resident on each of `num_ranks` ranks
        between two steps.
        """

        def share(num_bytes, is_sharded):
            return num_bytes / num_ranks if is_sharded else num_bytes

        return parameter_count * (
            share(parameter_bytes, self.shard_parameters)
            + share(gradient_bytes, self.shard_gradients)
            + share(optimizer_bytes, self.shard_optimizer_state)
        )

    def on(self, num_ranks: int, *, rounds: bool = False) -> "Policy":
        """What is left of it on so many data ranks: on a single one there is nobody to share with,
        and nothing to move.

        rounds   parameters are rounded when they are gathered: even a single rank keeps them so for
                 a moment only
        """
        if num_ranks > 1:
            return self
        return replace(
            self,
            shard_optimizer_state=False,
            shard_gradients=False,
            shard_parameters=self.shard_parameters and rounds,
        )


POLICIES = {
    "ddp": Policy(
        "DDP", shard_optimizer_state=False, shard_gradients=False, shard_parameters=False
    ),
    "zero1": Policy(
        "ZeRO-1", shard_optimizer_state=True, shard_gradients=False, shard_parameters=False
    ),
    "zero2": Policy(
        "ZeRO-2", shard_optimizer_state=True, shard_gradients=True, shard_parameters=False
    ),
    "fsdp": Policy("FSDP", shard_optimizer_state=True, shard_gradients=True, shard_parameters=True),
}


def policy_named(name: str) -> Policy:
    """The policy of this name. Errors: ConfigurationError if there is none."""
    require(is_among(name, POLICIES), "policy", name, " or ".join(map(repr, POLICIES)))
    return POLICIES[name]
