"""A config.json: what it says of a model, read and refused with reasons.

What GPT here computes exactly is read; whatever would change a prediction and is not computed is
refused with its key and value, and never approximated.
"""

from ...errors import CheckpointError
from ...nn.transformer import ROTARY_BASE

# Keys that change predictions in some model, and the values with which they change nothing; null
# never does.
_HARMLESS = {
    "alibi": (False,),
    "attention_chunk_size": (),
    "attention_multiplier": (),
    "attn_logit_softcapping": (),
    "auto_map": (),
    "clip_qkv": (),
    "embedding_multiplier": (1,),
    "final_logit_softcapping": (),
    "logit_scale": (1,),
    "logits_scaling": (1,),
    "mlp_bias": (False,),
    "n_routed_experts": (0,),
    "no_rope_layers": (),
    "num_experts": (0,),
    "num_local_experts": (0,),
    "partial_rotary_factor": (1,),
    "quantization_config": (),
    "residual_multiplier": (1,),
    "rotary_pct": (1,),
    "use_parallel_residual": (False,),
}
_SLIDING = "sliding_attention"


class Configuration:
    """A config.json.

    sequence_length   of the model that is made of it; None: the longest that it says
    notes             what it says that has no counterpart here and changes no prediction
    """

    def __init__(self, entries: dict, where: str, sequence_length: int | None = None):
        self._entries, self.where = entries, where
        self.sequence_length = sequence_length
        self.notes: list[str] = []

    def says(self, name: str) -> bool:
        """Return True if it has this key, be it null."""
        return name in self._entries

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
            raise self.refusal(name, value, f"wanted {' or '.join(map(repr, wanted))}")
        return value

    def refusal(self, name: str, value, advice: str) -> CheckpointError:
        """Return the error that this key has a value that is not computed."""
        return CheckpointError(
            f"{self.where} has {name} = {value!r:.200}, which GPT here does not compute; {advice}"
        )

    def leave_out(self, name: str, default: float) -> None:
        """Note a dropout of attention weights, which changes training and no prediction."""
        dropout = self.get(name, default)
        if dropout:
            self.notes.append(
                f"{name} = {dropout} is left out: attention weights are not dropped here"
            )

    def require_no_other(self, names: tuple[str, ...]) -> None:
        """Raise CheckpointError on a key that is none of these."""
        for name, value in self._entries.items():
            if name not in names:
                raise self.refusal(name, value, f"wanted {', '.join(names)} alone")

    def check_nothing_else(self) -> None:
        """Raise CheckpointError on a key that changes predictions otherwise."""
        for name, harmless in _HARMLESS.items():
            value = self._entries.get(name)
            if value is not None and value not in harmless:
                wanted = " or ".join(["none", *map(repr, harmless)])
                raise self.refusal(name, value, f"wanted {wanted}")


# ---- positions -----------------------------------------------------------------------------------


def length_of(config: Configuration) -> int:
    """Return the length of sequences."""
    return config.sequence_length or config.get("max_position_embeddings")


def rotary_settings(config: Configuration) -> dict:
    """Return rotary_base, and rotary_scaling where positions are scaled, as arguments of GPT.

    They are in rope_parameters, or in rope_theta and rope_scaling of older files.
    Errors: CheckpointError on another scaling, an entry that is not known, or two bases.
    """
    rope = _rope_entries(config)
    kind = rope.require("rope_type", "default", "linear", "llama3")
    rope.require_no_other(_ROPE_ENTRIES)
    rope.require("partial_rotary_factor", 1.0)
    outside = config.get("rope_theta", rope.get("rope_theta", ROTARY_BASE))
    inside = rope.get("rope_theta", outside)
    if inside != outside:
        raise CheckpointError(
            f"{config.where} has rope_theta = {outside} and, in its rope parameters, {inside}; "
            "remove the wrong one"
        )
    numbers = [float(rope.get(name)) for name in _SCALINGS[kind]]
    scaling = {"rotary_scaling": tuple(numbers)} if numbers else {}
    return {"rotary_base": float(inside), **scaling}


def _rope_entries(config) -> Configuration:
    """Return the entries of both names, of which the newer one counts."""
    entries: dict = {}
    for name in ("rope_scaling", "rope_parameters"):
        given = {**config.get(name, {})}
        entries |= {key: value for key, value in given.items() if value is not None}
    older = entries.pop("type", None)
    entries.setdefault("rope_type", older)
    return Configuration(entries, f"{config.where}, in its rope parameters,")


_SCALINGS = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}
_ROPE_ENTRIES = ("rope_type", "rope_theta", "partial_rotary_factor", *_SCALINGS["llama3"])


def rope_parameters(settings) -> dict:
    """Return the entries of rotary positions in a config.json, for new and older transformers."""
    base, scaling = settings.rotary_base, settings.rotary_scaling or ()
    kind = next(kind for kind, names in _SCALINGS.items() if len(names) == len(scaling))
    numbers = dict(zip(_SCALINGS[kind], scaling))
    if kind == "llama3":
        numbers["original_max_position_embeddings"] = int(scaling[-1])
    parameters = {"rope_type": kind, "rope_theta": base, **numbers}
    older = {"rope_scaling": parameters} if scaling else {}
    return {"rope_theta": base, "rope_parameters": parameters, **older}


# ---- windows -------------------------------------------------------------------------------------


def check_window(config: Configuration, default: int) -> None:
    """Raise CheckpointError if a sliding window hides positions of a sequence.

    default   the window of a file that does not say; null means that there is none
    """
    if not config.says("sliding_window"):
        window = default
    else:
        window = config.get("sliding_window", length_of(config))
    if window < length_of(config):
        raise config.refusal(
            "sliding_window",
            window,
            f"sequences of up to {window} tokens do not reach it: choose sequence_length = "
            f"{window} instead of {length_of(config)}",
        )


def check_window_of_qwen(config: Configuration) -> None:
    """Raise CheckpointError if some layer has a sliding window that hides positions."""
    layers = config.get("num_hidden_layers")
    kinds = set(config.get("layer_types", []))
    if kinds - {"full_attention", _SLIDING}:
        raise config.refusal("layer_types", sorted(kinds), f"wanted full_attention or {_SLIDING}")
    slides = _SLIDING in kinds if kinds else config.get("max_window_layers", 28) < layers
    if config.get("use_sliding_window", False) and slides:
        check_window(config, default=4096)
