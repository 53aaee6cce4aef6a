"""Masks of dropout: independent between calls, layers, micro-batches, ranks and accumulated calls,
and the same on every mesh.
"""

import threading
from itertools import combinations

import numpy
import pytest
from builders import sha256
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st

import shardkit as sk
from shardkit import nn
from shardkit.nn import ops

SIGMAS = 5  # in 10^6 elements
SIGMAS_OF_SHIFTS = 7  # the largest of 10^7 chances is below 5.5
RANK = threading.local()  # ranks are threads


class Seen(nn.Module):
    """Dropout that writes down its masks; it is given what it drops, or ones."""

    def __init__(self, p=0.5, **where):
        self.drop = nn.Dropout(p, **where)

    def forward(self, x):
        ones = nn.Tensor(numpy.ones(x.shape, "float32"))
        mask = self.drop(ones)
        RANK.masks.setdefault(self.path_in_model, []).append(mask.array > 0)
        return x * mask


def flat(drop, x):
    """Drop rows that are tokens."""
    return ops.reshape(drop(ops.reshape(x, (-1, x.shape[-1]))), x.shape)


def time_first(drop, x):
    """Drop [time, samples, features]."""
    return ops.transpose(drop(ops.transpose(x, 0, 1)), 0, 1)


def by_sample(drop, x):
    return drop(x)


FORMS = {  # how a layer is called, and how it is told where samples lie
    "by sample": (by_sample, {}),
    "flat": (flat, {}),
    "time first": (time_first, {"sample_dim": 1}),
    "last": (lambda d, x: ops.permute(d(ops.permute(x, (2, 1, 0))), (2, 1, 0)), {"sample_dim": -1}),
}


class Twice(nn.Module):
    """Two dropouts, each called twice: x, y [samples, tokens, width]."""

    def __init__(self, form="by sample", width=8):
        self.form = form
        self.first, self.second = (Seen(**FORMS[form][1]) for _ in range(2))
        self.out = nn.Linear(width, width)
        self.loss = nn.MSELoss()

    def forward(self, x):
        call = FORMS[self.form][0]
        for drop in (self.first, self.second, self.first, self.second):
            x = call(drop, x + 1)
        return self.out(x)


def recorded(num_ranks, model, run, **settings):
    """Return for each rank {path of a layer: masks} of what run(model) did, and its result."""

    def on_rank(backend):
        RANK.masks = {}
        config = sk.ShardingConfiguration(backend, **settings)
        return run(model(config)), RANK.masks

    return sk.run_ranks(num_ranks, on_rank)


def agreement(masks):
    """Return the largest deviation of the agreement of two masks, in sigmas; rows of masks."""
    signs = numpy.stack([mask.reshape(-1) for mask in masks]).astype("float32") * 2 - 1
    together = signs @ signs.T / signs.shape[1] ** 0.5
    return max(abs(together[i, j]) for i, j in combinations(range(len(signs)), 2))


def shifted_agreement(masks, length=1 << 15):
    """Return the same over all shifts of one mask against another, or against itself."""
    signs = numpy.stack([mask.reshape(-1)[:length] for mask in masks]).astype("float32") * 2 - 1
    spectra = numpy.fft.rfft(signs)
    largest = 0.0
    for i in range(len(signs)):
        together = numpy.fft.irfft(spectra[i:] * spectra[i].conj(), length) / length**0.5
        together[0, 0] = 0  # of a mask with itself
        largest = max(largest, abs(together).max())
    return largest


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.thorough
def test_no_two_masks_agree_more_than_chance_has_it(form):
    """2 layers x 2 calls x 2 micro-batches x 2 ranks x 2 accumulated calls: 496 pairs."""
    samples, tokens, width = 8, 250, 1000  # 10^6 elements in a mask
    x = numpy.zeros((samples, tokens, width), "float32")

    def run(model):
        for _ in range(2):
            model.train(x, x[..., :1])

    def model(config):
        net = Twice(form)
        net.out = nn.Linear(width, 1)
        return sk.DDPModel(net, config)

    ranks = recorded(2, model, run, micro_batches=2, auto_synchronize_gradients=False)
    masks = [mask for _, seen in ranks for of_layer in seen.values() for mask in of_layer]
    assert len(masks) == 32
    assert agreement(masks) < SIGMAS
    assert shifted_agreement(masks) < SIGMAS_OF_SHIFTS


def test_a_shifted_copy_is_found_by_these_tests():
    mask = numpy.random.default_rng(0).random(1 << 15) < 0.5
    assert agreement([mask, numpy.roll(mask, 3)]) < SIGMAS
    assert shifted_agreement([mask, numpy.roll(mask, 3)]) > 100
    assert agreement([mask, mask]) > 100


def test_ranks_with_sequences_of_other_lengths_draw_other_masks():
    def model(config):
        return sk.DDPModel(Twice("flat"), config)

    def on_rank(backend):
        RANK.masks = {}
        x = numpy.zeros((4, 512 * (1 + backend.rank), 8), "float32")
        model(sk.ShardingConfiguration(backend)).train(x, x)
        return [mask for of_layer in RANK.masks.values() for mask in of_layer]

    masks = [mask.reshape(-1)[: 1 << 14] for seen in sk.run_ranks(2, on_rank) for mask in seen]
    assert shifted_agreement(masks, 1 << 14) < SIGMAS_OF_SHIFTS


# ---- the same on every mesh ----------------------------------------------------------------------


def batch(samples=8, tokens=6, width=8):
    draw = numpy.random.default_rng(0)
    return [draw.normal(size=(samples, tokens, width)).astype("float32") for _ in range(2)]


def by_number(ranks, path, form):
    """Return the masks of a layer by global sample: [calls, samples, tokens, width]."""
    parts = []
    for _, seen in ranks:
        of_sample = [by_samples(mask, form) for mask in seen[path]]
        calls = 2
        parts += [of_sample[at : at + calls] for at in range(0, len(of_sample), calls)]
    return numpy.concatenate([numpy.stack(part) for part in parts], axis=1)


def by_samples(mask, form, tokens=6, width=8):
    if form == "flat":
        return mask.reshape(-1, tokens, width)
    if form == "time first":
        return mask.transpose(1, 0, 2)
    return mask.transpose(2, 1, 0) if form == "last" else mask


@pytest.mark.parametrize("form", FORMS)
def test_a_sample_has_its_masks_however_the_batch_is_cut(form):
    def run(model):
        return model.train(*sk.split_batch(model.mesh, *batch()))

    found = []
    for num_ranks, micro_batches in ((1, 1), (1, 8), (2, 2), (4, 1)):
        ranks = recorded(
            num_ranks, lambda c: sk.DDPModel(Twice(form), c), run, micro_batches=micro_batches
        )
        found.append([by_number(ranks, path, form) for path in ("first", "second")])
    for other in found[1:]:
        assert numpy.array_equal(other, found[0])


def test_flat_rows_have_the_mask_that_they_have_by_sample():
    x = nn.Tensor(numpy.ones((4, 6, 8), "float32"))
    context = nn.ForwardContext(training=True, seed=1, first_sample=3, num_samples=4)
    whole = ops.dropout(x, 0.5, "d", context).array
    rows = ops.dropout(ops.reshape(x, (-1, 8)), 0.5, "d", context).array
    across = ops.dropout(ops.transpose(x, 0, 1), 0.5, "d", context, 1).array
    assert numpy.array_equal(rows.reshape(whole.shape), whole)
    assert numpy.array_equal(across.transpose(1, 0, 2), whole)


class Shared(nn.Sequential):
    """Blocks that share one dropout, and a block that comes twice."""

    def __init__(self, form):
        drop = Seen(**FORMS[form][1])
        again = Block(form, drop)
        blocks = [Block(form, drop) for _ in range(3)]
        super().__init__(*blocks, again, again)
        self.loss = nn.MSELoss()


class Block(nn.Module):
    def __init__(self, form, shared):
        self.form, self.shared = form, shared
        self.own = Seen(**FORMS[form][1])
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        call = FORMS[self.form][0]
        x = call(self.own, self.linear(call(self.shared, x)))
        return x + call(self.own, call(self.shared, x))


MESHES = [  # pipeline, data, policy, settings
    (1, 2, "ddp", {"micro_batches": 2}),
    (1, 4, "zero2", {"micro_batches": 1}),
    (1, 2, "fsdp", {"micro_batches": 2, "activation_checkpointing": True}),
    (2, 1, "fsdp", {"micro_batches": 4, "schedule": "gpipe"}),
    (2, 2, "zero1", {"micro_batches": 2, "schedule": "1f1b", "activation_checkpointing": True}),
    (2, 1, "ddp", {"micro_batches": 4, "schedule": "zb-h1"}),
    (
        2,
        1,
        "fsdp",
        {"micro_batches": 4, "schedule": "interleaved", "activation_checkpointing": True},
    ),
]


def trained(form, pipeline, data, policy, accumulated=False, **settings):
    def on_rank(backend):
        RANK.masks = {}
        settings.setdefault("minimum_parameter_group_size", 1)
        config = sk.ShardingConfiguration(
            backend,
            optimizer=sk.SGD(lr=1e-4),
            auto_synchronize_gradients=not accumulated,
            **settings,
        )
        model = sk.HybridShardedModel(
            Shared(form), config, pipeline_parallel_size=pipeline, policy=policy
        )
        part = sk.split_batch(model.mesh, *batch())
        for _ in range(2):
            losses = [model.train(*part) for _ in range(1 + accumulated)]
            if accumulated:
                model.synchronize_gradients()
                model.step()
        return sha256(model.gather_full_parameters()), tuple(losses), list(RANK.masks.values())

    return sk.run_ranks(pipeline * data, on_rank)


@pytest.mark.parametrize("form", ["by sample", "flat"])
@pytest.mark.thorough
def test_the_bits_are_the_same_on_every_mesh(form):
    whole = trained(form, 1, 1, "ddp", micro_batches=4)
    for pipeline, data, policy, settings in MESHES:
        found = trained(form, pipeline, data, policy, **settings)
        assert {result[:2] for result in found} == {whole[0][:2]}, (pipeline, data, policy)


@pytest.mark.thorough
def test_accumulated_calls_have_the_bits_of_every_mesh_with_as_many_data_ranks():
    expected = {}
    for pipeline, data, policy, settings in MESHES:
        found = trained("flat", pipeline, data, policy, accumulated=True, **settings)
        expected.setdefault(data, found[0][:2])
        assert {result[:2] for result in found} == {expected[data]}, (pipeline, data, policy)
    losses = numpy.array([losses for _, losses in expected.values()])
    numpy.testing.assert_allclose(losses, losses[:1].repeat(len(losses), 0), rtol=1e-5)
    assert (losses[:, 0] != losses[:, 1]).all()


def test_a_shared_layer_and_a_block_that_comes_twice_draw_new_masks_each_time():
    masks = [mask for of_layer in trained("by sample", 1, 1, "ddp")[0][2] for mask in of_layer]
    assert len(masks) == 2 * 5 * 4  # steps, blocks, calls in each
    assert len({mask.tobytes() for mask in masks}) == len(masks)


def test_masks_do_not_depend_on_the_size_of_units():
    merged = trained("by sample", 1, 1, "ddp", minimum_parameter_group_size=10**6)
    apart = trained("by sample", 1, 1, "ddp")
    assert len(merged[0][2]) == len(apart[0][2]) == 5  # layers: a shared one, and of each block
    for mask, other in zip(merged[0][2], apart[0][2]):
        assert numpy.array_equal(mask, other)


def test_a_second_forward_has_the_masks_of_the_first():
    def run(model):
        model.train(*batch())

    ((_, seen),) = recorded(
        1, lambda c: sk.DDPModel(Twice(), c), run, activation_checkpointing=True, micro_batches=2
    )
    for masks in seen.values():  # of two micro-batches, two calls in each of two forwards
        in_some_order = sorted(mask.tobytes() for mask in masks)
        assert in_some_order[::2] == in_some_order[1::2]
        assert len(set(in_some_order)) == 4 == len(masks) // 2


def test_accumulated_calls_have_the_masks_of_one_batch():
    x, y = batch()
    at_once = recorded(1, lambda c: sk.DDPModel(Twice(), c), lambda m: m.train(x, y))

    def in_parts(model):
        model.train(x[:4], y[:4])
        model.train(x[4:], y[4:])
        model.synchronize_gradients()

    apart = recorded(
        1, lambda c: sk.DDPModel(Twice(), c), in_parts, auto_synchronize_gradients=False
    )
    for path in ("first", "second"):
        assert numpy.array_equal(
            by_number(at_once, path, "by sample"), by_number(apart, path, "by sample")
        )


def test_calls_draw_new_masks_up_to_the_step_also_when_they_were_synchronized():
    x, y = batch()

    def run(model):
        for _ in range(2):
            model.train(x, y)
        model.synchronize_gradients()
        model.step()
        model.train(x, y)

    ((_, seen),) = recorded(
        1, lambda c: sk.DDPModel(Twice(), c), run, auto_synchronize_gradients=False
    )
    masks = [mask.tobytes() for of_layer in seen.values() for mask in of_layer]
    assert len(set(masks)) == len(masks) == 12


@pytest.mark.parametrize("form", FORMS)
def test_a_model_that_is_gathered_by_calls_has_the_bits_of_a_whole_one(form):
    x, y = batch()

    def losses(strategy, num_ranks, **settings):
        def run(model):
            part = sk.split_batch(model.mesh, x, y)
            return [model.train(*part) for _ in range(2)]

        settings |= {"optimizer": sk.SGD(lr=1e-4), "micro_batches": 4 // num_ranks}
        return recorded(num_ranks, lambda c: strategy(Twice(form), c), run, **settings)[0][0]

    expected = losses(sk.DDPModel, 1)
    for num_ranks in (1, 2, 4):
        for is_run_again in (False, True):
            found = losses(sk.FSDPModel, num_ranks, activation_checkpointing=is_run_again)
            assert found == expected


def test_gradients_that_are_computed_before_a_step_draw_other_masks_each_time():
    x, y = batch()

    def run(model):
        for _ in range(3):
            gradients = model.compute_gradients(x, y)
        model.apply_gradients(gradients, 0.1)
        model.compute_gradients(x, y)

    def looked_at(model):
        model.compute_gradients(x, y)
        return model.train(x, y)

    ((_, seen),) = recorded(1, lambda c: sk.DDPModel(Twice(), c), run)
    masks = [mask.tobytes() for of_layer in seen.values() for mask in of_layer]
    assert len(set(masks)) == len(masks) == 16
    losses = [
        recorded(1, lambda c: sk.DDPModel(Twice(), c), act)[0][0]
        for act in (looked_at, lambda model: model.train(x, y))
    ]
    assert losses[0] == losses[1]  # a look changes no step


# ---- rows that cannot be told apart --------------------------------------------------------------


class OfRows(nn.Module):
    """Dropout of what change(x) returns."""

    def __init__(self, change, **where):
        self.change, self.drop, self.out = change, nn.Dropout(0.5, **where), nn.Linear(8, 8)
        self.loss = nn.MSELoss()

    def forward(self, x):
        dropped = self.drop(self.change(x))
        return self.out(x) + ops.mean(dropped)


REFUSED = {
    "time first": (lambda x: ops.transpose(x, 0, 1), 1),
    "time first, a multiple": (lambda x: ops.transpose(ops.concatenate([x, x[:, :2]], 1), 0, 1), 1),
    "a table": (lambda x: x[0, :5], None),
    "one row": (lambda x: x[:1], None),
    "rows that a mask chose": (lambda x: x[numpy.arange(3)], None),
}


@pytest.mark.parametrize("name", REFUSED)
def test_rows_that_cannot_be_told_apart_are_refused_on_all_ranks(name):
    change, sample_dim = REFUSED[name]
    x, y = batch()

    def run(backend, **where):
        model = sk.FSDPModel(OfRows(change, **where), sk.ShardingConfiguration(backend))
        part = sk.split_batch(model.mesh, x, y)
        if where:
            return model.train(*part)
        with pytest.raises(sk.ShapeError, match="cannot be told.*sample_dim"):
            model.train(*part)

    sk.run_ranks(2, run)
    losses = sk.run_ranks(2, lambda backend: run(backend, sample_dim=sample_dim))
    assert losses[0] == losses[1]


@limits(max_examples=200, deadline=None, derandomize=True)
@given(st.data())
@pytest.mark.thorough
def test_any_cut_of_any_shape_gives_the_parts_of_one_mask_or_is_refused(data):
    """The rows of each sample, wherever they lie, are cut with it; first samples follow on."""
    sizes = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    dim = data.draw(st.integers(0, len(sizes) - 1))
    samples, rows = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 3))
    sizes[dim] = samples * rows
    said = data.draw(st.sampled_from(["rows", dim, dim - len(sizes)]))
    cut = data.draw(st.integers(0, samples))

    def dropped(first, stop):
        x = numpy.ones([*sizes[:dim], (stop - first) * rows, *sizes[dim + 1 :]], "float32")
        context = nn.ForwardContext(
            training=True, seed=3, first_sample=10 + first, num_samples=stop - first
        )
        return ops.dropout(nn.Tensor(x), 0.5, "d", context, said).array

    try:
        whole = dropped(0, samples)
        parts = [dropped(*part) for part in ((0, cut), (cut, samples)) if part[0] < part[1]]
    except sk.ShapeError as error:
        assert said == "rows" and "cannot be told" in str(error)
        return
    if said != "rows" or dim == 0:
        assert numpy.array_equal(numpy.concatenate(parts, dim), whole)


def test_attention_to_one_sample_at_a_time_is_told_by_the_attribute_of_its_dropout():
    class OneByOne(nn.Module):
        def __init__(self):
            self.attention = nn.MultiheadAttention(8, 2, 0.5)
            self.loss = nn.MSELoss()

        def forward(self, x):
            return ops.stack([self.attention(one, one, one)[0] for one in x])

    x, y = batch()

    def run(backend, is_told):
        net = OneByOne()
        if is_told:
            net.attention.dropout.sample_dim = None
        model = sk.DDPModel(
            net, sk.ShardingConfiguration(backend, micro_batches=4 // backend.world_size)
        )
        part = sk.split_batch(model.mesh, x, y)
        if is_told:
            return [model.train(*part) for _ in range(2)]
        with pytest.raises(sk.ShapeError, match="the attribute"):
            model.train(*part)

    sk.run_ranks(2, lambda backend: run(backend, False))
    losses = [sk.run_ranks(n, lambda backend: run(backend, True))[0] for n in (1, 2, 4)]
    assert losses[0] == losses[1] == losses[2]


def test_a_wrong_sample_dim_is_refused():
    for wrong in ("cols", 0.5, True, [1]):
        with pytest.raises(sk.ConfigurationError, match="sample_dim"):
            nn.Dropout(0.5, sample_dim=wrong)
    context = nn.ForwardContext(training=True, num_samples=2)
    with pytest.raises(sk.ShapeError, match="sample_dim = 3"):
        ops.dropout(nn.Tensor(numpy.ones((2, 2), "float32")), 0.5, "d", context, 3)


# ---- passes by hand ------------------------------------------------------------------------------


def masks_by_hand(*passes):
    """Return the masks of passes, each a number of calls, under one context."""
    net = Seen().finish(0)
    RANK.masks = {}
    context = nn.ForwardContext(training=True, seed=1)
    for calls in passes:
        with nn.forward_context(context):
            for _ in range(calls):
                net(numpy.ones((4, 8)))
    return [mask.tobytes() for mask in RANK.masks[""]]


def test_flat_rows_of_a_pass_by_hand_are_those_of_its_samples():
    x = numpy.ones((8, 6, 8), "float32")

    def masks(*parts):
        net = Twice("flat").finish(0)
        RANK.masks = {}
        for first, stop in parts:
            with nn.forward_context(nn.ForwardContext(training=True, first_sample=first)):
                net(nn.Tensor(x[first:stop]))
        return by_number([(None, RANK.masks)], "first", "flat")

    whole = masks((0, 8))
    assert numpy.array_equal(masks((0, 3), (3, 8)), whole)
    assert len({mask.tobytes() for mask in whole.reshape(-1, 6, 8)}) == 16


LAYERS = {  # those of shardkit that have a dropout inside: (layer, dim of the samples)
    "LSTM": (lambda: nn.LSTM(8, 8, 2, dropout=0.5, dtype="float64"), 1),
    "LSTM by sample": (
        lambda: nn.LSTM(8, 8, 2, dropout=0.5, batch_first=True, dtype="float64"),
        0,
    ),
    "GRU, both ways": (
        lambda: nn.GRU(8, 4, 3, dropout=0.5, bidirectional=True, dtype="float64"),
        1,
    ),
    "encoder": (lambda: nn.TransformerEncoderLayer(8, 2, 16, 0.5, dtype="float64"), 1),
    "encoder by sample": (
        lambda: nn.TransformerEncoderLayer(8, 2, 16, 0.5, batch_first=True, dtype="float64"),
        0,
    ),
    "attention": (lambda: nn.MultiheadAttention(8, 2, 0.5, dtype="float64"), 1),
    "attention by sample": (
        lambda: nn.MultiheadAttention(8, 2, 0.5, batch_first=True, dtype="float64"),
        0,
    ),
    "self-attention": (lambda: nn.SelfAttention(8, 2, dropout=0.5, dtype="float64"), 0),
    "feed-forward": (lambda: nn.FeedForward(8, 16, dropout=0.5, dtype="float64"), 0),
}


class OfLayer(nn.Module):
    """A layer that is called twice, on windows of the samples if they come first."""

    def __init__(self, name, has_windows):
        make, self.dim = LAYERS[name]
        self.layer, self.has_windows = make(), has_windows
        self.loss = nn.MSELoss()

    def forward(self, x):  # [samples, 8 steps, 8]
        y = x
        for _ in range(2):
            if self.has_windows:
                y = ops.reshape(y, (-1, 4, 8))  # two windows of each sample
            y = ops.transpose(y, 0, 1) if self.dim else y
            y = (
                self.layer(y, y, y)
                if isinstance(self.layer, nn.MultiheadAttention)
                else self.layer(y)
            )
            y = y[0] if isinstance(y, tuple) else y
            y = ops.transpose(y, 0, 1) if self.dim else y
            y = ops.reshape(y, x.shape)
        return y


@pytest.mark.strength(1)
@pytest.mark.parametrize("has_windows", [False, True])
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.thorough(but=2)
def test_layers_with_dropout_have_one_loss_however_the_batch_is_cut(name, has_windows):
    """8 steps and, by turns, 8, 4, 2 samples: no dim is taken for another."""
    draw = numpy.random.default_rng(0)
    x, y = draw.normal(size=(2, 8, 8, 8))

    def run(backend, micro_batches=1):
        config = sk.ShardingConfiguration(
            backend, optimizer=sk.SGD(lr=0.01), micro_batches=micro_batches
        )
        model = sk.DDPModel(OfLayer(name, has_windows), config)
        part = sk.split_batch(model.mesh, x, y)
        return [model.train(*part) for _ in range(2)]

    expected = sk.run_ranks(1, run)[0]
    for num_ranks, micro_batches in ((1, 2), (1, 8), (2, 2), (4, 1)):
        found = sk.run_ranks(num_ranks, lambda backend: run(backend, micro_batches))[0]
        numpy.testing.assert_allclose(found, expected, rtol=1e-12)


def test_a_pass_counts_its_calls_and_a_second_pass_repeats_them():
    first, second, again, second_again = masks_by_hand(2, 2)
    assert first == again != second == second_again


def test_a_pass_inside_of_a_pass_goes_on_with_its_counts():
    net = Seen().finish(0)
    RANK.masks = {}
    context = nn.ForwardContext(training=True, seed=1)
    x = numpy.ones((4, 8))
    with nn.forward_context(context):
        net(x)
        with nn.forward_context(context.observed_by(print)):
            net(x)
        with nn.forward_context(nn.ForwardContext()):
            net(x)
        net(x)
    first, inner, plain, last = RANK.masks[""]
    assert plain.all()
    assert len({mask.tobytes() for mask in (first, inner, last)}) == 3


def test_the_function_counts_its_calls_in_a_pass_as_the_layer_does():
    x = nn.Tensor(numpy.ones((4, 8), "float32"))
    context = nn.ForwardContext(training=True, seed=1)
    with nn.forward_context(context):
        inside = [ops.dropout(x, 0.5, "d", context).array.tobytes() for _ in range(3)]
    outside = [ops.dropout(x, 0.5, "d", context).array.tobytes() for _ in range(2)]
    assert len(set(inside)) == 3
    assert outside == [inside[0]] * 2  # each a pass of its own


def test_a_pass_by_hand_has_the_masks_of_a_sharded_model():
    x, y = batch()
    ((_, seen),) = recorded(1, lambda c: sk.DDPModel(Twice(), c), lambda m: m.train(x, y), seed=5)
    RANK.masks = {}
    net = Twice().finish(5)
    with nn.forward_context(nn.ForwardContext(training=True, seed=5)):
        net(nn.Tensor(x))
    for path, masks in seen.items():
        assert numpy.array_equal(masks, RANK.masks[path])
