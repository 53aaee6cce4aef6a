"""The planner's bytes: against published formulas, against the tape, against the schedules."""

import types
from dataclasses import replace

import numpy
import pytest
from planned import gpt_of, mlp_of
from published_runs import MEGATRON_SP

from shardkit.nn import ForwardContext, Tensor, backward_inputs, forward_context
from shardkit.testing.layout import POLICIES
from shardkit.testing.nn import MANY_CLASSES, late_logits
from shardkit.testing.parallel import NORM_BLOCK
from shardkit.testing.plan import (
    MIXED,
    SHARDKIT,
    MLPShape,
    ModelShape,
    RunLayout,
    Share,
    block_bytes,
    memory_of,
)
from shardkit.testing.plan import NORM_BLOCK as PLANNED_NORM_BLOCK
from shardkit.testing.schedule import ORDERS, order_named, peak_live
from shardkit.testing.task import Language
from shardkit.testing.train import configuration_of

RunConfiguration = configuration_of(Language)

GB = 1e9


@pytest.mark.parametrize(
    "policy, gigabytes", [("ddp", 120), ("zero1", 31.4), ("zero2", 16.6), ("fsdp", 1.9)]
)
def test_the_figure_of_the_zero_paper(policy, gigabytes):
    """7.5e9 parameters on 64 devices, Adam in mixed precision: figure 1 of arXiv 1910.02054."""
    bytes_per_rank = POLICIES[policy].bytes_per_rank(7.5e9, 64, (2, 2, 12))
    assert round(bytes_per_rank / GB, 1) == gigabytes


@pytest.mark.parametrize(
    "recomputation, sequence, formula",
    [
        ("none", False, lambda s, h, a, t: 10 + 24 / t + 5 * a * s / (h * t)),
        ("none", True, lambda s, h, a, t: (34 + 5 * a * s / h) / t),
        ("selective", False, lambda s, h, a, t: 10 + 24 / t),
        ("selective", True, lambda s, h, a, t: 34 / t),
        ("full", False, lambda s, h, a, t: 2),
    ],
)
def test_activations_of_a_layer_by_table_2_of_the_recomputation_paper(
    recomputation, sequence, formula
):
    """arXiv 2205.05198, table 2, in units of s b h bytes."""
    shape, tensor, micro_batch = ModelShape(96, 12288, 96, 51200, 2048), 8, 2
    kept = block_bytes(
        shape, MEGATRON_SP, "layer", Share(2048 * micro_batch), tensor, recomputation, sequence
    ).kept
    assert kept == 2048 * micro_batch * 12288 * formula(2048, 12288, 96, tensor)


# ---- what the tape of nn holds -------------------------------------------------------------------


def owner(array):
    while isinstance(array.base, numpy.ndarray):
        array = array.base
    return array


def held_bytes(what, without):
    """Return the bytes of all arrays within reach of a tensor or a list, through nodes and
    closures.

    Parameters do not count.
    """
    seen, arrays, coming = set(), {}, [what]
    while coming:
        found = coming.pop()
        if id(found) in seen:
            continue
        seen.add(id(found))
        if isinstance(found, numpy.ndarray):
            arrays[id(owner(found))] = owner(found)
        elif isinstance(found, Tensor) and not found.is_parameter:
            coming += [found.array, found._node]
        elif isinstance(found, types.FunctionType):
            coming += [cell.cell_contents for cell in found.__closure__ or ()]
        elif isinstance(found, (list, tuple)):
            coming += found
        elif type(found).__name__ == "TapeNode":
            coming += [found.backward, found.sources, [holder for holder, _ in found.saved]]
    return sum(array.nbytes for key, array in arrays.items() if key not in without)


@pytest.mark.parametrize(
    "changes",
    [{}, {"style": "llama"}, {"kv_heads": 1}, {"dropout": 0.1}, {"window": 9}],
    ids=str,
)
def test_a_layer_keeps_what_its_tape_holds(changes):
    shape, batch = ModelShape(1, 96, 4, 50, 64, **changes), 6
    model = gpt_of(shape)
    parameters = {id(owner(p.array)) for p in model.parameters()}
    x = Tensor(numpy.ones((batch, 64, 96), "float32"), requires_grad=True)
    with forward_context(ForwardContext(training=True)):
        y = model.layers[0](x)
    sizes = block_bytes(shape, SHARDKIT, "layer", Share(batch * 64), 1, "none", False)
    assert held_bytes(y, parameters | {id(owner(y.array))}) == pytest.approx(sizes.kept, rel=0.01)
    later = backward_inputs(y, numpy.ones_like(y.array))
    assert held_bytes(later._deferred, parameters) == pytest.approx(sizes.deferred, rel=0.02)


@pytest.mark.parametrize("style", ["gpt2", "llama"])
@pytest.mark.parametrize("batch, vocabulary", [(6, 500), (6, MANY_CLASSES), (2, MANY_CLASSES)])
def test_a_head_keeps_what_its_tape_holds(batch, vocabulary, style):
    """Of a large vocabulary by blocks, unless there are few tokens."""
    shape = ModelShape(1, 96, 4, vocabulary, 64, style=style)
    model = gpt_of(shape)
    x = Tensor(numpy.ones((batch, 64, 96), "float32"), requires_grad=True)
    with forward_context(ForwardContext(training=True)), late_logits():
        total = model.loss.total(model.head(x), numpy.ones((batch, 64), int))
    parameters = {id(owner(p.array)) for p in model.parameters()}
    sizes = block_bytes(shape, SHARDKIT, "head", Share(batch * 64), 1, "none", False)
    assert held_bytes(total, parameters) == pytest.approx(sizes.kept, rel=0.01)
    later = backward_inputs(total)
    assert held_bytes(later._deferred, parameters) == pytest.approx(sizes.deferred, rel=0.01)


@pytest.mark.parametrize("is_of_classes", [False, True])
@pytest.mark.parametrize("activation", ["gelu", "relu", "tanh", "silu"])
def test_a_dense_layer_keeps_what_its_tape_holds(activation, is_of_classes):
    shape, batch = MLPShape((10, 32, 48, 5), activation, is_of_classes), 64
    model = mlp_of(shape)
    parameters = {id(owner(p.array)) for p in model.parameters()}
    with forward_context(ForwardContext(training=True)):
        x = Tensor(numpy.ones((batch, 32), "float32"), requires_grad=True)
        y = model.layers[1](x)
    sizes = block_bytes(shape, SHARDKIT, "dense 1", Share(batch), 1, "none", False)
    assert held_bytes(y, parameters | {id(owner(y.array))}) == sizes.kept
    later = backward_inputs(y, numpy.ones_like(y.array))
    assert held_bytes(later._deferred, parameters) == pytest.approx(sizes.deferred, rel=0.02)
    target = numpy.ones(batch, int) if is_of_classes else numpy.ones((batch, 5), "float32")
    with forward_context(ForwardContext(training=True)):
        x = Tensor(numpy.ones((batch, 48), "float32"), requires_grad=True)
        total = model.loss.total(model.layers[2](x), target)
    sizes = block_bytes(shape, SHARDKIT, "dense 2", Share(batch), 1, "none", False)
    assert held_bytes(total, parameters) == pytest.approx(sizes.kept, rel=0.02)


# ---- schedules -----------------------------------------------------------------------------------


@pytest.mark.parametrize("micro_batches", [1, 2, 3, 4, 5, 8, 12])
@pytest.mark.parametrize("pipeline", [1, 2, 3, 4, 6])
@pytest.mark.parametrize(
    "schedule, virtual",
    [
        ("gpipe", 1),
        ("1f1b", 1),
        ("zb-h1", 1),
        ("zb-v", 2),
        ("interleaved", 1),
        ("interleaved", 2),
        ("interleaved", 3),
    ],
)
def test_micro_batches_alive_are_those_of_the_schedule(schedule, virtual, pipeline, micro_batches):
    order = order_named(schedule)(pipeline, micro_batches, virtual)
    for rank in range(pipeline):
        counted = peak_live(order[rank])
        ruled = ORDERS[schedule].most_alive(pipeline, virtual, micro_batches, rank)
        assert ruled >= counted
        assert ruled == counted or schedule == "interleaved" and micro_batches % pipeline


def test_shards_are_padded_as_those_of_the_runtime():
    assert PLANNED_NORM_BLOCK == NORM_BLOCK


def test_every_schedule_is_planned_and_may_be_set():
    field = RunConfiguration.key("parallel.schedule")
    assert set(field.metadata["known"]) == set(ORDERS) == set(SHARDKIT.schedules)


# ---- how the parts move --------------------------------------------------------------------------

LARGE = ModelShape(96, 12288, 96, 51200, 2048)


def test_more_sharding_never_needs_more_state():
    states = [
        memory_of(RunLayout(8, 16, 8, policy, micro_batches=16), LARGE, MIXED).state
        for policy in POLICIES
    ]
    assert states == sorted(states, reverse=True) and states[0] > 1.5 * states[-1]


@pytest.mark.parametrize(
    "data, tensor, sharing, gathers",
    [(4, 1, 1, True), (4, 1, 4, False), (4, 2, 4, True), (4, 2, 8, False)],
)
def test_parameters_that_a_node_has_once_are_not_gathered(data, tensor, sharing, gathers):
    layout = RunLayout(1, data, tensor, "fsdp", micro_batches=1, micro_batch=4)
    alone, shared = (memory_of(layout, LARGE, SHARDKIT, ranks) for ranks in (1, sharing))
    assert alone.gathered > 0 and shared.gathered == (alone.gathered if gathers else 0)
    assert shared.total - shared.gathered == alone.total - alone.gathered
    assert memory_of(layout, LARGE, MIXED, sharing) == memory_of(layout, LARGE, MIXED)


@pytest.mark.parametrize("policy", ["zero1", "zero2"])
@pytest.mark.parametrize("sharing, is_once", [(1, False), (2, False), (4, True)])
def test_whole_parameters_of_sharded_states_are_in_a_node_once(policy, sharing, is_once):
    layout = RunLayout(1, 4, 1, policy, micro_batches=1, micro_batch=4)
    alone, shared = (memory_of(layout, LARGE, SHARDKIT, ranks) for ranks in (1, sharing))
    assert shared == replace(alone, parameters=alone.parameters / (4 if is_once else 1))
    assert memory_of(layout, LARGE, MIXED, sharing) == memory_of(layout, LARGE, MIXED)


def test_a_single_data_rank_shards_nothing():
    under_policies = {
        memory_of(RunLayout(1, 1, 4, policy, micro_batches=1, micro_batch=4), LARGE, SHARDKIT)
        for policy in POLICIES
    }
    assert len(under_policies) == 1


def test_recomputation_and_sequence_parallelism_need_less():
    def activations(*choice):
        return memory_of(
            RunLayout(
                8, 16, 8, micro_batches=16, recomputation=choice[0], is_sequence_parallel=choice[1]
            ),
            LARGE,
            MEGATRON_SP,
        ).activations

    none, sequence, selective, both, full = (
        activations(*choice)
        for choice in (
            ("none", False),
            ("none", True),
            ("selective", False),
            ("selective", True),
            ("full", False),
        )
    )
    assert none > sequence > selective > both > full
    assert none > 4 * both  # the five times of the abstract of arXiv 2205.05198, less the head
