"""Rows of several texts: on any mesh, training is that with each text in a row of its own."""

import numpy
import pytest

import shardkit as sk
from shardkit import nn

TOKENS, LENGTH, ROWS, IGNORED = 13, 12, 12, -100
FORMS = {
    "learned positions": {},
    "rotary, tied": {"style": "llama", "kv_heads": 2, "tied": True},
    "scaled": {"style": "llama", "qk_norm": "head", "rotary_scaling": (8.0, 1.0, 4.0, 16)},
    "updates": {"style": "llama", "lora_rank": 2},
    "a window": {"style": "llama", "window": 3, "full_layers": (0,)},
}
MESHES = {  # ranks, pipeline and tensor ranks, policy, options
    "sequence": (2, 1, 2, "fsdp", {"sequence_parallel": True}),
    "recomputed": (1, 1, 1, "fsdp", {"activation_checkpointing": True}),
    "zero2": (2, 1, 1, "zero2", {"micro_batches": 2}),
    "fsdp": (3, 1, 1, "fsdp", {"activation_checkpointing": True}),
    "hsdp": (4, 1, 1, "hsdp", {"shard_ranks": 2}),
    "sequence recomputed": (
        *(2, 1, 2, "fsdp"),
        {"sequence_parallel": True, "activation_checkpointing": True},
    ),
    "pipeline": (2, 2, 1, "ddp", {"micro_batches": 4, "schedule": "gpipe"}),
    "all": (4, 2, 2, "fsdp", {"micro_batches": 2}),
}


def starts_of(row, draw):
    """Return where the later texts of a row begin: in none, anywhere, at the end, everywhere."""
    some = draw.integers(0, LENGTH, 3)
    return [(), some, (LENGTH - 1,), range(LENGTH)][row % 4]


def batches():
    """Return x, y of rows with several texts, and x, y of the same texts, one in each row."""
    draw = numpy.random.default_rng(3)
    x, y = draw.integers(0, TOKENS, (2, ROWS, LENGTH))
    y[draw.random(y.shape) < 0.2] = IGNORED
    together, alone = x.copy(), []
    for row in range(ROWS):
        starts = sorted({0, *map(int, starts_of(row, draw))})
        for start, stop in zip(starts, [*starts[1:], LENGTH]):
            text = numpy.zeros((2, LENGTH), numpy.int64)
            text[1] = IGNORED
            text[:, : stop - start] = x[row, start:stop], y[row, start:stop]
            alone.append(text)
        together[row, starts[1:]] = nn.begin_text(x[row, starts[1:]])
    return (together, y), tuple(numpy.stack(alone, axis=1))


def losses(form, batch, num_ranks=1, pipeline=1, tensor=1, policy="fsdp", options=None):
    """Return the loss of three steps, and of an evaluation."""

    def on_rank(backend):
        gpt = sk.models.GPT(TOKENS, LENGTH, 16, 2, 4, dtype="float64", seed=3, **FORMS[form])
        config = sk.ShardingConfiguration(backend, optimizer=sk.SGD(lr=0.5), **options or {})
        model = sk.HybridShardedModel(gpt, config, pipeline, tensor, policy=policy)
        data = model.mesh.group("data")
        x, y = (numpy.split(each, data.world_size)[data.rank] for each in batch)
        return [*(model.train(x, y) for _ in range(3)), model.evaluate(x, y)]

    return sk.run_ranks(num_ranks, on_rank)[0]


@pytest.mark.strength(1)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.thorough(but=4)
def test_texts_in_one_row_are_learned_as_if_each_had_its_own(mesh, form):
    together, alone = batches()
    ours = losses(form, together, *MESHES[mesh])
    numpy.testing.assert_allclose(ours, losses(form, alone), rtol=1e-10)
