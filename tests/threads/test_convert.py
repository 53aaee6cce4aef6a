"""Folders of transformers to checkpoints and back: the same numbers, the same logits, and refusals
with a reason.
"""

import json
import shutil
import tracemalloc
from functools import cache

import numpy
import pytest
from builders import train
from checkpoints import plain_gpt
from torch_or_skip import torch
from transformers_models import logits_of, moved

import shardkit as sk
from shardkit.testing.checkpoint import (
    Checkpoint,
    compare,
    describe,
    from_safetensors,
    read_header,
    to_safetensors,
)

VOCABULARY = 62  # even, for two tensor ranks; token_batch of builders stays below
SIZES = {"vocabulary_size": VOCABULARY, "sequence_length": 12, "width": 24, "layers": 2, "heads": 4}
FORMS = {
    "gpt2": {"tied": True},
    "gpt2 untied": {"hidden": 50, "norm_eps": 1e-3},
    "llama": {
        "style": "llama",
        "kv_heads": 2,
        "hidden": 40,
        "norm_eps": 1e-5,
        "rotary_base": 500.0,
    },
    "llama tied": {"style": "llama", "tied": True},
}
forms = pytest.mark.parametrize("form", FORMS)


def gpt(**changes):
    return sk.models.GPT(**{**SIZES, **changes})


def randomized(model):
    """Every parameter random, so that no initial 0 or 1 hides a mistake."""
    generator = numpy.random.default_rng(0)
    for parameter in model.parameters():
        parameter.array = generator.normal(scale=0.3, size=parameter.shape)
    return model


def save(model, folder, steps=0):
    return sk.run_ranks(
        2,
        lambda backend: train("FSDP", backend, steps, model=randomized(model()))[0].save_model(
            folder
        ),
    )[0]


def token_ids(samples=3):
    return numpy.random.default_rng(1).integers(0, VOCABULARY, (samples, 12))


def edit_json(path, **changes):
    """Change, add or (None) remove entries."""
    entries = {**json.loads(path.read_text()), **changes}
    path.write_text(
        json.dumps({name: value for name, value in entries.items() if value is not None})
    )


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A function that writes a small model as a checkpoint and a folder of transformers, once."""

    @cache
    def write(**changes):
        folder = tmp_path_factory.mktemp("written")
        save(lambda: gpt(**changes), folder / "theirs.store")
        to_safetensors(folder / "theirs.store", folder / "theirs")
        return folder

    return write


@pytest.fixture
def theirs(written, tmp_path):
    """A function that returns a small model as a folder of transformers, which may be changed."""

    def copy(**changes):
        shutil.copytree(written(**changes), tmp_path, dirs_exist_ok=True)
        return tmp_path / "theirs"

    return copy


# ---- there and back, without transformers --------------------------------------------------------


@forms
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_there_and_back_keeps_every_bit_and_the_configuration(form, dtype, tmp_path):
    source = Checkpoint(
        save(lambda: gpt(**FORMS[form], dtype=dtype, seed=5), tmp_path / "a", steps=1)
    )
    to_safetensors(source.folder, tmp_path / "b")
    written = from_safetensors(tmp_path / "b", tmp_path / "c", dtype=dtype)
    result = Checkpoint(written.folder)
    result.verify()
    found = compare(source, result, model_only=True)
    assert (
        found.is_equal
        and found.num_compared == len(written.model.parameters()) == written.num_tensors
    )
    assert result.manifest["optimizer"] is None and result.manifest["step"] == 0
    assert sorted(path.name for path in (tmp_path / "b").iterdir()) == [
        "config.json",
        "model.safetensors",
    ]


def test_gpt2_weights_are_fused_and_transposed(theirs):
    tensors = read_header(theirs() / "model.safetensors")
    assert tensors["transformer.h.1.attn.c_attn.weight"].shape == (24, 72)
    assert tensors["transformer.h.1.attn.c_attn.bias"].shape == (72,)
    assert tensors["transformer.h.0.mlp.c_fc.weight"].shape == (24, 96)
    key = randomized(gpt()).state_dict()["blocks.1.attention.key.weight"]
    fused = tensors["transformer.h.1.attn.c_attn.weight"].read("float32")
    numpy.testing.assert_array_equal(fused[:, 24:48], key.T)


# ---- what files hold -----------------------------------------------------------------------------

TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I8": "i1"}


def write_file(path, tensors):
    """A safetensors file {name: (type, array of what is stored)}, spelled out."""
    header, at = {}, 0
    for name, (dtype, array) in tensors.items():
        header[name] = {
            "dtype": dtype,
            "shape": list(array.shape),
            "data_offsets": [at, at + array.nbytes],
        }
        at += array.nbytes
    text = json.dumps(header).encode()
    path.write_bytes(
        len(text).to_bytes(8, "little")
        + text
        + b"".join(array.tobytes() for _, array in tensors.values())
    )


def stored(folder):
    """{name: float32 array} of model.safetensors, which is removed."""
    path = folder / "model.safetensors"
    arrays = {name: tensor.read("float32") for name, tensor in read_header(path).items()}
    path.unlink()
    return arrays


def bfloat16(array):
    """The upper halves of the float32 bits, and the numbers that they are."""
    bits = array.view("<u4") >> 16
    return bits.astype("<u2"), (bits << 16).astype("<u4").view("<f4")


@pytest.mark.parametrize("dtype", ["F64", "F16", "BF16"])
def test_half_and_double_numbers_become_float32(dtype, theirs, tmp_path):
    folder = theirs(style="llama")
    arrays = stored(folder)
    if dtype == "BF16":
        wanted = {name: bfloat16(array)[1] for name, array in arrays.items()}
        arrays = {name: bfloat16(array)[0] for name, array in arrays.items()}
    else:
        arrays = {
            name: (array + 1e-12 if dtype == "F64" else array).astype(TYPES[dtype])
            for name, array in arrays.items()
        }
        wanted = {name: array.astype("float32") for name, array in arrays.items()}
    write_file(
        folder / "model.safetensors", {name: (dtype, array) for name, array in arrays.items()}
    )
    written = from_safetensors(folder, tmp_path / "store")
    query = Checkpoint(written.folder).read_whole("model/blocks.0.attention.query.weight")
    numpy.testing.assert_array_equal(query, wanted["model.layers.0.self_attn.q_proj.weight"])
    assert query.dtype == "float32" and written.model.settings.dtype == "float32"
    assert any("rounded" in note for note in written.notes) == (dtype == "F64")
    type_name = {"F64": "float64", "F16": "float16", "BF16": "bfloat16"}[dtype]
    for shown in (folder, written.folder):
        assert f"tensor 1, converted from {type_name}; opens" in describe(shown).text


def test_double_numbers_beyond_float32_are_refused_both_ways(theirs, tmp_path):
    folder = theirs(style="llama")
    arrays = {name: array.astype("<f8") for name, array in stored(folder).items()}
    arrays["model.layers.1.mlp.up_proj.weight"][3, 5] = -1e300
    write_file(folder / "model.safetensors", {name: ("F64", each) for name, each in arrays.items()})
    with pytest.raises(
        sk.CheckpointError, match="layers.1.mlp.up_proj.weight has .* beyond float32"
    ):
        from_safetensors(folder, tmp_path / "store")
    from_safetensors(folder, tmp_path / "wide", dtype="float64")
    with pytest.raises(sk.CheckpointError, match="up_proj.weight has .* float32 cannot hold"):
        to_safetensors(tmp_path / "wide", tmp_path / "back", dtype="float32")
    assert not (tmp_path / "back" / "model.safetensors").exists()


def test_double_numbers_stay_if_asked_for(theirs, tmp_path):
    folder = theirs(dtype="float64")
    wanted = read_header(folder / "model.safetensors")["transformer.ln_f.weight"].read("float64")
    written = from_safetensors(folder, tmp_path / "store", dtype="float64")
    assert not [note for note in written.notes if "rounded" in note]
    numpy.testing.assert_array_equal(
        Checkpoint(written.folder).read_whole("model/head.norm.weight"), wanted
    )
    assert (
        to_safetensors(tmp_path / "store", tmp_path / "single", dtype="float32").num_tensors == 29
    )
    assert (
        read_header(tmp_path / "single" / "model.safetensors")["transformer.ln_f.weight"].dtype
        == "F32"
    )


def test_several_files_with_an_index_are_one_model(theirs, tmp_path):
    folder = theirs()
    whole = from_safetensors(folder, tmp_path / "whole")
    arrays = stored(folder)
    files = {name: f"model-0000{i % 3 + 1}-of-00003.safetensors" for i, name in enumerate(arrays)}
    for file in set(files.values()):
        write_file(
            folder / file,
            {name: ("F32", array) for name, array in arrays.items() if files[name] == file},
        )
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": files})
    )
    parts = from_safetensors(folder, tmp_path / "parts")
    assert compare(Checkpoint(whole.folder), Checkpoint(parts.folder)).is_equal
    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="model-00002"):
        from_safetensors(folder, tmp_path / "again")


@pytest.mark.parametrize(
    "files, words",
    [
        ({"transformer.wte.weight": "../outside.safetensors"}, "names of files beside it"),
        ("all of them", "no weight_map"),
        (
            {"transformer.wte.weight": "model.safetensors", "other": "model.safetensors"},
            "does not hold other",
        ),
    ],
    ids=str,
)
def test_an_index_that_lies_is_refused(files, words, theirs, tmp_path):
    folder = theirs()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    with pytest.raises(sk.CheckpointError, match=words):
        from_safetensors(folder, tmp_path / "store")


def test_older_files_without_a_prefix_and_with_constants_and_a_repeated_head_are_read(
    theirs, tmp_path
):
    folder = theirs(tied=True)
    new = from_safetensors(folder, tmp_path / "new")
    arrays = {name.removeprefix("transformer."): array for name, array in stored(folder).items()}
    arrays["h.0.attn.bias"] = numpy.tril(numpy.ones((1, 1, 12, 12), "float32"))
    arrays["h.0.attn.masked_bias"] = numpy.array([-1e4], "float32")
    arrays["lm_head.weight"] = arrays["wte.weight"]
    write_file(
        folder / "model.safetensors", {name: ("F32", array) for name, array in arrays.items()}
    )
    edit_json(
        folder / "config.json", tie_word_embeddings=None
    )  # tied is what a gpt2 without it means
    old = from_safetensors(folder, tmp_path / "old")
    assert compare(Checkpoint(new.folder), Checkpoint(old.folder)).is_equal
    arrays["lm_head.weight"] = arrays["wte.weight"] + 1
    write_file(
        folder / "model.safetensors", {name: ("F32", array) for name, array in arrays.items()}
    )
    with pytest.raises(sk.CheckpointError, match="differs from the embedding"):
        from_safetensors(folder, tmp_path / "wrong")


@pytest.mark.thorough
def test_memory_is_bounded_by_the_largest_tensor_both_ways(tmp_path):
    largest = 4 * 256 * 1024  # bytes of blocks.*.mlp.up.weight; the whole model has 39 of them
    model = sk.models.GPT(64, 16, width=256, layers=13, heads=4)
    for parameter in model.parameters():
        parameter.array = numpy.zeros(parameter.shape)  # quicker than random
    num_bytes = 4 * model.parameter_count
    sk.run_ranks(
        1,
        lambda backend: train("FSDP", backend, 0, model=model, optimizer=sk.SGD())[0].save_model(
            tmp_path / "a"
        ),
    )
    peaks = []
    for convert, source, target in ((to_safetensors, "a", "b"), (from_safetensors, "b", "c")):
        tracemalloc.start()
        convert(tmp_path / source, tmp_path / target)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    window = 9 << 20  # two chunks of checksums, headers, the tree of modules
    assert max(peaks) < 4 * largest + window < 39 * largest < num_bytes, peaks


# ---- refused -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "style, changes, words",
    [
        ("gpt2", {"activation_function": "relu"}, "activation_function = 'relu'.*gelu_new"),
        (
            "gpt2",
            {"scale_attn_by_inverse_layer_idx": True},
            "scale_attn_by_inverse_layer_idx = True",
        ),
        ("gpt2", {"scale_attn_weights": False}, "scale_attn_weights = False"),
        ("gpt2", {"add_cross_attention": True}, "add_cross_attention"),
        ("gpt2", {"n_embd": None}, "does not say n_embd"),
        ("gpt2", {"n_embd": 26}, "26 = 4 heads x 6"),
        ("gpt2", {"n_embd": 48}, r"has shape \[62, 24\]; config.json means \[62, 48\]"),
        ("gpt2", {"n_layer": 1}, "transformer.h.1.attn.c_attn.bias, which has no place"),
        ("gpt2", {"n_layer": 3}, "no transformer.h.2.ln_1.weight of shape \\[24\\]"),
        ("gpt2", {"n_layer": "two"}, "'two'"),
        ("gpt2", {"n_head": 0}, "heads = 0"),
        ("gpt2", {"tie_word_embeddings": True}, "differs from the embedding"),
        ("gpt2", {"quantization_config": {"bits": 4}}, "quantization_config = .*wanted none"),
        ("gpt2", {"model_type": "bert"}, "'bert'.*gpt2, llama"),
        ("gpt2", {"model_type": None}, "does not say model_type"),
        ("llama", {"attention_bias": True}, "no model.layers.0.self_attn.q_proj.bias of shape"),
        ("llama", {"mlp_bias": True}, "mlp_bias = True"),
        ("llama", {"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ("llama", {"head_dim": 8}, r"q_proj.weight has shape \[24, 24\]; .* means \[32, 24\]"),
        (
            "llama",
            {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}},
            "rope_type = 'yarn'",
        ),
        (
            "llama",
            {"rope_parameters": None, "rope_scaling": {"type": "dynamic", "factor": 2.0}},
            "rope_type = 'dynamic'",
        ),
        (
            "llama",
            {"rope_parameters": {"partial_rotary_factor": 0.5}},
            "partial_rotary_factor = 0.5",
        ),
        ("llama", {"rope_theta": 7e3}, "rope_theta = 7000.0 and, in its rope parameters, 10000.0"),
        ("llama", {"rope_scaling": [1]}, "does not describe"),
        ("llama", {"num_key_value_heads": 3}, "3 kv_heads"),
        ("llama", {"num_attention_heads": 0, "head_dim": None}, "does not describe"),
        ("llama", {"intermediate_size": 65}, "gate_proj.weight has shape"),
    ],
    ids=str,
)
@pytest.mark.thorough(but=8)
def test_what_gpt_cannot_compute_is_refused_with_the_reason_and_nothing_is_written(
    style, changes, words, theirs, tmp_path
):
    folder = theirs(style=style)
    edit_json(folder / "config.json", **changes)
    if changes.get("tie_word_embeddings"):
        assert "lm_head.weight" in read_header(folder / "model.safetensors")
    with pytest.raises(sk.CheckpointError, match=words):
        from_safetensors(folder, tmp_path / "store")
    assert not (tmp_path / "store").exists()


def test_older_spellings_of_rotary_positions_are_read(theirs, tmp_path):
    folder = theirs(style="llama", rotary_base=500.0)
    edit_json(folder / "config.json", rope_parameters=None)
    assert from_safetensors(folder, tmp_path / "a").model.settings.rotary_base == 500.0
    edit_json(
        folder / "config.json", rope_theta=None, rope_parameters={"rope_theta": 300}
    )  # now transformers 5
    assert from_safetensors(folder, tmp_path / "b").model.settings.rotary_base == 300.0
    edit_json(folder / "config.json", rope_parameters=None)
    assert from_safetensors(folder, tmp_path / "c").model.settings.rotary_base == 10000.0


def test_dropout_is_taken_along_where_there_is_a_counterpart_and_noted_where_not(theirs, tmp_path):
    folder = theirs(dropout=0.25)
    assert from_safetensors(folder, tmp_path / "a").model.settings.dropout == 0.25
    edit_json(folder / "config.json", embd_pdrop=0.0, attn_pdrop=0.1)
    notes = " ".join(from_safetensors(folder, tmp_path / "b").notes)
    assert (
        "embd_pdrop = 0.0 becomes resid_pdrop = 0.25" in notes
        and "attn_pdrop = 0.1 is left out" in notes
    )
    save(lambda: gpt(style="llama", dropout=0.5), tmp_path / "c")
    assert "dropout = 0.5 is left out" in str(to_safetensors(tmp_path / "c", tmp_path / "d"))


def test_models_without_a_counterpart_are_refused(tmp_path):
    save(lambda: gpt(kv_heads=2), tmp_path / "grouped")
    with pytest.raises(sk.CheckpointError, match="2 of 4"):
        to_safetensors(tmp_path / "grouped", tmp_path / "out")
    sk.run_ranks(
        1,
        lambda backend: sk.DDPModel(
            sk.models.MLP([3, 2]), sk.ShardingConfiguration(backend)
        ).save_model(tmp_path / "mlp"),
    )
    with pytest.raises(sk.CheckpointError, match="holds a MLP"):
        to_safetensors(tmp_path / "mlp", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_nothing_is_overwritten_and_missing_files_are_named(theirs, tmp_path):
    folder = theirs()
    with pytest.raises(sk.ConfigurationError, match="config.json exists already"):
        to_safetensors(tmp_path / "theirs.store", folder)
    from_safetensors(folder, tmp_path / "store")
    with pytest.raises(sk.ConfigurationError, match="step-00000000 exists already"):
        from_safetensors(folder, tmp_path / "store")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(FileNotFoundError, match="holds neither.*pickles, which are never opened"):
        from_safetensors(folder, tmp_path / "other")
    with pytest.raises(FileNotFoundError, match="holds neither"):
        to_safetensors(folder, tmp_path / "other")
    (folder / "config.json").unlink()
    with pytest.raises(FileNotFoundError, match="no checkpoints in"):
        to_safetensors(folder, tmp_path / "other")


def test_quantized_tensors_are_refused_by_name(theirs, tmp_path):
    folder = theirs()
    arrays = {name: ("F32", array) for name, array in stored(folder).items()}
    arrays["transformer.wpe.weight"] = ("I8", numpy.zeros((12, 24), "i1"))
    write_file(folder / "model.safetensors", arrays)
    with pytest.raises(
        sk.CheckpointError, match="transformer.wpe.weight is of type I8; wanted F64, F32, F16, BF16"
    ):
        from_safetensors(folder, tmp_path / "store")


# ---- trained sharded -----------------------------------------------------------------------------


def train_sharded(store, folder):
    """Load under pipeline 2 x tensor 2, predict, take one step, predict, save; both predictions."""

    def on_rank(backend):
        config = sk.ShardingConfiguration(
            backend, optimizer=sk.AdamW(lr=1e-2), minimum_parameter_group_size=64, micro_batches=2
        )
        model = sk.HybridShardedModel(sk.models.GPT.from_checkpoint(store), config, 2, 2)
        model.load_model(store)
        before = model.predict(token_ids())
        tokens = numpy.random.default_rng(2).integers(0, VOCABULARY, (4, 13))
        model.train(tokens[:, :-1], tokens[:, 1:])
        model.save_model(folder)
        return before, model.predict(token_ids())

    return sk.run_ranks(4, on_rank)[0]


@forms
@pytest.mark.thorough
def test_a_converted_model_trains_on_two_stages_and_two_tensor_ranks_and_goes_back(
    form, theirs, tmp_path
):
    from_safetensors(theirs(**FORMS[form]), tmp_path / "start")
    before, after = train_sharded(tmp_path / "start", tmp_path / "trained")
    numpy.testing.assert_allclose(
        before, randomized(gpt(**FORMS[form])).predict(token_ids()), atol=1e-5
    )
    to_safetensors(tmp_path / "trained", tmp_path / "back")
    from_safetensors(tmp_path / "back", tmp_path / "again")
    model = plain_gpt(tmp_path / "again")
    numpy.testing.assert_allclose(model.predict(token_ids()), after, atol=1e-5)
    assert abs(after - before).max() > 1e-2


# ---- with transformers ---------------------------------------------------------------------------


def hugging_face_model(form):
    """A small random model of transformers, every parameter moved away from 0 and 1."""
    transformers = pytest.importorskip("transformers")
    gpt2 = {
        "vocab_size": VOCABULARY,
        "n_positions": 12,
        "n_embd": 24,
        "n_layer": 2,
        "n_head": 4,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    llama = {
        "vocab_size": VOCABULARY,
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 12,
    }
    config = {
        "gpt2": lambda: transformers.GPT2Config(**gpt2),
        "gpt2 untied": lambda: transformers.GPT2Config(
            **gpt2, n_inner=50, layer_norm_epsilon=1e-3, tie_word_embeddings=False
        ),
        "llama": lambda: transformers.LlamaConfig(
            **llama,
            intermediate_size=40,
            num_key_value_heads=2,
            rms_norm_eps=1e-5,
            rope_theta=500.0,  # transformers 4 reads the one, 5 the other
            rope_parameters={"rope_type": "default", "rope_theta": 500.0},
        ),
        "llama tied": lambda: transformers.LlamaConfig(
            **llama, intermediate_size=64, tie_word_embeddings=True
        ),
    }[form]()
    torch.manual_seed(0)
    model = (
        transformers.GPT2LMHeadModel if form.startswith("gpt2") else transformers.LlamaForCausalLM
    )(config).eval()
    return moved(model)


@forms
@pytest.mark.thorough
def test_logits_equal_those_of_transformers_and_so_they_do_after_a_sharded_step(form, tmp_path):
    theirs = hugging_face_model(form)
    theirs.save_pretrained(tmp_path / "theirs")
    from_safetensors(tmp_path / "theirs", tmp_path / "start")
    model = plain_gpt(tmp_path / "start")
    numpy.testing.assert_allclose(
        model.predict(token_ids()), logits_of(theirs, token_ids()), rtol=0, atol=1e-5
    )
    before, after = train_sharded(tmp_path / "start", tmp_path / "trained")
    numpy.testing.assert_allclose(before, logits_of(theirs, token_ids()), rtol=0, atol=1e-5)
    to_safetensors(tmp_path / "trained", tmp_path / "back")
    again, loading = type(theirs).from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not any(loading[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    numpy.testing.assert_allclose(logits_of(again.eval(), token_ids()), after, rtol=0, atol=1e-5)
    assert abs(after - before).max() > 1e-2


@pytest.mark.thorough
def test_several_files_in_bfloat16_from_transformers_are_read(tmp_path):
    theirs = hugging_face_model("llama").to(torch.bfloat16)
    theirs.save_pretrained(tmp_path / "theirs", max_shard_size="6KB")
    assert len(list((tmp_path / "theirs").glob("*.safetensors"))) > 2
    from_safetensors(tmp_path / "theirs", tmp_path / "start")
    model = plain_gpt(tmp_path / "start")
    exact = type(theirs).from_pretrained(tmp_path / "theirs", dtype=torch.float32)
    numpy.testing.assert_allclose(
        model.predict(token_ids()), logits_of(exact.eval(), token_ids()), rtol=0, atol=1e-5
    )
