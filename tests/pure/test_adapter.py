"""Updates of low rank in the format of the library PEFT."""

import json

import numpy
import pytest

import shardkit as sk
from shardkit import CheckpointError, ConfigurationError, nn
from shardkit.testing.checkpoint import SETTINGS_NAME, TENSORS_NAME, read_header

LAYERS = {"llama": ("*.query", "*.mlp.down"), "gpt2": ("*.mlp.up", "*.attention.output")}
IDS = numpy.random.default_rng(0).integers(0, 32, (2, 9))


def gpt(style="llama", **settings):
    settings = {"width": 16, "layers": 2, "heads": 4, "seed": 2, **settings}
    return sk.models.GPT(32, 16, style=style, **settings)


def tuned(model, *layers, **settings):
    """Give the model updates, as if they had been trained."""
    nn.apply_lora(model, *layers, **settings)
    rng = numpy.random.default_rng(5)
    for name, parameter in model.named_parameters().items():
        if name.endswith("lora_B"):
            parameter.array = rng.normal(0, 0.1, parameter.shape)
    return model


@pytest.mark.parametrize("style", LAYERS)
def test_what_is_written_is_read_again_with_the_same_bits(style, tmp_path):
    model = tuned(gpt(style), *LAYERS[style], rank=3, alpha=5)
    sk.save_adapter(model, tmp_path)
    other = gpt(style)
    assert sk.load_adapter(other, tmp_path) == list(nn.apply_lora(gpt(style), *LAYERS[style]))
    assert (other.predict(IDS) == model.predict(IDS)).all()
    assert [n for n, p in other.named_parameters().items() if p.requires_grad] == [
        n for n in other.named_parameters() if "lora" in n
    ]
    assert sk.load_adapter(other, tmp_path)  # over itself


def test_ranks_may_differ_and_any_module_has_its_own_names(tmp_path):
    def net():
        return sk.models.MLP([4, 6, 6, 2])

    model = tuned(net(), "layers.0", rank=2)
    tuned(model, "layers.2", rank=1, alpha=3)
    assert sum(p.requires_grad for p in model.parameters()) == 4
    sk.save_adapter(model, tmp_path)
    assert sorted(read_header(tmp_path / TENSORS_NAME))[0] == (
        "base_model.model.layers.0.lora_A.weight"
    )
    other = net()
    sk.load_adapter(other, tmp_path)
    x = numpy.random.default_rng(0).normal(size=(3, 4))
    assert (other.predict(x) == model.predict(x)).all()


@pytest.mark.parametrize("style", LAYERS)
@pytest.mark.thorough
def test_the_library_opens_it_over_the_model_in_transformers(style, tmp_path):
    peft = pytest.importorskip("peft")
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from shardkit.testing.checkpoint import to_safetensors

    sk.run_ranks(
        1,
        lambda backend: sk.DDPModel(gpt(style), sk.ShardingConfiguration(backend)).save_model(
            tmp_path / "start"
        ),
    )
    to_safetensors(tmp_path / "start", tmp_path / "base")
    model = tuned(gpt(style), *LAYERS[style], rank=3, alpha=5)
    sk.save_adapter(model, tmp_path / "adapter")
    base = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    theirs = peft.PeftModel.from_pretrained(base, tmp_path / "adapter")
    with torch.no_grad():
        logits = theirs(torch.tensor(IDS)).logits.numpy()
    wanted = model.predict(IDS)
    assert abs(gpt(style).predict(IDS) - wanted).max() > 1e-3
    numpy.testing.assert_allclose(logits, wanted, rtol=1e-4, atol=1e-5)

    theirs.save_pretrained(tmp_path / "again")  # and back
    other = gpt(style)
    sk.load_adapter(other, tmp_path / "again")
    assert (other.predict(IDS) == wanted).all()


def refusals(folder):
    settings = json.loads((folder / SETTINGS_NAME).read_text())
    for change, message in [
        ({"peft_type": "IA3"}, "peft_type = 'IA3'"),
        ({"use_dora": True}, "use_dora = True"),
        ({"layer_replication": [[0, 2]]}, r"layer_replication = \[\[0, 2\]\]"),
        ({"kind_of_tomorrow": {"alpha": 1}}, "kind_of_tomorrow = .* not computed"),
        ({"bias": "all"}, "bias = 'all'"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights = 'pissa'"),
        ({"lora_alpha": None}, "lora_alpha = None"),
    ]:
        yield {**settings, **change}, message


def test_what_is_not_computed_exactly_is_refused_and_nothing_has_changed(tmp_path):
    model = tuned(gpt(), "*.query", rank=3)
    sk.save_adapter(model, tmp_path)
    plain = gpt()
    for settings, message in refusals(tmp_path):
        (tmp_path / "other").mkdir(exist_ok=True)
        (tmp_path / "other" / SETTINGS_NAME).write_text(json.dumps(settings))
        (tmp_path / "other" / TENSORS_NAME).write_bytes((tmp_path / TENSORS_NAME).read_bytes())
        with pytest.raises(CheckpointError, match=message):
            sk.load_adapter(plain, tmp_path / "other")
    with pytest.raises(CheckpointError, match="it is of another model"):
        sk.load_adapter(gpt(width=32), tmp_path)
    with pytest.raises(CheckpointError, match="does not have"):
        sk.load_adapter(gpt(layers=1), tmp_path)
    assert list(plain.named_parameters()) == list(gpt().named_parameters())
    with pytest.raises(ConfigurationError, match="without LoRA"):
        sk.save_adapter(plain, tmp_path / "none")
    with pytest.raises(ConfigurationError, match="is a part of transformer.h.0.attn.c_attn"):
        sk.save_adapter(tuned(gpt("gpt2"), "*.query"), tmp_path / "none")
    model.head.norm.weight.requires_grad = True
    with pytest.raises(ConfigurationError, match="head.norm.weight is trained beside"):
        sk.save_adapter(model, tmp_path / "none")
    assert not (tmp_path / "none").exists()
