"""The safetensors format: read and written as the reference implementation does, and damage noticed
before memory is taken.
"""

import json

import numpy
import pytest

import shardkit as sk
from shardkit.testing.checkpoint import read_header, write_tensors

SHAPES = {"a": (3, 4), "b": (5,), "empty": (0, 2), "c": (2, 2, 2)}


def arrays(dtype):
    generator = numpy.random.default_rng(0)
    return {name: generator.normal(size=shape).astype(dtype) for name, shape in SHAPES.items()}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_is_written_is_read_again_whole_and_in_parts(dtype, tmp_path):
    values = arrays(dtype)
    write_tensors(tmp_path / "x", SHAPES, dtype, values.values())
    stored = read_header(tmp_path / "x")
    assert {name: tensor.shape for name, tensor in stored.items()} == SHAPES
    for name, array in values.items():
        numpy.testing.assert_array_equal(stored[name].read(dtype), array)
        numpy.testing.assert_array_equal(
            stored[name].read(dtype, (..., slice(1, 2))), array[..., 1:2]
        )
    assert stored["a"].read("float32").dtype == "float32"


def test_values_of_another_byte_order_and_stride_are_written_the_same(tmp_path):
    array = numpy.arange(12.0).reshape(3, 4)
    write_tensors(tmp_path / "x", {"a": (4, 3)}, "float64", [array.astype(">f8").T])
    numpy.testing.assert_array_equal(read_header(tmp_path / "x")["a"].read("float64"), array.T)


class Scaled(sk.nn.Module):
    def __init__(self, dtype):
        self.scale = sk.nn.Parameter(numpy.array([1.5, -2.0, 3e38]), dtype=dtype)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_parameters_of_any_dtype_are_written_and_read_with_their_bits(dtype, tmp_path):
    model, other = Scaled(dtype).finish(0), Scaled(dtype).finish(0)
    other.scale.array = numpy.zeros(3)
    sk.save_safetensors(model, tmp_path / "x")
    sk.load_safetensors(other, tmp_path / "x")
    assert other.scale.array.tobytes() == model.scale.array.tobytes()
    torch = pytest.importorskip("safetensors.torch")
    assert str(torch.load_file(tmp_path / "x")["scale"].dtype) == f"torch.{dtype}"


def test_numbers_that_the_model_cannot_hold_are_refused(tmp_path):
    write_tensors(tmp_path / "x", {"scale": (3,)}, "float64", [numpy.array([1.0, -1e300, 2.0])])
    model = Scaled("float32").finish(0)
    with pytest.raises(sk.ConfigurationError, match="-1e.300 in parameter scale of float32"):
        sk.load_safetensors(model, tmp_path / "x")
    assert model.scale.array[0] == 1.5


def test_the_reference_implementation_reads_what_is_written_and_writes_what_is_read(tmp_path):
    reference, safe_open = (
        pytest.importorskip("safetensors.numpy"),
        pytest.importorskip("safetensors").safe_open,
    )
    values = arrays("float32")
    write_tensors(tmp_path / "ours", SHAPES, "float32", values.values())
    reference.save_file(values, tmp_path / "theirs", {"made": "by the reference"})
    loaded, stored = reference.load_file(tmp_path / "ours"), read_header(tmp_path / "theirs")
    assert loaded.keys() == stored.keys() == values.keys()
    with safe_open(tmp_path / "ours", "np") as file:
        assert file.metadata() == {"format": "pt"}  # without it, transformers 4 refuses the file
    for name, array in values.items():
        numpy.testing.assert_array_equal(loaded[name], array)
        numpy.testing.assert_array_equal(stored[name].read("float32"), array)


def header(entries, numbers=b"", length=None):
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + numbers


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


DAMAGED = {
    "empty": b"",
    "a few bytes": b"abc",
    "a header longer than the file": header({}, length=100),
    "a header longer than memory": header({}, length=2**63),
    "no JSON": header(b"{{{{"),
    "a list": header([1]),
    "deep JSON": header(b"[" * 100_000),
    "no UTF-8": header(b'{"\xff": 1}'),
    "an entry that is a number": header({"a": 1}),
    "a shape that is text": header({"a": entry(shape="ab")}, bytes(8)),
    "a negative shape": header({"a": entry(shape=[-2])}, bytes(8)),
    "a shape of booleans": header({"a": entry(shape=[True, True], offsets=(0, 4))}, bytes(4)),
    "a shape that is too large": header({"a": entry(shape=[2**62])}, bytes(8)),
    "offsets backwards": header({"a": entry(offsets=(8, 0))}, bytes(8)),
    "numbers cut short": header({"a": entry()}, bytes(7)),
    "numbers too long": header({"a": entry()}, bytes(9)),
    "a hole": header({"a": entry(offsets=(4, 12))}, bytes(12)),
    "two tensors in one place": header({"a": entry(), "b": entry()}, bytes(8)),
    "a name twice": header(b'{"a": %s, "a": %s}' % ((json.dumps(entry()).encode(),) * 2), bytes(8)),
    "three offsets": header({"a": entry(offsets=(0, 4, 8))}, bytes(8)),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_header_is_a_checkpoint_error(damage, tmp_path):
    (tmp_path / "x").write_bytes(DAMAGED[damage])
    with pytest.raises(sk.CheckpointError, match="/x"):
        read_header(tmp_path / "x")
