"""A user's own module may call its attributes what it likes, or is told at once; and nothing is
left untrained in silence.
"""

import warnings

import numpy
import pytest

import shardkit as sk
from shardkit import nn
from shardkit.testing.parallel import device_of

X, Y = numpy.ones((4, 8), "float32"), numpy.zeros((4, 8), "float32")
FREE = (
    "blocks",
    "features",
    "path",
    "members",
    "children",
    "configuration",
    "output_shape",
    "names",
    "layers",
    "modules",
    "shape",
)


class Own(nn.Module):
    """Three layers as a ModuleList under any name, and a plain value under another."""

    def __init__(self, name, other, value):
        self.loss = nn.MeanSquaredError()
        setattr(self, name, nn.ModuleList(nn.Linear(8, 8) for _ in range(3)))
        self.attribute = name
        if other != name:
            setattr(self, other, value)

    def forward(self, x):
        for layer in getattr(self, self.attribute):
            x = layer(x)
        return x


def configuration(backend, **settings):
    return sk.ShardingConfiguration(backend, **settings)


@pytest.mark.parametrize("other", FREE)
@pytest.mark.parametrize("name", ["blocks", "features", "path"])
@pytest.mark.thorough(but=6)
def test_attributes_may_have_any_of_these_names(name, other, tmp_path):
    def run(backend):
        value = 10 if backend.world_size == 1 else "x"
        model = sk.FSDPModel(Own(name, other, value), configuration(backend))
        model.train(X, Y)
        model.save_model(tmp_path)
        twin = sk.FSDPModel(Own(name, other, value), configuration(backend))
        twin.load_model(tmp_path)
        assert list(model.wrapped_model.named_parameters())[:2] == [
            f"{name}.0.weight",
            f"{name}.0.bias",
        ]
        assert (twin.predict(X) == model.deep_copy().predict(X)).all() and "Own" in model.describe()
        assert model.get_model_metadata()["num_units"] == 1
        with pytest.raises(sk.FeatureError, match="no input features"):
            model.get_active_feature_indices()

    for num_ranks in (1, 2):
        sk.run_ranks(num_ranks, run)


def test_a_class_may_say_its_blocks_from_an_attribute_of_the_same_name():
    class Stacked(Own):
        def blocks(self):
            return [(f"blocks.{index}", layer) for index, layer in enumerate(self.blocks)]

    def run(backend):
        model = sk.PipelineParallelModel(
            Stacked("blocks", "path", "x"), configuration(backend, minimum_parameter_group_size=16)
        )
        twin = sk.DDPModel(Own("blocks", "path", "x"), configuration(backend))
        assert [model.train(X, Y) for _ in range(2)] == [twin.train(X, Y) for _ in range(2)]

    sk.run_ranks(2, run)


@pytest.mark.parametrize(
    "name",
    [
        "parameters",
        "named_parameters",
        "finish",
        "state_dict",
        "parameter_count",
        "predict",
        "forward",
        "named_modules",
        "load_state_dict",
        "from_checkpoint",
    ],
)
@pytest.mark.parametrize(
    "make",
    [lambda: 5, lambda: [1], lambda: nn.Linear(2, 2)],
    ids=["a number", "a list", "a module"],
)
def test_a_name_that_a_module_needs_is_refused_when_it_is_assigned(name, make):
    with pytest.raises(sk.ConfigurationError, match=rf"Own.{name} .*Module.{name}.*another name"):
        setattr(Own("layers", "a", 1), name, make())


def test_a_function_may_stand_in_for_forward():
    own = Own("layers", "a", 1).finish()
    forward = own.forward
    own.forward = lambda x: forward(x) * 2
    numpy.testing.assert_array_equal(own.predict(X), forward(nn.Tensor(X)).array * 2)


@pytest.mark.parametrize(
    "wrong",
    [lambda self: [nn.Linear(2, 2)], lambda self: 3, lambda self: None, lambda self: [("a", 3)]],
    ids=["modules", "a number", "nothing", "no modules"],
)
def test_blocks_that_are_none_are_refused_on_all_ranks(wrong):
    def run(backend):
        with pytest.raises(
            sk.ConfigurationError, match=r"Odd.blocks\(\) .*wanted a list of \(name, module\)"
        ):
            sk.DDPModel(
                type("Odd", (Own,), {"blocks": wrong})("layers", "a", 1), configuration(backend)
            )

    sk.run_ranks(2, run)


@pytest.mark.parametrize(
    "hide",
    [
        lambda module: [module],
        lambda module: (module, 3),
        lambda module: {"a": module},
        lambda module: {module},
        lambda module: [[1, {"deep": (module,)}]],
        lambda module: [module.weight],
        lambda module: {"w": module.weight},
    ],
    ids=["list", "tuple", "dict", "set", "nested", "parameters", "dict of parameters"],
)
def test_modules_and_parameters_in_plain_containers_are_refused_because_they_would_not_be_trained(
    hide,
):
    def run(backend):
        own = Own("layers", "hidden", hide(nn.Linear(8, 8)))
        with pytest.raises(
            sk.ConfigurationError, match="Own.hidden is a plain .* not be trained; use ModuleList"
        ):
            sk.DDPModel(own, configuration(backend))

    sk.run_ranks(2, run)


def test_a_tensor_that_takes_a_gradient_and_is_no_parameter_is_refused_as_it_would_not_be_trained():
    own = Own("layers", "scale", nn.Tensor(numpy.ones(8), requires_grad=True))
    with pytest.raises(
        sk.ConfigurationError,
        match=r"Own.scale is a Tensor .* not be trained; make it a Parameter\(\(8,\), ",
    ):
        own.finish()
    own.scale = nn.Tensor(numpy.ones(8))
    own.finish().seen = nn.Tensor(X, requires_grad=True)  # as a forward may keep what it was given
    assert len(own.finish().named_parameters()) == 6


def test_a_container_of_modules_that_are_trained_anyway_is_none_of_our_business():
    own = Own("layers", "a", 1)
    own.by_name = {"first": own.layers[0], "pair": (own.layers[1], own.layers[2].weight)}
    assert len(own.finish().named_parameters()) == 6


# ---- units ---------------------------------------------------------------------------------------


class Wide(nn.Module):
    """Seven layers of 64 KiB, two of them in a Sequential."""

    def __init__(self):
        self.loss = nn.MeanSquaredError()
        self.layers = nn.ModuleList(nn.Linear(128, 128, bias=False) for _ in range(5))
        self.rest = nn.Sequential(nn.Linear(128, 128, bias=False), nn.Linear(128, 128, bias=False))

    def forward(self, x):
        for layer in (*self.layers, self.rest):
            x = layer(x)
        return x


class InBlocks(Wide):
    def blocks(self):
        return [
            *((f"layers.{index}", layer) for index, layer in enumerate(self.layers)),
            ("rest.0", self.rest[0]),
            ("rest.1", self.rest[1]),
        ]


class InOneLargeBlock(nn.Module):
    """A block of seven layers, and one of a single layer."""

    def __init__(self):
        self.loss = nn.MeanSquaredError()
        self.body = Wide()
        self.head = nn.Linear(128, 128, bias=False)

    def blocks(self):
        return [("body", self.body), ("head", self.head)]


def warnings_of(make, num_ranks, steps=0):
    """Return what was warned of while this model was made on all ranks, and the most bytes that
    rank 0 gathered in its steps.
    """

    def run(backend):
        model = make(sk.ShardingConfiguration(backend, overlap=False))
        for _ in range(steps):
            model.train(numpy.ones((2, 128), "float32"), numpy.ones((2, 128), "float32"))
        model.deep_copy()
        return device_of(model).accounts.peak_bytes("gathered parameters")

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        peaks = sk.run_ranks(num_ranks, run)
    return [str(each.message) for each in caught if each.category is sk.ShardingWarning], peaks[0]


@pytest.mark.parametrize(
    "make",
    [
        lambda config: sk.FSDPModel(InOneLargeBlock(), config),
        lambda config: sk.HybridShardedModel(InOneLargeBlock(), config),
    ],
    ids=["FSDP", "hybrid"],
)
def test_a_block_that_is_most_of_the_model_is_named_once_with_what_it_costs(make):
    (told,), peak = warnings_of(make, 2, steps=1)
    assert peak == 7 << 16
    assert told.startswith("block body of InOneLargeBlock.blocks() is one unit of 448 KiB")
    assert "64 KiB at a time" in told


@pytest.mark.parametrize("module", [InBlocks, Wide], ids=["in blocks", "by calls"])
def test_blocks_and_modules_are_gathered_one_at_a_time_and_nothing_is_said(module):
    assert warnings_of(lambda config: sk.FSDPModel(module(), config), 2, steps=1) == ([], 1 << 16)


@pytest.mark.parametrize(
    "make, num_ranks",
    [
        (lambda config: sk.FSDPModel(InOneLargeBlock(), config), 1),
        (lambda config: sk.DDPModel(InOneLargeBlock(), config), 2),
        (lambda config: sk.ZeRO2Model(InOneLargeBlock(), config), 2),
        (lambda config: sk.FSDPModel(Own("layers", "a", 1), config), 2),
        (lambda config: sk.FSDPModel(nn.Linear(128, 128), config), 2),
        (lambda config: sk.FSDPModel(sk.models.MLP([128, 128, 128]), config), 2),
    ],
    ids=["one rank", "DDP", "ZeRO-2", "tiny", "one layer", "MLP"],
)
def test_nothing_is_said_where_other_units_would_save_nothing(make, num_ranks):
    assert warnings_of(make, num_ranks)[0] == []
