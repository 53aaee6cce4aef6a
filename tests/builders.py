"""Small models, batches and training runs that several tests share."""

import hashlib
from dataclasses import replace

import numpy
from hybrids import groups_of_two

import shardkit as sk
from shardkit.testing.array import to_host
from shardkit.testing.parallel import trained_units_of

VOCABULARY, SEQUENCE = 61, 12


def hsdp(model, config):
    """Shard over two ranks where their number is even."""
    groups = groups_of_two("hsdp", config.backend.world_size)
    return sk.HybridShardedModel(model, replace(config, **groups), policy="hsdp")


STRATEGIES = {
    "DDP": sk.DDPModel,
    "ZeRO-1": sk.ZeRO1Model,
    "ZeRO-2": sk.ZeRO2Model,
    "FSDP": sk.FSDPModel,
    "HSDP": hsdp,
}


TINY_RUN = {  # settings of two steps of the language task
    "model.width": 8,
    "model.layers": 1,
    "model.heads": 2,
    "model.sequence_length": 8,
    "batch.sequences": 4,
    "batch.micro_batch": 2,
    "run.steps": 2,
    "run.validation_batches": 1,
    "sample.tokens": 0,
    "optimizer.warmup_steps": 1,
}


def small_gpt(**changes):
    """Return a GPT of two blocks, about 9,000 parameters."""
    sizes = {"width": 16, "layers": 2, "heads": 2, "seed": 3, **changes}
    return sk.models.GPT(VOCABULARY, SEQUENCE, **sizes)


def token_batch(step, samples=12):
    """Return a global batch of tokens that depends on the step alone: x, y [samples, SEQUENCE]."""
    tokens = numpy.random.default_rng(step).integers(0, VOCABULARY, (samples, SEQUENCE + 1))
    return tokens[:, :-1], tokens[:, 1:]


def train(
    strategy, backend, steps, *, samples=12, micro_batch=None, model=None, start=0, **settings
):
    """Train on `samples` per step, in micro-batches of `micro_batch` (default: one per rank);
    returns (model, losses).
    """
    per_rank = samples // backend.world_size
    settings = {
        "optimizer": sk.AdamW(lr=1e-2),
        "max_gradient_norm": 1.0,
        "minimum_parameter_group_size": 64,
        "micro_batches": per_rank // micro_batch if micro_batch else 1,
        **settings,
    }
    sharded = STRATEGIES[strategy](
        model or small_gpt(), sk.ShardingConfiguration(backend, **settings)
    )
    losses = [
        sharded.train(*sk.split_batch(sharded.mesh, *token_batch(step, samples)))
        for step in range(start, start + steps)
    ]
    return sharded, losses


def full_gradient(sharded, x, y):
    """Return the mean gradient of the whole model in canonical order, from the pieces of all ranks.

    Collective.
    """
    sharded.compute_gradients(x, y)
    mine = []
    for unit in trained_units_of(sharded):
        gradient = unit.gradients.owned
        mine += [
            (piece.name, piece.box, to_host(gradient[piece.start : piece.stop].copy()))
            for piece in unit.pieces()
        ]
    whole = {
        name: numpy.zeros(p.shape, p.dtype)
        for name, p in sharded.wrapped_model.named_parameters().items()
    }
    for part in sharded.mesh.group("data").all_gather_object(mine):
        for name, box, values in part:
            whole[name][box.slices()] = values.reshape(box.shape)
    return numpy.concatenate([values.ravel() for values in whole.values()])


def sha256(vector) -> str:
    return hashlib.sha256(vector.tobytes()).hexdigest()
