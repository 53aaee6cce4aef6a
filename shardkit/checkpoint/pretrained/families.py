"""The families of models that transformers and GPT both compute, and their config.json.

    family     in GPT
    gpt2       style gpt2
    llama      style llama; Llama 1 to 3, SmolLM
    mistral    style llama, window in all layers
    qwen2      style llama, attention_bias qkv, window in some layers
    qwen3      style llama, qk_norm head, window in some layers, often a head_dim of its own
    olmo2      style llama, qk_norm projection, norms after

A family is one entry of FAMILIES: its names, the choices of GPT that it has, and how the rest of
its config.json is read and written.
"""

from collections.abc import Callable
from dataclasses import dataclass

from ...errors import CheckpointError
from ...files.reading import wanted_count
from ...nn.models.gpt import GPT, GPTSettings
from ...nn.transformer import STYLES, hidden_width
from .configuration import (
    WINDOWS,
    Configuration,
    length_of,
    rope_parameters,
    rotary_settings,
    windows_of,
)

_MOST_LAYERS = 1 << 16
_STYLE_EPS = {"gpt2": 1e-5, "llama": 1e-6}  # of GPT where it is not said


@dataclass(frozen=True)
class Family:
    """Models of one class of transformers.

    names        {module here: module there}; those of blocks stand behind that of `blocks`
    prefix       of the names, which files of the model without a head leave out
    biases       what attention_bias of GPT may be: "no", "qkv", "all"
    norm_eps     of a config.json that does not say
    head_dim     of a config.json that does not say; None: width / heads
    says_kv      a config.json without num_key_value_heads means as many as heads
    windows      which layers may have a sliding window, a name of WINDOWS
    read, write  what else is in its config.json, as arguments of GPT, and back
    """

    class_name: str
    names: dict[str, str]
    read: Callable[["Family", Configuration], dict]
    write: Callable[["Family", GPTSettings], tuple[dict, list[str]]]
    style: str = "llama"
    prefix: str = "model."
    biases: tuple[str, ...] = ("no",)
    qk_norm: str | None = None
    norms: str = "before"
    norm_eps: float = 1e-6
    head_dim: int | None = None
    says_kv: bool = True
    windows: str = "none"

    def has(self, settings: GPTSettings) -> bool:
        """Return True if models of these settings are of the family."""
        ours = (self.style, self.qk_norm, self.norms)
        theirs = (settings.style, settings.qk_norm, settings.norms)
        has_choices = ours == theirs and bias_of(settings) in self.biases
        return has_choices and self.windows in windows_of(settings)


def bias_of(settings: GPTSettings) -> str:
    """Return which projections of attention have biases."""
    return settings.attention_bias or ("all" if settings.choices.has_bias else "no")


# ---- GPT-2 ---------------------------------------------------------------------------------------


def _read_gpt2(family: Family, config: Configuration) -> dict:
    config.require("activation_function", "gelu_new", "gelu_pytorch_tanh")
    config.require("scale_attn_weights", True)
    config.require("scale_attn_by_inverse_layer_idx", False)
    config.require("add_cross_attention", False)
    dropout = config.get("resid_pdrop", 0.1)
    embedding_dropout = config.get("embd_pdrop", 0.1)
    if embedding_dropout != dropout:
        config.notes.append(
            f"embd_pdrop = {embedding_dropout} becomes resid_pdrop = {dropout}: "
            "there is one dropout here"
        )
    config.leave_out("attn_pdrop", default=0.1)
    width = config.get("n_embd")
    return {
        "vocabulary_size": config.get("vocab_size"),
        "sequence_length": config.get("n_positions", 1024),
        "width": width,
        "layers": config.get("n_layer"),
        "heads": config.get("n_head"),
        "dropout": dropout,
        "tied": config.require("tie_word_embeddings", True, False),
        **_unless_default(
            family,
            width,
            config.get("n_inner", 4 * width),
            config.get("layer_norm_epsilon", family.norm_eps),
        ),
    }


def _write_gpt2(family: Family, settings: GPTSettings) -> tuple[dict, list[str]]:
    if settings.kv_heads not in (None, settings.heads):
        raise CheckpointError(
            f"GPT2LMHeadModel has as many key heads as heads, and this model has "
            f"{settings.kv_heads} of {settings.heads}; it cannot be written as one"
        )
    if settings.head_size * settings.heads != settings.width:
        raise CheckpointError(
            f"GPT2LMHeadModel has heads of {settings.width} / {settings.heads} elements, and this "
            f"model has {settings.head_size}; it cannot be written as one"
        )
    return {
        "n_embd": settings.width,
        "n_layer": settings.layers,
        "n_head": settings.heads,
        "n_positions": settings.sequence_length,
        "n_inner": _hidden(settings),
        "activation_function": "gelu_new",
        "layer_norm_epsilon": _eps(settings),
        "embd_pdrop": settings.dropout,
        "resid_pdrop": settings.dropout,
        "attn_pdrop": 0.0,
    }, []


# ---- Llama, and what followed --------------------------------------------------------------------


def _read_llama(family: Family, config: Configuration) -> dict:
    config.require("hidden_act", "silu", "swish")
    bias = {False: "no", True: "all"}[config.require("attention_bias", *_switches(family))]
    read_window, _ = WINDOWS[family.windows]
    config.leave_out("attention_dropout", default=0.0)
    width, heads = config.get("hidden_size"), config.get("num_attention_heads")
    kv_heads = _kv_heads(family, config, heads)
    head_dim = config.get("head_dim", family.head_dim or width // heads)
    biases = {} if family.biases == ("no",) or bias == "no" else {"attention_bias": bias}
    if "qkv" in family.biases:
        biases = {"attention_bias": "qkv"}
    return {
        "vocabulary_size": config.get("vocab_size"),
        "sequence_length": length_of(config),
        "width": width,
        "layers": config.get("num_hidden_layers"),
        "heads": heads,
        "kv_heads": None if kv_heads == heads else kv_heads,
        "head_dim": None if head_dim * heads == width else head_dim,
        "tied": config.require("tie_word_embeddings", False, True),
        "qk_norm": family.qk_norm,
        "norms": family.norms,
        **biases,
        **read_window(config),
        **rotary_settings(config),
        **_unless_default(
            family,
            width,
            config.get("intermediate_size"),
            config.get("rms_norm_eps", family.norm_eps),
        ),
    }


def _switches(family: Family) -> tuple[bool, ...]:
    """Return the values that attention_bias may have in a config.json, the default first."""
    return (False, True) if "all" in family.biases else (False,)


def _kv_heads(family: Family, config: Configuration, heads: int) -> int:
    if family.says_kv and not config.says("num_key_value_heads"):
        return config.get("num_key_value_heads")  # raises: the default of the class is a number
    return config.get("num_key_value_heads", heads)


def _write_llama(family: Family, settings: GPTSettings) -> tuple[dict, list[str]]:
    notes = []
    _, entries_of_window = WINDOWS[family.windows]
    if settings.dropout:
        notes.append(f"dropout = {settings.dropout} is left out: {family.class_name} has none")
    return {
        "hidden_size": settings.width,
        "intermediate_size": _hidden(settings),
        "num_hidden_layers": settings.layers,
        "num_attention_heads": settings.heads,
        "num_key_value_heads": settings.kv_heads or settings.heads,
        "head_dim": settings.head_size,
        "max_position_embeddings": settings.sequence_length,
        "hidden_act": "silu",
        "rms_norm_eps": _eps(settings),
        "attention_bias": bias_of(settings) == "all",
        "mlp_bias": False,
        "attention_dropout": 0.0,
        **entries_of_window(settings),
        **rope_parameters(settings),
    }, notes


def _hidden(settings: GPTSettings) -> int:
    return settings.hidden or hidden_width(settings.width, settings.choices)


def _eps(settings: GPTSettings) -> float:
    return _STYLE_EPS[settings.style] if settings.norm_eps is None else settings.norm_eps


def _unless_default(family: Family, width: int, hidden: int, eps: float) -> dict:
    """Return the two as arguments of GPT, without those that are the defaults of the style."""
    arguments = {} if hidden == hidden_width(width, STYLES[family.style]) else {"hidden": hidden}
    return arguments if eps == _STYLE_EPS[family.style] else {**arguments, "norm_eps": eps}


# ---- the registry --------------------------------------------------------------------------------

_GPT2_NAMES = {
    "embedding.tokens": "transformer.wte",
    "embedding.positions": "transformer.wpe",
    "head.norm": "transformer.ln_f",
    "head.output": "lm_head",
    "attention_norm": "ln_1",
    "mlp_norm": "ln_2",
    "attention.query": "attn.c_attn",
    "attention.key": "attn.c_attn",
    "attention.value": "attn.c_attn",
    "attention.output": "attn.c_proj",
    "mlp.up": "mlp.c_fc",
    "mlp.down": "mlp.c_proj",
    "blocks": "transformer.h",
}
_LLAMA_NAMES = {
    "embedding.tokens": "model.embed_tokens",
    "head.norm": "model.norm",
    "head.output": "lm_head",
    "attention_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm",
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.query_norm": "self_attn.q_norm",
    "attention.key_norm": "self_attn.k_norm",
    "attention.output": "self_attn.o_proj",
    "mlp.gate": "mlp.gate_proj",
    "mlp.up": "mlp.up_proj",
    "mlp.down": "mlp.down_proj",
    "blocks": "model.layers",
}
_NAMES_AFTER = {
    "attention_norm": "post_attention_layernorm",
    "mlp_norm": "post_feedforward_layernorm",
}


def _llama_like(class_name: str, **choices) -> Family:
    names = choices.pop("names", {})
    return Family(class_name, {**_LLAMA_NAMES, **names}, _read_llama, _write_llama, **choices)


# {model_type: family}; of several that could hold a model, the first is written.
FAMILIES = {
    "gpt2": Family(
        "GPT2LMHeadModel",
        _GPT2_NAMES,
        _read_gpt2,
        _write_gpt2,
        style="gpt2",
        prefix="transformer.",
        biases=("all",),
        norm_eps=1e-5,
    ),
    "llama": _llama_like("LlamaForCausalLM", biases=("no", "all"), says_kv=False),
    "mistral": _llama_like("MistralForCausalLM", windows="all"),
    "qwen2": _llama_like("Qwen2ForCausalLM", biases=("qkv",), windows="some"),
    "qwen3": _llama_like(
        "Qwen3ForCausalLM",
        biases=("no", "all"),
        qk_norm="head",
        head_dim=128,
        windows="some",
    ),
    "olmo2": _llama_like(
        "Olmo2ForCausalLM",
        names=_NAMES_AFTER,
        biases=("no", "all"),
        qk_norm="projection",
        norms="after",
        norm_eps=1e-5,
        says_kv=False,
    ),
}


def read_configuration(
    entries: dict,
    where: str,
    dtype: str,
    sequence_length: int | None = None,
    *,
    most_layers: int = _MOST_LAYERS,
) -> tuple[GPT, Family, list[str]]:
    """Return the model that a config.json describes, its family, and notes.

    The model has no weights yet, and none are made before they are used.
    dtype            of our parameters
    sequence_length  of the model; None: the longest that the file says
    most_layers      that the tensors beside it can be of: layers are made before they are compared
    Errors: CheckpointError, with the reason, if GPT cannot compute what it describes.
    """
    config = Configuration(entries, where, sequence_length)
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise CheckpointError(
            f"{where} describes a {model_type!r} model; wanted {', '.join(FAMILIES)}"
        )
    config.check_nothing_else()
    family = FAMILIES[model_type]
    try:
        arguments = family.read(family, config)
        wanted_count(arguments["layers"], where, "layers", most_layers, error=CheckpointError)
        return GPT(**arguments, style=family.style, dtype=dtype), family, config.notes
    except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError) as error:
        raise CheckpointError(
            f"{where} does not describe a model that can be built: {error}"
        ) from None


def configuration_of(
    settings: GPTSettings, dtype: str, model_type: str | None = None
) -> tuple[dict, Family, list[str]]:
    """Return the config.json of a model, its family, and notes on what it cannot express.

    model_type   of the folder that the model came from, if it came from one
    Errors: CheckpointError if transformers has no such model.
    """
    able = [name for name, family in FAMILIES.items() if family.has(settings)]
    if not able:
        raise CheckpointError(
            f"transformers has no model of style {settings.style} with qk_norm = "
            f"{settings.qk_norm}, norms = {settings.norms}, attention_bias = {bias_of(settings)}, "
            f"window = {settings.window} and full_layers = {list(settings.full_layers)}; wanted "
            f"one of {', '.join(FAMILIES)}"
        )
    name = model_type if model_type in able else able[0]
    family = FAMILIES[name]
    config, notes = family.write(family, settings)
    return (
        {
            "architectures": [family.class_name],
            "model_type": name,
            "torch_dtype": dtype,
            "vocab_size": settings.vocabulary_size,
            "tie_word_embeddings": settings.tied,
            **config,
        },
        family,
        notes,
    )
