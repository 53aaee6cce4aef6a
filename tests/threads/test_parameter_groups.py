"""Parameter groups: the rule with other constants, by names, as PyTorch's groups have them."""

import json

import numpy
import pytest
from builders import SEQUENCE, token_batch
from torch_or_skip import torch

import shardkit as sk
from shardkit import ConfigurationError
from shardkit.testing.optim import groups_by_name

GROUPS = (
    sk.ParameterGroup("*.bias", "*norm*", weight_decay=0.0),
    sk.ParameterGroup("embedding.*", lr_scale=0.1),
    sk.ParameterGroup("head.*", lr_scale=0.0),
)
MAKERS = {
    "DDP": (sk.DDPModel, 2),
    "ZeRO-1": (sk.ZeRO1Model, 2),
    "FSDP": (sk.FSDPModel, 2),
    "pipeline": (sk.PipelineParallelModel, 1),
}
RULES = {
    "AdamW": (sk.AdamW(lr=1e-2, weight_decay=0.3), {"weight_decay": 0.3}),
    "SGD": (
        sk.SGD(lr=0.1, weight_decay=0.2, momentum=0.8, nesterov=True),
        {"weight_decay": 0.2, "momentum": 0.8, "nesterov": True},
    ),
}


def gpt():
    return sk.models.GPT(64, SEQUENCE, width=16, layers=2, heads=2, dtype="float64")


def trained(backend, maker, rule, num_data=1, groups=GROUPS, steps=4, **settings):
    config = sk.ShardingConfiguration(
        backend,
        optimizer=rule,
        parameter_groups=groups,
        micro_batches=4 // num_data,
        minimum_parameter_group_size=64,
        **settings,
    )
    model = maker(gpt(), config)
    for step in range(steps):
        model.train(*sk.split_batch(model.mesh, *token_batch(step, 8)))
    return model


def by_pytorch(rule, settings, steps=4):
    """Return what PyTorch's optimizer makes of the same gradients, with groups of its own."""
    model = gpt()
    parameters = model.named_parameters()
    values = {n: torch.tensor(p.array.copy(), requires_grad=True) for n, p in parameters.items()}
    lr = rule.lr
    groups = [
        {"params": [values[name]], "lr": lr * _scale(name), "weight_decay": _decay(name, settings)}
        for name in parameters
    ]
    kind = torch.optim.AdamW if isinstance(rule, sk.AdamW) else torch.optim.SGD
    rest = {name: value for name, value in settings.items() if name != "weight_decay"}
    optimizer = kind(groups, lr=lr, **rest)
    for step in range(steps):
        for name, parameter in parameters.items():
            parameter.array, parameter.grad = values[name].detach().numpy().copy(), None
        x, y = token_batch(step, 8)
        model.loss.total(model(x), y).backward()
        for name, parameter in parameters.items():
            values[name].grad = torch.tensor(parameter.grad / y.size)
        optimizer.step()
    return numpy.concatenate([values[name].detach().numpy().reshape(-1) for name in parameters])


def _scale(name):
    group = next((group for group in GROUPS if group.matches(name)), None)
    return 1.0 if group is None else group.lr_scale


def _decay(name, settings):
    group = next((group for group in GROUPS if group.matches(name)), None)
    return (group.changes if group else {}).get("weight_decay", settings["weight_decay"])


@pytest.mark.strength(1)
@pytest.mark.parametrize("strategy", MAKERS)
@pytest.mark.parametrize("name", RULES)
@pytest.mark.thorough
def test_groups_are_those_of_pytorch_under_every_policy(name, strategy):
    rule, settings = RULES[name]
    maker, num_data = MAKERS[strategy]

    def run(backend):
        return trained(backend, maker, rule, num_data).get_parameters()

    found = sk.run_ranks(2, run)[0]
    numpy.testing.assert_allclose(found, by_pytorch(rule, settings), rtol=1e-10, atol=1e-12)
    serial = sk.run_ranks(1, lambda b: trained(b, sk.DDPModel, rule).get_parameters())[0]
    numpy.testing.assert_array_equal(found, serial)


@pytest.mark.thorough
def test_groups_go_with_averages_frozen_parameters_and_checkpoints(tmp_path):
    rule = sk.EMA(sk.AdamW(lr=1e-2, weight_decay=0.3), decay=0.5)
    groups = GROUPS[:2]

    def first(backend):
        model = trained(backend, sk.FSDPModel, rule, 2, groups, steps=2, frozen=("blocks.0.*",))
        model.save_model(tmp_path / "c")

    def rest(backend, maker, num_data):
        model = trained(backend, maker, rule, num_data, groups, steps=0, frozen=("blocks.0.*",))
        model.load_model(tmp_path / "c")
        for step in (2, 3):
            model.train(*sk.split_batch(model.mesh, *token_batch(step, 8)))
        return model.get_parameters()

    def whole(backend):
        own = {"frozen": ("blocks.0.*",)}
        return trained(backend, sk.DDPModel, rule, 1, groups, **own).get_parameters()

    sk.run_ranks(2, first)
    wanted = sk.run_ranks(1, whole)[0]
    for maker, num_data in ((sk.PipelineParallelModel, 1), (sk.ZeRO1Model, 2)):
        found = sk.run_ranks(2, lambda b: rest(b, maker, num_data))[0]
        numpy.testing.assert_array_equal(found, wanted)


def test_a_group_without_changes_has_the_bits_of_none():
    rule = sk.AdamW(lr=1e-2, weight_decay=0.3)
    same = (sk.ParameterGroup("*.bias"), sk.ParameterGroup("*.weight", weight_decay=0.3))
    with_groups, without = [
        sk.run_ranks(1, lambda b: trained(b, sk.DDPModel, rule, 1, each).get_parameters())[0]
        for each in (same, ())
    ]
    numpy.testing.assert_array_equal(with_groups, without)


WRONG = {
    "no such name": ((sk.ParameterGroup("*.bais"),), "matches no parameter"),
    "no such field": (
        (sk.ParameterGroup("*.bias", weight_deacy=0.0),),
        "did you mean weight_decay",
    ),
    "the rate": ((sk.ParameterGroup("*.bias", lr=0.1),), "a group has lr_scale"),
    "a value": ((sk.ParameterGroup("*.bias", weight_decay=-1),), "weight_decay"),
    "no group": (("*.bias",), "a tuple of sk.ParameterGroup"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_no_group_of_the_model_is_refused_on_all_ranks(case):
    groups, message = WRONG[case]

    def run(backend):
        with pytest.raises(ConfigurationError, match=message):
            trained(backend, sk.FSDPModel, sk.AdamW(), 2, groups)
        return True

    assert all(sk.run_ranks(2, run))


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: sk.ParameterGroup(), "patterns such as"),
        (lambda: sk.ParameterGroup("*", lr_scale=-1), "at least 0"),
        (lambda: sk.ParameterGroup(3), "patterns such as"),
        (lambda: sk.SGD(momentum=1.0), "momentum"),
        (lambda: sk.SGD(nesterov=True), "False where momentum = 0"),
    ],
)
def test_a_group_is_checked_when_it_is_made(make, message):
    with pytest.raises(ConfigurationError, match=message):
        make()


def test_a_parameter_is_of_the_first_group_that_matches():
    names = ["a.bias", "a.weight", "b.bias"]
    first, second = sk.ParameterGroup("a.*"), sk.ParameterGroup("*.bias")
    found = groups_by_name(names, (first, second), sk.SGD())
    assert found == {"a.bias": first, "a.weight": first, "b.bias": second}


def test_a_run_spares_norms_and_biases_of_decay_and_an_older_one_goes_on_as_it_was(
    tmp_path, monkeypatch
):
    from shardkit.testing.task import load_task
    from shardkit.testing.train import configuration_of, stored_settings

    settings = configuration_of(load_task("table"))()
    model = sk.models.MLP([3, 4, 1])
    (group,) = settings.optimizer.groups(model)
    assert group.names == ("layers.0.bias", "layers.1.bias") and group.changes == {
        "weight_decay": 0.0
    }
    for change in ({"optimizer.decayed": "all"}, {"optimizer.weight_decay": 0.0}):
        assert settings.replace(change).optimizer.groups(model) == ()
    folder = tmp_path / "run"
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "configuration.json").write_text(json.dumps({"run": {"task": "table"}}))
    monkeypatch.setattr("shardkit.testing.train.folder.check_folder", lambda *arguments: None)
    assert stored_settings(folder).optimizer.decayed == "all"
