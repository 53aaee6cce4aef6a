"""GPT: a decoder-only transformer, from token numbers to the logits of the next token.

    ids [batch, sequence] -> embedding -> blocks.0 -> blocks.1 -> ... -> head -> logits [batch,
    sequence, vocabulary]

Each arrow enters a block of `blocks()`: what is gathered together, or sent to a pipeline
stage.
"""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy

from ...annotations import Array, DTypeLike, Shape
from ...arguments import is_among, is_integer, is_number, require
from ...array.backend import to_host, xp_of
from ...errors import ShapeError
from ..autograd import Tensor
from ..buffer import Buffer
from ..context import ForwardContext, current_context, hold_marks
from ..generation import Choice, generate
from ..init import Normal
from ..layers.basic import Dropout, Embedding, Linear, check_sizes, checked_dtype, input_tensor
from ..lora import apply_lora
from ..loss import CrossEntropy
from ..module import Module, ModuleList, numbered
from ..on_parts import partwise
from ..ops.attention import require_window
from ..parameter import Parameter
from ..texts import WholeTexts, unmarked
from ..transformer import (
    ATTENTION_BIASES,
    BLOCK_NORMS,
    ROTARY_BASE,
    STYLES,
    WEIGHT_INIT,
    Style,
    TransformerBlock,
    check_heads,
    check_qk_norm,
    check_scaling,
)

LORA_ALPHA, LORA_LAYERS = 16.0, ("*.attention.query", "*.attention.value")


@dataclass(frozen=True, slots=True)
class GPTSettings:
    """The arguments of GPT. Errors: ConfigurationError on sizes that do not fit together."""

    vocabulary_size: int
    sequence_length: int
    width: int
    layers: int
    heads: int
    kv_heads: int | None
    style: str
    tied: bool
    dropout: float
    seed: int
    dtype: str
    hidden: int | None
    norm_eps: float | None
    rotary_base: float
    head_dim: int | None = None
    attention_bias: str | None = None
    qk_norm: str | None = None
    norms: str = "before"
    rotary_scaling: tuple[float, ...] | None = None
    lora_rank: int = 0
    lora_alpha: float = LORA_ALPHA
    lora_layers: tuple[str, ...] = LORA_LAYERS
    window: int | None = None
    full_layers: tuple[int, ...] = ()

    def __post_init__(self):
        check_sizes(
            "GPT",
            vocabulary_size=self.vocabulary_size,
            sequence_length=self.sequence_length,
            layers=self.layers,
        )
        self._check_name("style", STYLES)
        self._check_name("norms", BLOCK_NORMS)
        if self.attention_bias is not None:
            self._check_name("attention_bias", ATTENTION_BIASES)
        check_qk_norm(self.qk_norm)
        check_scaling(self.rotary_scaling, is_rotary=self.choices.is_rotary)
        require(isinstance(self.tied, bool), "GPT with tied", self.tied, "True or False")
        require(is_integer(self.seed), "GPT with seed", self.seed, "an integer")
        check_heads(
            self.width,
            self.heads,
            self.heads if self.kv_heads is None else self.kv_heads,
            self.head_dim,
            is_rotary=self.choices.is_rotary,
        )
        if self.hidden is not None:
            check_sizes("GPT", hidden=self.hidden)
        self._check_lora()
        self._check_windows()
        for name, number in {"norm_eps": self.norm_eps, "rotary_base": self.rotary_base}.items():
            require(
                number is None or is_number(number, above=0),
                f"GPT with {name}",
                number,
                "a number above 0",
            )

    def _check_lora(self) -> None:
        is_rank = is_integer(self.lora_rank, at_least=0)
        require(is_rank, "GPT with lora_rank", self.lora_rank, "an integer from 0 on")
        are_patterns = all(isinstance(pattern, str) for pattern in self.lora_layers)
        require(are_patterns, "GPT with lora_layers", self.lora_layers, "patterns of names")
        given = {"lora_alpha": self.lora_alpha, "lora_layers": self.lora_layers}
        for name, value in given.items():
            is_default = value == {"lora_alpha": LORA_ALPHA, "lora_layers": LORA_LAYERS}[name]
            require(
                self.lora_rank > 0 or is_default,
                f"GPT with {name}",
                value,
                "lora_rank above 0 with it: without updates it means nothing",
            )

    def _check_windows(self) -> None:
        require_window("GPT", self.window)
        numbers = self.full_layers
        are_layers = isinstance(numbers, tuple) and all(
            is_integer(n, at_least=0) and n < self.layers for n in numbers
        )
        require(
            are_layers and len(set(numbers)) == len(numbers),
            "GPT with full_layers",
            numbers,
            f"numbers of layers, 0 .. {self.layers - 1}, each once",
        )
        wanted = "a window with it: without one all layers see everything"
        require(self.window is not None or not numbers, "GPT with full_layers", numbers, wanted)

    def _check_name(self, field: str, known) -> None:
        value = getattr(self, field)
        require(is_among(value, known), f"GPT with {field}", value, f"one of {', '.join(known)}")

    @property
    def choices(self) -> Style:
        """The style of that name."""
        return STYLES[self.style]

    @property
    def head_size(self) -> int:
        """The elements of a head."""
        return self.width // self.heads if self.head_dim is None else self.head_dim

    @property
    def windows(self) -> tuple[int | None, ...]:
        """The window of each layer; None: it sees everything."""
        full = self.full_layers
        return tuple([None if n in full else self.window for n in range(self.layers)])

    @property
    def attention(self) -> dict:
        """The arguments of SelfAttention but for width, heads, window, and what all layers have."""
        bias = {} if self.attention_bias is None else {"bias": self.attention_bias}
        return {
            "kv_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "qk_norm": self.qk_norm,
            "rotary_base": self.rotary_base,
            "rotary_scaling": self.rotary_scaling,
            **bias,
        }


class TokenEmbedding(Module):
    """ids [batch, S] -> [batch, S, width]: a vector per token, and per learned position.

    Errors: ShapeError if ids are not integers, not [batch, S], longer than sequence_length, or
    outside the vocabulary.
    """

    def __init__(self, settings: GPTSettings):
        self.sequence_length = settings.sequence_length
        self.tokens = Embedding(
            settings.vocabulary_size, settings.width, init=WEIGHT_INIT, dtype=settings.dtype
        )
        self.positions = None
        if not settings.choices.is_rotary:
            self.positions = Embedding(
                settings.sequence_length, settings.width, init=WEIGHT_INIT, dtype=settings.dtype
            )
        self.dropout = Dropout(settings.dropout, sample_dim=0)

    def check_input(self, x):
        _check(self, x, x.shape[-1] if x.ndim else 0)
        self.tokens.check_input(unmarked(x) if are_marked(x) else x)

    def forward(self, ids):
        ids = input_tensor(ids)
        texts = current_context().texts
        length = ids.shape[-1] if ids.ndim else 0
        if texts is None:
            return self.embedded(ids, length, lambda xp: xp.arange(length, dtype=numpy.int64))
        return self.embedded(texts.read(ids), texts.stop, texts.positions)

    def embedded(self, ids: Tensor, stop: int, positions: Callable[[Any], Any]) -> Tensor:
        """Compute [batch, S, width] of ids [batch, S] at positions(xp), all below `stop`.

        positions   [S], or [batch, S]
        """
        _check(self, ids, stop)
        x = self.tokens(ids)  # [batch, S, width]
        if self.positions is not None:
            x = x + self.positions(positions(xp_of(x.array)))  # [S, width] broadcasts
        return self.dropout(x)


def _check(layer, ids, stop):
    """Raise ShapeError unless these are integers [batch, S], at positions below `stop`."""
    if ids.ndim != 2 or ids.dtype.kind not in "iu":
        raise ShapeError(f"GPT of x {ids.shape} {ids.dtype}; wanted integers [batch, sequence]")
    if stop > layer.sequence_length:
        raise ShapeError(
            f"GPT of sequences of {stop} tokens, but it was made for sequence_length = "
            f"{layer.sequence_length}; cut x, or make the model longer"
        )


@partwise
class Head(Module):
    """x [batch, S, width] -> logits [batch, S, vocabulary]: a norm, then a product."""

    def __init__(self, settings: GPTSettings):
        self.norm = settings.choices.make_norm(settings.width, settings.norm_eps, settings.dtype)
        self.output = Linear(
            settings.width,
            settings.vocabulary_size,
            bias=False,
            init=WEIGHT_INIT,
            dtype=settings.dtype,
        )

    def tie(self, weight: Parameter) -> None:
        """Multiply with this weight [vocabulary, width], which another layer has too."""
        self.output.weight = weight

    def forward(self, x):
        texts = current_context().texts
        if texts is not None:
            x = texts.asked(x)
        return self.output(self.norm(x))


def are_marked(ids: Any) -> bool:
    """Return whether several texts stand in a row of ids, an array or Tensor anywhere."""
    ids = getattr(ids, "array", ids)
    return getattr(ids, "ndim", 0) == 2 and hold_marks(ids)


def _told_of_texts(x: Any, context: ForwardContext) -> ForwardContext:
    """Return the context, with the texts that stand in rows of x."""
    ids = getattr(x, "array", x)
    is_known = context.texts is not None or context.is_unmarked and type(ids) is not numpy.ndarray
    if is_known or not are_marked(ids):
        return context
    return replace(context, texts=WholeTexts(to_host(ids)))


class GPT(Module):
    """A language model over `vocabulary_size` tokens that sees up to `sequence_length` of them.

    x and y are integer arrays [batch, sequence]; the loss is the mean cross-entropy per token in
    nats. Where several texts stand in a row, the first token of each later one is
    nn.begin_text(number): it sees nothing before it, nor do those behind it.

    Parameters
    ----------
    vocabulary_size
        Tokens that there are.
    sequence_length
        Longest text that is seen at once, in tokens.
    width, layers, heads
        Of the transformer blocks.
    kv_heads
        Fewer key and value heads than heads: grouped-query attention; None: as many.
    style
        "gpt2" or "llama", see transformer.STYLES.
    tied
        The head multiplies with the embedding's own weight, which is listed once, as
        embedding.tokens.weight.
    dropout
        Probability, after the embedding and after each attention and feed-forward.
    seed
        Of the initial weights.
    dtype
        "float32" or "float64".
    hidden
        Units of each feed-forward; None: 4 width, or near 8/3 width for llama.
    norm_eps
        Added to the variance in all norms; None: 1e-5, for llama 1e-6.
    rotary_base
        Of the angles of rotary positions: pair i of D/2 turns by rotary_base^(-2i/D) per position.
    head_dim
        Elements of a head; None: width / heads.
    attention_bias
        "no", "qkv" or "all" projections of attention have biases; None: as the style.
    qk_norm
        "head" or "projection": what is normalized of queries and keys; None: nothing.
    norms
        "before" or "after" attention and feed-forward.
    rotary_scaling
        Of these angles, see transformer.check_scaling; None: none.
    lora_rank
        Of the updates that are trained beside frozen weights, see nn.apply_lora; 0: there are none,
        and all weights are trained.
    lora_alpha, lora_layers
        Of the updates: alpha, and patterns of the names of their layers.
    window
        A token sees itself and the window - 1 before it in each layer (arXiv 2004.05150), as
        sliding_window in transformers; None: all before it.
    full_layers
        Numbers of layers without the window, from 0.
    """

    _told_by = staticmethod(_told_of_texts)

    if TYPE_CHECKING:

        def forward(self, x: Any) -> Tensor: ...

    def __init__(
        self,
        vocabulary_size: int,
        sequence_length: int,
        width: int,
        layers: int,
        heads: int,
        kv_heads: int | None = None,
        style: str = "gpt2",
        tied: bool = False,
        dropout: float = 0.0,
        seed: int = 0,
        dtype: DTypeLike = "float32",
        hidden: int | None = None,
        norm_eps: float | None = None,
        rotary_base: float = ROTARY_BASE,
        head_dim: int | None = None,
        attention_bias: str | None = None,
        qk_norm: str | None = None,
        norms: str = "before",
        rotary_scaling: tuple[float, ...] | None = None,
        lora_rank: int = 0,
        lora_alpha: float = LORA_ALPHA,
        lora_layers: tuple[str, ...] = LORA_LAYERS,
        window: int | None = None,
        full_layers: tuple[int, ...] = (),
    ) -> None:
        self.settings = settings = GPTSettings(
            vocabulary_size,
            sequence_length,
            width,
            layers,
            heads,
            kv_heads,
            style,
            tied,
            dropout,
            seed,
            checked_dtype("GPT", dtype),
            hidden,
            norm_eps,
            rotary_base,
            head_dim,
            attention_bias,
            qk_norm,
            norms,
            None if rotary_scaling is None else tuple(rotary_scaling),
            lora_rank,
            lora_alpha,
            tuple(lora_layers),
            window,
            tuple(full_layers) if isinstance(full_layers, Iterable) else full_layers,
        )
        residual_init = Normal(WEIGHT_INIT.std / (2 * layers) ** 0.5)
        self.embedding = TokenEmbedding(settings)
        self.layers = ModuleList(
            TransformerBlock(
                width,
                heads,
                style=settings.choices,
                hidden=hidden,
                norms=norms,
                norm_eps=norm_eps,
                dropout=dropout,
                output_init=residual_init,
                dtype=settings.dtype,
                window=own_window,
                **settings.attention,
            )
            for own_window in settings.windows
        )
        self.head = Head(settings)
        if tied:
            self.head.tie(self.embedding.tokens.weight)
        self.loss = CrossEntropy()
        if lora_rank:
            apply_lora(self, *lora_layers, rank=lora_rank, alpha=lora_alpha)
        self.finish(seed)

    def members(self) -> dict[str, Parameter | Buffer | Module]:
        """Return the members; in paths `blocks` is their list (blocks.3.mlp.up.weight)."""
        return {"embedding": self.embedding, "blocks": self.layers, "head": self.head}

    def blocks(self) -> list[tuple[str, Module]]:
        middle = numbered("blocks", self.layers)
        return [("embedding", self.embedding), *middle, ("head", self.head)]

    def output_shape(self, input_shape: Shape) -> Shape | None:
        return (*input_shape, self.settings.vocabulary_size)

    def generate(
        self,
        prompt: Any,
        num_tokens: int,
        temperature: float = 1.0,
        seed: int = 0,
        *,
        top_k: int | None = None,
        top_p: float | None = None,
        repetition_penalty: float = 1.0,
        stop: tuple[int, ...] = (),
    ) -> Array:
        """Return the tokens that follow the prompt, [num_tokens] int64, or fewer if it stops.

        Parameters
        ----------
        prompt
            1-D integers, at least one; the others: see generation.Choice.
        num_tokens
            To add, unless a stop token comes before.
        temperature, top_k, top_p, repetition_penalty, stop
            See generation.Choice.
        seed
            Token i of the text, the prompt counted, is drawn with random number i of this seed:
            same seed, same text, in one call or in several that continue it.

        Raises
        ------
        ShapeError
            On another prompt.
        ConfigurationError, NonFiniteError
        """
        choice = Choice(
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            repetition_penalty=repetition_penalty,
            stop=stop,
        )
        return generate(self, prompt, num_tokens, choice, seed)

    def configuration(self) -> dict[str, Any]:
        return asdict(self.settings)

    @property
    def num_flops_per_token(self) -> int:
        """Estimate the floating point operations of a token's forward and backward pass.

            6 N                               N weights in matrix products: a multiplication and an
                                              addition each, once in the forward and twice in the
                                              backward
            12 heads head_dim length          scores and weighted values of each layer, without
                                              credit for the causal mask; length: sequence_length,
                                              or the window if that is less

        References
        ----------
        PaLM (arXiv 2204.02311), appendix B. N leaves out embedding tables, which are looked up and
        not multiplied; a tied one is multiplied in the head and counts.
        """
        s = self.settings
        tables = [self.embedding.positions] + ([] if s.tied else [self.embedding.tokens])
        num_multiplied = self.parameter_count - sum(
            table.parameter_count for table in tables if table is not None
        )
        num_seen = sum(
            [min(window or s.sequence_length, s.sequence_length) for window in s.windows]
        )
        return 6 * num_multiplied + 12 * s.heads * s.head_size * num_seen
