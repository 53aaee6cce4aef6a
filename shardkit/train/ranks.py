"""Which ranks can train a run, and which others would train the same bits."""

from ..errors import ConfigurationError
from ..layout.axes import COPIES, TOGETHER
from ..layout.mesh_shape import MeshShape, in_words
from ..layout.policy import check_tree, policy_named
from .settings import RunConfiguration


def num_replicas(settings: RunConfiguration, num_ranks: int) -> int:
    """Return how many data replicas so many ranks make. Errors: MeshError if there is a rest."""
    return MeshShape.infer(num_ranks, **settings.mesh.sizes).num_parts


def bits_text(settings: RunConfiguration, num_ranks: int) -> str:
    """On which other meshes a run of these settings has the same trained bits, in words."""
    parallel = settings.parallel
    together = {axis: settings.mesh.sizes[axis] for axis in TOGETHER}
    replicas = num_replicas(settings, num_ranks)
    num = settings.batch.sequences // settings.batch.micro_batch // replicas
    if not parallel.deterministic:
        return "bits of this run only: parallel.deterministic=false"
    only = f"bits of {_counted(replicas, 'data rank')} only"
    if parallel.gradient_compression is not None:
        return f"{only}: gradients travel as {parallel.gradient_compression}"
    if replicas > 1 and num & (num - 1):
        return f"{only}: {num} micro-batches per rank are no power of two"
    is_cut = any(together[axis] > 1 for axis in COPIES if axis in together)
    shares_samples = is_cut or parallel.domain_slabs is not None
    if shares_samples and (replicas & (replicas - 1) or num & (num - 1)):
        return f"{only}: {replicas} of them x {num} micro-batches are no powers of two"
    if parallel.domain_slabs is not None:
        return (
            "bits as on any data x pipeline mesh with a number of domain ranks that divides "
            f"{parallel.domain_slabs}"
        )
    if max(together.values()) > 1:
        shared = in_words({axis: n for axis, n in together.items() if n > 1}, " and ")
        grid = parallel.domain_grid or ()
        shared += f", in a grid of {' x '.join(map(str, grid))}" * (len(grid) > 1)
        return (
            f"bits as on any data x pipeline mesh with {shared}"
            + " and sequence_parallel" * parallel.sequence_parallel
        )
    return "bits as on any data x pipeline mesh"


def _counted(num: int, what: str) -> str:
    return f"{num} {what}{'s' if num > 1 else ''}"


def check_batch(settings: RunConfiguration, num_ranks: int) -> None:
    """Errors: MeshError, ConfigurationError unless this many ranks are the mesh, share the global
    batch evenly, and make the groups that the settings name.
    """
    sequences = settings.batch.sequences
    micro_batch = settings.batch.micro_batch
    replicas = num_replicas(settings, num_ranks)
    unit = micro_batch * replicas
    if sequences % unit:
        raise ConfigurationError(
            f"batch.sequences = {sequences} does not divide into micro-batches of {micro_batch} on "
            f"{replicas} data replicas; choose a multiple of {micro_batch} x {replicas} = {unit}"
        )
    _check_groups(settings, replicas)


def makes_groups(settings: RunConfiguration, replicas: int) -> bool:
    """Return whether so many data ranks make the groups of the settings, if they name any."""
    try:
        _check_groups(settings, replicas)
    except ConfigurationError:
        return False
    return True


def _check_groups(settings: RunConfiguration, replicas: int) -> None:
    parallel = settings.parallel
    if parallel.shard_ranks is not None:
        sharing = policy_named(parallel.policy).sharing(replicas, parallel.shard_ranks)
        if parallel.deterministic and parallel.gradient_compression is None:
            check_tree(replicas, sharing)
