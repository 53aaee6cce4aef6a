"""Parameters are made late and lent their memory; modules name what they are made of."""

import copy

import numpy
import pytest
from checkpoints import edit_manifest, rows, save_boxes

import shardkit as sk
from shardkit import (
    AutogradError,
    CheckpointError,
    ConfigurationError,
    ShapeError,
    ShardingError,
    nn,
)
from shardkit.nn import (
    Dropout,
    LayerNorm,
    Linear,
    Module,
    ModuleList,
    Parameter,
    Sequential,
    Tensor,
    ops,
)
from shardkit.testing.nn import Normal


class Tree(Module):
    """Parameters before, between and after modules."""

    def __init__(self):
        self.scale = Parameter((3,), Normal(1.0), "float64")
        self.first = Linear(3, 4, dtype="float64")
        self.rest = ModuleList(
            [LayerNorm(4, dtype="float64"), Linear(4, 3, bias=False, dtype="float64")]
        )
        self.shift = Parameter((), Normal(1.0), "float64")

    def forward(self, x):
        x = self.first(x * self.scale)
        for layer in self.rest:
            x = layer(x)
        return x + self.shift


TREE_NAMES = [
    "scale",
    "first.weight",
    "first.bias",
    "rest.0.weight",
    "rest.0.bias",
    "rest.1.weight",
    "shift",
]


def parameter(shape=(2, 3), *, name="a.weight", seed=1, dtype="float32"):
    made = Parameter(shape, Normal(1.0), dtype)
    made.name, made.seed = name, seed
    return made


# ---- one parameter -------------------------------------------------------------------------------


def test_asking_what_a_parameter_is_does_not_make_its_array():
    p = parameter((1 << 40, 1 << 10))  # could never be made
    assert (p.shape, p.ndim, p.size, p.dtype) == ((1 << 40, 1 << 10), 2, 1 << 50, numpy.float32)
    assert "fresh" in repr(p) and p.is_fresh and p.requires_grad and p.is_parameter and p.is_leaf


def test_a_span_of_a_fresh_parameter_leaves_it_fresh():
    p = parameter((1 << 40, 1 << 10))
    assert p.initial_span(1 << 49, (1 << 49) + 4).shape == (4,) and p.is_fresh


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_first_access_makes_the_initial_values(dtype):
    p = parameter(dtype=dtype)
    assert numpy.array_equal(p.array, Normal(1.0).span(1, "a.weight", 0, 6, dtype).reshape(2, 3))
    assert p.array is p.array and p.array.dtype == dtype and not p.is_fresh


def test_initial_spans_equal_the_array_made_at_once():
    spans = numpy.concatenate([parameter().initial_span(0, 2), parameter().initial_span(2, 6)])
    assert numpy.array_equal(spans, parameter().array.reshape(-1))


def test_the_span_of_a_bound_parameter_is_read_from_its_array():
    p = parameter()
    p.array = numpy.arange(6).reshape(2, 3)
    assert p.initial_span(2, 5).tolist() == [2, 3, 4]


def test_a_bound_parameter_is_exactly_the_view_it_was_lent():
    buffer = numpy.zeros(10, "float32")
    p = parameter()
    p.bind(buffer[2:8].reshape(2, 3))
    buffer[2:8] = 1
    assert (p.array == 1).all() and p.array.base is buffer


@pytest.mark.parametrize(
    "view", [numpy.zeros((3, 2), "float32"), numpy.zeros(6, "float32"), numpy.zeros((2, 3))]
)
def test_binding_a_view_of_another_shape_or_dtype_is_refused(view):
    with pytest.raises(ShapeError, match="a.weight is \\(2, 3\\) float32"):
        parameter().bind(view)


def test_a_released_parameter_cannot_be_read_and_says_its_name():
    p = parameter()
    p.release()
    for read in (lambda: p.array, lambda: p.initial_span(0, 1), lambda: ops.sum(p)):
        with pytest.raises(ShardingError, match="a.weight was released"):
            read()
    assert not p.is_fresh and p.shape == (2, 3) and "released" in repr(p)


def test_a_released_parameter_can_be_bound_again():
    p = parameter()
    p.release()
    p.bind(numpy.full((2, 3), 7, "float32"))
    assert p.array.sum() == 42


def test_a_backward_uses_the_values_bound_between_forward_and_backward():
    w, x = parameter((2, 3)), Tensor(numpy.ones((1, 3), "float32"), requires_grad=True)
    w.bind(numpy.ones((2, 3), "float32"))
    y = ops.sum(ops.linear(x, w))
    w.release()
    w.bind(numpy.ones((2, 3), "float32"))  # gathered again into another buffer
    y.backward()
    assert x.grad.tolist() == [[2, 2, 2]]


def test_a_backward_through_a_view_uses_the_values_bound_in_between():
    w = parameter((2, 3))
    w.bind(numpy.ones((2, 3), "float32"))
    z = ops.sum(ops.power(ops.transpose(w, 0, 1), 2.0))
    w.release()
    with pytest.raises(ShardingError, match="was released"):
        z.backward(retain_graph=True)
    w.bind(numpy.full((2, 3), 3, "float32"))
    z.backward()
    assert w.grad.tolist() == [[6, 6, 6], [6, 6, 6]]


def test_changing_the_values_between_forward_and_backward_raises():
    w = parameter((2, 3))
    y = ops.sum(w * w)
    w.array = numpy.zeros((2, 3))
    with pytest.raises(AutogradError, match="changed in place"):
        y.backward()


def test_setting_the_array_copies_and_keeps_the_dtype():
    p, values = parameter(), numpy.arange(6.0).reshape(2, 3)
    p.array = values
    values[...] = -1
    assert p.array.tolist() == [[0, 1, 2], [3, 4, 5]] and p.array.dtype == numpy.float32


def test_setting_an_array_of_another_shape_is_refused_even_where_it_would_broadcast():
    p = parameter()
    with pytest.raises(ShapeError, match="a.weight has shape \\(2, 3\\)"):
        p.array = numpy.zeros(3)
    assert p.is_fresh


def test_a_parameter_without_name_and_seed_asks_for_finish():
    with pytest.raises(ShardingError, match="call finish"):
        Linear(3, 4).forward(Tensor(numpy.zeros((1, 3), "float32")))


def test_a_module_that_is_called_first_is_finished_with_seed_0():
    x = numpy.ones((1, 3), "float32")
    assert (Linear(3, 4)(x).array == Linear(3, 4).finish(0)(x).array).all()


def test_integers_cannot_be_parameters():
    with pytest.raises(AutogradError, match="floating point"):
        Parameter((2,), Normal(1.0), "int64")


def test_gradients_are_added_to_the_view_that_was_bound():
    buffer, p = numpy.zeros(8, "float32"), parameter((2, 3))
    p.grad = buffer[1:7].reshape(2, 3)
    ops.sum(p * 2.0).backward()
    ops.sum(p * 3.0).backward()
    assert buffer.tolist() == [0] + [5] * 6 + [0]


# ---- names ---------------------------------------------------------------------------------------


def test_names_follow_the_order_of_assignment_depth_first():
    assert list(Tree().named_parameters()) == TREE_NAMES


def test_modules_are_listed_with_their_paths_parents_first():
    assert list(Tree().named_modules()) == ["", "first", "rest", "rest.0", "rest.1"]


def test_finish_gives_every_parameter_its_dotted_name_and_the_seed():
    tree = Tree().finish(5)
    assert [(p.name, p.seed) for p in tree.parameters()] == [(name, 5) for name in TREE_NAMES]
    assert tree.rest[1].path_in_model == "rest.1" and tree.path_in_model == ""


def test_finishing_twice_or_finishing_a_part_changes_nothing():
    tree = Tree().finish(5)
    tree.finish(6)
    tree.first.finish(7)
    assert [(p.name, p.seed) for p in tree.parameters()] == [(name, 5) for name in TREE_NAMES]


def test_finished_models_inside_a_larger_one_get_longer_names_and_keep_their_seed():
    outer = Sequential(sk.models.MLP([2, 2], seed=3), sk.models.MLP([2, 2], seed=3)).finish(9)
    first, second = [module.layers[0].weight for module in outer]
    assert (first.name, second.name, second.seed) == ("0.layers.0.weight", "1.layers.0.weight", 3)
    assert not numpy.array_equal(first.array, second.array)


def test_a_parameter_with_two_names_is_listed_once_under_the_first():
    tree = Tree()
    tree.twice = tree.first
    tree.rest[1].weight = tree.first.weight
    assert list(tree.named_parameters()) == [
        "scale",
        "first.weight",
        "first.bias",
        "rest.0.weight",
        "rest.0.bias",
        "shift",
    ]
    assert list(tree.rest.named_parameters()) == ["0.weight", "0.bias", "1.weight"]


def test_a_plain_list_of_modules_is_refused_because_it_would_not_be_trained():
    class Wrong(Module):
        def __init__(self):
            self.layers = [Linear(2, 2), Linear(2, 2)]

    with pytest.raises(ConfigurationError, match="Wrong.layers is a plain list.*ModuleList"):
        Wrong().finish()


def test_a_module_list_takes_modules_only():
    with pytest.raises(TypeError, match="element 1 of ModuleList is int"):
        ModuleList([Linear(2, 2), 3])


def test_a_module_without_forward_says_so():
    with pytest.raises(NotImplementedError, match="Empty has no forward"):
        type("Empty", (Module,), {})()(None)


def test_the_parameter_count_counts_tied_parameters_once():
    tree = Tree()
    assert tree.parameter_count == 3 + 12 + 4 + 4 + 4 + 12 + 1
    tree.rest[1].weight = Parameter((3, 4), Normal(1.0))
    tree.first.weight = tree.rest[1].weight
    assert tree.parameter_count == 3 + 12 + 4 + 4 + 4 + 1


def test_a_module_is_one_block_unless_it_says_otherwise_and_a_sequential_is_its_children():
    tree, row = Tree(), Sequential(Linear(2, 3), LayerNorm(3))
    assert tree.blocks() == [("", tree)]
    assert row.blocks() == [("0", row[0]), ("1", row[1])]


# ---- values --------------------------------------------------------------------------------------


def test_a_state_dict_loads_into_a_model_of_another_seed_bit_for_bit():
    source, target, x = Tree().finish(1), Tree().finish(2), numpy.ones((2, 3))
    assert not numpy.array_equal(source.predict(x), target.predict(x))
    target.load_state_dict(source.state_dict())
    assert numpy.array_equal(source.predict(x), target.predict(x))


def test_a_state_dict_is_a_copy():
    tree = Tree().finish()
    state = tree.state_dict()
    state["scale"][...] = 99
    assert list(state) == TREE_NAMES and not (tree.scale.array == 99).any()


@pytest.mark.parametrize(
    "change, error, message",
    [
        (lambda s: s.pop("shift"), CheckpointError, "1 names missing \\(shift\\)"),
        (lambda s: s.update(extra=numpy.zeros(1)), CheckpointError, "1 unknown \\(extra\\)"),
        (lambda s: s.update(shift=numpy.zeros(2)), ShapeError, "parameter shift has shape \\(\\)"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(change, error, message):
    tree = Tree().finish(1)
    before, state = tree.state_dict(), Tree().finish(2).state_dict()
    change(state)
    with pytest.raises(error, match=message):
        tree.load_state_dict(state)
    assert all(numpy.array_equal(value, before[name]) for name, value in tree.state_dict().items())


class Tied(nn.Module):
    """What PyTorch names twice: a weight, a layer, its buffers; and a child that has its owner."""

    def __init__(self):
        self.enter, self.leave = nn.Linear(3, 3, bias=False), nn.Linear(3, 3)
        self.leave.weight = self.enter.weight
        self.norm = nn.BatchNorm1d(3)
        self.again = nn.Sequential(self.norm, self.leave)
        self.leave.owner = self


def torch_state(make=lambda tensor: tensor):
    """The state dict of that module in PyTorch."""
    torch = pytest.importorskip("torch")
    tied = torch.nn.Module()
    tied.enter, tied.leave = torch.nn.Linear(3, 3, bias=False), torch.nn.Linear(3, 3)
    tied.leave.weight = tied.enter.weight
    tied.norm = torch.nn.BatchNorm1d(3)
    tied.again = torch.nn.Sequential(tied.norm, tied.leave)
    return {name: make(tensor) for name, tensor in tied.state_dict(keep_vars=True).items()}


@pytest.mark.parametrize(
    "make",
    [
        lambda tensor: tensor,  # a parameter, which takes a gradient
        lambda tensor: tensor.detach().numpy(),
        lambda tensor: tensor.bfloat16() if tensor.is_floating_point() else tensor,
    ],
    ids=["parameters", "arrays", "bfloat16"],
)
def test_a_state_dict_of_torch_fits_with_all_names_of_what_is_tied(make):
    state, module = torch_state(make), Tied().finish(7)
    assert module.load_state_dict(state) == {"missing_names": [], "unexpected_names": []}
    loaded = module.state_dict()
    assert {*loaded} < {*state}  # which has others for the same
    for name, values in loaded.items():
        wanted = state[name]
        wanted = wanted if isinstance(wanted, numpy.ndarray) else wanted.detach().double().numpy()
        assert numpy.array_equal(values, wanted), name


@pytest.mark.parametrize(
    "name, values, error, message",
    [
        ("leave.weight", numpy.ones((3, 3)), CheckpointError, "both are enter.weight in this Tied"),
        ("again.1.bias", numpy.ones(3), CheckpointError, "both are leave.bias"),
        ("norm.running_var", numpy.full(3, 1j), CheckpointError, "both are norm.running_var"),
        ("norm.num_batches_tracked", numpy.array(0.5), ConfigurationError, "0.5 in .* of int64"),
        ("leave.bias", numpy.full(3, 1j), ShapeError, "complex128; wanted real"),
    ],
)
def test_a_state_that_is_wrong_in_its_last_value_changes_nothing(name, values, error, message):
    module, state = Tied().finish(7), Tied().finish(8).state_dict()
    before = module.state_dict()
    state["again.0.running_var"] = state["norm.running_var"]
    state["again.1.bias"] = state["leave.bias"].copy()
    state["leave.weight"] = state["enter.weight"]
    state[name] = values
    if name == "leave.bias":
        state["again.1.bias"] = values
    with pytest.raises(error, match=message):
        module.load_state_dict(state)
    assert all(numpy.array_equal(each, before[name]) for name, each in module.state_dict().items())


class Wrapped(Module):
    """A model of a user inside of another, which has names of two parts."""

    def __init__(self):
        self.tree = Tree()


ELSEWHERE = {  # what files of others hold: (made of a state, what is said)
    "DataParallel": (lambda s: {f"module.{n}": v for n, v in s.items()}, "behind 'module.'"),
    "compile": (lambda s: {f"_orig_mod.{n}": v for n, v in s.items()}, "behind '_orig_mod.'"),
    "a wrapper": (lambda s: {n.removeprefix("tree."): v for n, v in s.items()}, "without 'tree.'"),
    "a checkpoint": (lambda s: {"epoch": 3, "state_dict": s}, r"pass state\['state_dict'\]"),
    "of another model": (lambda s: {"other": numpy.ones(1)}, r"1 unknown \(other\)$"),
}


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("case", ELSEWHERE)
def test_a_state_whose_names_are_elsewhere_is_refused_and_told_where(case, strict):
    change, words = ELSEWHERE[case]
    module = Wrapped().finish(1)
    before, state = module.state_dict(), Wrapped().finish(2).state_dict()
    with pytest.raises(CheckpointError, match=words):
        module.load_state_dict(change(state), strict=strict)
    assert all(numpy.array_equal(each, before[name]) for name, each in module.state_dict().items())


def test_what_is_no_state_is_refused_with_what_to_pass():
    for given, words in ((Tree(), "got Tree: pass its state_dict"), ("x.pt", "torch.load")):
        with pytest.raises(TypeError, match=words):
            Tree().load_state_dict(given)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_finite_number_does_not_become_infinite(dtype):
    given = parameter(dtype=dtype)
    with pytest.raises(ConfigurationError, match=f"e.300 in .* of {dtype}, which cannot hold it"):
        given.array = numpy.full((2, 3), -1e300)
    given.array = numpy.full((2, 3), -numpy.inf)
    assert numpy.isinf(given.array).all()


@pytest.mark.parametrize("kind", ["sparse", "float8", "meta"])
def test_a_tensor_that_numpy_cannot_read_is_named(kind):
    torch = pytest.importorskip("torch")
    make = {
        "sparse": torch.Tensor.to_sparse,
        "float8": lambda tensor: tensor.to(torch.float8_e4m3fn),
        "meta": lambda tensor: tensor.to("meta"),
    }[kind]
    tree = Tree().finish(1)
    state = {**tree.state_dict(), "scale": make(torch.ones(3))}
    with pytest.raises(ShapeError, match="scale of the state .* NumPy cannot read .*to_dense"):
        tree.load_state_dict(state)


@pytest.mark.parametrize("values", [300.5, 2**40, -(2**40), numpy.nan, numpy.uint64(2**63)])
@pytest.mark.parametrize("dtype", ["int32", "bool"])
def test_a_buffer_is_not_set_to_what_its_dtype_does_not_hold(values, dtype):
    buffer = nn.Buffer(numpy.ones(2), dtype=dtype)
    with pytest.raises(ConfigurationError, match="cannot hold it; wanted other values"):
        buffer.array = numpy.full(2, values)
    assert buffer.array.tolist() == [1, 1]


def test_a_state_that_is_not_strict_loads_what_is_shared():
    tree = Tree().finish(1)
    tree.load_state_dict({"scale": numpy.full(3, 8.0), "extra": numpy.zeros(1)}, strict=False)
    assert tree.scale.array.tolist() == [8, 8, 8]


def test_a_deep_copy_has_memory_of_its_own_and_keeps_ties_and_states():
    tree = Tree().finish(1)
    tree.rest[1].weight = tree.first.weight
    tree.scale.array = numpy.zeros(3)
    tree.shift.release()
    twin = copy.deepcopy(tree)
    tree.scale.array = numpy.ones(3)
    assert (
        twin.scale.array.tolist() == [0, 0, 0]
        and twin.first.weight.is_fresh
        and twin.first.weight.name == "first.weight"
    )
    assert twin.rest[1].weight is twin.first.weight is not tree.first.weight
    with pytest.raises(ShardingError):
        twin.shift.array


def test_predict_neither_records_nor_drops():
    row = Sequential(Linear(2, 2), Dropout(0.9)).finish()
    x = numpy.ones((4, 2), "float32")
    assert isinstance(row.predict(x), numpy.ndarray)
    assert numpy.array_equal(row.predict(x), row[0].predict(x))


# ---- built from a checkpoint ---------------------------------------------------------------------


def write_checkpoint(store, model, step=1):
    """A checkpoint of one number, which says that this is its model; its folder."""
    folder = save_boxes(store, {"model/scale": (numpy.ones(1, "float32"), rows((1,), 1))}, step)
    edit_manifest(folder, lambda manifest: manifest.update(model=model))
    return folder


def described(model):
    return {"class": type(model).__name__, "configuration": model.configuration()}


MODELS = [
    sk.models.GPT(8, 4, 8, 1, 2, style="llama", tied=True, seed=3),
    sk.models.MLP([2, 3, 1], activation="relu", seed=4, dtype="float64"),
]


@pytest.mark.parametrize("model", MODELS, ids=["GPT", "MLP"])
def test_a_checkpoint_folder_rebuilds_the_model_without_its_weights(model, tmp_path):
    built = type(model).from_checkpoint(write_checkpoint(tmp_path, described(model)))
    assert built.configuration() == model.configuration()
    assert [(p.name, p.shape, p.dtype) for p in built.parameters()] == [
        (p.name, p.shape, p.dtype) for p in model.parameters()
    ]
    for parameter in built.parameters():
        with pytest.raises(ShardingError, match="no weights yet.*load_model"):
            parameter.array
    built.load_state_dict(model.state_dict())
    assert all(
        numpy.array_equal(a, b)
        for a, b in zip(built.state_dict().values(), model.state_dict().values())
    )


@pytest.mark.parametrize("folder", ["", "checkpoints"])
def test_a_run_folder_leads_to_its_newest_checkpoint(folder, tmp_path):
    for step, model in (1, sk.models.GPT(8, 4, 16, 1, 2)), (2, MODELS[0]):
        write_checkpoint(tmp_path / folder, described(model), step)
    assert sk.models.GPT.from_checkpoint(str(tmp_path)).configuration() == MODELS[0].configuration()


def test_a_folder_without_a_checkpoint_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="no checkpoint"):
        sk.models.GPT.from_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match="no checkpoint"):
        sk.models.GPT.from_checkpoint(tmp_path / "missing")


@pytest.mark.parametrize(
    "model, message",
    [
        ({"class": "MLP", "configuration": {"sizes": [1, 1]}}, "is of a MLP, not of a GPT"),
        ({"class": "GPT", "configuration": {"color": 3}}, "does not describe a GPT.*color"),
        ({"class": "GPT", "configuration": {}}, "no configuration"),
        ({"configuration": {}}, "has model = "),
        (None, "has model = "),
        (
            {**described(MODELS[0]), "configuration": MODELS[0].configuration() | {"heads": 3}},
            "does not describe a GPT.*3 heads",
        ),
    ],
)
def test_a_foreign_description_is_refused(model, message, tmp_path):
    with pytest.raises(CheckpointError, match=message):
        sk.models.GPT.from_checkpoint(write_checkpoint(tmp_path, model))


def test_a_manifest_that_is_not_json_is_refused(tmp_path):
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(CheckpointError, match="manifest.json is damaged"):
        sk.models.GPT.from_checkpoint(tmp_path)
