"""The loss curve of a GPT beside one of PyTorch in a single process: same weights by name, same
batches, AdamW, clipping; in float32, and in bfloat16 beside PyTorch's autocast.
"""

from functools import cache

import numpy
import pytest
from torch_gpt import torch_gpt, torch_weights
from torch_or_skip import torch

import shardkit as sk
from shardkit import ConfigurationError
from shardkit.testing.array import library_named

STEPS, SAMPLES, VOCABULARY, SEQUENCE = 30, 8, 32, 16
TOLERANCE = 1e-5  # relative, of float32 losses; 2e-7 was measured
LEARNING_RATE, MAXIMUM_NORM = 6e-3, 1.0


def gpt(style, seed=1):
    return sk.models.GPT(
        VOCABULARY, SEQUENCE, width=32, layers=2, heads=4, kv_heads=2, style=style, seed=seed
    )


def batch(step, samples=SAMPLES):
    """Token sequences that can be learned: each counts up from a random start by a random
    stride.
    """
    start, stride = (
        numpy.random.default_rng(step).integers(0, (VOCABULARY, 4), (samples, 2)).T[:, :, None]
    )
    tokens = (start + stride * numpy.arange(SEQUENCE + 1)) % VOCABULARY
    return tokens[:, :-1], tokens[:, 1:]


@cache
def torch_losses(style, seed=1, num_steps=STEPS, samples=SAMPLES, rate=LEARNING_RATE, half=False):
    model = gpt(style, seed)
    weights, losses = torch_weights(model), []
    optimizer = torch.optim.AdamW(weights.values(), lr=rate, weight_decay=0.01)
    for step in range(num_steps):
        x, y = batch(1000 * seed + step, samples)
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            logits = torch_gpt(weights, x, model.settings).reshape(-1, VOCABULARY)
            loss = torch.nn.functional.cross_entropy(logits, torch.tensor(y).reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights.values(), MAXIMUM_NORM)
        optimizer.step()
        losses.append(loss.item())
    return losses


def our_losses(
    style, mesh, seed=1, num_steps=STEPS, samples=SAMPLES, rate=LEARNING_RATE, **settings
):
    pipeline, data, tensor = mesh

    def run(backend):
        config = sk.ShardingConfiguration(
            backend,
            optimizer=sk.AdamW(lr=rate, weight_decay=0.01),
            micro_batches=2,
            max_gradient_norm=MAXIMUM_NORM,
            **settings,
        )
        model = sk.HybridShardedModel(gpt(style, seed), config, pipeline, tensor)
        batches = [batch(1000 * seed + step, samples) for step in range(num_steps)]
        return [model.train(*sk.split_batch(model.mesh, *each)) for each in batches]

    return sk.run_ranks(pipeline * data * tensor, run)[0]


@pytest.mark.parametrize("mesh", [(1, 1, 1), (2, 2, 2)], ids=str)
@pytest.mark.parametrize("style", ["gpt2", "llama"])
@pytest.mark.thorough
def test_the_losses_of_thirty_steps_are_those_of_torch(style, mesh):
    losses = our_losses(style, mesh)
    wanted = torch_losses(style)
    assert wanted[-1] < 0.6 * wanted[0], "wanted a model that learns"
    numpy.testing.assert_allclose(losses, wanted, rtol=TOLERANCE)


@pytest.mark.sweep
@pytest.mark.parametrize("library", ["numpy", "onednn"])
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("style", ["gpt2", "llama"])
def test_bfloat16_learns_as_the_autocast_of_torch_does(style, seed, library):
    """The mean loss of the last 50 of 200 steps, to 1%. Seed 1 chose batch and learning rate, with
    which PyTorch's own float32 and bfloat16 are that close.
    """
    if library == "onednn":
        require_onednn()
    how = {"num_steps": 200, "samples": 64, "rate": 1e-3}
    ours = our_losses(style, (1, 2, 1), seed, **how, compute_dtype="bfloat16", blas=library)
    autocast = torch_losses(style, seed, **how, half=True)
    plain = torch_losses(style, seed, **how)
    found, *wanted = [numpy.mean(losses[150:]) for losses in (ours, autocast, plain)]
    assert found < 0.8 * ours[0], "wanted a model that learns"
    numpy.testing.assert_allclose(found, wanted, rtol=0.01)


def require_onednn():
    try:
        library_named("onednn")
    except ConfigurationError as error:
        pytest.skip(str(error))
