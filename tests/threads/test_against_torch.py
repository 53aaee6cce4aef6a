"""The loss curve of a GPT beside one of PyTorch in a single process: same weights by name, same
batches, AdamW, clipping.
"""

from functools import cache

import numpy
import pytest
from torch_gpt import torch_gpt, torch_weights
from torch_or_skip import torch

import shardkit as sk

STEPS, SAMPLES, VOCABULARY, SEQUENCE = 50, 8, 32, 16
TOLERANCE = 1e-5  # relative, of float32 losses; 2e-7 was measured
LEARNING_RATE, MAXIMUM_NORM = 3e-3, 1.0


def gpt(style):
    return sk.models.GPT(
        VOCABULARY, SEQUENCE, width=32, layers=2, heads=4, kv_heads=2, style=style, seed=1
    )


def batch(step):
    """Token sequences that can be learned: each counts up from a random start by a random
    stride.
    """
    start, stride = (
        numpy.random.default_rng(step).integers(0, (VOCABULARY, 4), (SAMPLES, 2)).T[:, :, None]
    )
    tokens = (start + stride * numpy.arange(SEQUENCE + 1)) % VOCABULARY
    return tokens[:, :-1], tokens[:, 1:]


@cache
def torch_losses(style):
    model = gpt(style)
    weights, losses = torch_weights(model), []
    optimizer = torch.optim.AdamW(weights.values(), lr=LEARNING_RATE, weight_decay=0.01)
    for step in range(STEPS):
        x, y = batch(step)
        logits = torch_gpt(weights, x, model.settings).reshape(-1, VOCABULARY)
        loss = torch.nn.functional.cross_entropy(logits, torch.tensor(y).reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights.values(), MAXIMUM_NORM)
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("mesh", [(1, 1, 1), (2, 2, 2)], ids=str)
@pytest.mark.parametrize("style", ["gpt2", "llama"])
def test_the_losses_of_fifty_steps_are_those_of_torch(style, mesh):
    pipeline, data, tensor = mesh

    def run(backend):
        config = sk.ShardingConfiguration(
            backend,
            optimizer=sk.AdamW(lr=LEARNING_RATE, weight_decay=0.01),
            micro_batches=2,
            max_gradient_norm=MAXIMUM_NORM,
        )
        model = sk.HybridShardedModel(gpt(style), config, pipeline, tensor)
        return [model.train(*sk.split_batch(model.mesh, *batch(step))) for step in range(STEPS)]

    losses = sk.run_ranks(pipeline * data * tensor, run)[0]
    wanted = torch_losses(style)
    assert wanted[-1] < 0.6 * wanted[0], "wanted a model that learns"
    numpy.testing.assert_allclose(losses, wanted, rtol=TOLERANCE)
