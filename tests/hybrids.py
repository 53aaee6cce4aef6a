"""Tiny GPTs on every pipeline x data x tensor mesh, and what the ranks of one hold together.

    run = trained((2, 2, 2), "zero1", "zb-v")           # (pipeline, data, tensor), on ranks that
                                                        are threads
    run.gradients[3]                                    # of step 3, whole, before clipping, in
                                                        canonical order

Width, heads, vocabulary and samples are multiples of 1, 2, 3, 4, 6 and 8, so every factorization of
so many ranks fits.
"""

from dataclasses import dataclass
from functools import cache

import numpy

import shardkit as sk
from shardkit.testing.array import to_host
from shardkit.testing.layout import tiles_exactly
from shardkit.testing.parallel import (
    global_piece,
    gradient_norm_of,
    is_counted,
    runtime_of,
    units_of,
)
from shardkit.testing.schedule import ORDERS

VOCABULARY, SEQUENCE, WIDTH, SAMPLES = 48, 8, 24, 24
POLICIES = ("ddp", "zero1", "zero2", "fsdp", "hsdp")
SCHEDULES = tuple(ORDERS)
SERIAL = (1, 1, 1)


def meshes(num_ranks):
    """Return all (pipeline, data, tensor) that multiply to num_ranks."""
    sizes = range(1, num_ranks + 1)
    return [(p, d, num_ranks // p // d) for p in sizes for d in sizes if num_ranks % (p * d) == 0]


def policy_and_schedule(turn):
    """Return those of this turn: 25 turns have all pairs."""
    return POLICIES[(turn + turn // 5) % 5], SCHEDULES[turn % 5]


def groups_of_two(policy, data):
    """Return the settings of a policy on so many data ranks: two share one copy under hsdp."""
    return {"shard_ranks": 1 + (data % 2 == 0)} if policy == "hsdp" else {}


def gpt(layers=1, **changes):
    """Return a float64 GPT of 7,000 parameters per layer, every head of one dim."""
    return sk.models.GPT(
        sequence_length=SEQUENCE,
        **{
            "vocabulary_size": VOCABULARY,
            "width": WIDTH,
            "layers": layers,
            "heads": WIDTH,
            "seed": 3,
            "dtype": "float64",
            **changes,
        },
    )


def table_of(model):
    """What each kind of action does in the next step of a sharded model; it may be changed."""
    return runtime_of(model).executor.executor.table


def layers_for(pipeline, schedule):
    """Return the fewest layers that give every stage a block: embedding and head are blocks too."""
    return max(1, pipeline * ORDERS[schedule].stages_per_rank - 2)


def micro_batches_for(pipeline, data, samples=SAMPLES):
    """Return the micro-batches of one data rank: a divisor of its samples that fills the pipeline,
    at least two if there are so many.
    """
    return next(
        (num for num in range(max(2, pipeline), samples + 1) if samples // data % num == 0),
        samples // data,
    )


def batch(step, samples=SAMPLES):
    """Return the global batch of a step: x, y [samples, SEQUENCE]."""
    tokens = numpy.random.default_rng(step).integers(0, VOCABULARY, (samples, SEQUENCE + 1))
    return tokens[:, :-1], tokens[:, 1:]


def hybrid(
    backend,
    mesh,
    policy="fsdp",
    schedule="1f1b",
    *,
    model=None,
    order=("pipeline", "data", "tensor"),
    **settings,
):
    """Return the model on the mesh: AdamW, and clipping that is active in every one of the first
    steps.
    """
    pipeline, data, tensor = mesh
    settings = {
        "optimizer": sk.AdamW(lr=1e-2),
        "max_gradient_norm": 0.1,
        "minimum_parameter_group_size": 1,
        "micro_batches": micro_batches_for(pipeline, data),
        **groups_of_two(policy, data),
        **settings,
    }
    return sk.HybridShardedModel(
        model or gpt(layers_for(pipeline, schedule)),
        sk.ShardingConfiguration(backend, schedule=schedule, **settings),
        pipeline,
        tensor,
        data,
        policy=policy,
        order=order,
    )


def step_once(model, step, samples=SAMPLES):
    """Train on this rank's part of the global batch of that step; the loss."""
    return model.train(*sk.split_batch(model.mesh, *batch(step, samples)))


# ---- what all ranks hold together ----------------------------------------------------------------


@dataclass
class Box:
    """Some elements of a whole parameter on one rank; `counts` on exactly one of the ranks that
    hold them.
    """

    name: str
    box: object
    values: numpy.ndarray
    counts: bool


class GradientRecord:
    """The gradient of every step as boxes of this rank, taken where each unit's step takes it:
    reduced, not yet clipped.
    """

    def __init__(self, model):
        self.steps: dict[int, list[Box]] = {}  # number of the step, from 1
        for unit in units_of(model):
            unit.step = self._recording(unit, unit.step)

    def _recording(self, unit, step):
        def record_and_step(number, *rest):
            self.steps.setdefault(number, []).extend(_gradient_boxes(unit))
            step(number, *rest)

        return record_and_step


def _gradient_boxes(unit):
    owned = unit.gradients.owned
    for piece in unit.pieces():
        parameter = unit.plan.parameters[piece.name]
        values = to_host(owned[piece.start : piece.stop].copy()).reshape(piece.box.shape)
        yield Box(
            piece.name,
            global_piece(parameter, piece).box,
            values,
            is_counted(parameter) and not unit.plan.is_copy,
        )


def whole_vector(shapes, boxes):
    """Put the boxes of all ranks into one canonical vector.

    The boxes that count tile it exactly once; replicas have the same bits.
    shapes  {name: whole shape} in canonical order
    """
    whole = {name: numpy.full(shape, numpy.nan) for name, shape in shapes.items()}
    for box in sorted(boxes, key=lambda box: not box.counts):  # copies last
        here = whole[box.name][box.box.slices()]
        if box.counts:
            here[...] = box.values
        else:
            numpy.testing.assert_array_equal(
                box.values, here, f"a copy of {box.name}{box.box} differs"
            )
    for name, shape in shapes.items():
        tiles_exactly(shape, [box.box for box in boxes if box.name == name and box.counts])
    return numpy.concatenate([values.ravel() for values in whole.values()])


def shapes_of(model):
    """Return {name: whole shape} of the parameters of a sharded model, in canonical order."""
    return {name: p.global_shape for name, p in model.wrapped_model.named_parameters().items()}


# ---- runs on threads -----------------------------------------------------------------------------


@dataclass
class Run:
    """The result of a training, the same on all ranks: whole vectors, and a loss and a norm per
    step.
    """

    parameters: numpy.ndarray
    gradients: list
    losses: list
    norms: list


@cache
def serial(layers, steps) -> "Run":
    """Return so many steps of gpt(layers) on one rank: what many meshes are compared with."""
    return trained(SERIAL, "ddp", "gpipe", steps, model=lambda: gpt(layers))


def trained(mesh, policy="fsdp", schedule="1f1b", steps=2, **settings) -> Run:
    """Train on ranks that are threads, whatever hybrid() takes. Ranks must agree to the bit."""

    def on_rank(backend):
        model = hybrid(
            backend,
            mesh,
            policy,
            schedule,
            **{**settings, "model": settings.get("model", lambda: None)()},
        )
        record, losses, norms = GradientRecord(model), [], []
        for step in range(steps):
            losses.append(step_once(model, step))
            norms.append(gradient_norm_of(model))
        return (model.gather_full_parameters(), losses, norms), record.steps, shapes_of(model)

    results = sk.run_ranks(numpy.prod(mesh), on_rank)
    (parameters, losses, norms), _, shapes = results[0]
    for (other, *curves), _, _ in results:
        numpy.testing.assert_array_equal(other, parameters, "ranks disagree about the parameters")
        assert curves == [losses, norms], "ranks disagree about losses or norms"
    gradients = [
        whole_vector(shapes, [box for _, steps, _ in results for box in steps[number]])
        for number in range(1, steps + 1)
    ]
    return Run(parameters, gradients, losses, norms)
