"""Settings of the domain axis."""

from dataclasses import dataclass

from ...settings import setting


@dataclass(frozen=True, kw_only=True)
class DomainSettings:
    """How ranks share a sample."""

    domain_grid: tuple[int, ...] | None = setting(
        None,
        "domain ranks along each of the first dims of a grid, such as [2,2]; none: all along one",
        "ranks",
        minimum=1,
        at_resume="trained bits are others",
    )
    domain_slabs: int | None = setting(
        None,
        "samples are computed in so many slabs, a power of two: the same bits on every number of "
        "domain ranks that divides it; none: each number has its own",
        "slabs",
        minimum=1,
        at_resume="trained bits are others",
        unplanned="computes samples in slabs, which takes longer and keeps less at once",
    )
