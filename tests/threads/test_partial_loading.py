"""load_model and deserialize by names: what is taken, left alone, listed and refused."""

import io

import numpy
import pytest

import shardkit as sk
from shardkit import nn


class Encoder(nn.Module):
    loss = nn.MeanSquaredError()

    def __init__(self, width=6, head="head", seed=0):
        self.encoder = nn.Linear(4, width)
        setattr(self, head, nn.Linear(width, 2))
        self._head = head
        self.finish(seed)

    def forward(self, x):
        return getattr(self, self._head)(self.encoder(x))


def sharded(backend, module, policy="fsdp"):
    config = sk.ShardingConfiguration(backend, optimizer=sk.AdamW(lr=0.1), seed=3)
    return sk.HybridShardedModel(module, config, policy=policy)


def trained(backend, module):
    model = sharded(backend, module)
    for step in range(2):
        draw = numpy.random.default_rng(step).standard_normal((4, 6)).astype("float32")
        model.train(*sk.split_batch(model.mesh, draw[:, :4], draw[:, 4:]))
    return model


def named(model):
    vector, at, found = model.get_parameters(), 0, {}
    for name, parameter in model.wrapped_model.named_parameters().items():
        found[name] = vector[at : at + parameter.size].tolist()
        at += parameter.size
    return found


def from_files(source, tmp_path, target, **selection):
    source.save_model(tmp_path)
    return target.load_model(tmp_path, only="model", **selection)


def from_images(source, tmp_path, target, **selection):
    return target.deserialize(source.serialize(), only="model", **selection)


def from_streams(source, tmp_path, target, **selection):
    image = source.serialize()
    return target.load_state(io.BytesIO(image), only="model", **selection)


@pytest.mark.parametrize("load", [from_files, from_images, from_streams])
@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_what_both_have_is_taken_and_the_rest_is_listed(load, num_ranks, tmp_path):
    def run(backend):
        source = trained(backend, Encoder())
        target = sharded(backend, Encoder(head="tail", seed=5), "ddp")
        before = named(target)
        report = load(source, tmp_path, target, strict=False)
        return named(source), before, named(target), report

    source, before, after, report = sk.run_ranks(num_ranks, run)[0]
    assert report["missing_names"] == ["tail.weight", "tail.bias"]
    assert report["unexpected_names"] in (
        ["head.bias", "head.weight"],
        ["head.weight", "head.bias"],
    )
    for name, values in after.items():
        assert values == (source if name.startswith("encoder") else before)[name]


@pytest.mark.parametrize("load", [from_files, from_images])
def test_names_take_what_matches_whatever_the_rest_is(load, tmp_path):
    def run(backend):
        source = trained(backend, Encoder())
        target = trained(backend, Encoder(seed=5))
        before = named(target)
        load(source, tmp_path, target, names=["encoder.*", "*.bias"])
        return named(source), before, named(target), target.step_number

    source, before, after, step = sk.run_ranks(2, run)[0]
    assert step == 0
    for name in ("encoder.weight", "encoder.bias", "head.bias"):
        assert after[name] == source[name] != before[name]
    assert after["head.weight"] == before["head.weight"] != source["head.weight"]


@pytest.mark.parametrize(
    "module, selection, error, message",
    [
        (Encoder(head="tail"), {"names": "*.weight"}, sk.CheckpointError, "1 missing: tail.weight"),
        (Encoder(width=5), {"strict": False}, sk.CheckpointError, "encoder.weight of shape .6, 4."),
        (Encoder(), {"names": "decoder.*"}, sk.CheckpointError, "0 are in both"),
        (Encoder(), {"strict": False, "only": None}, ValueError, 'want only="model"'),
        (Encoder(), {"names": "*", "only": None}, ValueError, 'want only="model"'),
        (Encoder(), {"names": []}, ValueError, "wanted a pattern"),
        (Encoder(), {"strict": 1}, ValueError, "wanted True or False"),
        (Encoder(), {"only": "head"}, ValueError, 'wanted None, "model" or'),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_changes(module, selection, error, message):
    def run(backend):
        image = trained(backend, Encoder()).serialize()
        target = sharded(backend, module)
        before = named(target)
        with pytest.raises(error, match=message):
            target.deserialize(image, **{"only": "model", **selection})
        return named(target) == before

    assert sk.run_ranks(1, run) == [True]


def test_a_model_that_awaits_its_values_wants_all_of_them(tmp_path):
    def run(backend):
        source = sharded(backend, sk.models.MLP([4, 3, 2]))
        source.save_model(tmp_path)
        target = sharded(backend, sk.models.MLP.from_checkpoint(tmp_path))
        with pytest.raises(sk.CheckpointError, match="without any values"):
            target.load_model(tmp_path, only="model", names="layers.0.*")
        target.load_model(tmp_path, only="model", strict=False)
        return named(source) == named(target)

    assert sk.run_ranks(2, run) == [True, True]
