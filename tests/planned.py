"""Layouts of the planner as models that run: the settings of one, the GPT of one, and the batch
that it wants.
"""

import numpy

import shardkit as sk
from shardkit.testing.plan import SHARDKIT, MLPShape, ModelShape, RunLayout, blocks_per_stage


def model_of(shape):
    """Return the model that has these sizes."""
    return mlp_of(shape) if isinstance(shape, MLPShape) else gpt_of(shape)


def mlp_of(shape: MLPShape):
    task = "classification" if shape.is_of_classes else "regression"
    return sk.models.MLP(shape.sizes, shape.activation, task)


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
        window=shape.window,
        full_layers=shape.full_layers,
        **changes,
    )


def sharded(backend, layout: RunLayout, shape, software=SHARDKIT, **settings):
    """Return the model on the mesh of the layout, in the stages of the software. Collective."""
    config = sk.ShardingConfiguration(
        backend,
        optimizer=sk.AdamW(),
        max_gradient_norm=1.0,
        micro_batches=layout.micro_batches,
        schedule=layout.schedule,
        virtual_stages=layout.virtual,
        sequence_parallel=layout.is_sequence_parallel,
        activation_checkpointing=layout.recomputation == "full",
        shard_ranks=layout.shard_ranks,
        blocks_per_stage=blocks_per_stage(shape, software, layout.num_stages, layout.tensor),
        **settings,
    )
    sizes = {f"{axis}_parallel_size": size for axis, size in layout.mesh.sizes.items()}
    return sk.HybridShardedModel(model_of(shape), config, policy=layout.policy, **sizes)


def train_steps(model, layout: RunLayout, shape, steps=1):
    """Return the losses of the first steps. Collective."""
    return [
        model.train(*sk.split_batch(model.mesh, *_batch(layout, shape, step)))
        for step in range(steps)
    ]


def _batch(layout: RunLayout, shape, step: int):
    """Return x and y of a step, the same on all ranks."""
    rng = numpy.random.default_rng(step)
    if not isinstance(shape, MLPShape):
        size = layout.batch, shape.sequence_length + 1
        tokens = rng.integers(0, shape.vocabulary, size)
        return tokens[:, :-1], tokens[:, 1:]
    x = rng.standard_normal((layout.batch, shape.sizes[0])).astype("float32")
    y = rng.standard_normal((layout.batch, shape.sizes[-1])).astype("float32")
    return x, y.argmax(1) if shape.is_of_classes else y
