"""Parameters and buffers without elements, on every way that a model is saved and loaded.

A checkpoint holds elements, so it holds nothing of them, and none of them is missing in one.
"""

import io
import warnings

import numpy
import pytest

import shardkit as sk
from shardkit.testing.checkpoint import image_of, read_image
from shardkit.testing.nn import Fill

RNG = numpy.random.default_rng(0)
X, Y = RNG.normal(size=(8, 4)), RNG.normal(size=(8, 2))
SHAPES = {"none": (0,), "row": (3, 0), "scalar": (), "whole": (2,)}
EMPTY = ("none", "row")


class Several(sk.nn.Module):
    """A linear model that keeps what these names say beside it: buffer_none, parameter_row ..."""

    def __init__(self, *kinds):
        super().__init__()
        self.linear = sk.nn.Linear(4, 2, dtype="float64")
        for kind in kinds:
            what, shape, *dtype = kind.split("_")
            made = sk.nn.Parameter if what == "parameter" else sk.nn.Buffer
            setattr(self, kind, made(SHAPES[shape], Fill(1.0), *(dtype or ["float64"])))
        self.loss = sk.nn.MSELoss()

    def forward(self, x):
        return self.linear(x)


CASES = [
    ("buffer_none",),
    ("buffer_none_int64",),
    ("buffer_row",),
    ("parameter_none",),
    ("parameter_row",),
    ("buffer_none", "buffer_row", "buffer_scalar", "parameter_none", "parameter_row"),
    ("buffer_scalar", "buffer_whole", "parameter_none"),
]


def made(backend, kind, names, seed=0):
    """Return an optimizer with a sharded model of these."""
    config = sk.ShardingConfiguration(backend, minimum_parameter_group_size=1)
    optimizer = getattr(sk, f"{kind}Optimizer")
    return optimizer(sk.AdamW(lr=0.1), config, model=Several(*names).finish(seed))


def weights(optimizer):
    return optimizer.model.gather_full_parameters().tobytes()


def through_checkpoint(one, other, folder):
    one.save_model(folder / "own")
    other.load_model(folder / "own")


def through_background(one, other, folder):
    one.save_model_async(folder / "own").wait()
    other.load_model(folder / "own")


def through_model(one, other, folder):
    one.model.save_model(folder / "own")
    other.model.load_model(folder / "own", only="model")


def through_image(one, other, folder):
    other.deserialize(one.serialize())


def through_state(one, other, folder):
    file = io.BytesIO()
    one.save_state(file)
    other.load_state(io.BytesIO(file.getvalue()))


WAYS = [through_checkpoint, through_background, through_model, through_image, through_state]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("names", CASES)
@pytest.mark.parametrize("kind", ["DDP", "FSDP"])
@pytest.mark.thorough(but=12)
def test_a_model_with_empty_tensors_comes_back(kind, names, way, tmp_path):
    def on_rank(backend):
        one, other = made(backend, kind, names), made(backend, kind, names, seed=5)
        one.model.train(X, Y)
        before = weights(one)
        assert weights(other) != before
        way(one, other, tmp_path)
        assert weights(other) == before
        one.model.train(X, Y)
        other.model.train(X, Y)
        return weights(other) == weights(one) or way is through_model

    assert all(sk.run_ranks(2, on_rank))


@pytest.mark.parametrize("names", CASES)
def test_one_process_loads_and_writes_them(names, tmp_path):
    def on_rank(backend):
        one = made(backend, "FSDP", names)
        one.save_model(tmp_path / "own")
        image = one.serialize()
        return image, weights(one)

    ((image, before), _) = sk.run_ranks(2, on_rank)
    for place in (tmp_path / "own", image):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = sk.load(place, factory=lambda: Several(*names))
        vector = numpy.concatenate([numpy.ravel(each) for each in ordered(model)])
        assert vector.astype("float64").tobytes() == before
        sk.save_safetensors(model, tmp_path / "own.safetensors")
        other = Several(*names).finish(5)
        found = sk.load_safetensors(other, tmp_path / "own.safetensors")
        assert found == {"missing_names": [], "unexpected_names": []}
        assert {name: numpy.shape(each) for name, each in other.state_dict().items()} == {
            name: numpy.shape(each) for name, each in model.state_dict().items()
        }


def ordered(model):
    return [parameter.array for parameter in model.named_parameters().values()]


def test_one_that_has_elements_is_still_missed(tmp_path):
    def on_rank(backend):
        made(backend, "DDP", ["parameter_none", "buffer_none"]).save_model(tmp_path)
        with pytest.raises(sk.CheckpointError, match="parameter_whole is missing"):
            made(backend, "DDP", ["parameter_whole"]).load_model(tmp_path)
        with pytest.warns(UserWarning, match="holds no buffers; buffer_whole begin"):
            made(backend, "DDP", ["buffer_whole"]).load_model(tmp_path)

    sk.run_ranks(1, on_rank)


def test_an_image_that_lists_them_is_read_as_one_that_does_not():
    """As older releases wrote it."""
    names = ["buffer_none", "buffer_whole", "parameter_none"]

    def on_rank(backend):
        one, other = made(backend, "FSDP", names), made(backend, "FSDP", names, seed=5)
        tensors, description = read_image(one.serialize())
        tensors |= {"buffers/buffer_none": numpy.zeros(0), "model/parameter_none": numpy.zeros(0)}
        other.deserialize(image_of(tensors, description))
        return weights(other) == weights(one)

    assert all(sk.run_ranks(2, on_rank))
