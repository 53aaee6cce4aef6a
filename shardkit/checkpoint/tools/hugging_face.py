"""Map GPT models to Hugging Face's transformers: the names of tensors, and config.json.

    here                               GPT2LMHeadModel           LlamaForCausalLM
    embedding.tokens.weight            transformer.wte.weight    model.embed_tokens.weight
    embedding.positions.weight         transformer.wpe.weight    -
    head.norm.weight                   transformer.ln_f.weight   model.norm.weight
    head.output.weight (if not tied)   lm_head.weight            lm_head.weight

    blocks.0.                          transformer.h.0.          model.layers.0.
      attention_norm.weight              ln_1.weight               input_layernorm.weight
      attention.{query,key,value}        attn.c_attn *             self_attn.{q,k,v}_proj
      attention.output                   attn.c_proj *             self_attn.o_proj
      mlp_norm.weight                    ln_2.weight               post_attention_layernorm.weight
      mlp.{gate,up,down}                 -, mlp.c_fc *, c_proj *   mlp.{gate,up,down}_proj

    * transposed; c_attn holds the three one after the other

Both sides turn the pairs (x[i], x[i + D/2]) of queries and keys, so rotary models need no
permutation.
"""

import re
from dataclasses import dataclass

from ...errors import CheckpointError
from ...nn.gpt import GPT, GPTSettings
from ...nn.transformer import ROTARY_BASE, STYLES, hidden_width

# of the styles here, and of a config.json that does not say
_DEFAULT_EPS = {"gpt2": 1e-5, "llama": 1e-6}
_CLASSES = {"gpt2": "GPT2LMHeadModel", "llama": "LlamaForCausalLM"}
_BASE_PREFIX = {"gpt2": "transformer.", "llama": "model."}
# constants that older files repeat
_BUFFERS = re.compile(r".*\.(attn\.(bias|masked_bias)|rotary_emb\.inv_freq)")

_NAMES = {
    "gpt2": {
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
    },
    "llama": {
        "embedding.tokens": "model.embed_tokens",
        "head.norm": "model.norm",
        "head.output": "lm_head",
        "attention_norm": "input_layernorm",
        "mlp_norm": "post_attention_layernorm",
        "attention.query": "self_attn.q_proj",
        "attention.key": "self_attn.k_proj",
        "attention.value": "self_attn.v_proj",
        "attention.output": "self_attn.o_proj",
        "mlp.gate": "mlp.gate_proj",
        "mlp.up": "mlp.up_proj",
        "mlp.down": "mlp.down_proj",
        "blocks": "model.layers",
    },
}
# in GPT-2: parts of c_attn
_FUSED = {"attention.query": 0, "attention.key": 1, "attention.value": 2}


@dataclass(frozen=True)
class Link:
    """One of our parameters and where it is in theirs."""

    ours: str
    theirs: str
    is_transposed: bool = False
    part: int = 0  # of num_parts equal ones along the last dim of theirs
    num_parts: int = 1

    def shape_in_theirs(self, shape) -> tuple[int, ...]:
        """Return the shape of their whole tensor, if ours has this shape."""
        shape = tuple(reversed(shape)) if self.is_transposed else tuple(shape)
        return (*shape[:-1], shape[-1] * self.num_parts)

    def index(self, shape) -> tuple:
        """Return where ours, of this shape, is in their tensor."""
        size = self.shape_in_theirs(shape)[-1] // self.num_parts
        return (..., slice(self.part * size, (self.part + 1) * size))


def links(model: GPT) -> list[Link]:
    """Return where each parameter of the model is, in canonical order."""
    return [_link(name, model.settings.style) for name in model.named_parameters()]


def _link(ours: str, style: str) -> Link:
    block = re.fullmatch(r"blocks\.(\d+)\.(.+)\.(weight|bias)", ours)
    if not block:
        module, _, kind = ours.rpartition(".")
        return Link(ours, f"{_NAMES[style][module]}.{kind}")
    index, module, kind = block.groups()
    theirs = f"{_NAMES[style]['blocks']}.{index}.{_NAMES[style][module]}.{kind}"
    if style != "gpt2":
        return Link(ours, theirs)
    # GPT-2 keeps [in, out], as 1-D convolutions do
    is_transposed = kind == "weight" and not module.endswith("norm")
    return Link(ours, theirs, is_transposed, _FUSED.get(module, 0), 3 if module in _FUSED else 1)


def found_names(tensors, style: str) -> dict[str, str]:
    """Return {full name: name in the file}, without constants.

    Files of a bare GPT2Model or LlamaModel leave out the first part of names.
    """
    prefix = _BASE_PREFIX[style]
    is_bare = not any(name.startswith(prefix) for name in tensors)
    names = [name for name in tensors if not _BUFFERS.fullmatch(name)]
    return {
        prefix + name if is_bare and not name.startswith("lm_head.") else name: name
        for name in names
    }


# ---- config.json ---------------------------------------------------------------------------------


class Configuration:
    """A config.json, read with reasons.

    notes   what it says that has no counterpart here and changes no prediction
    """

    def __init__(self, entries: dict, where: str):
        self._entries, self.where = entries, where
        self.notes: list[str] = []

    def get(self, name: str, default=None):
        """Return its value, or the default if it is absent or null.

        Errors: CheckpointError if there is neither.
        """
        value = self._entries.get(name)
        value = default if value is None else value
        if value is None:
            raise CheckpointError(
                f"{self.where} does not say {name}; is it the configuration of another model?"
            )
        return value

    def require(self, name: str, *wanted):
        """Return its value, or the first of these if it is absent or null.

        Errors: CheckpointError unless it is one of these.
        """
        value = self.get(name, wanted[0])
        if value not in wanted:
            raise CheckpointError(
                f"{self.where} has {name} = {value!r}, which GPT here does not compute; wanted "
                f"{' or '.join(map(repr, wanted))}"
            )
        return value

    def leave_out(self, name: str, default: float) -> None:
        """Note a dropout of attention weights, which changes training and no prediction."""
        dropout = self.get(name, default)
        if dropout:
            self.notes.append(
                f"{name} = {dropout} is left out: attention weights are not dropped here"
            )


def read_configuration(entries: dict, where: str, dtype: str) -> tuple[GPT, list[str]]:
    """Return the model that a config.json describes, with initial weights, and notes.

    The weights are not made before they are used.
    dtype   of our parameters
    Errors: CheckpointError, with the reason, if GPT cannot compute what it describes.
    """
    config = Configuration(entries, where)
    readers = {"gpt2": _read_gpt2, "llama": _read_llama}
    model_type = config.get("model_type")
    if model_type not in readers:
        raise CheckpointError(
            f"{where} describes a {model_type!r} model; wanted {' or '.join(readers)}"
        )
    if "quantization_config" in entries:
        raise CheckpointError(f"{where} describes a quantized model; convert the original one")
    try:
        return GPT(**readers[model_type](config), style=model_type, dtype=dtype), config.notes
    except (TypeError, ValueError, ArithmeticError) as error:
        raise CheckpointError(
            f"{where} does not describe a model that can be built: {error}"
        ) from None


def _read_gpt2(config: Configuration) -> dict:
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
            "gpt2", width, config.get("n_inner", 4 * width), config.get("layer_norm_epsilon", 1e-5)
        ),
    }


def _read_llama(config: Configuration) -> dict:
    config.require("hidden_act", "silu", "swish")
    config.require("attention_bias", False)
    config.require("mlp_bias", False)
    config.leave_out("attention_dropout", default=0.0)
    width, heads = config.get("hidden_size"), config.get("num_attention_heads")
    config.require("head_dim", width // heads)
    kv_heads = config.get("num_key_value_heads", heads)
    return {
        "vocabulary_size": config.get("vocab_size"),
        "sequence_length": config.get("max_position_embeddings"),
        "width": width,
        "layers": config.get("num_hidden_layers"),
        "heads": heads,
        "kv_heads": None if kv_heads == heads else kv_heads,
        "tied": config.require("tie_word_embeddings", False, True),
        "rotary_base": _rotary_base(config),
        **_unless_default(
            "llama", width, config.get("intermediate_size"), config.get("rms_norm_eps", 1e-6)
        ),
    }


def _rotary_base(config: Configuration) -> float:
    """Return the base from rope_parameters, or rope_theta and rope_scaling of older files.

    Errors: CheckpointError on scaled positions, or two bases.
    """
    entries = {**config.get("rope_scaling", {}), **config.get("rope_parameters", {})}
    rope = Configuration(
        {"rope_type": entries.get("type"), **entries}, f"{config.where}, in its rope parameters,"
    )
    rope.require("rope_type", "default")
    rope.require("partial_rotary_factor", 1.0)
    outside = config.get("rope_theta", rope.get("rope_theta", ROTARY_BASE))
    inside = rope.get("rope_theta", outside)
    if inside != outside:
        raise CheckpointError(
            f"{config.where} has rope_theta = {outside} and, in its rope parameters, {inside}; "
            "remove the wrong one"
        )
    return float(inside)


def _unless_default(style: str, width: int, hidden: int, eps: float) -> dict:
    """Return the two as arguments of GPT, without those that are the defaults of the style."""
    arguments = {} if hidden == hidden_width(width, STYLES[style]) else {"hidden": hidden}
    return arguments if eps == _DEFAULT_EPS[style] else {**arguments, "norm_eps": eps}


def configuration_of(settings: GPTSettings, dtype: str) -> tuple[dict, list[str]]:
    """Return the config.json of a model, and notes on what it cannot express.

    Errors: CheckpointError if transformers has no such model.
    """
    writer = {"gpt2": _gpt2_configuration, "llama": _llama_configuration}[settings.style]
    hidden = settings.hidden
    if hidden is None:
        hidden = hidden_width(settings.width, settings.choices)
    eps = _DEFAULT_EPS[settings.style] if settings.norm_eps is None else settings.norm_eps
    config, notes = writer(settings, hidden, eps)
    return {
        "architectures": [_CLASSES[settings.style]],
        "model_type": settings.style,
        "torch_dtype": dtype,
        "vocab_size": settings.vocabulary_size,
        "tie_word_embeddings": settings.tied,
        **config,
    }, notes


def _gpt2_configuration(settings, hidden, eps):
    if settings.kv_heads not in (None, settings.heads):
        raise CheckpointError(
            f"GPT2LMHeadModel has as many key heads as heads, and this model has "
            f"{settings.kv_heads} of {settings.heads}; it cannot be written as one"
        )
    return {
        "n_embd": settings.width,
        "n_layer": settings.layers,
        "n_head": settings.heads,
        "n_positions": settings.sequence_length,
        "n_inner": hidden,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": eps,
        "embd_pdrop": settings.dropout,
        "resid_pdrop": settings.dropout,
        "attn_pdrop": 0.0,
    }, []


def _llama_configuration(settings, hidden, eps):
    notes = []
    if settings.dropout:
        notes.append(f"dropout = {settings.dropout} is left out: LlamaForCausalLM has none")
    return {
        "hidden_size": settings.width,
        "intermediate_size": hidden,
        "num_hidden_layers": settings.layers,
        "num_attention_heads": settings.heads,
        "num_key_value_heads": settings.kv_heads or settings.heads,
        "head_dim": settings.width // settings.heads,
        "max_position_embeddings": settings.sequence_length,
        "hidden_act": "silu",
        "rms_norm_eps": eps,
        "attention_bias": False,
        "mlp_bias": False,
        "attention_dropout": 0.0,
        "rope_theta": settings.rotary_base,
        "rope_parameters": {"rope_type": "default", "rope_theta": settings.rotary_base},
    }, notes
