"""Settings of the data axis: units, sums of gradients, overlap."""

from dataclasses import dataclass

from ...settings import setting


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """How parameters and gradients travel between data ranks.

    deterministic   True: sums follow a fixed tree, with the same bits on any mesh that leaves each
                    data rank a power of two of micro-batches, or one rank all. False: the MPI
                    library's own reductions, and one accumulation buffer
    overlap         on "cpu" only; gradients only if deterministic and not compressed. It takes
                    memory for the parameters of one more unit and the gradients of two more. "auto"
                    tries it in the first steps, unless all data ranks share memory (overlap.py)
    """

    minimum_parameter_group_size: int = setting(
        1024,
        "blocks are merged into units of at least this many; other bits if weights are tied",
        "elements",
        minimum=1,
    )
    deterministic: bool = setting(
        True,
        "sums in a fixed order: the same bits on any number of ranks, as batch.micro_batch says",
        unplanned="off keeps one sum of gradients instead of several, and reduces as the MPI "
        "library does",
    )
    shard_ranks: int | None = setting(
        None,
        "neighbors on the data axis that share one copy under policy hsdp, PyTorch's dp_shard; "
        "none: those of a node",
        "ranks",
        minimum=1,
    )
    gradient_compression: str | None = setting(
        None, "dtype in which gradients travel; they are summed as float32", among=("float16",)
    )
    frozen: tuple[str, ...] = setting(
        (),
        "patterns of names of parameters that keep their values: no gradient, no optimizer state",
        unplanned="leaves out gradients, optimizer state, reductions and backward",
    )
    overlap: bool | str = setting(
        "auto",
        "send parameters and gradients while units compute; auto: if that is quicker",
        among=("auto",),
        spelled={"on": True, "off": False},
        unplanned="hides messages between data ranks, for the memory of one more unit's "
        "parameters and two more of its gradients",
    )
