"""The stopwatch inside a step, and the profile that is made of it. One rank in a process, since
kernels are timed in all its threads.
"""

import numpy
import pytest
from builders import small_gpt, token_batch

import shardkit as sk
from shardkit.nn import ops
from shardkit.testing.array import Device
from shardkit.testing.comm import Call, add_slices
from shardkit.testing.parallel import (
    COMMUNICATION,
    MESSAGE_WAIT,
    Product,
    Record,
    Stopwatch,
    Waiting,
    profile,
    profile_steps,
    runtime_of,
    stopwatch,
    watching,
)

DEVICE = Device("cpu")


class Ticking(Stopwatch):
    """A stopwatch whose clock goes on by one second whenever it is read."""

    def __init__(self):
        super().__init__(DEVICE)
        self.seconds = 0

    def now(self):
        self.seconds += 1
        return float(self.seconds)


def one_rank(fn, strategy=sk.DDPModel, **settings):
    """fn(sharded model of small_gpt) on one rank, in this thread's process."""

    def run(backend):
        config = sk.ShardingConfiguration(
            backend, optimizer=sk.AdamW(lr=1e-2), max_gradient_norm=1.0, **settings
        )
        return fn(strategy(small_gpt(), config))

    return sk.run_ranks(1, run)[0]


# ---- the stopwatch -------------------------------------------------------------------------------


def test_a_call_owns_its_time_without_that_of_calls_inside():
    watch = Ticking()
    inner = watch.timed(lambda: None, "inner")

    def outer():
        inner()
        inner()

    watch.timed(outer, "outer", "region")()
    assert watch.record.table == {("region", "inner"): [2.0, 2], ("region", "outer"): [3.0, 1]}


def test_a_call_that_raises_is_over_too():
    watch = Ticking()
    with pytest.raises(ZeroDivisionError):
        watch.timed(lambda: 1 / 0, "broken")()
    watch.timed(lambda: None, "next")()
    assert watch.record.table == {("step", "broken"): [1.0, 1], ("step", "next"): [1.0, 1]}


@pytest.mark.parametrize(
    "verb, number, is_first, what",
    [
        ("all_reduce", 3, True, COMMUNICATION),
        ("iall_gather", 3, False, COMMUNICATION),
        ("isend", None, False, COMMUNICATION),
        ("irecv", None, True, COMMUNICATION),
        ("irecv", None, False, MESSAGE_WAIT),
        ("receive", None, True, MESSAGE_WAIT),
    ],
)
def test_waiting_for_a_message_is_told_from_communication(verb, number, is_first, what):
    watch = Ticking()
    watch.begin_verb(Call(verb, "world", (0, 1), number), is_first)
    watch.end_verb()
    assert watch.record.table == {("step", what): [1.0, 1]}
    assert watch.record.begun == ({("world", 3): 1.0} if number and is_first else {})
    assert watch.record.waits == ([Waiting("world", 3, 1.0, 2.0)] if number else [])


def test_calls_are_timed_inside_only():
    def check(model):
        watch = Stopwatch(DEVICE)
        runtime, progress = runtime_of(model), model.mesh.world.progress
        before = runtime.executor.executor, progress.ledger
        with pytest.raises(RuntimeError), watching(watch, runtime, progress):
            model.train(*token_batch(0))
            raise RuntimeError
        regions = {region for region, _ in watch.record.table}
        assert {"FORWARD", "BACKWARD", "WEIGHT", "REDUCE", "optimizer"} <= regions
        num_calls = watch.record.num_calls
        model.train(*token_batch(1))
        assert watch.record.num_calls == num_calls
        assert (runtime.executor.executor, progress.ledger) == before

    one_rank(check)


@pytest.mark.parametrize(
    "a, b, flops",
    [
        (numpy.ones((3, 5)), numpy.ones((5, 7)), 2 * 3 * 5 * 7),
        (numpy.ones((5, 3)).T, numpy.ones((7, 5)).T, 2 * 3 * 5 * 7),
        (numpy.ones((4, 3, 5)), numpy.ones((4, 7, 5)).swapaxes(1, 2), 4 * 2 * 3 * 5 * 7),
        (numpy.ones((6, 4, 3, 5)), numpy.ones((5, 7)), 24 * 2 * 3 * 5 * 7),
    ],
)
def test_a_product_is_counted_and_can_be_made_again_with_the_same_layout(a, b, flops):
    product = Product.of(a, b)
    assert product.flops == flops
    again = stopwatch._alike(numpy, product.a_shape, product.a_order, "float64")
    assert again.shape == a.shape and again.strides == a.strides
    assert product.seconds_alone(DEVICE) > 0
    assert ("transposed" in str(product)) == (not (a.flags.c_contiguous and b.flags.c_contiguous))


# ---- the profile ---------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", [sk.DDPModel, sk.FSDPModel])
def test_the_parts_add_up_to_the_step_and_everything_is_found(strategy):
    x, y = token_batch(0)
    (found,) = one_rank(
        lambda model: profile_steps(model, x, y, steps=5), strategy, micro_batches=2
    )
    assert set(found.parts) == set(profile.PARTS) and all(
        seconds >= 0 for seconds in found.parts.values()
    )
    assert sum(found.parts.values()) == pytest.approx(found.watched_seconds, rel=0.02)
    assert found.parts["products"] == pytest.approx(
        sum(seconds for seconds, _ in found.products.values())
    )
    assert {"causal_attention", "causal_attention_backward", "cross_entropy", "adam"} <= set(
        found.kernels
    )
    assert found.kernels["causal_attention"][1] == 2 * 2  # two blocks, two micro-batches
    in_optimizer = sum(found.kernels[name][0] for name in ("adam", "block_squares"))
    assert found.parts["optimizer"] > in_optimizer
    assert found.parts["kernels"] == pytest.approx(
        sum(seconds for seconds, _ in found.kernels.values()) - in_optimizer
    )
    model = small_gpt()
    multiplied = (
        model.parameter_count
        - model.embedding.parameter_count
        - sum(p.size for p in model.parameters() if p.ndim == 1)
    )
    linear = sum(
        product.flops * calls
        for product, (_, calls) in found.products.items()
        if len(product.a_shape) == 2
    )
    assert linear == 6 * multiplied * x.size


def test_profiled_steps_train_the_same_bits_as_others():
    x, y = token_batch(0)

    def profiled(model):
        profile_steps(model, x, y, steps=2)
        return model.gather_full_parameters()

    def plain(model):
        for _ in range(profile.WARM_UP_STEPS + 4):
            model.train(x, y)
        return model.gather_full_parameters()

    assert numpy.array_equal(one_rank(profiled), one_rank(plain))


def test_time_until_the_last_rank_comes_is_idle_and_the_rest_is_communication():
    def record(*calls):
        return Record(
            begun={("world", number): began for number, began, _ in calls},
            waits=[Waiting("world", *call) for call in calls],
        )

    early, late = record((1, 10.0, 13.0), (2, 14.0, 15.0)), record((1, 12.5, 13.0), (2, 13.0, 15.0))
    begun = [profile._begun(early, 10.0), profile._begun(late, 10.0)]
    assert profile._idle_seconds(early, begun, 10.0) == pytest.approx(2.5)
    assert profile._idle_seconds(late, begun, 10.0) == pytest.approx(1.0)


def test_a_collective_that_ends_before_another_rank_comes_is_idle_for_as_long_as_it_takes():
    root = Record(begun={("world", 1): 1.0}, waits=[Waiting("world", 1, 1.0, 1.5)])
    assert profile._idle_seconds(
        root, [{("world", 1): 1.0}, {("world", 1): 9.0}], 0.0
    ) == pytest.approx(0.5)


def test_the_middle_step_is_that_of_the_slowest_ranks():
    assert profile._middle_step([[1.0, 9.0, 2.0], [8.0, 1.0, 3.0]]) == 0


def test_the_least_of_each_part_is_never_more_than_in_any_step(monkeypatch):
    seen, of_record = [], profile._profile
    monkeypatch.setattr(
        profile, "_profile", lambda *arguments: seen.append(of_record(*arguments)) or seen[-1]
    )
    least = one_rank(lambda model: profile.least_parts(model, *token_batch(0), steps=4))
    assert len(seen) == 4 and all(
        least[part] == min(each.parts[part] for each in seen) for part in profile.PARTS
    )


def test_an_operation_that_imported_a_kernel_by_name_is_timed_too():
    def check(model):
        watch = Stopwatch(DEVICE)
        with watching(watch, runtime_of(model), model.mesh.world.progress):
            model.mesh.world.all_reduce(numpy.ones(3))
            add_slices([numpy.ones(3), numpy.ones(3)], numpy.empty(3))
            ops.gelu(sk.nn.Tensor(numpy.ones(3)))
        assert {call for _, call in watch.record.table} == {COMMUNICATION, "tree_sum", "gelu"}

    one_rank(check)
