"""sk.load: a model ready to predict from a path or bytes; safetensors of any module."""

import numpy
import pytest

import shardkit as sk
from shardkit import nn
from shardkit.nn import Buffer
from shardkit.testing.checkpoint import write_tensors
from shardkit.testing.nn import Fill

X = numpy.random.default_rng(0).standard_normal((4, 3)).astype("float32")
Y = X[:, :2] * 2


class Net(nn.Module):
    """Importable, with a configuration, a buffer and a tied weight."""

    loss = nn.MeanSquaredError()

    def __init__(self, width=4, seed=0):
        self.width = width
        self.up = nn.Linear(3, width)
        self.same = nn.Linear(3, width)
        self.same.weight = self.up.weight
        self.down = nn.Linear(width, 2)
        self.mean = Buffer(3, Fill(0.0))
        self.steps = Buffer((), Fill(0), "int64")
        self.mask = Buffer(X[:, 0] > seed)
        self.finish(seed)

    def configuration(self):
        return {"width": self.width}

    def forward(self, x):
        x = nn.ops.add(x, 0.0)
        self.steps.advance()
        self.mean.observe(x.array.mean(0))
        return self.down(self.up(x - self.mean) + self.same(x))


def trained(backend, module):
    config = sk.ShardingConfiguration(backend, optimizer=sk.AdamW(lr=0.1))
    model = sk.FSDPModel(module, config)
    for _ in range(2):
        model.train(*sk.split_batch(model.mesh, X, Y))
    return model


def written(module, folder=None, num_ranks=2):
    """(image, prediction) of the trained module; the checkpoint is in the folder."""

    def run(backend):
        model = trained(backend, module())
        if folder is not None:
            model.save_model(folder)
        return model.serialize(), model.predict(X)

    return sk.run_ranks(num_ranks, run)[0]


def gpt():
    return sk.models.GPT(16, 4, width=8, layers=1, heads=2)


@pytest.mark.parametrize("module", [Net, lambda: sk.models.MLP([3, 5, 2], dtype="float32")])
def test_a_checkpoint_and_an_image_are_models_that_predict_what_the_run_did(module, tmp_path):
    image, expected = written(module, tmp_path)
    for source in (tmp_path, str(tmp_path), image):
        model = sk.load(source)
        numpy.testing.assert_array_equal(model.predict(X), expected)


def test_a_gpt_is_loaded_too(tmp_path):
    def run(backend):
        model = sk.DDPModel(gpt(), sk.ShardingConfiguration(backend))
        model.save_model(tmp_path)
        return model.predict(numpy.arange(8).reshape(2, 4))

    expected = sk.run_ranks(1, run)[0]
    tokens = numpy.arange(8).reshape(2, 4)
    numpy.testing.assert_array_equal(sk.load(tmp_path).predict(tokens), expected)


def test_buffers_and_active_features_come_with_the_model():
    image, _ = written(Net)
    model = sk.load(image)
    assert model.steps.item() == 2 and model.mean.numpy().any()

    def run(backend):
        model = sk.DDPModel(sk.models.MLP([3, 2]), sk.ShardingConfiguration(backend))
        model.set_active_feature_indices([0, 2])
        return model.serialize()

    assert sk.load(sk.run_ranks(1, run)[0]).features.active == (0, 2)


def test_a_class_that_cannot_be_imported_wants_a_factory():
    class Local(Net):
        pass

    image, expected = written(Local)
    with pytest.raises(sk.CheckpointError, match="cannot be imported .*pass factory="):
        sk.load(image)
    for factory in (Local, lambda: Local(4)):
        numpy.testing.assert_array_equal(sk.load(image, factory).predict(X), expected)


@pytest.mark.parametrize(
    "factory, message",
    [
        (lambda: Net(5), "is of another model than this Net: "),
        (lambda: nn.Linear(3, 2), "missing here"),
        (lambda: 3, "returned a int; wanted an nn.Module"),
        (lambda: sk.models.MLP([3]), "cannot be built from its configuration"),
    ],
)
def test_a_factory_of_another_model_is_refused(factory, message):
    image, _ = written(Net)
    with pytest.raises(sk.CheckpointError, match=message):
        sk.load(image, factory)


def test_damaged_bytes_and_missing_folders_are_refused(tmp_path):
    image, _ = written(Net)
    with pytest.raises(sk.CheckpointError, match="no whole image"):
        sk.load(image[:-1])
    with pytest.raises(FileNotFoundError):
        sk.load(tmp_path / "nowhere")
    with pytest.raises(sk.CheckpointError, match="holds no averaged weights"):
        sk.load(image, averaged=True)


def test_a_model_without_weights_says_where_they_are(tmp_path):
    written(lambda: sk.models.MLP([3, 5, 2]), tmp_path)
    with pytest.raises(sk.ShardingError, match=r"sk.load\("):
        sk.models.MLP.from_checkpoint(tmp_path).predict(X)


# ---- safetensors ---------------------------------------------------------------------------------


def test_any_module_goes_to_safetensors_and_back(tmp_path):
    image, expected = written(Net)
    path = tmp_path / "net.safetensors"
    sk.save_safetensors(sk.load(image), path)
    other = Net(seed=9)
    assert sk.load_safetensors(other, path) == {"missing_names": [], "unexpected_names": []}
    numpy.testing.assert_array_equal(other.predict(X), expected)
    assert other.steps.item() == 2 and other.mask.array.tolist() == (X[:, 0] > 0).tolist()
    assert [file.name for file in tmp_path.iterdir()] == ["net.safetensors"]


def test_names_of_one_side_only_are_listed_or_refused(tmp_path):
    path = tmp_path / "net.safetensors"
    sk.save_safetensors(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2)).finish(1), path)
    module = nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2)).finish(2)
    before = module.state_dict()
    with pytest.raises(sk.CheckpointError, match="does not fit Sequential|0 names missing"):
        sk.load_safetensors(nn.Sequential(nn.Linear(3, 2)).finish(0), path)
    with pytest.raises(sk.ShapeError, match="1.weight"):
        sk.load_safetensors(module, path, strict=False)
    assert all((before[name] == array).all() for name, array in module.state_dict().items())
    report = sk.load_safetensors(nn.Sequential(nn.Linear(3, 2)).finish(0), path, strict=False)
    assert report == {"missing_names": [], "unexpected_names": ["1.weight", "1.bias"]}


def test_a_shared_parameter_may_be_stored_under_each_of_its_names(tmp_path):
    path, net = tmp_path / "net.safetensors", Net(seed=1)
    state = net.state_dict()
    assert "same.weight" not in state

    def write(shared):
        both = {**state, "same.weight": shared}
        shapes = {name: array.shape for name, array in both.items()}
        dtypes = {name: str(array.dtype) for name, array in both.items()}
        write_tensors(path, shapes, dtypes, both.values())

    write(state["up.weight"])
    other = Net(seed=2)
    assert sk.load_safetensors(other, path) == {"missing_names": [], "unexpected_names": []}
    numpy.testing.assert_array_equal(other.predict(X), net.predict(X))
    write(state["up.weight"] + 1)
    with pytest.raises(sk.CheckpointError, match="same.weight differs .*both are up.weight"):
        sk.load_safetensors(other, path)


@pytest.mark.parametrize(
    "name, other, stored",
    (("steps", "float32", "F32"), ("steps", "float64", "F64"), ("mask", "int64", "I64")),
)
def test_integers_are_not_read_from_floats_nor_masks_from_integers(name, other, stored, tmp_path):
    path = tmp_path / "net.safetensors"
    module = Net()
    setattr(module, name, Buffer(getattr(module, name).shape, Fill(0), other))
    sk.save_safetensors(module.finish(0), path)
    with pytest.raises(sk.CheckpointError, match=f"{name} is of type {stored}"):
        sk.load_safetensors(Net(), path)


def test_the_package_of_that_name_reads_what_is_written(tmp_path):
    safetensors = pytest.importorskip("safetensors.numpy")
    path, net = tmp_path / "net.safetensors", Net()
    sk.save_safetensors(net, path)
    found = safetensors.load_file(path)
    assert found.keys() == net.state_dict().keys()
    assert all((found[name] == array).all() for name, array in net.state_dict().items())
    safetensors.save_file({name: array for name, array in found.items()}, path)
    sk.load_safetensors(Net(seed=4), path)
