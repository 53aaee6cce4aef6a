"""What a folder of transformers says beyond the weights travels in checkpoints, through training,
and comes back.
"""

import json
import shutil
import zlib

import numpy
import pytest
from builders import small_gpt, train
from checkpoints import edit_manifest, flip_bit
from torch_or_skip import torch

import shardkit as sk
from shardkit.testing.checkpoint import (
    Checkpoint,
    find_checkpoint,
    from_safetensors,
    to_safetensors,
)
from shardkit.testing.checkpoint import companions as companions_module
from shardkit.testing.parallel import Neighbors, parts_of, restore

FILES = {
    "tokenizer.json": b'{"model": {"vocab": {"a": 0}}}',
    "tokenizer.model": bytes(range(256)),
    "merges.txt": b"#v\na b\n",
    "generation_config.json": b'{"temperature": 0.7, "eos_token_id": [5, 6]}',
    "chat_template.jinja": b"{{ m }}\r\n",
}
SAID = {
    "eos_token_id": [5, 6],
    "bos_token_id": 4,
    "pad_token_id": 3,
    "use_cache": False,
    "of_the_owner": {"note": 1.5},
}


def add_files(folder):
    """Files and settings that no weights tell."""
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **SAID, "dtype": "bfloat16"}))
    return folder


@pytest.fixture
def theirs(tmp_path):
    """A folder as transformers writes it."""
    sk.run_ranks(1, lambda backend: train("DDP", backend, 0)[0].save_model(tmp_path / "first"))
    to_safetensors(tmp_path / "first", tmp_path / "theirs")
    return add_files(tmp_path / "theirs")


def assert_said_again(folder):
    for name, content in FILES.items():
        assert (folder / name).read_bytes() == content
    config = json.loads((folder / "config.json").read_text())
    assert {name: config[name] for name in SAID} == SAID
    assert "dtype" not in config and config["torch_dtype"] == "float32" and config["n_embd"] == 16


def test_ids_settings_and_files_come_back(theirs, tmp_path):
    there = from_safetensors(theirs, tmp_path / "start")
    assert any(
        "tokenizer.model" in note and "generation_config.json" in note for note in there.notes
    )
    Checkpoint(there.folder).verify()
    back = to_safetensors(tmp_path / "start", tmp_path / "back")
    assert_said_again(tmp_path / "back")
    assert any("tokenizer.model" in note for note in back.notes)


def save_at_once(model, folder):
    model.save_model(folder)


def save_beside(model, folder):
    model.save_model_async(folder).wait()


def save_a_copy(model, folder):
    model.deep_copy().save_model(folder)


def save_after_other_ranks_died(model, folder):
    """As elastic training does: a new model gets its state from copies in memory."""
    copies = Neighbors(parts_of(model))
    copies.commit()
    other, _ = train("FSDP", model.mesh.world, 0)
    assert restore(model.mesh.world, [copies], parts_of(other)) == 2
    other.save_model(folder)


@pytest.mark.parametrize(
    "save", [save_at_once, save_beside, save_a_copy, save_after_other_ranks_died]
)
@pytest.mark.thorough
def test_they_come_back_after_training_and_two_checkpoints_too(save, theirs, tmp_path):
    from_safetensors(theirs, tmp_path / "start")
    shutil.rmtree(theirs)

    def on_rank(backend):
        model, _ = train(
            "FSDP", backend, 0, model=sk.models.GPT.from_checkpoint(tmp_path / "start")
        )
        model.load_model(tmp_path / "start")
        model.train(*(array[backend.rank :: backend.world_size] for array in batch()))
        model.save_model(tmp_path / "run")
        if backend.rank == 0:
            shutil.rmtree(tmp_path / "start")
        backend.barrier()
        model, _ = train("ZeRO-1", backend, 0)
        model.load_model(tmp_path / "run")
        if save is save_after_other_ranks_died:
            model, _ = train("FSDP", backend, 0)
            model.load_model(tmp_path / "run")
        model.train(*(array[backend.rank :: backend.world_size] for array in batch()))
        save(model, tmp_path / "run")

    sk.run_ranks(2, on_rank)
    found, skipped = find_checkpoint(tmp_path / "run")
    assert found.manifest["step"] == 2 and not skipped
    to_safetensors(tmp_path / "run", tmp_path / "back")
    assert_said_again(tmp_path / "back")


def batch():
    tokens = numpy.random.default_rng(2).integers(0, 61, (6, 13))
    return tokens[:, :-1], tokens[:, 1:]


def test_a_model_that_goes_on_from_another_checkpoint_forgets_the_files_of_the_first(
    theirs, tmp_path
):
    from_safetensors(theirs, tmp_path / "start")

    def on_rank(backend):
        model, _ = train("FSDP", backend, 0)
        model.load_model(tmp_path / "start")
        model.load_model(tmp_path / "first")
        model.save_model(tmp_path / "second")

    sk.run_ranks(2, on_rank)
    to_safetensors(tmp_path / "second", tmp_path / "back")
    assert sorted(path.name for path in (tmp_path / "back").iterdir()) == [
        "config.json",
        "model.safetensors",
    ]


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json"])
def test_a_damaged_file_is_damage_of_the_checkpoint(name, theirs, tmp_path):
    folder = from_safetensors(theirs, tmp_path / "start").folder
    flip_bit(tmp_path / "start" / "step-00000000" / name)
    with pytest.raises(sk.CheckpointError, match=f"{name} is damaged"):
        to_safetensors(tmp_path / "start", tmp_path / "back")
    assert not (tmp_path / "back").exists() and folder


def test_files_that_are_there_are_not_overwritten(theirs, tmp_path):
    from_safetensors(theirs, tmp_path / "start")
    (tmp_path / "back").mkdir()
    (tmp_path / "back" / "tokenizer.model").write_bytes(b"mine")
    with pytest.raises(sk.ConfigurationError, match="tokenizer.model exists already"):
        to_safetensors(tmp_path / "start", tmp_path / "back")
    assert [path.name for path in (tmp_path / "back").iterdir()] == ["tokenizer.model"]


def test_what_is_too_large_or_no_file_stays_behind_and_is_named(theirs, tmp_path, monkeypatch):
    monkeypatch.setattr(companions_module, "MOST_BYTES", 1000)
    (theirs / "vocab.json").write_bytes(b" " * 1001)
    (theirs / "tokenizer_config.json").mkdir()
    (theirs / "weights.bin").write_bytes(b"no pickle is taken along")
    written = from_safetensors(theirs, tmp_path / "start")
    notes = " ".join(written.notes)
    assert (
        "vocab.json stays behind: it has 1,001 bytes" in notes
        and "tokenizer_config.json stays behind" in notes
    )
    assert not {"vocab.json", "tokenizer_config.json", "weights.bin"} & set(
        Checkpoint(written.folder).manifest["files"]
    )


def test_a_forged_companion_of_any_size_is_damage_before_it_is_read(theirs, tmp_path, monkeypatch):
    folder = from_safetensors(theirs, tmp_path / "start").folder
    monkeypatch.setattr(companions_module, "MOST_BYTES", 100)
    with pytest.raises(sk.CheckpointError, match="config.json has .* wanted 100 at most"):
        Checkpoint(folder)


def test_a_stored_configuration_that_is_none_is_refused(theirs, tmp_path):
    step = tmp_path / "start" / "step-00000000"
    from_safetensors(theirs, tmp_path / "start")
    (step / "config.json").write_bytes(b"[1]")
    edit_manifest(
        step,
        lambda m: m["files"].update(
            {"config.json": {"bytes": 3, "crc32": f"{zlib.crc32(b'[1]'):08x}"}}
        ),
    )
    with pytest.raises(sk.CheckpointError, match="config.json"):
        to_safetensors(tmp_path / "start", tmp_path / "back")


@pytest.mark.thorough
def test_transformers_reads_ids_settings_and_tokenizer_of_a_model_that_was_trained_here(tmp_path):
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    config = transformers.LlamaConfig(
        vocab_size=62,
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=12,
        intermediate_size=40,
        bos_token_id=1,
        eos_token_id=7,
        pad_token_id=2,
    )
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config)
    model.generation_config = transformers.GenerationConfig(
        do_sample=True,
        temperature=0.7,
        max_new_tokens=9,
        eos_token_id=7,
        bos_token_id=1,
        pad_token_id=2,
    )
    model.save_pretrained(tmp_path / "theirs")
    words = tokenizers.Tokenizer(
        tokenizers.models.WordLevel(
            {"<s>": 1, "</s>": 7, "hello": 3, "[UNK]": 0}, unk_token="[UNK]"
        )
    )
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=words,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="[UNK]",
        model_max_length=12,
    ).save_pretrained(tmp_path / "theirs")
    from_safetensors(tmp_path / "theirs", tmp_path / "start")

    def on_rank(backend):
        sharded, _ = train(
            "FSDP", backend, 0, model=sk.models.GPT.from_checkpoint(tmp_path / "start")
        )
        sharded.load_model(tmp_path / "start")
        sharded.train(*(array[backend.rank :: backend.world_size] for array in batch()))
        sharded.save_model(tmp_path / "trained")

    sk.run_ranks(2, on_rank)
    to_safetensors(tmp_path / "trained", tmp_path / "back")
    again = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "back")
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        assert getattr(again.config, name) == getattr(config, name)
    assert again.generation_config.to_dict() == model.generation_config.to_dict()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "back")
    assert tokenizer("hello </s>")["input_ids"] == [3, 7] and tokenizer.model_max_length == 12
    for path in (tmp_path / "theirs").iterdir():
        if path.name not in ("config.json", "model.safetensors"):
            assert (tmp_path / "back" / path.name).read_bytes() == path.read_bytes()


def test_a_model_of_ones_own_has_no_such_files(tmp_path):
    def on_rank(backend):
        model, _ = train("FSDP", backend, 0, model=small_gpt())
        assert parts_of(model).checkpoints.companions == {}
        return model.save_model(tmp_path)

    assert set(Checkpoint(sk.run_ranks(2, on_rank)[0]).manifest["files"]) == {
        "index.h5",
        "rank-00000.h5",
        "rank-00001.h5",
    }
