"""What a config.json of transformers means, and what of it is refused, by its key and value."""

import pytest

import shardkit as sk
from shardkit.testing.checkpoint import FAMILIES, configuration_of, read_configuration

LLAMA = {
    "model_type": "llama",
    "vocab_size": 62,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 12,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
GPT2 = {"model_type": "gpt2", "vocab_size": 62, "n_embd": 24, "n_layer": 2, "n_head": 4}
SLIDING = {"use_sliding_window": True, "sliding_window": 8}
KINDS = ["full_attention", "sliding_attention"]
FIRST_IS_FULL = {"window": 8, "full_layers": (0,)}
OF_ALL = {"window": 4096, "full_layers": ()}


def read(sequence_length=None, **changes):
    base = GPT2 if changes.get("model_type") == "gpt2" else LLAMA
    entries = {**base, **changes}
    model, _, notes = read_configuration(entries, "config.json", "float32", sequence_length)
    return model.settings


@pytest.mark.parametrize(
    "changes, settings",
    [
        ({}, {"kv_heads": 2, "head_dim": None, "attention_bias": None, "rotary_scaling": None}),
        ({"head_dim": 8}, {"head_dim": 8}),
        ({"attention_bias": True}, {"attention_bias": "all"}),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, {"rotary_scaling": (2.0,)}),
        (
            {"rope_parameters": LLAMA3},
            {"rotary_scaling": (8.0, 1.0, 4.0, 8192.0), "rotary_base": 500000.0},
        ),
        ({"model_type": "mistral", "sliding_window": 8}, {"window": 8, "full_layers": ()}),
        ({"model_type": "mistral", "sliding_window": None}, {"window": None}),
        ({"model_type": "mistral"}, {"window": 4096}),
        ({"model_type": "qwen2", "sliding_window": 4}, {"attention_bias": "qkv", "window": None}),
        ({"model_type": "qwen2", **SLIDING, "max_window_layers": 1}, FIRST_IS_FULL),
        ({"model_type": "qwen2", **SLIDING}, {"window": None}),  # 28 layers are without it
        ({"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 0}, OF_ALL),
        ({"model_type": "qwen3", **SLIDING, "layer_types": KINDS}, FIRST_IS_FULL),
        ({"model_type": "qwen3", "sliding_window": 8, "layer_types": KINDS}, {"window": None}),
        ({"model_type": "qwen3", "head_dim": 6}, {"qk_norm": "head", "head_dim": None}),
        ({"model_type": "qwen3"}, {"head_dim": 128}),
        ({"model_type": "olmo2"}, {"qk_norm": "projection", "norms": "after", "norm_eps": 1e-5}),
    ],
    ids=str,
)
def test_what_a_configuration_says_is_what_gpt_is_made_of(changes, settings):
    found = read(**changes)
    assert {name: getattr(found, name) for name in settings} == settings


REFUSED = [  # what config.json says, what the message says
    ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_type = 'yarn'"),
    ({"rope_scaling": {"type": "dynamic", "factor": 4.0}}, "rope_type = 'dynamic'"),
    ({"rope_parameters": {"rope_type": "longrope"}}, "rope_type = 'longrope'"),
    ({"rope_scaling": {"type": "linear"}}, "does not say factor"),
    ({"rope_parameters": {**LLAMA3, "high_freq_factor": 1.0}}, "rotary_scaling"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
    ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor = 0.5"),
    # of each kind of layer, as in models of which some layers have windows
    ({"rope_parameters": {"full_attention": {"rope_theta": 1e6}}}, "full_attention = .* alone"),
    ({"rope_scaling": {"rope_type": "default", "mrope_section": [8, 8]}}, "mrope_section"),
    ({"rope_scaling": {"rope_type": None, "type": "yarn"}}, "rope_type = 'yarn'"),
    ({"rotary_pct": 0.25}, "rotary_pct = 0.25"),
    ({"model_type": "mistral", "sliding_window": 0}, "window = 0"),
    ({"model_type": "mistral", "sliding_window": 8.0}, "window = 8.0"),
    ({"model_type": "qwen2", **SLIDING, "layer_types": KINDS[:1]}, "layer_types.*wanted 2"),
    ({"model_type": "qwen3", "layer_types": ["linear_attention"]}, "layer_types = .*linear_att"),
    ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping = 50.0"),
    ({"final_logit_softcapping": 30.0}, "final_logit_softcapping = 30.0"),
    ({"model_type": "mixtral"}, "'mixtral' model; wanted gpt2, llama"),
    ({"num_local_experts": 8}, "num_local_experts = 8"),
    ({"num_experts": 64}, "num_experts = 64"),
    ({"mlp_bias": True}, "mlp_bias = True"),
    ({"model_type": "mistral", "attention_bias": True}, "attention_bias = True"),
    ({"model_type": "qwen2", "attention_bias": True}, "attention_bias = True"),
    ({"alibi": True}, "alibi = True"),
    ({"clip_qkv": 8.0}, "clip_qkv = 8.0"),
    ({"logits_scaling": 16.0}, "logits_scaling = 16.0"),
    ({"residual_multiplier": 0.2}, "residual_multiplier = 0.2"),
    ({"attention_chunk_size": 8192}, "attention_chunk_size = 8192"),
    ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
    ({"model_type": "gpt2", "activation_function": "relu"}, "activation_function = 'relu'"),
    ({"model_type": "gpt2", "scale_attn_by_inverse_layer_idx": True}, "inverse_layer_idx = True"),
    ({"quantization_config": {"bits": 4}}, "quantization_config = {'bits': 4}"),
    ({"auto_map": {"AutoModelForCausalLM": "model.Mine"}}, "auto_map = "),
    ({"model_type": "qwen2", "num_key_value_heads": 3}, "3 kv_heads"),
]


@pytest.mark.parametrize("changes, words", REFUSED, ids=str)
def test_what_is_not_computed_is_refused_with_key_and_value(changes, words):
    with pytest.raises(sk.CheckpointError, match=words) as raised:
        read(**changes)
    assert "config.json" in str(raised.value)


def test_the_number_of_key_heads_is_not_guessed_where_classes_differ():
    entries = {name: value for name, value in LLAMA.items() if name != "num_key_value_heads"}
    model, _, _ = read_configuration(entries, "config.json", "float32")
    assert model.settings.kv_heads is None
    with pytest.raises(sk.CheckpointError, match="does not say num_key_value_heads"):
        read_configuration({**entries, "model_type": "mistral"}, "config.json", "float32")


WRITTEN = [
    *[(name, {"rope_parameters": LLAMA3} if name != "gpt2" else {}) for name in FAMILIES],
    ("mistral", {"sliding_window": 5}),
    ("mistral", {"sliding_window": None}),
    ("qwen2", {**SLIDING, "max_window_layers": 1}),
    ("qwen2", {**SLIDING, "max_window_layers": 0}),
    ("qwen3", {**SLIDING, "layer_types": KINDS[::-1]}),
]


@pytest.mark.parametrize("model_type, told", WRITTEN, ids=str)
def test_a_written_configuration_means_the_same_model(model_type, told):
    settings = read(model_type=model_type, **told)
    entries, family, _ = configuration_of(settings, "float32", model_type)
    assert entries["model_type"] == model_type and family is FAMILIES[model_type]
    again, _, _ = read_configuration(entries, "config.json", "float32")
    assert again.settings == settings


@pytest.mark.parametrize(
    "changes",
    [
        {"style": "llama", "qk_norm": "head", "norms": "after"},
        {"style": "llama", "qk_norm": "projection"},
        {"style": "gpt2", "attention_bias": "qkv"},
        {"style": "gpt2", "head_dim": 8},
        {"style": "gpt2", "window": 4},
        {"style": "llama", "window": 4, "full_layers": (0,)},
        {"style": "llama", "window": 4, "attention_bias": "all"},
    ],
    ids=str,
)
def test_models_that_transformers_does_not_have_are_not_written(changes):
    model = sk.models.GPT(62, 12, width=24, layers=1, heads=4, **changes)
    with pytest.raises(sk.CheckpointError, match="transformers has no model|cannot be written"):
        configuration_of(model.settings, "float32")


@pytest.mark.parametrize(
    "changes, wanted",
    [({}, "llama"), ({"window": 4}, "mistral"), ({"window": 4, "qk_norm": "head"}, "qwen3")],
    ids=str,
)
def test_a_model_is_written_as_one_that_has_its_window(changes, wanted):
    model = sk.models.GPT(62, 12, width=24, layers=1, heads=4, style="llama", **changes)
    for name in (None, "llama"):  # came from a llama, and has got a window since
        entries, _, _ = configuration_of(model.settings, "float32", name)
        assert entries["model_type"] == wanted
        assert entries.get("sliding_window") == changes.get("window")
