"""What settings want of ranks that share samples, against the mesh that is there."""

from math import prod

from ...comm.backend import CommunicationBackend
from ...comm.mesh import Mesh
from ...errors import ConfigurationError


def check_grid(config, mesh: Mesh) -> None:
    """Raise ConfigurationError unless the domain ranks of the mesh make the grid that is wanted."""
    grid, ranks = config.domain_grid, mesh.size("domain")
    if grid is not None and prod(grid) != ranks:
        by = " x ".join(map(str, grid))
        raise ConfigurationError(
            f"domain_grid = {tuple(grid)} is {by} = {prod(grid)} ranks, but {ranks} share each "
            f"sample; wanted domain = {prod(grid)}, or a grid of {ranks}"
        )


def lines_of(config, mesh: Mesh) -> tuple[CommunicationBackend, ...]:
    """Return the ranks along each dim of a grid of domain ranks; () where they cut one dim.

    Collective over the mesh the first time for a grid.
    """
    grid = tuple(config.domain_grid or ())
    return mesh.grid("domain", grid) if len(grid) > 1 else ()


def check_slabs(config, mesh: Mesh, slabs: int) -> None:
    """Raise ConfigurationError unless the ranks of the mesh can share so many slabs."""
    ranks = mesh.size("domain")
    if slabs % ranks or slabs & (slabs - 1):
        raise ConfigurationError(
            f"domain_slabs = {slabs} on {ranks} domain ranks, {slabs / ranks:.3g} each; wanted a "
            "power of two, and a number of ranks that divides it"
        )
    others = {"tensor ranks": mesh.size("tensor") > 1, "compute_dtype": config.compute_dtype}
    others |= {"domain_grid": config.domain_grid}
    if any(others.values()):
        what = next(name for name, is_set in others.items() if is_set)
        raise ConfigurationError(
            f"domain_slabs = {slabs} with {what}; wanted one of them alone: see "
            "docs/parallel/domain.md"
        )
