"""model.compile(): the same bits as without, whatever is recorded; and what cannot be recorded is
found out.
"""

import itertools
import warnings

import numpy
import pytest
from hybrids import GradientRecord, batch, gpt, hybrid, layers_for, step_once

import shardkit as sk
from shardkit.errors import ShapeError, ShardingError
from shardkit.nn import ops
from shardkit.parallel import profile_steps

STEPS = 6  # plain, recorded, compared, replayed three times


def curve(mesh, *, is_compiled, work=step_once, model=None, steps=STEPS, **settings):
    """(losses, whole parameters, gradients of every step) on each rank, and whether it still
    replays.
    """

    def on_rank(backend):
        sharded = hybrid(backend, mesh, model=model() if model else None, **settings)
        if is_compiled:
            sharded.compile()
        record = GradientRecord(sharded)
        losses = [work(sharded, step) for step in range(steps)]
        gradients = [box.values.tobytes() for boxes in record.steps.values() for box in boxes]
        parameters = sharded.gather_full_parameters().tobytes()
        return losses, parameters, gradients, sharded.get_model_metadata()["compiled"]

    return sk.run_ranks(numpy.prod(mesh), on_rank)


def assert_same_bits(mesh, **settings):
    plain, compiled = [
        curve(mesh, is_compiled=is_compiled, **settings) for is_compiled in (False, True)
    ]
    assert [rank[:3] for rank in compiled] == [rank[:3] for rank in plain]
    assert all(rank[3] for rank in compiled) and not any(rank[3] for rank in plain)


@pytest.mark.parametrize(
    "mesh, settings",
    [
        ((1, 1, 1), {"policy": "ddp", "micro_batches": 1}),
        ((1, 2, 1), {"policy": "ddp"}),
        ((1, 3, 1), {"policy": "fsdp"}),
        ((1, 4, 1), {"policy": "zero2"}),
        ((2, 1, 1), {"policy": "ddp", "schedule": "1f1b"}),
        ((2, 1, 1), {"policy": "fsdp", "schedule": "zb-h1"}),
        ((2, 1, 1), {"policy": "zero1", "schedule": "zb-v"}),
        ((1, 1, 2), {"policy": "ddp"}),
        ((1, 1, 2), {"policy": "zero2", "sequence_parallel": True}),
        ((2, 1, 2), {"policy": "fsdp"}),
        ((1, 1, 1), {"activation_checkpointing": True}),
        ((1, 2, 1), {"deterministic": False}),
    ],
    ids=str,
)
def test_replayed_steps_have_the_bits_of_plain_ones(mesh, settings):
    assert_same_bits(mesh, **settings)


@pytest.mark.parametrize(
    "changes, settings",
    [
        ({"dropout": 0.2}, {}),
        (
            {"dropout": 0.2, "dtype": "float32"},
            {"compute_dtype": "float16", "activation_checkpointing": True},
        ),
        ({"style": "llama", "kv_heads": 2, "heads": 4}, {}),
        ({"tied": True}, {}),
    ],
    ids=str,
)
def test_every_model_is_recorded(changes, settings):
    assert_same_bits((2, 1, 1), model=lambda: gpt(layers_for(2, "1f1b"), **changes), **settings)


def test_every_form_of_batch_has_its_own_recording_and_the_oldest_is_dropped():
    def work(model, step):
        return step_once(model, step, samples=(24, 12, 36, 48, 60)[step % 5 if step < 10 else 0])

    assert_same_bits((2, 1, 1), work=work, steps=16, micro_batches=3)


def test_gradients_that_are_accumulated_and_a_rate_that_changes():
    def work(model, step):
        losses = [step_once(model, 10 * step + part) for part in range(2)]
        model.synchronize_gradients()
        model.engine.update(learning_rate=1e-2 / (step + 1))
        return losses

    for deterministic in (True, False):
        assert_same_bits(
            (1, 2, 1), work=work, deterministic=deterministic, auto_synchronize_gradients=False
        )


def test_an_mlp_with_features_that_are_switched_off_on_the_way():
    def work(model, step):
        if step == 4:
            model.set_active_feature_indices([0, 2])
        numbers = numpy.random.default_rng(step)
        return model.train(numbers.normal(size=(8, 5)), numbers.integers(0, 3, 8))

    assert_same_bits(
        (1, 2, 1),
        model=lambda: sk.models.MLP((5, 16, 3), task="classification"),
        work=work,
        steps=8,
        micro_batches=2,
    )


def test_members_work_on_a_compiled_model_and_its_copies_are_compiled():
    def work(model, step):
        if step == 4:
            model.set_parameters(model.get_parameters() * 0.5)
            model.deserialize(model.serialize())
        x = numpy.full((2, 8), step)
        twin = model.deep_copy()
        assert twin.get_model_metadata()["compiled"] == model.get_model_metadata()["compiled"]
        return [
            model.predict(x).tobytes(),
            model.clone().compute_gradients(x, x).tobytes(),
            step_once(twin, step),
            step_once(model, step),
        ]

    assert_same_bits((1, 2, 1), work=work)


class Reads(sk.nn.Module):
    """Scales x by a number that it reads."""

    def forward(self, x):
        return x * (2.0 if float(x.array.sum()) > 0 else 0.5)


class Counts(sk.nn.Module):
    """Scales x by a number that is another one each time, and is kept where nobody looks."""

    def __init__(self):
        self._numbers = itertools.count(1)

    def forward(self, x):
        return x * float(next(self._numbers))


class Remembers(sk.nn.Module):
    """Updates an attribute that its result does not depend on."""

    mean = 0.0

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.array.mean()
        return x * 2.0


class Sorts(sk.nn.Module):
    """Changes an array in a way that is not recorded."""

    def forward(self, x):
        y = ops.multiply(x, 2.0)
        y.array.sort(axis=-1)
        return y


def with_layer(layer):
    """A small model with this layer in the middle."""
    return sk.nn.Sequential(sk.nn.Linear(4, 6), layer, sk.nn.Linear(6, 2))


@pytest.mark.parametrize(
    "layer, reason",
    [
        (Reads, "F of unit 1 of stage 0, micro-batch 0 cannot be recorded: __float__ reads"),
        (Counts, "F of unit 1 of stage 0, micro-batch 0 has other bits"),
        (Remembers, "cannot be recorded: it changes the attribute mean of Remembers"),
        (Sorts, "sort reads numbers, or changes arrays in place"),
    ],
)
def test_what_cannot_be_replayed_is_found_out_and_trains_on(layer, reason):
    def work(model, step):
        numbers = numpy.random.default_rng(step)
        return model.train(
            numbers.normal(size=(6, 4)).astype("f4"), numbers.normal(size=(6, 2)).astype("f4")
        )

    settings = {
        "model": lambda: with_layer(layer()),
        "work": work,
        "micro_batches": 1,
        "loss": sk.nn.MeanSquaredError(),
    }
    plain = curve((1, 2, 1), is_compiled=False, **settings)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compiled = curve((1, 2, 1), is_compiled=True, **settings)
    assert [rank[:3] for rank in compiled] == [rank[:3] for rank in plain]
    assert not any(rank[3] for rank in compiled)
    texts = [str(warning.message) for warning in caught if "uncompiled" in str(warning.message)]
    assert len(texts) == 1 and reason in texts[0]


def test_bad_ids_are_found_in_a_replay_too_and_the_model_goes_on():
    def work(model, step):
        if step == 5:
            with pytest.raises(ShapeError, match="ids from"):
                model.train(numpy.full((4, 8), 1000), numpy.full((4, 8), 1))
        return model.train(*[numpy.full((4, 8), token) for token in (step, step + 1)])

    assert_same_bits((1, 1, 1), model=gpt, work=work, steps=9, micro_batches=2)


def test_a_compiled_model_is_not_profiled():
    def on_rank(backend):
        model = hybrid(backend, (1, 1, 1))
        model.compile()
        with pytest.raises(ShardingError, match="is compiled"):
            profile_steps(model, *batch(0), 1)

    sk.run_ranks(1, on_rank)


def test_a_recording_needs_no_more_memory_than_a_tape():
    def on_rank(backend):
        bytes_of = {}
        for is_compiled in (False, True):
            model = hybrid(
                backend,
                (1, 1, 1),
                model=gpt(3, width=96, heads=4, dtype="float32"),
                micro_batches=2,
            )
            if is_compiled:
                model.compile()
            for step in range(STEPS):
                step_once(model, step)
            bytes_of[is_compiled] = model.get_model_metadata()["activation_bytes"]
            assert model.supports_compilation
            model.close()
        return bytes_of

    (bytes_of,) = sk.run_ranks(1, on_rank)
    assert bytes_of[True] <= 1.1 * bytes_of[False] + (4 << 20)
