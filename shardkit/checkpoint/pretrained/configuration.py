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
_FULL, _SLIDING = "full_attention", "sliding_attention"


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

    def is_null(self, name: str) -> bool:
        """Return True if it has this key without a value."""
        return name in self._entries and self._entries[name] is None

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
# What a sliding window of w tokens there lets a token see, itself and the w - 1 before it, is what
# `window` of GPT does. {which layers may have one: how it is read, and written}


def _no_window(config: Configuration) -> dict:
    return {}


def _window_of_all(config: Configuration) -> dict:
    """Return the window of all layers, as Mistral says it: 4096 where the file has no such key."""
    window = _window(config)
    return {} if window is None else {"window": window}


def _window_of_some(config: Configuration) -> dict:
    """Return the window and the layers without, as Qwen says them: those that slide by their kind,
    or from max_window_layers on.
    """
    count = config.get("num_hidden_layers")
    most_full = config.get("max_window_layers", 28)
    kinds = config.get("layer_types", [_FULL if n < most_full else _SLIDING for n in range(count)])
    if set(kinds) - {_FULL, _SLIDING} or len(kinds) != count:
        raise config.refusal("layer_types", kinds, f"wanted {count}, each {_FULL} or {_SLIDING}")
    window = _window(config) if config.get("use_sliding_window", False) else None
    full = tuple([number for number, kind in enumerate(kinds) if kind == _FULL])
    if window is None or len(full) == count:
        return {}
    return {"window": window, "full_layers": full}


def _window(config: Configuration) -> int | None:
    """Return what it says as sliding_window, null for none."""
    return None if config.is_null("sliding_window") else config.get("sliding_window", 4096)


def _entries_of_none(settings) -> dict:
    return {}


def _entries_of_all(settings) -> dict:
    return {"sliding_window": settings.window}


def _entries_of_some(settings) -> dict:
    full = [window is None for window in settings.windows]
    first_sliding = full.index(False) if settings.window and not all(full) else settings.layers
    return {
        "use_sliding_window": settings.window is not None,
        "sliding_window": settings.window,
        "max_window_layers": first_sliding,
        "layer_types": [_FULL if is_full else _SLIDING for is_full in full],
    }


WINDOWS = {
    "none": (_no_window, _entries_of_none),
    "all": (_window_of_all, _entries_of_all),
    "some": (_window_of_some, _entries_of_some),
}


def windows_of(settings) -> tuple[str, ...]:
    """Return the names in WINDOWS with which a model of these settings can be said."""
    if settings.window is None:
        return ("none", "all", "some")
    return ("some",) if settings.full_layers else ("all", "some")
