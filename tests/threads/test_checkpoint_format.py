"""The format page is true: other programs read what is written here, and what they write is read
here.
"""

import json
import re
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import h5py
import numpy
import pytest
import xxhash
from builders import small_gpt, token_batch, train

import shardkit as sk
from shardkit import nn
from shardkit.testing.checkpoint import Checkpoint
from shardkit.testing.nn import Normal
from shardkit.testing.parallel import training_state_of

PAGE = (Path(sk.__file__).parent / "checkpoint" / "FORMAT.md").read_text()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """(folder of a checkpoint by three ranks, {name: parameter})."""
    store = tmp_path_factory.mktemp("store")

    def on_rank(backend):
        model, _ = train("FSDP", backend, 1)
        folder = model.save_model(store)
        return Path(folder), model.gather_full_parameters()

    folder, vector = sk.run_ranks(3, on_rank)[0]
    parameters, at = {}, 0
    for name, parameter in small_gpt().named_parameters().items():
        parameters[name] = vector[at : at + parameter.size].reshape(parameter.shape)
        at += parameter.size
    return folder, parameters


def run_example(folder):
    """The page's example, on a process of its own that does not see shardkit."""
    code = re.search(r"## Reading.*?```python\n(.*?)```", PAGE, re.S)[1]
    code += (
        "\nimport sys; assert 'shardkit' not in sys.modules; "
        "print(float(weight.sum(dtype='float64')))"
    )
    return subprocess.run(
        [sys.executable, "-I", "-c", code], cwd=folder, capture_output=True, text=True, timeout=500
    )


def test_the_example_of_the_page_reads_a_tensor_whole_and_notices_damage(saved, tmp_path):
    folder, parameters = saved
    copy = tmp_path / "runs/gpt/checkpoints/step-00000300"
    shutil.copytree(folder, copy)
    done = run_example(tmp_path)
    assert done.returncode == 0, done.stderr
    weight = parameters["blocks.0.mlp.up.weight"]
    assert "float32 (64, 16) of step 1" in done.stdout
    assert float(done.stdout.split()[-1]) == float(weight.sum(dtype="float64"))
    (copy / "rank-00001.h5").write_bytes((copy / "rank-00001.h5").read_bytes()[:-1])
    assert "rank-00001.h5 is damaged" in run_example(tmp_path).stderr


def test_every_tensor_of_the_index_says_shape_dtype_step_and_mesh(saved):
    folder, parameters = saved
    with h5py.File(folder / "index.h5", "r") as index:
        assert set(index["model"]) == set(parameters)
        for name, values in parameters.items():
            tensor = index[f"model/{name}"]
            assert tensor.is_virtual and tuple(tensor.attrs["global_shape"]) == tensor.shape
            assert tensor.attrs["dtype"] == "float32" and tensor.attrs["step"] == 1
            sizes = {"pipeline": 1, "data": 3, "domain": 1, "tensor": 1}
            assert json.loads(tensor.attrs["mesh"]) == sizes
            numpy.testing.assert_array_equal(tensor[...], values)


def test_the_manifest_has_exactly_the_fields_of_the_page(saved):
    table = re.search(r"## manifest.json\n(.*?)\n\*\*", PAGE, re.S)[1]
    fields = set(re.findall(r"^\| `(\w+)` \|", table, re.M))
    assert fields == set(json.loads((saved[0] / "manifest.json").read_text()))


@pytest.mark.skipif(shutil.which("h5dump") is None, reason="needs the HDF5 tools")
def test_the_hdf5_tools_show_tensors_and_numbers(saved):
    folder, parameters = saved
    listed = subprocess.run(
        ["h5ls", "-r", "index.h5"], cwd=folder, capture_output=True, text=True, timeout=500
    ).stdout
    assert re.search(r"/model/blocks.0.mlp.up.weight +Dataset \{64, 16\}", listed)
    dumped = subprocess.run(
        ["h5dump", "-y", "-w", "1", "-m", "%.9g", "-d", "model/head.norm.weight", "index.h5"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=500,
    ).stdout
    numbers = re.search(r"DATA \{(.*?)\}", dumped, re.S)[1].replace(",", " ").split()
    numpy.testing.assert_array_equal(
        numpy.array(numbers, "float32"), parameters["head.norm.weight"]
    )


# ---- scalars -------------------------------------------------------------------------------------


class Scaled(nn.Module):
    """A model with a parameter that has no dimensions."""

    def __init__(self):
        self.inside = nn.Linear(4, 2)
        self.scale = nn.Parameter((), Normal(1.0))
        self.loss = nn.MeanSquaredError()
        self.finish(0)

    def forward(self, x):
        return self.inside(x) * self.scale


def test_a_scalar_parameter_is_saved_whole_and_its_attributes_change_no_other_file(tmp_path):
    def on_rank(backend):
        model = sk.FSDPModel(Scaled(), sk.ShardingConfiguration(backend, optimizer=sk.AdamW()))
        folder = model.save_model(tmp_path)
        model.load_model(tmp_path)
        return Path(folder), float(model.gather_full_parameters()[-1])

    folder, scale = sk.run_ranks(2, on_rank)[0]
    Checkpoint(folder).verify()
    with h5py.File(folder / "index.h5", "r") as index:
        assert float(index["model/scale"][()]) == scale and index["model/scale"].attrs["step"] == 0


# ---- written by another program ------------------------------------------------------------------

SEGMENT = 1 << 20


def write_by_the_page(store, model, *, step, optimizer):
    """A checkpoint made from the rules of the page with h5py and json: two files of odd names,
    boxes cut at will.
    """
    folder = store / f"step-{step:08d}.tmp"
    folder.mkdir(parents=True)
    tensors, values = (
        {},
        {f"model/{name}": parameter for name, parameter in model.state_dict().items()},
    )
    for state in optimizer["state"] if optimizer else []:
        values |= {
            f"optimizer/{state}/{name}": numpy.full(p.shape, 0.25, p.dtype)
            for name, p in model.state_dict().items()
        }
    with h5py.File(folder / "even.h5", "w") as even, h5py.File(folder / "odd.h5", "w") as odd:
        for path, array in values.items():
            tensors[path] = {"shape": list(array.shape), "dtype": str(array.dtype), "boxes": []}
            for row in range(0, len(array), 7):
                box, name, file = array[row : row + 7], f"{path}/{row}", (even, odd)[row % 2]
                dataset = file.create_dataset(name, data=box)
                offset = [row] + [0] * (array.ndim - 1)
                dataset.attrs["offset"] = numpy.array(offset)
                dataset.parent.attrs["global_shape"] = numpy.array(array.shape)
                sums = [
                    xxh3(box.tobytes()[at : at + SEGMENT]) for at in range(0, box.nbytes, SEGMENT)
                ]
                tensors[path]["boxes"].append(
                    [
                        ("even.h5", "odd.h5")[row % 2],
                        name,
                        offset,
                        list(box.shape),
                        dataset.id.get_offset(),
                        sums,
                    ]
                )
    files = {
        path.name: {"bytes": path.stat().st_size, "crc32": crc(bytes_outside(path, tensors))}
        for path in folder.iterdir()
    }
    manifest = {
        "crc32": "00000000",
        "segment_bytes": SEGMENT,
        "format": "shardkit-checkpoint",
        "version": 3,
        "step": step,
        "samples_seen": 0,
        "last_loss": None,
        "seed": 0,
        "mesh": {"pipeline": 1, "data": 1, "tensor": 1},
        "strategy": "by hand",
        "active_features": None,
        "model": {"class": "GPT", "configuration": model.configuration()},
        "optimizer": optimizer,
        "data_position": {},
        "files": files,
        "tensors": tensors,
    }
    text = json.dumps(manifest)
    (folder / "manifest.json").write_text(text.replace("00000000", crc(text.encode()), 1))
    folder.rename(folder.with_suffix(""))


def crc(content):
    return f"{zlib.crc32(content):08x}"


def xxh3(content):
    return f"{xxhash.xxh3_64_intdigest(content):016x}"


def bytes_outside(path, tensors):
    """The bytes of the file that are in no box."""
    content = numpy.frombuffer(path.read_bytes(), numpy.uint8)
    is_outside = numpy.ones(len(content), bool)
    for entry in tensors.values():
        for file, _, _, shape, at, _ in entry["boxes"]:
            if file == path.name:
                is_outside[at : at + numpy.prod(shape) * numpy.dtype(entry["dtype"]).itemsize] = (
                    False
                )
    return content[is_outside].tobytes()


@pytest.mark.parametrize("strategy", ["DDP", "FSDP"])
@pytest.mark.thorough
def test_a_checkpoint_written_from_the_page_by_another_program_loads(strategy, tmp_path):
    model = small_gpt(seed=11)
    write_by_the_page(
        tmp_path,
        model,
        step=5,
        optimizer={"rule": "AdamW", "state": ["first_moment", "second_moment"]},
    )
    Checkpoint(tmp_path / "step-00000005").verify()
    wanted = numpy.concatenate([values.ravel() for values in model.state_dict().values()])

    def on_rank(backend):
        sharded, _ = train(
            strategy, backend, 0, model=sk.models.GPT.from_checkpoint(tmp_path / "step-00000005")
        )
        assert sharded.load_model(tmp_path)["strategy"] == "by hand" and sharded.step_number == 5
        numpy.testing.assert_array_equal(sharded.gather_full_parameters(), wanted)
        assert all(
            (array == 0.25).all()
            for path, _, array in training_state_of(sharded).owned_boxes()
            if path.startswith("optimizer/")
        )

    sk.run_ranks(3, on_rank)


@pytest.mark.parametrize("strategy", ["DDP", "ZeRO-1", "ZeRO-2", "FSDP"])
def test_a_checkpoint_without_optimizer_state_starts_a_fresh_optimizer(strategy, tmp_path):
    model = small_gpt(seed=11)
    write_by_the_page(tmp_path, model, step=0, optimizer=None)

    def trained(sharded):
        return [
            sharded.train(*sk.split_batch(sharded.mesh, *token_batch(step))) for step in (7, 8)
        ], sharded.gather_full_parameters()

    def on_rank(backend):
        used, _ = train(strategy, backend, 2)  # its state and step must be forgotten
        used.load_model(tmp_path)
        fresh, _ = train(strategy, backend, 0, model=small_gpt(seed=11))
        assert used.step_number == 0
        losses, parameters = trained(used)
        wanted_losses, wanted = trained(fresh)
        assert losses == wanted_losses
        numpy.testing.assert_array_equal(parameters, wanted)

    sk.run_ranks(2, on_rank)


def test_a_checkpoint_without_optimizer_state_must_still_have_all_parameters(tmp_path):
    write_by_the_page(tmp_path, small_gpt(layers=1), step=0, optimizer=None)

    def on_rank(backend):
        model, _ = train("FSDP", backend, 0)
        with pytest.raises(sk.CheckpointError, match="another model: model/blocks.1"):
            model.load_model(tmp_path)

    sk.run_ranks(2, on_rank)
