"""What users pass becomes plain data where it is taken: numbers of NumPy, text and paths of other
types are stored as Python's own, in every room, and what cannot be stored is refused by its name.
"""

import dataclasses
import json
import tomllib
from fractions import Fraction
from pathlib import Path, PurePosixPath
from typing import get_args, get_origin

import ml_dtypes
import numpy
import pytest

import shardkit as sk
from shardkit import CheckpointError, ConfigurationError
from shardkit.testing.base import as_section, plain, unboxed
from shardkit.testing.checkpoint import storable
from shardkit.testing.optim import describe_rule
from shardkit.testing.task import BUILT_IN, load_task
from shardkit.testing.train import configuration_of

INTEGERS = [kind(3) for kind in (numpy.int8, numpy.uint8, numpy.int32, numpy.uint64, numpy.int64)]
INTEGERS += [numpy.array(3), numpy.array(3, "int16"), numpy.longlong(3)]
FLOATS = [kind(0.5) for kind in (numpy.float16, numpy.float32, numpy.float64, numpy.longdouble)]
FLOATS += [numpy.array(0.5, "float32"), Fraction(1, 2), ml_dtypes.bfloat16(0.5)]
BOOLS = [numpy.bool_(True), numpy.array(True)]
TEXTS = [numpy.str_("a/b"), Path("a/b"), PurePosixPath("a/b")]
LISTS = [numpy.array([1.0, 2.0]), [numpy.float32(1), 2.0], (numpy.int64(1), 2.0), range(1, 3)]


@pytest.mark.parametrize(
    "values, wanted",
    [(INTEGERS, 3), (FLOATS, 0.5), (BOOLS, True), (TEXTS, "a/b")],
    ids=["integers", "floats", "bools", "texts"],
)
def test_each_kind_becomes_pythons_own_type(values, wanted):
    for value in values:
        found = plain(value)
        assert type(found) is type(wanted) and found == wanted, repr(value)
        nested = plain({"a": [value, (value,)], numpy.str_("b"): {"c": value}})
        assert nested == {"a": [wanted, (wanted,)], "b": {"c": wanted}}
        assert all(type(name) is str for name in nested)
        json.dumps(nested)


def test_what_is_no_plain_data_stays_what_it_is():
    for value in (None, object(), numpy.zeros(2), numpy.datetime64("2020-01-01"), len, 1j, b"x"):
        assert unboxed(value) is value
    assert unboxed(Fraction(10**400)) == 10**400


# ---- settings ------------------------------------------------------------------------------------


def values_for(field):
    """Return values of other types than Python's own that this setting should take."""
    is_one = get_origin(field.type) in (None, tuple)
    kinds = (field.type,) if is_one else get_args(field.type)
    rules, default = field.metadata, field.default
    if "holds" in rules or "among" in rules or "known" in rules:
        return []
    if bool in kinds:
        return BOOLS
    if int in kinds or float in kinds:
        number = rules.get("minimum", rules.get("above", default) or 0) or 0
        number = number + 1 if int in kinds else number + 0.25
        if not number < rules.get("below", number + 1) or number > rules.get("maximum", number):
            number = default
        types = (numpy.int64, numpy.uint8) if int in kinds else (numpy.float32, numpy.float64)
        return [] if number is None else [kind(number) for kind in types]
    return TEXTS if kinds[0] is str else []


@pytest.mark.parametrize("task", BUILT_IN)
@pytest.mark.thorough(but=4)
def test_every_setting_takes_numbers_of_numpy_and_stores_them(task):
    configuration = configuration_of(load_task(task))
    num_tried = 0
    for name, field in configuration.keys().items():
        for value in values_for(field):
            try:
                made = configuration().replace({name: value})
            except ConfigurationError as error:
                assert "section [" in str(error), f"{name} = {value!r}: {error}"
                continue  # sizes that do not go together
            stored = json.loads(json.dumps(made.to_dict()))
            section, _, key = name.partition(".")
            assert stored[section][key] == made.value(name) and type(made.value(name)) in (
                *(bool, int, float, str),
            ), name
            assert tomllib.loads(made.toml_text())[section][key] == made.value(name)
            num_tried += 1
    assert num_tried > 60


def test_lists_of_settings_take_arrays():
    configuration = configuration_of(load_task("language"))
    for value in LISTS:
        made = configuration().replace({"data.weights": value})
        assert made.value("data.weights") == (1.0, 2.0)


def test_a_setting_of_ones_own_whose_default_no_file_holds_is_refused():
    class Settings:
        limit: float = float("inf")

    with pytest.raises(ConfigurationError, match="Settings.limit = inf; wanted a finite number"):
        as_section(Settings)

    class Boxed:
        width: int = numpy.int64(3)

    assert as_section(Boxed)().width == 3


# ---- values in Python ----------------------------------------------------------------------------


@pytest.mark.parametrize("cls", [sk.SGD, sk.Momentum, sk.Adam, sk.AdamW, sk.Muon])
def test_rules_hold_and_store_pythons_numbers(cls):
    given, wanted = {}, {}
    for field in dataclasses.fields(cls):
        if type(field.default) in (int, float):
            kind = numpy.float64 if type(field.default) is float else numpy.int32
            given[field.name], wanted[field.name] = kind(field.default), field.default
    rule = cls(**given)
    assert rule == cls(**wanted) and repr(rule) == repr(cls(**wanted)) and "np." not in repr(rule)
    assert json.dumps(describe_rule(rule)) == json.dumps(describe_rule(cls(**wanted)))
    assert "lr" in given


def test_schedules_averages_and_groups_hold_pythons_numbers():
    made = sk.schedules.Cosine(numpy.float64(1e-3), numpy.int64(2), decay_steps=numpy.uint8(9))
    assert repr(made) == repr(sk.schedules.Cosine(1e-3, 2, decay_steps=9))
    assert type(sk.EMA(sk.SGD(), decay=numpy.float32(0.5)).decay) is float
    group = sk.ParameterGroup("*", lr_scale=numpy.float32(2), weight_decay=numpy.float64(0.25))
    assert type(group.lr_scale) is float and type(group.changes["weight_decay"]) is float


def test_a_configuration_holds_pythons_numbers():
    def on_rank(backend):
        made = sk.ShardingConfiguration(
            backend,
            seed=numpy.int64(3),
            micro_batches=numpy.uint8(2),
            learning_rate=numpy.float32(0.5),
            check=numpy.bool_(True),
        )
        return [
            type(value) for value in (made.seed, made.micro_batches, made.learning_rate, made.check)
        ]

    assert sk.run_ranks(1, on_rank)[0] == [int, int, float, bool]


# ---- descriptions of checkpoints -----------------------------------------------------------------


@pytest.mark.parametrize(
    "value, words",
    [
        (object(), "data_position.mine.0 is <object object"),
        (numpy.zeros((2, 2), complex), "data_position.mine.0.0.0 is "),
        (float("nan"), "data_position.mine.0 is nan"),
        (numpy.float32("inf"), "data_position.mine.0 is inf"),
        ({3: 4}, "the key 3 of {3: 4} would come back as a string"),
        ({numpy.int64(3): 4}, "the key 3 of {3: 4} would come back as a string"),
        (b"bytes", "of type bytes"),
        ({1, 2}, "of type set"),
    ],
)
def test_what_cannot_be_stored_is_refused_by_its_place(value, words):
    with pytest.raises(CheckpointError) as caught:
        storable({"step": 1, "data_position": {"mine": [value]}})
    assert words in str(caught.value)


def test_what_can_be_stored_is():
    found = storable({"step": numpy.int64(1), "data_position": {"rows": numpy.arange(3)}})
    assert found == {"step": 1, "data_position": {"rows": [0, 1, 2]}}
    deep = value = {}
    for _ in range(5000):
        value["more"] = value = {}
    with pytest.raises(CheckpointError, match="cannot be stored"):
        storable(deep)
