"""Layouts of the planner as models that run: the settings of one, the GPT of one, and the batch
that it wants.
"""

import numpy

import shardkit as sk
from shardkit.plan import ModelShape, RunLayout


def gpt_of(shape: ModelShape, **changes):
    """Return the model that has these sizes."""
    return sk.models.GPT(
        shape.vocabulary,
        shape.sequence_length,
        shape.width,
        shape.layers,
        shape.heads,
        shape.kv_heads,
        style=shape.style,
        tied=shape.tied,
        dropout=shape.dropout,
        hidden=shape.hidden,
        **changes,
    )


def sharded(backend, layout: RunLayout, shape: ModelShape, **settings):
    """Return the model on the mesh of the layout. Collective."""
    config = sk.ShardingConfiguration(
        backend,
        optimizer=sk.AdamW(),
        max_gradient_norm=1.0,
        micro_batches=layout.micro_batches,
        schedule=layout.schedule,
        virtual_stages=layout.virtual,
        sequence_parallel=layout.is_sequence_parallel,
        activation_checkpointing=layout.recomputation == "full",
        **settings,
    )
    return sk.HybridShardedModel(
        gpt_of(shape), config, layout.pipeline, layout.tensor, layout.data, policy=layout.policy
    )


def train_steps(model, layout: RunLayout, shape: ModelShape, steps=1):
    """Return the losses of the first steps. Collective."""
    losses = []
    for step in range(steps):
        tokens = numpy.random.default_rng(step).integers(
            0, shape.vocabulary, (layout.batch, shape.sequence_length + 1)
        )
        losses.append(model.train(*sk.split_batch(model.mesh, tokens[:, :-1], tokens[:, 1:])))
    return losses
