"""The section `model`: the sizes of a GPT."""

from dataclasses import dataclass

from ..settings import fixed, setting
from .layers.basic import DTYPES
from .models.gpt import LORA_ALPHA, LORA_LAYERS
from .transformer import ATTENTION_BIASES, BLOCK_NORMS, QK_NORMS, ROTARY_BASE, STYLES

_KEPT = "its weights were trained as those of this model"


@dataclass(frozen=True, kw_only=True)
class Model:
    """Sizes of the GPT; the names are those of its arguments."""

    vocabulary_size: int | None = fixed(
        _KEPT, None, "tokens that the model knows; none: those of the data", "tokens", minimum=1
    )
    style: str = fixed(_KEPT, "llama", "style of the transformer block", among=STYLES)
    width: int = fixed(
        _KEPT, 128, "width of the residual stream", "elements", minimum=1, is_common=True
    )
    layers: int = fixed(_KEPT, 4, "transformer blocks", "blocks", minimum=1, is_common=True)
    heads: int = fixed(_KEPT, 4, "attention heads", "heads", minimum=1)
    kv_heads: int | None = fixed(
        _KEPT, None, "heads of keys and values; none: as many as heads", "heads", minimum=1
    )
    sequence_length: int = setting(
        128,
        "tokens in a sequence, the longest context",
        "tokens",
        minimum=1,
        at_resume="the samples are other ones: the rest of this epoch is dropped, the next begins",
    )
    tied: bool = fixed(_KEPT, False, "the output layer uses the embedding's weight")
    dropout: float = setting(
        0.0,
        "probability that an activation is dropped in training",
        minimum=0.0,
        below=1.0,
        at_resume="activations of the steps from here on are dropped with it",
    )
    dtype: str = fixed(_KEPT, "float32", "dtype of parameters and activations", among=DTYPES)
    hidden: int | None = fixed(
        _KEPT,
        None,
        "units of each feed-forward; none: 4 x width, or near 8/3 x width for llama",
        "elements",
        minimum=1,
    )
    norm_eps: float | None = fixed(
        _KEPT, None, "added to the variance in all norms; none: 1e-5, or 1e-6 for llama", above=0.0
    )
    rotary_base: float = fixed(_KEPT, ROTARY_BASE, "base of llama's rotary angles", above=0.0)
    head_dim: int | None = fixed(
        _KEPT, None, "elements of a head; none: width / heads", "elements", minimum=1
    )
    attention_bias: str | None = fixed(
        _KEPT,
        None,
        "which projections of attention have biases; none: as the style has them",
        among=ATTENTION_BIASES,
    )
    qk_norm: str | None = fixed(
        _KEPT,
        None,
        "what a norm of queries and keys normalizes; none: there is no such norm",
        among=QK_NORMS,
    )
    norms: str = fixed(
        _KEPT, "before", "where the norms of attention and feed-forward stand", among=BLOCK_NORMS
    )
    rotary_scaling: tuple[float, ...] | None = fixed(
        _KEPT,
        None,
        "rotary positions beyond the length that a model was made for: [factor], or [factor, low, "
        "high, length] as in Llama 3.1; none: as they are",
        above=0.0,
    )
    lora_rank: int = fixed(
        _KEPT,
        0,
        "rank of updates (LoRA) that are trained while all else is frozen; 0: all is trained",
        minimum=0,
        unplanned="trains the updates alone, and frozen weights have no gradients or state",
    )
    lora_alpha: float = fixed(_KEPT, LORA_ALPHA, "scale of the updates is alpha / rank", above=0.0)
    lora_layers: tuple[str, ...] = fixed(
        _KEPT, LORA_LAYERS, "patterns of the names of linear layers that get updates"
    )
    window: int | None = fixed(
        _KEPT,
        None,
        "a token sees itself and the window - 1 before it; none: all before it",
        "tokens",
        minimum=1,
    )
    full_layers: tuple[int, ...] = fixed(
        _KEPT, (), "layers that see everything in spite of a window, numbered from 0", minimum=0
    )
    start: str | None = fixed(
        "it began with other weights",
        None,
        "weights to begin with, which also give the sizes: a run folder, a checkpoint, or a folder "
        "of transformers; none: drawn from the seed",
        is_path=True,
    )
