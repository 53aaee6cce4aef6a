"""Checkpoints under another optimizer rule, and parameters alone: what is kept, what starts at
zero, and that it is said.
"""

import io
import warnings
from contextlib import nullcontext
from dataclasses import dataclass
from typing import ClassVar

import numpy
import pytest
from builders import full_gradient, small_gpt, token_batch, train
from checkpoints import edit_manifest

import shardkit as sk
from shardkit.testing.checkpoint import Checkpoint, describe
from shardkit.testing.parallel import parts_of, training_state_of, units_of


def falling(step):
    """A learning rate by which a wrong step number shows."""
    return 0.02 / (step + 1)


RULES = {
    "SGD": sk.SGD(lr=falling),
    "Momentum": sk.Momentum(lr=falling),
    "Adam": sk.Adam(lr=falling, weight_decay=0.1),
    "AdamW": sk.AdamW(lr=falling),
}
KEPT = {
    "SGD": set(),
    "Momentum": {"velocity"},
    "Adam": {"first_moment", "second_moment"},
    "AdamW": {"first_moment", "second_moment"},
}
LAYOUTS = [("DDP", 1), ("ZeRO-1", 2), ("ZeRO-2", 3), ("FSDP", 3)]
SETTINGS = {"max_gradient_norm": None, "model": None}


def start(strategy, backend, rule, steps=0, first=0):
    model, _ = train(
        strategy,
        backend,
        steps,
        start=first,
        optimizer=rule,
        max_gradient_norm=None,
        model=small_gpt(dtype="float64"),
    )
    return model


def step_on(model, steps):
    for step in steps:
        model.train(*sk.split_batch(model.mesh, *token_batch(step)))


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """{rule: folder with a checkpoint of two steps under it, by two ranks}."""
    folders = {}
    for name, rule in RULES.items():
        folders[name] = tmp_path_factory.mktemp(name)
        sk.run_ranks(2, lambda backend: start("FSDP", backend, rule, 2).save_model(folders[name]))
    return folders


def definition(folder, rule, steps):
    """The parameters after these steps, by the rule on one whole vector, with state that is stored
    or begins as zero.
    """
    checkpoint = Checkpoint(folder / "step-00000002")
    names = list(small_gpt().named_parameters())

    def whole(group):
        return numpy.concatenate(
            [checkpoint.read_whole(f"{group}/{name}").ravel() for name in names]
        )

    def on_rank(backend):
        model, parameters = start("DDP", backend, sk.SGD()), whole("model")
        is_kept = all(
            f"optimizer/{name}/{names[0]}" in checkpoint.shapes for name in rule.state_names
        )
        state = {
            name: whole(f"optimizer/{name}") if is_kept else numpy.zeros_like(parameters)
            for name in rule.state_names
        }
        for step in steps:
            model.set_parameters(parameters)
            gradient = full_gradient(model, *token_batch(step))
            age = step + 1 if is_kept else step + 1 - 2
            rule.update(parameters, gradient, state, age, learning_rate=falling(step))
        return parameters

    return sk.run_ranks(1, on_rank)[0]


@pytest.mark.strength(1)
@pytest.mark.parametrize("new", RULES)
@pytest.mark.parametrize("old", RULES)
@pytest.mark.thorough
def test_a_checkpoint_goes_on_under_every_rule_as_the_definition_does(old, new, written):
    wanted = definition(written[old], RULES[new], (2, 3))
    strategy, num_ranks = LAYOUTS[(list(RULES).index(old) + list(RULES).index(new)) % len(LAYOUTS)]

    def on_rank(backend):
        model = start(strategy, backend, RULES[new])
        manifest = model.load_model(written[old])
        assert model.step_number == 2
        step_on(model, (2, 3))
        return model.gather_full_parameters(), manifest

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = sk.run_ranks(num_ranks, on_rank)
    for parameters, manifest in found:
        numpy.testing.assert_allclose(parameters, wanted, rtol=1e-9, atol=1e-9)
        assert set(manifest["missing_state"]) == KEPT[new] - KEPT[old]
        assert set(manifest["unused_state"]) == KEPT[old] - KEPT[new]


def test_what_changes_is_said_once_with_both_rules(written):
    with pytest.warns(UserWarning) as said:
        sk.run_ranks(
            2,
            lambda backend: start("FSDP", backend, sk.AdamW(lr=0.25)).load_model(
                written["Momentum"]
            ),
        )
    (text,) = (str(one.message) for one in said)
    assert "Momentum(lr=falling, beta=0.9" in text and "AdamW(lr=0.25" in text
    assert "starts at zero: first_moment, second_moment" in text and "left out: velocity" in text
    assert {one.filename for one in said} == {__file__}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sk.run_ranks(
            2, lambda backend: start("FSDP", backend, sk.Adam()).load_model(written["AdamW"])
        )


@pytest.mark.parametrize("strategy, num_ranks", LAYOUTS)
@pytest.mark.thorough
def test_state_that_began_later_is_still_known_after_the_next_checkpoint(
    strategy, num_ranks, written, tmp_path
):
    wanted = definition(written["SGD"], RULES["AdamW"], (2, 3, 4))

    def on_rank(backend):
        model = start(strategy, backend, RULES["AdamW"])
        model.load_model(written["SGD"])
        step_on(model, (2,))
        model.save_model(tmp_path)
        model = start(strategy, backend, RULES["AdamW"])
        manifest = model.load_model(tmp_path)
        assert not manifest["missing_state"] and not manifest["unused_state"]
        step_on(model, (3,))
        copy, image = model.deep_copy(), model.serialize()
        other = start(strategy, backend, RULES["AdamW"])
        other.deserialize(image)
        results = []
        for each in (model, copy, other):
            step_on(each, (4,))
            results.append(each.gather_full_parameters())
        return results

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = sk.run_ranks(num_ranks, on_rank)
    for parameters in found[0]:
        numpy.testing.assert_allclose(parameters, wanted, rtol=1e-9, atol=1e-9)


def by_model(model, folder):
    return model.load_model(folder, only="model")


def by_image(model, folder):
    other = start("DDP", model.mesh.world, RULES["AdamW"])
    other.load_model(folder)
    model.deserialize(other.serialize(), only="model")


def by_file(model, folder):
    other = start("DDP", model.mesh.world, RULES["AdamW"])
    other.load_model(folder)
    file = io.BytesIO() if model.rank == 0 else None
    other.save_state(file)
    if file:
        file.seek(0)
    model.load_state(file, only="model")


@pytest.mark.strength(1)
@pytest.mark.parametrize("way", [by_model, by_image, by_file])
@pytest.mark.parametrize("strategy, num_ranks", LAYOUTS)
@pytest.mark.thorough(but=2)
def test_parameters_alone_begin_a_new_training(way, strategy, num_ranks, written):
    def on_rank(backend):
        used = start(
            strategy, backend, RULES["AdamW"], 1, first=6
        )  # its state and step must be forgotten
        way(used, written["AdamW"])
        assert (
            used.step_number,
            training_state_of(used).samples_seen,
            parts_of(used).checkpoints.describe()["last_loss"],
        ) == (
            0,
            0,
            None,
        )
        stored = used.gather_full_parameters()
        fresh = start(strategy, backend, RULES["AdamW"])
        fresh.set_parameters(stored)
        for model in (used, fresh):
            step_on(model, (0, 1))
        numpy.testing.assert_array_equal(
            used.gather_full_parameters(), fresh.gather_full_parameters()
        )
        return stored

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it was asked for, so there is nothing to say
        stored = sk.run_ranks(num_ranks, on_rank)[0]
    checkpoint = Checkpoint(written["AdamW"] / "step-00000002")
    numpy.testing.assert_array_equal(
        stored,
        numpy.concatenate(
            [
                checkpoint.read_whole(f"model/{name}").ravel()
                for name in small_gpt().named_parameters()
            ]
        ),
    )


@pytest.mark.thorough
def test_an_unknown_word_for_only_is_a_value_error_on_all_ranks(written):
    def on_rank(backend):
        model = start("FSDP", backend, sk.SGD())
        for call in (
            lambda: model.load_model(written["SGD"], only="weights"),
            lambda: model.deserialize(b"", only="weights"),
            lambda: model.load_state(None, only="weights"),
        ):
            with pytest.raises(ValueError, match="only = 'weights'; wanted None, "):
                call()

    sk.run_ranks(2, on_rank)


def remove(tensor):
    return lambda manifest: manifest["tensors"].pop(tensor)


@pytest.mark.strength(1)
@pytest.mark.parametrize("rule", ["SGD", "Momentum", "AdamW"])
@pytest.mark.parametrize(
    "damage, words",
    [
        (remove("optimizer/first_moment/head.norm.weight"), "first_moment"),
        (lambda manifest: manifest["optimizer"].update(state=["first_moment"]), "first_moment"),
        (lambda manifest: manifest.update(optimizer=None), "first_moment"),
    ],
    ids=["a tensor", "a name", "the rule"],
)
def test_state_of_some_parameters_only_is_refused_under_every_rule(damage, words, rule, tmp_path):
    def on_rank(backend):
        start("FSDP", backend, RULES["AdamW"], 1).save_model(tmp_path)
        backend.barrier()
        if backend.rank == 0:
            edit_manifest(tmp_path / "step-00000001", damage)
        backend.barrier()
        model = start("FSDP", backend, RULES[rule], 1, first=3)
        before = model.gather_full_parameters()
        with pytest.raises(sk.CheckpointError, match=words):
            model.load_model(tmp_path)
        numpy.testing.assert_array_equal(model.gather_full_parameters(), before)

    sk.run_ranks(2, on_rank)


@dataclass(frozen=True)
class Plain:
    """A rule of one's own, which has no rate()."""

    state_names: ClassVar[tuple[str, ...]] = ("sum",)

    def update(self, parameters, gradients, state, step, learning_rate=None, gradient_scale=1.0):
        state["sum"] += gradients * gradient_scale
        parameters -= 0.01 * state["sum"] / step


@dataclass(frozen=True)
class Largest(sk.Adam):
    state_names: ClassVar[tuple[str, ...]] = ("first_moment", "second_moment", "largest")


@pytest.mark.thorough
def test_state_of_two_ages_starts_at_zero_and_both_are_said(written):
    """Largest and AdamW take the same step from zero state, at the same number of the rate."""

    def on_rank(rule):
        def run(backend):
            model = start("ZeRO-1", backend, rule)
            with pytest.warns(UserWarning) if backend.rank == 0 else nullcontext() as said:
                report = model.load_model(written["SGD" if type(rule) is sk.Adam else "AdamW"])
            if backend.rank == 0:
                assert "starts at zero: first_moment" in str(said[0].message)
            return report, [unit.optimizer.rule.since for unit in units_of(model)][:1]

        return run

    report, since = sk.run_ranks(2, on_rank(Largest()))[0]
    assert report["missing_state"] == ["first_moment", "second_moment", "largest"]
    assert report["unused_state"] == ["first_moment", "second_moment"]
    assert since == sk.run_ranks(2, on_rank(sk.Adam()))[0][1]


def test_state_whose_age_a_rule_cannot_be_told_is_refused_with_what_to_do(written):
    def on_rank(backend):
        model = start("ZeRO-1", backend, Plain())
        with pytest.raises(sk.CheckpointError, match=r'Plain.* has no rate\(\).*only="model"'):
            model.load_model(written["AdamW"])
        model.load_model(written["AdamW"], only="model")
        step_on(model, (0,))

    sk.run_ranks(2, on_rank)


@pytest.mark.thorough
def test_the_rule_and_its_settings_are_in_the_checkpoint(written):
    optimizer = Checkpoint(written["Momentum"] / "step-00000002").manifest["optimizer"]
    assert optimizer == {
        "rule": "Momentum",
        "state": ["velocity"],
        "state_since": 0,
        "settings": {"lr": "falling", "beta": 0.9, "nesterov": False, "weight_decay": 0.0},
    }
    assert "optimizer Momentum(lr=falling, beta=0.9" in str(
        describe(written["Momentum"] / "step-00000002")
    )


@pytest.mark.thorough
def test_a_checkpoint_that_does_not_tell_settings_still_opens(tmp_path):
    def on_rank(backend):
        start("FSDP", backend, RULES["AdamW"], 1).save_model(tmp_path)
        backend.barrier()
        if backend.rank == 0:
            edit_manifest(
                tmp_path / "step-00000001", lambda m: m.update(optimizer={"rule": "AdamW"})
            )
        backend.barrier()
        model = start("FSDP", backend, RULES["AdamW"])
        assert model.load_model(tmp_path)["missing_state"] == [] and model.step_number == 1

    sk.run_ranks(2, on_rank)


@pytest.mark.parametrize(
    "optimizer",
    [{"state_since": -1}, {"state_since": 3}, {"settings": []}, {"state": "velocity"}],
    ids=str,
)
def test_a_description_of_a_rule_in_other_types_is_damage(optimizer, written, tmp_path):
    folder = written["Momentum"] / "step-00000002"
    manifest = Checkpoint(folder).manifest
    (tmp_path / "manifest.json").write_bytes((folder / "manifest.json").read_bytes())
    edit_manifest(
        tmp_path,
        lambda m: m.update(files={}, tensors={}, optimizer={**manifest["optimizer"], **optimizer}),
    )
    with pytest.raises(sk.CheckpointError, match="optimizer = "):
        Checkpoint(tmp_path)


def test_an_optimizer_loads_parameters_alone_too(written):
    def on_rank(backend):
        config = sk.ShardingConfiguration(backend, minimum_parameter_group_size=64)
        optimizer = sk.FSDPOptimizer(sk.SGD(lr=0.1), config, model=small_gpt(dtype="float64"))
        optimizer.load_model(written["AdamW"], only="model")
        assert optimizer.model.step_number == 0
        image = start("DDP", backend, RULES["AdamW"], 1).serialize()
        optimizer.deserialize(image, only="model")
        assert optimizer.model.step_number == 0

    sk.run_ranks(2, on_rank)
