"""Muon: whole matrices under every policy and on every mesh, beside another rule for the rest."""

import numpy
import pytest
from builders import SEQUENCE, hsdp, token_batch
from torch_or_skip import torch

import shardkit as sk
from shardkit import ConfigurationError, ShardingError
from shardkit.testing.parallel import device_of, training_state_of, units_of

OTHERS = ("embedding.*", "head.*", "*norm*", "*.bias")
MUON = {"lr": 0.02, "weight_decay": 0.3, "momentum": 0.9}
ADAMW = {"lr": 0.01, "weight_decay": 0.2}
GROUPS = (sk.ParameterGroup(*OTHERS, rule=sk.AdamW(**ADAMW)),)
MAKERS = {
    "DDP": (sk.DDPModel, 2),
    "ZeRO-1": (sk.ZeRO1Model, 2),
    "ZeRO-2": (sk.ZeRO2Model, 3),
    "FSDP": (sk.FSDPModel, 4),
    "HSDP": (hsdp, 4),
    "pipeline": (sk.PipelineParallelModel, 1),
}


def gpt():
    return sk.models.GPT(64, SEQUENCE, width=16, layers=2, heads=2, dtype="float64")


def trained(
    backend, maker=sk.DDPModel, num_data=1, rule=None, steps=2, samples=8, groups=GROUPS, **settings
):
    config = sk.ShardingConfiguration(
        backend,
        optimizer=rule or sk.Muon(**MUON),
        parameter_groups=groups,
        micro_batches=samples // num_data,  # a power of two of them, or all on one
        minimum_parameter_group_size=64,
        **settings,
    )
    model = maker(gpt(), config)
    go_on(model, range(steps), samples)
    return model


def go_on(model, steps, samples=8):
    for step in steps:
        model.train(*sk.split_batch(model.mesh, *token_batch(step, samples)))


def serial(**settings):
    return sk.run_ranks(1, lambda b: trained(b, **settings).get_parameters())[0]


def by_pytorch(monkeypatch, adjust, nesterov, steps=2):
    """Return what PyTorch's Muon and AdamW make of the same gradients, without bfloat16."""
    monkeypatch.setattr(torch.Tensor, "bfloat16", lambda tensor: tensor.clone())
    model = gpt()
    parameters = model.named_parameters()
    values = {n: torch.tensor(p.array.copy(), requires_grad=True) for n, p in parameters.items()}
    is_other = {name: GROUPS[0].matches(name) for name in parameters}
    of_muon, of_adamw = [
        [value for name, value in values.items() if is_other[name] is wanted]
        for wanted in (False, True)
    ]
    optimizers = [
        torch.optim.Muon(of_muon, adjust_lr_fn=adjust, nesterov=nesterov, **MUON),
        torch.optim.AdamW(of_adamw, **ADAMW),
    ]
    for step in range(steps):
        for name, parameter in parameters.items():
            parameter.array, parameter.grad = values[name].detach().numpy().copy(), None
        x, y = token_batch(step, 8)
        model.loss.total(model(x), y).backward()
        for name, parameter in parameters.items():
            values[name].grad = torch.tensor(parameter.grad / y.size)
        for optimizer in optimizers:
            optimizer.step()
    return numpy.concatenate([values[name].detach().numpy().reshape(-1) for name in parameters])


@pytest.mark.parametrize(
    "adjust, nesterov", [(None, True), ("original", False), ("match_rms_adamw", True)]
)
@pytest.mark.thorough
def test_muon_beside_adamw_is_that_of_pytorch(adjust, nesterov, monkeypatch):
    if not hasattr(torch.optim, "Muon"):
        pytest.skip("PyTorch is older than 2.9")
    wanted = by_pytorch(monkeypatch, adjust, nesterov)
    found = serial(rule=sk.Muon(adjust_lr_fn=adjust, nesterov=nesterov, **MUON))
    numpy.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.strength(1)
@pytest.mark.parametrize("clip", (None, 0.1))
@pytest.mark.parametrize("strategy", MAKERS)
@pytest.mark.thorough(but=2)
def test_every_policy_has_the_bits_of_the_serial_run(strategy, clip):
    maker, num_data = MAKERS[strategy]
    settings = {"max_gradient_norm": clip, "samples": 12 if num_data == 3 else 8}
    found = sk.run_ranks(
        max(num_data, 2), lambda b: trained(b, maker, num_data, **settings).get_parameters()
    )
    wanted = serial(**settings)
    for parameters in found:
        numpy.testing.assert_array_equal(parameters, wanted)


def test_a_rank_keeps_the_state_of_each_rule_for_its_own_parameters_alone():
    def run(backend):
        model = trained(backend, sk.FSDPModel, 1, steps=1)
        return device_of(model).accounts.table()["optimizer state"], {
            name: sum(
                unit.optimizer.state[name].kept.size
                for unit in units_of(model)
                if name in unit.optimizer.state
            )
            for name in training_state_of(model).state_names
        }

    (num_bytes, elements), *_ = sk.run_ranks(1, run)
    sizes = {name: p.size for name, p in gpt().named_parameters().items()}
    others = sum(size for name, size in sizes.items() if GROUPS[0].matches(name))
    matrices = sum(sizes.values()) - others
    assert elements == {
        "first_moment": others,
        "second_moment": others,
        "matrix_momentum": matrices,
    }
    assert num_bytes < 8 * 2 * sum(sizes.values())


@pytest.mark.thorough
def test_it_goes_on_under_every_layout_with_averages_and_frozen_parameters(tmp_path):
    rule = sk.EMA(sk.Muon(**MUON), decay=0.5)
    own = {"rule": rule, "frozen": ("blocks.0.*",)}

    def first(backend):
        trained(backend, sk.FSDPModel, 2, steps=2, **own).save_model(tmp_path / "c")

    def rest(backend, maker, num_data):
        model = trained(backend, maker, num_data, steps=0, **own)
        manifest = model.load_model(tmp_path / "c")
        assert not manifest["missing_state"] and not manifest["unused_state"]
        go_on(model, (2, 3))
        with model.with_averaged_parameters():
            averages = model.get_parameters()
        return model.get_parameters(), averages

    def whole(backend):
        model = trained(backend, steps=4, **own)
        with model.with_averaged_parameters():
            averages = model.get_parameters()
        return model.get_parameters(), averages

    sk.run_ranks(2, first)
    wanted = sk.run_ranks(1, whole)[0]
    for maker, num_data in ((sk.PipelineParallelModel, 1), (sk.ZeRO1Model, 2)):
        found = sk.run_ranks(2, lambda b: rest(b, maker, num_data))[0]
        for mine, theirs in zip(found, wanted):
            numpy.testing.assert_array_equal(mine, theirs)


RULES = {"AdamW": (sk.AdamW(**ADAMW), ()), "Muon": (sk.Muon(**MUON), GROUPS)}


@pytest.mark.parametrize("old, new", [("AdamW", "Muon"), ("Muon", "AdamW")])
def test_all_state_begins_anew_where_some_parameters_had_another_rule(old, new, tmp_path):
    def first(backend):
        rule, groups = RULES[old]
        model = trained(backend, sk.FSDPModel, 2, rule, steps=2, groups=groups)
        model.save_model(tmp_path / "c")
        return model.get_parameters()

    def rest(backend):
        rule, groups = RULES[new]
        model = trained(backend, sk.ZeRO1Model, 2, rule, steps=0, groups=groups)
        manifest = model.load_model(tmp_path / "c")
        assert "first_moment" in manifest["missing_state"]
        go_on(model, (2,))
        return model.get_parameters()

    def definition(backend):
        rule, groups = RULES[new]
        model = trained(backend, rule=rule, steps=0, groups=groups)
        model.set_parameters(parameters)
        go_on(model, (2,))
        return model.get_parameters()

    parameters = sk.run_ranks(2, first)[0]
    with pytest.warns(UserWarning, match="state that starts at zero"):
        found = sk.run_ranks(2, rest)[0]
    numpy.testing.assert_array_equal(found, sk.run_ranks(1, definition)[0])


def test_what_is_no_whole_matrix_is_refused_by_name_on_all_ranks():
    def run(backend):
        with pytest.raises(ShardingError, match="Muon takes matrices alone; give it another rule"):
            trained(backend, sk.FSDPModel, 2, groups=())
        with pytest.raises(ShardingError, match="is cut over the tensor axis into"):
            trained(backend, sk.TensorParallelModel, 1, steps=0)
        return True

    assert all(sk.run_ranks(2, run))


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: sk.ParameterGroup("*", rule=sk.EMA(sk.SGD())), "goes around the rule of"),
        (lambda: sk.ParameterGroup("*", rule=sk.SGD), "a rule such as"),
        (lambda: sk.ParameterGroup("*", rule=sk.SGD(), weight_decay=0.1), "in the rule"),
        (lambda: sk.Muon(ns_steps=100), "ns_steps"),
        (lambda: sk.Muon(ns_coefficients=(1.0, 2.0)), "three finite numbers"),
        (lambda: sk.Muon(momentum=1.0), "momentum"),
        (lambda: sk.Muon(eps=0.0), "eps"),
        (lambda: sk.Muon(adjust_lr_fn="none"), "match_rms_adamw"),
        (lambda: sk.Muon(nesterov=1), "True or False"),
        (lambda: sk.Muon(weight_decay=-1), "weight_decay"),
    ],
)
def test_a_wrong_rule_is_refused_when_it_is_made(make, message):
    with pytest.raises(ConfigurationError, match=message):
        make()
