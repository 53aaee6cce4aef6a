"""Every pipeline x data x tensor mesh of 1, 2, 3, 4, 6 and 8 ranks, every policy and schedule,
against the serial run.

    python -m pytest tests/threads/test_every_mesh.py               every mesh with one or two of
                                                                    the 25 policies x schedules
    python -m pytest tests/threads/test_every_mesh.py -m sweep      the whole product: 32 meshes x 5
                                                                    policies x 5 schedules

float64, a GPT as deep as the stages need, two AdamW steps (eps 1e-8) whose clipping is active.
What must agree, as the largest difference over the largest element:

    losses and norms    1e-12, each of the two
    gradients           2e-12 of each step, reduced over all axes and not yet clipped (on CPUs with
                        AVX2 one is off by 1.02e-12); and 1e-11 of each parameter by itself, since
                        those of queries and keys are 1e-5 of the largest and would not be seen
                        beside it
    parameters          1e-12 at the end

Key biases are only compared beside the others: they add one number to all scores of a query, which
the softmax takes out again, so their gradient is zero but for rounding (5e-21), and no two meshes
round alike. AdamW divides it by its own size plus eps and so moves them by 1e-14 in all, which is
nothing beside norm weights of 1: no other eps is needed here.
"""

from functools import cache

import numpy
import pytest
from hybrids import (
    POLICIES,
    SCHEDULES,
    SERIAL,
    Run,
    gpt,
    layers_for,
    meshes,
    policy_and_schedule,
    trained,
)

TOLERANCE = 1e-12
MESHES = [mesh for num_ranks in (1, 2, 3, 4, 6, 8) for mesh in meshes(num_ranks)]
PRODUCT = [
    (mesh, policy, schedule) for mesh in MESHES for policy in POLICIES for schedule in SCHEDULES
]
# Each mesh once, those of up to four ranks twice, the serial one five times, while policies and
# schedules go round: 25 neighbors have all pairs.
SMALL = [mesh for mesh in MESHES if numpy.prod(mesh) <= 4]
COVERING = [
    (mesh, *policy_and_schedule(turn))
    for turn, mesh in enumerate([SERIAL] * 3 + sorted(SMALL + MESHES, key=numpy.prod))
]


FORMS = {
    "tied": {"tied": True},
    "llama": {"style": "llama", "heads": 12, "kv_heads": 2},
    "dropout": {"dropout": 0.2},
    "llama tied": {"style": "llama", "heads": 12, "tied": True},
}
# Vocabularies that no tensor size divides, and layers of later models.
LATER_FORMS = {
    "257 tokens": {"style": "llama", "heads": 12, "hidden": 48, "vocabulary_size": 257},
    "257 tokens, tied": {
        "style": "llama",
        "heads": 12,
        "hidden": 48,
        "vocabulary_size": 257,
        "tied": True,
    },
    "head norm": {
        "style": "llama",
        "heads": 12,
        "hidden": 48,
        "kv_heads": 1,
        "head_dim": 4,
        "qk_norm": "head",
        "attention_bias": "qkv",
        "rotary_scaling": (8.0, 1.0, 4.0, 5.0),
    },
    "norm of all": {
        "style": "llama",
        "heads": 12,
        "hidden": 48,
        "kv_heads": 1,
        "qk_norm": "projection",
        "norms": "after",
    },
}
RUNS_OF_LATER_FORMS = [
    ((1, 1, 2), "fsdp", "1f1b", {}),
    ((2, 1, 3), "zero1", "1f1b", {"stage_balance": "parameters"}),
    ((2, 1, 4), "zero2", "zb-h1", {"activation_checkpointing": True, "sequence_parallel": True}),
]
RUNS_OF_FORMS = {
    "all axes": ((2, 2, 2), "fsdp", "interleaved", {}),
    "v": ((4, 1, 2), "zero1", "zb-v", {"sequence_parallel": True}),
    "checkpointed": ((2, 1, 4), "zero2", "zb-h1", {"activation_checkpointing": True}),
    "no pipeline": ((1, 2, 4), "ddp", "1f1b", {"sequence_parallel": True}),
    "no tensor": ((3, 2, 1), "fsdp", "1f1b", {}),
}
# Every form on all axes; weights that are tied across stages, key heads that are copied to tensor
# ranks, and masks that are drawn on each, where there is most of it.
COVERING_FORMS = [
    (form, run)
    for form, runs in {
        "tied": ("all axes", "v", "no tensor"),
        "llama": ("all axes", "checkpointed", "no pipeline"),
        "dropout": ("all axes", "checkpointed", "no pipeline"),
        "llama tied": ("all axes", "v", "no tensor"),
    }.items()
    for run in runs
]


CHANGES = FORMS | LATER_FORMS


@cache
def serial(layers, form=None) -> Run:
    return trained(SERIAL, "ddp", "gpipe", model=lambda: gpt(layers, **CHANGES.get(form, {})))


def relative(got, wanted):
    """The largest difference over the largest element."""
    return numpy.abs(got - wanted).max() / numpy.abs(wanted).max()


def check_gradient(plain, got, wanted):
    assert relative(got, wanted) < 2 * TOLERANCE
    at = 0
    for name, parameter in plain.named_parameters().items():
        part = slice(at, at + parameter.size)
        assert name.endswith("key.bias") or relative(got[part], wanted[part]) < 10 * TOLERANCE, name
        at += parameter.size


def check(mesh, policy, schedule, form=None, **settings):
    layers = layers_for(mesh[0], schedule)
    plain = gpt(layers, **CHANGES.get(form, {}))
    got = trained(
        mesh, policy, schedule, model=lambda: gpt(layers, **CHANGES.get(form, {})), **settings
    )
    wanted = serial(layers, form)
    numpy.testing.assert_allclose(got.losses, wanted.losses, rtol=TOLERANCE)
    numpy.testing.assert_allclose(got.norms, wanted.norms, rtol=TOLERANCE)
    assert min(got.norms) > 0.1, "wanted steps that are clipped"
    for mine, of_serial in zip(got.gradients, wanted.gradients, strict=True):
        check_gradient(plain, mine, of_serial)
    assert relative(got.parameters, wanted.parameters) < TOLERANCE


@pytest.mark.parametrize("mesh, policy, schedule", COVERING, ids=str)
@pytest.mark.thorough(but=2)
def test_gradients_and_parameters_of_two_steps_are_those_of_the_serial_run(mesh, policy, schedule):
    check(mesh, policy, schedule)


@pytest.mark.parametrize("form, run", COVERING_FORMS)
@pytest.mark.thorough
def test_every_form_of_model_follows_the_serial_run(form, run):
    """Copies of tied weights on other stages, and of key heads on other tensor ranks, have the bits
    of what they copy.
    """
    mesh, policy, schedule, settings = RUNS_OF_FORMS[run]
    check(mesh, policy, schedule, form, **settings)


@pytest.mark.parametrize("mesh, policy, schedule, settings", RUNS_OF_LATER_FORMS, ids=str)
@pytest.mark.parametrize("form", LATER_FORMS)
@pytest.mark.thorough(but=2)
def test_uneven_vocabularies_and_later_models_follow_the_serial_run(
    form, mesh, policy, schedule, settings
):
    check(mesh, policy, schedule, form, **settings)


@pytest.mark.sweep
@pytest.mark.parametrize("mesh, policy, schedule", PRODUCT, ids=str)
def test_the_whole_product_of_meshes_policies_and_schedules_follows_the_serial_run(
    mesh, policy, schedule
):
    check(mesh, policy, schedule)


def test_the_covering_runs_have_every_mesh_and_every_pair():
    assert len(MESHES) == len(set(MESHES)) == 32 and len(PRODUCT) == 800
    assert {mesh for mesh, _, _ in COVERING} == set(MESHES)
    assert len({(numpy.prod(mesh), schedule) for mesh, _, schedule in COVERING}) == 6 * 5
    assert len({(policy, schedule) for _, policy, schedule in COVERING}) == 5 * 5
