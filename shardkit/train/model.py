"""From the settings of a run to its model, and which ranks can train it."""

import numpy

from ..comm.backend import CommunicationBackend
from ..comm.failure.agreement import collectively
from ..errors import ConfigurationError
from ..layout.mesh_shape import MeshShape
from ..nn.models import GPT
from ..parallel.model.sharded_model import ShardedModel
from ..parallel.model.strategies import HybridShardedModel
from ..parallel.pipeline.balance import measure_blocks
from ..parallel.settings import ShardingConfiguration
from .data import VOCABULARY_SIZE
from .settings import RunConfiguration


def make_gpt(settings: RunConfiguration) -> GPT:
    """Make the unsharded model of these settings. Errors: ConfigurationError, ValueError."""
    m = settings.model
    return GPT(
        VOCABULARY_SIZE,
        m.sequence_length,
        width=m.width,
        layers=m.layers,
        heads=m.heads,
        kv_heads=m.kv_heads,
        style=m.style,
        tied=m.tied,
        dropout=m.dropout,
        seed=settings.run.seed,
        dtype=m.dtype,
        hidden=m.hidden,
        norm_eps=m.norm_eps,
        rotary_base=m.rotary_base,
        head_dim=m.head_dim,
        attention_bias=m.attention_bias,
        qk_norm=m.qk_norm,
        norms=m.norms,
        rotary_scaling=m.rotary_scaling,
    )


def make_model(settings: RunConfiguration, backend: CommunicationBackend) -> ShardedModel:
    """Make the sharded model of these settings. Collective."""
    parallel = settings.parallel
    optimizer = settings.optimizer
    with collectively(backend):
        gpt = make_gpt(settings)
    balance = parallel.stage_balance
    if balance == "measured":
        balance = _measured(gpt, settings, backend)
    with collectively(backend):
        config = ShardingConfiguration(
            backend,
            optimizer=optimizer.rule(),
            max_gradient_norm=optimizer.max_gradient_norm,
            micro_batches=settings.batch.sequences
            // settings.batch.micro_batch
            // num_replicas(settings, backend.world_size),
            seed=settings.run.seed,
            **{**parallel.shared(), "stage_balance": balance},
        )
    model = HybridShardedModel(
        gpt, config, settings.mesh.pipeline, settings.mesh.tensor, policy=parallel.policy
    )
    if parallel.compile:
        model.compile()
    return model


def _measured(
    gpt: GPT, settings: RunConfiguration, backend: CommunicationBackend
) -> tuple[float, ...]:
    """Seconds of each block on one micro-batch. Collective."""
    tokens = numpy.zeros((settings.batch.micro_batch, settings.model.sequence_length), numpy.int64)
    return measure_blocks(gpt, tokens, tokens, backend)


def num_replicas(settings: RunConfiguration, num_ranks: int) -> int:
    """Return how many data replicas so many ranks make. Errors: MeshError if there is a rest."""
    return MeshShape.infer(
        num_ranks, pipeline=settings.mesh.pipeline, tensor=settings.mesh.tensor
    ).data


def bits_text(settings: RunConfiguration, num_ranks: int) -> str:
    """On which other meshes a run of these settings has the same trained bits, in words."""
    parallel = settings.parallel
    tensor = settings.mesh.tensor
    replicas = num_replicas(settings, num_ranks)
    num = settings.batch.sequences // settings.batch.micro_batch // replicas
    if not parallel.deterministic:
        return "bits of this run only: parallel.deterministic=false"
    only = f"bits of {_counted(replicas, 'data rank')} only"
    if parallel.gradient_compression is not None:
        return f"{only}: gradients travel as {parallel.gradient_compression}"
    if replicas > 1 and num & (num - 1):
        return f"{only}: {num} micro-batches per rank are no power of two"
    if tensor > 1:
        return (
            f"bits as on any data x pipeline mesh with tensor {tensor}"
            + " and sequence_parallel" * parallel.sequence_parallel
        )
    return "bits as on any data x pipeline mesh"


def _counted(num: int, what: str) -> str:
    return f"{num} {what}{'s' if num > 1 else ''}"


def check_batch(settings: RunConfiguration, num_ranks: int) -> None:
    """Errors: MeshError, ConfigurationError unless this many ranks are the mesh and share the
    global batch evenly.
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
