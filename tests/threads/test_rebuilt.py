"""sk.load gives each model of one's own back as it was, or says why it cannot: nothing silent."""

import copy
import inspect
import pickle
import sys
import warnings

import numpy
import pytest
import rebuilt_models
from rebuilt_models import (
    COME_BACK,
    REFUSED,
    Cached,
    ClassAttribute,
    OfGlobal,
    OfModules,
    Scalar,
    Scaled,
)

import shardkit as sk
from shardkit import nn
from shardkit.testing.checkpoint import image_of, read_image

X = numpy.random.default_rng(0).standard_normal((6, 8)).astype("float32")


def stored(make, folder, num_ranks, then=None):
    """(image, prediction) of the trained model, whose checkpoint is in the folder."""

    def run(backend):
        config = sk.ShardingConfiguration(
            backend, optimizer=sk.AdamW(lr=0.01), loss=nn.MSELoss(), minimum_parameter_group_size=1
        )
        model = sk.FSDPModel(made[backend.rank], config)
        x = X[backend.rank :: num_ranks]
        model.train(x, numpy.ones_like(model.predict(x)))
        if then is not None:
            then(model)
        if folder is not None:
            model.save_model(folder)
        return model.serialize(), model.predict(X)

    made = alike(make, num_ranks)
    return sk.run_ranks(num_ranks, run)[0]


def alike(make, num_ranks):
    """Models of all ranks, with what the first has drawn or counted."""
    made = [make().finish(0) for _ in range(num_ranks)]
    of_first = [vars(module) for module in made[0].named_modules().values()]
    for model in made[1:]:
        for module, theirs in zip(model.named_modules().values(), of_first, strict=True):
            drawn = {n: v for n, v in theirs.items() if isinstance(v, (float, numpy.ndarray))}
            vars(module).update(drawn)
    return made


@pytest.mark.parametrize("num_ranks", [1, 2])
@pytest.mark.parametrize("name", COME_BACK)
def test_a_model_comes_back_as_it_was(name, num_ranks, tmp_path):
    image, expected = stored(COME_BACK[name], tmp_path, num_ranks)
    for source in (tmp_path, image):
        numpy.testing.assert_array_equal(sk.load(source).predict(X), expected)


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_stored_is_said_at_the_save_and_refused(name, tmp_path):
    make, message = REFUSED[name]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        image, expected = stored(make, tmp_path, 2)
    for source in (tmp_path, image):
        with pytest.raises(sk.CheckpointError, match=message):
            sk.load(source)
        numpy.testing.assert_array_equal(sk.load(source, make).predict(X), expected)
    words = [str(each.message) for each in said if "factory=" in str(each.message)]
    assert len(words) == (0 if "later" in name or "place" in name else 1), words


def test_what_changes_while_it_trains_comes_back_on_any_mesh_and_in_a_copy(tmp_path):
    def run(backend):
        net = OfModules(nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 2)), [Scaled(2.0)])
        plan = {"map.0": "column", "map.1": "row"}
        config = sk.ShardingConfiguration(backend, loss=nn.MSELoss(), tensor_plan=plan)
        model = sk.TensorParallelModel(net, config)
        model.wrapped_model.heads[0].scale = 5.0
        copied = model.deep_copy()
        copied.wrapped_model.heads[0].offset = 1.0
        return model.serialize(), model.predict(X), copied.serialize(), copied.predict(X)

    image, expected, copied, expected_of_copy = sk.run_ranks(2, run)[0]
    numpy.testing.assert_allclose(sk.load(image).predict(X), expected, rtol=1e-5)
    numpy.testing.assert_allclose(sk.load(copied).predict(X), expected_of_copy, rtol=1e-5)
    assert abs(expected - expected_of_copy).min() > 0.9


def test_a_model_that_was_cut_into_stages_comes_back_with_what_a_stage_has_cached():
    def run(backend):
        net = nn.Sequential(Cached(), nn.Linear(8, 8), Cached())
        config = sk.ShardingConfiguration(
            backend, loss=nn.MSELoss(), minimum_parameter_group_size=1
        )
        model = sk.PipelineParallelModel(net, config)
        expected = model.predict(X)
        return model.serialize(), expected, model.deep_copy().serialize()

    image, expected, copied = sk.run_ranks(3, run)[0]
    for each in (image, copied):
        numpy.testing.assert_allclose(sk.load(each).predict(X), expected, rtol=1e-5)


@pytest.mark.parametrize("where", ["own", "SCALE", "factor"])
def test_a_number_that_methods_read_elsewhere_is_compared(where, monkeypatch):
    make = {"own": COME_BACK["numbers and words"], "SCALE": OfGlobal, "factor": ClassAttribute}
    image, expected = stored(make[where], None, 1)
    if where == "SCALE":
        monkeypatch.setattr(rebuilt_models, "SCALE", 4.0)
    if where == "factor":
        monkeypatch.setattr(ClassAttribute, "factor", 4.0)
    if where == "own":
        return numpy.testing.assert_array_equal(sk.load(image).predict(X), expected)
    with pytest.raises(sk.CheckpointError, match=f"{where} = [35].0 of module.* 4.0 here.*factory"):
        sk.load(image)
    with pytest.warns(sk.ShardingWarning, match=f"{where} = .*stays as it is"):
        sk.load(image, lambda: make[where]())


def test_arguments_survive_copies_and_pickles():
    again = pickle.loads(pickle.dumps(Scaled(2.0)))
    assert again.configuration() == {"scale": 2.0} and copy.copy(again).configuration() == {
        "scale": 2.0
    }
    for copied in (copy.copy, copy.deepcopy):
        net = OfModules(Scalar(2.0, "tanh"), [Scaled(3.0)]).finish(0)
        image, expected = stored(lambda: copied(net), None, 1)  # noqa: B023
        net.map.scale = 7.0
        numpy.testing.assert_array_equal(sk.load(image).predict(X), expected)


@pytest.mark.thorough
def test_attributes_of_any_kind_and_size_keep_no_model_from_being_saved():
    endless: list = []
    endless.append(endless)
    deep: object = None
    for _ in range(2000):
        deep = rebuilt_models.Chain(deep)
    strange = {
        "endless": endless,
        "long": list(range(20_000)),
        "deep": deep,
        "many": [rebuilt_models.Settings(number) for number in range(200)],
        "odd": {1: {2.5}, None: [object(), sys, len, print]},
        "objects": numpy.array([object()]),
    }

    def make():
        net = Scalar(2.0)
        vars(net).update(strange)
        return net

    image, expected = stored(make, None, 1)
    with pytest.raises(sk.CheckpointError, match="attribute .*factory="):
        sk.load(image)
    numpy.testing.assert_array_equal(sk.load(image, make).predict(X), expected)


@pytest.mark.parametrize("given", [(3,), (), (1, 2)])
def test_a_class_without_arguments_refuses_them_as_ever(given):
    class Bare(nn.Module):
        pass

    if given:
        with pytest.raises(TypeError, match="takes no arguments"):
            Bare(*given)
    assert Bare() and str(inspect.signature(Bare)) == "()"
    assert "in_features" in inspect.signature(type("Mine", (nn.Linear,), {})).parameters


# ---- checkpoints of others, and of before --------------------------------------------------------


def described(image, change):
    """The image, with another description."""
    tensors, description = read_image(image)
    description = copy.deepcopy(description)
    change(description["model"])
    return image_of({name: numpy.array(array) for name, array in tensors.items()}, description)


def test_from_checkpoint_takes_recorded_arguments_and_changes(tmp_path):
    _, expected = stored(lambda: Scalar(2.0, "tanh"), tmp_path, 2)

    def run(backend):
        config = sk.ShardingConfiguration(backend, optimizer=sk.AdamW(lr=0.01))
        found = []
        for changes in ({}, {"none": 14}):
            model = sk.DDPModel(Scalar.from_checkpoint(tmp_path, **changes), config)
            model.load_model(tmp_path)
            found.append(model.predict(X))
        return found

    same, twice = sk.run_ranks(1, run)[0]
    numpy.testing.assert_array_equal(same, expected)
    numpy.testing.assert_allclose(twice, 2 * expected, rtol=1e-6)


def test_one_of_before_is_opened_if_nothing_has_to_be_guessed():
    def old(model):
        del model["attributes"]
        model["configuration"] = {}

    image, expected = stored(lambda: Scalar(2.0), None, 1)
    with pytest.raises(sk.CheckpointError, match="which arguments its Scalar.*factory="):
        sk.load(described(image, old))
    numpy.testing.assert_array_equal(
        sk.load(described(image, old), lambda: Scalar(2.0)).predict(X), expected
    )
    image, expected = stored(ClassAttribute, None, 1)
    numpy.testing.assert_array_equal(sk.load(described(image, old)).predict(X), expected)


@pytest.mark.parametrize(
    "value",
    [
        {"$": "named", "of": "os:system"},
        {"$": "named", "of": "subprocess:run"},
        {"$": "named", "of": "builtins:eval"},
        {"$": "named", "of": "builtins:getattr"},
        {"$": "named", "of": "numpy:load"},
        {"$": "named", "of": "pickle:loads"},
        {"$": "named", "of": "importlib:import_module"},
        {"$": "named", "of": "pytest:exit"},
        {"$": "named", "of": "shardkit.files.trust:import_file"},
        {"$": "named", "of": "antigravity:x"},
        {"$": "named", "of": "rebuilt_models:WIDTH"},
        {"$": "named", "of": 3},
        {"$": "partial", "of": [{"$": "named", "of": "os:system"}, [], {}]},
        {"$": "object", "class": "subprocess:Popen", "of": {}},
        {"$": "object", "class": "rebuilt_models:Settings", "of": {"__class__": 3}},
        {"$": "object", "class": "rebuilt_models:Kind", "of": {}},
        {"$": "made", "class": "subprocess:Popen", "of": {"args": "true"}},
        {"$": "made", "class": "rebuilt_models:Settings", "of": {}},
        {"$": "made", "class": "antigravity:Net", "of": {}},
        {"$": "enum", "class": "os:environ", "of": "HOME"},
        {"$": "enum", "class": "rebuilt_models:Kind", "of": "mro"},
        {"$": "namedtuple", "class": "builtins:tuple"},
        {"$": "array", "dtype": "O", "shape": [1], "of": "AAAA"},
        {"$": "array", "dtype": "<f4", "shape": [1 << 40], "of": "AAAAAA=="},
        {"$": "same", "of": 0},
        {"$": "range", "of": ["x"]},
        {"$": "nothing", "of": 1},
        {"$": ["unhashable"]},
        {"$": "set", "of": [[]]},
    ],
    ids=str,
)
def test_what_a_file_names_is_not_called_unless_it_is_the_programs_own(value, capfd):
    image, _ = stored(lambda: Scalar(2.0), None, 1)
    before = set(sys.modules)
    for change in (
        lambda model: model["configuration"].update(scale=value),
        lambda model: model["attributes"][""].update(scale=value),
    ):
        with pytest.raises(sk.CheckpointError):
            sk.load(described(image, change))
    assert "antigravity" not in set(sys.modules) - before
    assert capfd.readouterr().out == ""


# ---- one forward pass ----------------------------------------------------------------------------


@pytest.mark.parametrize("num_ranks", [1, 2])
@pytest.mark.parametrize(
    "name",
    ["blocks without forward", "a forward over inherited blocks", "a subclass of Sequential"],
)
def test_a_model_computes_the_same_on_a_mesh_and_in_one_process(name, num_ranks):
    def run(backend):
        net = COME_BACK[name]().finish(0)
        expected = net.predict(X), net(nn.Tensor(X)).array
        model = sk.FSDPModel(net, sk.ShardingConfiguration(backend, loss=nn.MSELoss()))
        return *expected, model.predict(X)

    for found in sk.run_ranks(num_ranks, run):
        for each in found[1:]:
            numpy.testing.assert_array_equal(each, found[0])


def test_blocks_that_come_later_than_a_forward_are_the_forward():
    class Later(Scalar):
        def blocks(self):
            return [("map", self.map)]

    net = Later(5.0).finish(0)
    numpy.testing.assert_array_equal(net(nn.Tensor(X)).array, net.map.predict(X))
    numpy.testing.assert_array_equal(net.predict(X), net.map.predict(X))
