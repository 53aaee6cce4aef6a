"""What one layout saved, any other loads, on 1, 2, 3, 4 and 8 ranks that are threads.

python -m pytest tests/threads/test_checkpoint_layouts.py               every layout loads what
                                                                        three saved, and each
                                                                        is loaded by three
python -m pytest tests/threads/test_checkpoint_layouts.py -m sweep      every ordered pair
"""

import hashlib
from math import prod

import numpy
import pytest
from builders import sha256

import shardkit as sk
from shardkit.testing.parallel import training_state_of

pytestmark = pytest.mark.xdist_group("layouts")  # they share what all layouts saved

SAMPLES, MICRO_BATCH = 8, 2  # 4 micro-batches: a power of two for each rank on every mesh below
SWAPPED = {"order": ("tensor", "data", "pipeline")}

# name: (pipeline, data, tensor), policy, schedule, and what else
LAYOUTS = {
    "serial": ((1, 1, 1), "ddp", "1f1b", {}),
    "data 2, fsdp": ((1, 2, 1), "fsdp", "1f1b", {}),
    "pipeline 2, gpipe": ((2, 1, 1), "ddp", "gpipe", {}),
    "pipeline 2, interleaved": ((2, 1, 1), "zero1", "interleaved", {"virtual_stages": 2}),
    "tensor 2, zero1": ((1, 1, 2), "zero1", "1f1b", {}),
    "pipeline 3": ((3, 1, 1), "fsdp", "1f1b", {}),
    "tensor 3": ((1, 1, 3), "ddp", "1f1b", {}),
    "data 4, zero2": ((1, 4, 1), "zero2", "gpipe", {}),
    "pipeline 2, data 2": ((2, 2, 1), "fsdp", "zb-h1", SWAPPED),
    "data 2, tensor 2": ((1, 2, 2), "fsdp", "1f1b", {"sequence_parallel": True}),
    "pipeline 4": ((4, 1, 1), "zero2", "1f1b", {}),
    "pipeline 4, data 2": ((4, 2, 1), "ddp", "1f1b", {}),
    "data 2, tensor 4": ((1, 2, 4), "zero2", "1f1b", {}),
    "all axes": ((2, 2, 2), "fsdp", "1f1b", SWAPPED),
    "data 4, hsdp": ((1, 4, 1), "hsdp", "1f1b", {"shard_ranks": 2}),
    "pipeline 2, data 4, hsdp of 1": ((2, 4, 1), "hsdp", "gpipe", {"shard_ranks": 1}),
    "pipeline 2, data 4, hsdp": ((2, 4, 1), "hsdp", "1f1b", {"shard_ranks": 2}),
    "pipeline 2, data 4": ((2, 4, 1), "zero1", "gpipe", {"activation_checkpointing": True}),
}
EXACT = [name for name, (mesh, *_) in LAYOUTS.items() if mesh[2] == 1]


def tensor_size(name):
    return LAYOUTS[name][0][2]


FIRST_OF_SIZE = {tensor_size(name): name for name in reversed(LAYOUTS)}


def some_others(name):
    """Return a sixth of the layouts; six neighbors have all of them, and the first one of each
    tensor size has one of every tensor size.
    """
    names = list(LAYOUTS)
    others = names[-names.index(name) % 6 :: 6]
    if FIRST_OF_SIZE[tensor_size(name)] == name:
        others += [
            first for size, first in FIRST_OF_SIZE.items() if size not in map(tensor_size, others)
        ]
    return others


def num_ranks(name):
    return prod(LAYOUTS[name][0])


def batch(step):
    tokens = numpy.random.default_rng(step).integers(0, 60, (SAMPLES, 9))
    return tokens[:, :-1], tokens[:, 1:]


def make(name, backend):
    """The same model, of tied weights, in this layout."""
    (pipeline, data, tensor), policy, schedule, more = LAYOUTS[name]
    settings = {"order": ("pipeline", "data", "tensor"), **more}
    order = settings.pop("order")
    settings = {
        "optimizer": sk.AdamW(lr=1e-2),
        "max_gradient_norm": 0.5,
        "minimum_parameter_group_size": 32,
        "micro_batches": SAMPLES // data // MICRO_BATCH,
        "schedule": schedule,
        **settings,
    }
    gpt = sk.models.GPT(60, 8, width=24, layers=2, heads=12, seed=3, tied=True, dtype="float64")
    return sk.HybridShardedModel(
        gpt,
        sk.ShardingConfiguration(backend, **settings),
        pipeline,
        tensor,
        data,
        policy=policy,
        order=order,
    )


def digest(model):
    """SHA-256 of all parameters, and of all that a checkpoint holds, gathered from the ranks.
    Collective.
    """
    mine = [
        (tensor, piece.box, array)
        for tensor, piece, array in training_state_of(model).counted_boxes()
    ]
    everyones, vector, state = (
        model.mesh.world.gather_object(mine),
        model.gather_full_parameters(),
        None,
    )
    if everyones is not None:
        whole = {
            tensor: numpy.full(shape, numpy.nan)
            for tensor, (shape, _) in training_state_of(model).tensors().items()
        }
        for tensor, box, values in (part for parts in everyones for part in parts):
            whole[tensor][box.slices()] = values.reshape(box.shape)
        state = hashlib.sha256(
            b"".join(whole[tensor].tobytes() for tensor in sorted(whole))
        ).hexdigest()
    return sha256(vector), model.mesh.world.broadcast_object(state)


def step(model):
    """One step more: the loss before it and the parameters after it."""
    loss = model.train(*sk.split_batch(model.mesh, *batch(model.step_number)))
    return loss, model.gather_full_parameters()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """{layout: (folder, digest, what the next step gives)}, of models that were trained in that
    layout.
    """

    def save(name):
        folder = tmp_path_factory.mktemp("layout")

        def on_rank(backend):
            model = make(name, backend)
            step(model)
            model.save_model(folder)
            return folder, digest(model), step(model)

        return sk.run_ranks(num_ranks(name), on_rank)[0]

    return {name: save(name) for name in LAYOUTS}


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.thorough
def test_a_layout_loads_what_others_saved_and_goes_on(saved, name):
    """To the bit where both have no tensor axis, else to rounding. One model loads them all, one
    after the other.
    """
    check_loading(saved, name, some_others(name))


@pytest.mark.sweep
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_loads_what_every_layout_saved_and_goes_on(saved, name):
    check_loading(saved, name, LAYOUTS)


def test_the_pairs_tried_have_every_layout_on_both_sides_and_every_pair_of_tensor_sizes():
    pairs = [(name, other) for name in LAYOUTS for other in some_others(name)]
    sizes = set(FIRST_OF_SIZE)
    assert {other for _, other in pairs} == set(LAYOUTS) and len(set(pairs)) == len(pairs)
    assert {tuple(map(tensor_size, pair)) for pair in pairs} == {
        (one, other) for one in sizes for other in sizes
    }


def check_loading(saved, name, others):

    def on_rank(backend):
        model = make(name, backend)
        results = {}
        for other in others:
            model.load_model(saved[other][0])
            results[other] = digest(model), step(model)
        return results

    for other, (loaded, (loss, parameters)) in sk.run_ranks(num_ranks(name), on_rank)[0].items():
        _, stored, (wanted_loss, wanted_parameters) = saved[other]
        assert loaded == stored, f"saved under {other}"
        assert abs(loss - wanted_loss) < 1e-12 * wanted_loss
        numpy.testing.assert_allclose(
            parameters, wanted_parameters, rtol=1e-9, atol=1e-11, err_msg=f"saved under {other}"
        )
        if {name, other} <= set(EXACT):
            assert (loss, sha256(parameters)) == (wanted_loss, sha256(wanted_parameters)), (
                f"saved under {other}"
            )


@pytest.mark.thorough
def test_layouts_without_a_tensor_axis_are_one_experiment(saved):
    assert len({(saved[name][1], saved[name][2][0]) for name in EXACT}) == 1
