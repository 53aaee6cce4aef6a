"""Who holds and runs what: the table of describe(), and the 8 x 8 x 8 mesh of 512 ranks, which are
threads.
"""

import numpy
import pytest
from hybrids import Box, gpt, hybrid, layers_for, step_once, trained, whole_vector

import shardkit as sk
from shardkit.testing.layout import MeshShape
from shardkit.testing.parallel import training_state_of


def described(mesh, schedule, **settings):
    """The lines that all ranks agree on."""
    texts = set(
        sk.run_ranks(
            numpy.prod(mesh),
            lambda backend: hybrid(backend, mesh, schedule=schedule, **settings).describe(),
        )
    )
    assert len(texts) == 1, "ranks disagree"
    return [line.split() for line in texts.pop().splitlines()]


def test_the_table_shows_the_stages_and_blocks_of_every_rank():
    title, sizes, heading, *rows = described((2, 1, 2), "interleaved")
    assert (
        title[:4] == ["3D-Parallelism", "(Hybrid):", "policy", "FSDP,"] and "interleaved," in title
    )
    assert sizes[-3:] == ["=", "4", "ranks"] and heading == [
        "rank",
        "pipeline",
        "data",
        "tensor",
        "host",
        "stages",
        "blocks",
    ]
    assert [row[:4] + row[5:] for row in rows] == [
        ["0", "0", "0", "0", "0,", "2", "embedding,", "blocks.1"],
        ["1", "0", "0", "1", "0,", "2", "embedding,", "blocks.1"],
        ["2", "1", "0", "0", "1,", "3", "blocks.0,", "head"],
        ["3", "1", "0", "1", "1,", "3", "blocks.0,", "head"],
    ]


def test_the_table_follows_the_rank_order_and_names_runs_of_blocks_by_their_ends():
    _, _, heading, *rows = described(
        (2, 1, 2), "1f1b", order=("tensor", "data", "pipeline"), blocks_per_stage=(2, 1)
    )
    assert heading[:4] == ["rank", "tensor", "data", "pipeline"]
    assert [row[3] for row in rows] == ["0", "1", "0", "1"]
    assert [row[6:] for row in rows[:2]] == [["embedding", "..", "blocks.0"], ["head"]]


def test_a_module_that_is_one_block_is_called_by_its_class():
    def run(backend):
        return sk.FSDPModel(sk.nn.Linear(3, 4), sk.ShardingConfiguration(backend)).describe()

    assert {text.split()[-1] for text in sk.run_ranks(2, run)} == {"Linear"}


# ---- 512 ranks -----------------------------------------------------------------------------------

MESH = (8, 8, 8)


def owned_boxes(model):
    """This rank's part of parameters and optimizer state, without copies."""
    return [
        Box(path, piece.box, numpy.array(values).reshape(piece.box.shape), counts=True)
        for path, piece, values in training_state_of(model).counted_boxes()
    ]


@pytest.mark.sweep
def test_512_ranks_tile_every_parameter_once_and_take_the_step_of_one_rank():
    """FSDP x tensor x 1F1B, each axis 8: every array of the state, and one AdamW step with
    clipping, to 1e-12.
    """
    layers = layers_for(MESH[0], "1f1b")

    def run(backend):
        model = hybrid(backend, MESH, model=gpt(layers))
        before, text = owned_boxes(model), model.describe()
        loss = step_once(model, 0)
        return (
            before,
            owned_boxes(model),
            loss,
            text,
            model.mesh.coordinates,
            {name: shape for name, (shape, _) in training_state_of(model).tensors().items()},
        )

    results = sk.run_ranks(512, run, timeout=500)
    before, after, losses, texts, coordinates, shapes = zip(*results)

    serial = trained((1, 1, 1), steps=1, model=lambda: gpt(layers))
    initial = numpy.concatenate([p.array.ravel() for p in gpt(layers).parameters()])
    num = initial.size
    numpy.testing.assert_array_equal(whole_vector(shapes[0], sum(before, []))[:num], initial)
    parameters_after = whole_vector(shapes[0], sum(after, []))[:num]
    assert (
        numpy.abs(parameters_after - serial.parameters).max()
        < 1e-12 * numpy.abs(serial.parameters).max()
    )
    assert len(set(losses)) == 1 and abs(losses[0] / serial.losses[0] - 1) < 1e-12

    assert list(coordinates) == [MeshShape(*MESH).coordinates(rank) for rank in range(512)]
    assert len(set(coordinates)) == 512 and (
        coordinates[1].tensor,
        coordinates[8].data,
        coordinates[64].pipeline,
    ) == (1, 1, 1)
    assert len(set(texts)) == 1
    rows = [line.split() for line in texts[0].splitlines()[3:]]
    assert [row[:4] for row in rows] == [
        [str(n) for n in (rank, c.pipeline, c.data, c.tensor)] for rank, c in enumerate(coordinates)
    ]
    assert [row[5] for row in rows] == [str(c.pipeline) for c in coordinates]
