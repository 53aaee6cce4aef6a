"""Models of science on twelve meshes of four policies: what one rank computes.

The bits are equal where the micro-batches are (one, two or four replicas); of three replicas, whose
micro-batches are others, float64 is equal to 1e-12.
"""

import numpy
import pytest

import shardkit as sk

SAMPLES, MICRO_BATCHES = 24, 4
RNG = numpy.random.default_rng(0)
MODELS = {
    "fno": (
        lambda dtype: sk.models.FNO(1, 1, (2, 3), width=4, layers=2, dtype=dtype),
        RNG.standard_normal((SAMPLES, 1, 5, 6)),
        RNG.standard_normal((SAMPLES, 1, 5, 6)),
    ),
    "message passing": (
        lambda dtype: sk.models.MessagePassing(
            2, 1, [0, 1, 2, 2], [1, 2, 0, 3], width=5, steps=2, dtype=dtype
        ),
        RNG.standard_normal((SAMPLES, 4, 2)),
        RNG.standard_normal((SAMPLES, 4, 1)),
    ),
    "lstm": (
        lambda dtype: sk.models.LSTM(3, 2, width=5, layers=2, dtype=dtype),
        RNG.standard_normal((SAMPLES, 4, 3)),
        RNG.standard_normal((SAMPLES, 2)),
    ),
    "resnet": (
        lambda dtype: sk.models.ResNet(
            1, 3, (1, 1), width=8, small_images=True, norm="group", dtype=dtype
        ),
        RNG.standard_normal((SAMPLES, 1, 4, 5)),
        RNG.integers(0, 3, SAMPLES),
    ),
    "resnet of batch norms": (
        lambda dtype: sk.models.ResNet(1, 3, (1, 1), width=2, small_images=True, dtype=dtype),
        RNG.standard_normal((SAMPLES, 1, 4, 5)),
        RNG.integers(0, 3, SAMPLES),
    ),
    "unet": (
        lambda dtype: sk.models.UNet(1, 1, width=2, depth=2, groups=1, dtype=dtype),
        RNG.standard_normal((SAMPLES, 1, 4, 4)),
        RNG.standard_normal((SAMPLES, 1, 4, 4)),
    ),
    "unet of three dimensions": (
        lambda dtype: sk.models.UNet(1, 1, dims=3, width=2, depth=1, groups=1, dtype=dtype),
        RNG.standard_normal((SAMPLES, 1, 2, 2, 4)),
        RNG.standard_normal((SAMPLES, 1, 2, 2, 4)),
    ),
    "vit": (
        lambda dtype: sk.models.ViT((4, 6), 2, 1, 3, width=6, depth=2, heads=2, dtype=dtype),
        RNG.standard_normal((SAMPLES, 1, 4, 6)),
        RNG.integers(0, 3, SAMPLES),
    ),
}
OF_MICRO_BATCHES = {"resnet of batch norms"}  # normalized by moments of their micro-batch
WITHOUT_BLOCKS = {"unet", "unet of three dimensions"}  # no pipeline cuts them
DTYPES = ["float32", "float64"]
MESHES = [  # policy, ranks, pipeline stages
    ("ddp", 2, 1),
    ("ddp", 3, 1),
    ("ddp", 3, 3),
    ("zero1", 2, 1),
    ("zero1", 3, 1),
    ("zero1", 4, 2),
    ("zero2", 3, 1),
    ("zero2", 4, 1),
    ("fsdp", 2, 2),
    ("fsdp", 3, 1),
    ("fsdp", 4, 1),
    ("fsdp", 4, 2),
]


def has_other_parts(mesh) -> bool:
    """Return whether micro-batches have other samples than on one rank."""
    _, num_ranks, pipeline = mesh
    return num_ranks // pipeline == 3


def meshes_of(name):
    """Return the meshes on which a model computes what it does on one rank."""
    return [
        mesh
        for mesh in MESHES
        if not (name in OF_MICRO_BATCHES and has_other_parts(mesh))
        and not (name in WITHOUT_BLOCKS and mesh[2] > 1)
    ]


def trained(name, dtype, policy, num_ranks, pipeline, half=None):
    """The losses of two steps, and the parameters after them."""
    make, *arrays = MODELS[name]
    x, y = [array if array.dtype.kind == "i" else array.astype(dtype) for array in arrays]

    def run(backend):
        replicas = num_ranks // pipeline
        config = sk.ShardingConfiguration(
            backend,
            optimizer=sk.Momentum(lr=0.05, beta=0.9),
            micro_batches=max(MICRO_BATCHES // replicas, 1),
            minimum_parameter_group_size=1,
            compute_dtype=half,
        )
        model = sk.HybridShardedModel(
            make(dtype), config, policy=policy, pipeline_parallel_size=pipeline
        )
        rank = model.mesh.group("data").rank
        part = slice(rank * SAMPLES // replicas, (rank + 1) * SAMPLES // replicas)
        losses = [model.train(x[part], y[part]) for _ in range(2)]
        return losses, model.gather_full_parameters()

    results = sk.run_ranks(num_ranks, run)
    assert len({(*losses, weights.tobytes()) for losses, weights in results}) == 1
    return results[0]


@pytest.mark.strength(1)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.thorough
def test_the_losses_and_parameters_are_those_of_one_rank(name, dtype):
    losses, weights = trained(name, dtype, "ddp", 1, 1)
    assert losses[-1] < losses[0]
    tolerance = 1e-12 if dtype == "float64" else 1e-5
    for mesh in meshes_of(name)[DTYPES.index(dtype) :: 2]:  # each mesh under one of the dtypes
        found, parameters = trained(name, dtype, *mesh)
        numpy.testing.assert_allclose(found, losses, rtol=tolerance)
        numpy.testing.assert_allclose(parameters, weights, rtol=0, atol=tolerance)
        if not has_other_parts(mesh):
            numpy.testing.assert_array_equal(parameters, weights, err_msg=str(mesh))


@pytest.mark.strength(1)
@pytest.mark.parametrize("half", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.thorough(but=1)
def test_blocks_in_half_floats_lose_what_those_in_float32_do(name, half):
    wanted, _ = trained(name, "float32", "ddp", 1, 1)
    found, _ = trained(name, "float32", "ddp", 1, 1, half)
    numpy.testing.assert_allclose(found, wanted, rtol=0.05)
    assert found != wanted
