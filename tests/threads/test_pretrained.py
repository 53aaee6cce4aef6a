"""Every family of models against transformers: a folder of it is loaded as it is, on a mesh, and
written back as one that AutoModelForCausalLM opens.
"""

import json
import warnings
from functools import cache

import numpy
import pytest
from checkpoints import plain_gpt
from torch_or_skip import torch
from transformers_models import logits_of, moved

import shardkit as sk
from shardkit.testing.checkpoint import from_safetensors, to_safetensors
from shardkit.testing.nn import Fill, Normal

VOCABULARY, LENGTH = 61, 16  # odd: two tensor ranks do not divide it
TOLERANCE = 1e-5  # absolute, of float32 logits of a few units
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": LENGTH,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8,
}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
FAMILIES = {  # the class of the configuration, what differs from SIZES
    "gpt2": (
        "GPT2Config",
        {
            "vocab_size": VOCABULARY,
            "n_positions": LENGTH,
            "n_embd": 24,
            "n_layer": 2,
            "n_head": 4,
            "bos_token_id": 0,
            "eos_token_id": 1,
        },
    ),
    "llama": ("LlamaConfig", {}),
    "llama of 1": ("LlamaConfig", {"num_key_value_heads": 4, "rms_norm_eps": 1e-5}),
    "llama of 3.1": ("LlamaConfig", {"rope_parameters": LLAMA3}),
    "llama, linear": ("LlamaConfig", {"rope_parameters": LINEAR, "attention_bias": True}),
    "smollm": ("LlamaConfig", {"tie_word_embeddings": True, "head_dim": 8}),
    "mistral": ("MistralConfig", {"sliding_window": 5, "head_dim": 10}),
    "qwen2": ("Qwen2Config", {"tie_word_embeddings": True}),
    "qwen2, windows": (
        "Qwen2Config",
        {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3Config", {"head_dim": 8}),
    "olmo2": ("Olmo2Config", {}),
}
families = pytest.mark.parametrize("family", FAMILIES)


def token_ids(samples=3):
    return numpy.random.default_rng(1).integers(0, VOCABULARY, (samples, LENGTH))


@cache
def theirs_of(family):
    """A small random model of transformers, every parameter moved away from 0 and 1."""
    transformers = pytest.importorskip("transformers")
    name, changes = FAMILIES[family]
    sizes = {} if name == "GPT2Config" else SIZES
    config = getattr(transformers, name)(**{**sizes, **changes})
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    return moved(model)


def opened(folder):
    """What AutoModelForCausalLM makes of a folder, when every tensor has its place."""
    transformers = pytest.importorskip("transformers")
    model, loading = transformers.AutoModelForCausalLM.from_pretrained(
        folder, output_loading_info=True, dtype=torch.float32
    )
    assert not any(loading[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    return model.eval()


def sharded(backend, folder, pipeline=1, tensor=1, **settings):
    """The model of a folder on a mesh, with its weights."""
    config = sk.ShardingConfiguration(
        backend, optimizer=sk.AdamW(lr=1e-2), minimum_parameter_group_size=64, **settings
    )
    model = sk.HybridShardedModel(sk.models.GPT.from_checkpoint(folder), config, pipeline, tensor)
    model.load_model(folder, only="model")
    return model


@families
@pytest.mark.thorough(but=1)
def test_a_folder_predicts_on_a_mesh_what_transformers_does_and_goes_back_after_a_step(
    family, tmp_path
):
    theirs = theirs_of(family)
    theirs.save_pretrained(tmp_path / "theirs")

    def on_rank(backend):
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # nothing is said to differ
            model = sharded(backend, tmp_path / "theirs", 2, 2, micro_batches=2)
        before = model.predict(token_ids())
        tokens = numpy.random.default_rng(2).integers(0, VOCABULARY, (4, LENGTH + 1))
        model.train(tokens[:, :-1], tokens[:, 1:])
        model.save_model(tmp_path / "trained")
        return before, model.predict(token_ids())

    before, after = sk.run_ranks(4, on_rank)[0]
    numpy.testing.assert_allclose(before, logits_of(theirs, token_ids()), rtol=0, atol=TOLERANCE)
    to_safetensors(tmp_path / "trained", tmp_path / "back")
    again = opened(tmp_path / "back")
    assert type(again) is type(theirs)
    numpy.testing.assert_allclose(logits_of(again, token_ids()), after, rtol=0, atol=TOLERANCE)
    assert abs(after - before).max() > 1e-2


@families
@pytest.mark.thorough
def test_text_from_the_cache_is_that_of_transformers(family, tmp_path):
    theirs = theirs_of(family)
    theirs.save_pretrained(tmp_path / "theirs")
    model = plain_gpt(tmp_path / "theirs")
    prompt = token_ids()[0, :4]
    wanted = theirs.generate(
        torch.tensor(prompt[None]), max_new_tokens=10, do_sample=False, eos_token_id=None
    )
    text = model.generate(prompt, 10, temperature=0)
    numpy.testing.assert_array_equal(text, wanted[0, 4:].numpy())


@pytest.mark.thorough
def test_half_floats_in_several_files_are_read_box_by_box_on_three_ranks(tmp_path):
    theirs = theirs_of("smollm")
    half = type(theirs)(theirs.config)
    half.load_state_dict(theirs.state_dict())
    half.to(torch.bfloat16).save_pretrained(tmp_path / "half", max_shard_size="6KB")
    assert len(list((tmp_path / "half").glob("*.safetensors"))) > 2
    wanted = logits_of(opened(tmp_path / "half"), token_ids())
    found = sk.run_ranks(
        3, lambda backend: sharded(backend, tmp_path / "half").predict(token_ids())
    )
    for logits in found:
        numpy.testing.assert_allclose(logits, wanted, rtol=0, atol=TOLERANCE)


# ---- without transformers ------------------------------------------------------------------------


def written(folder, **changes):
    """A folder of transformers, written from a model with random weights."""
    sizes = {"width": 24, "layers": 2, "heads": 4, "style": "llama", **changes}
    model = sk.models.GPT(VOCABULARY, LENGTH, **sizes)

    def save(backend):
        sk.DDPModel(model, sk.ShardingConfiguration(backend)).save_model(folder / "store")

    sk.run_ranks(1, save)
    to_safetensors(folder / "store", folder / "theirs")
    return folder / "theirs"


@pytest.mark.strength(1)
@pytest.mark.parametrize("style", ["gpt2", "llama"])
@pytest.mark.parametrize("mesh", [(1, 1), (2, 1), (1, 2), (1, 3)], ids=str)
@pytest.mark.thorough(but=2)
def test_every_mesh_reads_the_same_numbers_from_a_folder_as_from_a_checkpoint(
    style, mesh, tmp_path
):
    folder = written(tmp_path, style=style, heads=6, hidden=48)

    def on_rank(backend):
        return [
            sharded(backend, path, *mesh).gather_full_parameters()
            for path in (folder, tmp_path / "store")
        ]

    pipeline, tensor = mesh
    for from_folder, from_store in sk.run_ranks(
        2 * pipeline * tensor if tensor < 3 else 3, on_rank
    ):
        numpy.testing.assert_array_equal(from_folder, from_store)


def test_a_damaged_folder_is_refused_on_all_ranks_and_the_model_keeps_its_weights(tmp_path):
    folder = written(tmp_path)
    whole = (folder / "model.safetensors").read_bytes()

    def on_rank(backend):
        model = sharded(backend, folder)
        before = model.gather_full_parameters()
        if backend.rank == 0:
            (folder / "model.safetensors").write_bytes(whole[:-8])
        backend.barrier()
        with pytest.raises(sk.CheckpointError, match="was it cut short"):
            model.load_model(folder)
        numpy.testing.assert_array_equal(model.gather_full_parameters(), before)
        return True

    assert all(sk.run_ranks(2, on_rank))


def test_no_initial_values_are_drawn_for_a_model_that_begins_with_others(tmp_path, monkeypatch):
    folder = written(tmp_path)
    drawn = []
    for kind in (Normal, Fill):
        span = kind.span
        monkeypatch.setattr(
            kind, "span", lambda self, *args, span=span: drawn.append(self) or span(self, *args)
        )
    sk.run_ranks(2, lambda backend: sharded(backend, folder).predict(token_ids()))
    assert not drawn


def test_a_checkpoint_that_went_on_with_shorter_sequences_still_takes_longer_ones(tmp_path):
    folder = written(tmp_path)
    from_safetensors(folder, tmp_path / "short", sequence_length=8)
    assert sk.models.GPT.from_checkpoint(tmp_path / "short").settings.sequence_length == 8
    to_safetensors(tmp_path / "short", tmp_path / "back")
    said = json.loads((tmp_path / "back" / "config.json").read_text())
    assert said["max_position_embeddings"] == LENGTH


def test_a_link_to_the_file_is_followed_as_caches_of_downloads_have_them(tmp_path):
    folder = written(tmp_path)
    (folder / "model.safetensors").rename(tmp_path / "blob")
    (folder / "model.safetensors").symlink_to(tmp_path / "blob")
    model = plain_gpt(folder)
    assert model.predict(token_ids()).shape == (3, LENGTH, VOCABULARY)


def test_the_tokenizer_of_a_run_opens_in_transformers(tmp_path):
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    words = {"a": 0, "b": 1, "[UNK]": 2}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    folder = written(tmp_path)
    tokenizer.save(str(folder / "tokenizer.json"))
    from_safetensors(folder, tmp_path / "start")
    to_safetensors(tmp_path / "start", tmp_path / "back")
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "back")
    assert again("a b c")["input_ids"] == [0, 1, 2]
