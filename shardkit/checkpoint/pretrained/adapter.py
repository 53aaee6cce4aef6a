"""Updates of low rank as a folder of the library PEFT: adapter_config.json and a safetensors file.

    model = sk.load("runs/tuned")                         a GPT with LoRA, or any module with it
    sk.save_adapter(model, "adapter")
    PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained("llama"), "adapter")

    sk.load_adapter(model, "adapter")                     the other way

    here     blocks.0.attention.query.lora_A
    there    base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight

A GPT has the names of its family in transformers, any other module its own. Query, key and value of
GPT-2 are one layer there, so updates of single ones are refused.
"""

import json
import re
from pathlib import Path
from typing import Any

from ...annotations import FilePath
from ...errors import CheckpointError, ConfigurationError
from ...files.paths import usable_path
from ...files.reading import read_json
from ...files.writing import write_whole
from ...nn.lora import LoRALinear, apply_lora, chosen_layers, lora_layers
from ...nn.models.gpt import GPT
from ...nn.module import Module
from .families import configuration_of
from .names import links
from .safetensors import READABLE, StoredTensor, read_header, write_tensors

SETTINGS_NAME, TENSORS_NAME = "adapter_config.json", "adapter_model.safetensors"
_NAME = re.compile(r"base_model\.model\.(.+)\.(lora_[AB])\.weight")
_PLAIN = re.compile(r"\^?[\w.\\-]+\$?")  # a pattern for the names of layers
# What this room computes, of what the library can; anything else is refused.
_WANTED: dict[str, Any] = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "modules_to_save": (None, []),
    "use_dora": (False,),
    "use_rslora": (False,),
    "alora_invocation_tokens": (None,),
    "target_parameters": (None, []),
    # others, such as PiSSA and OLoRA, change the weights beside the updates, in memory alone
    "init_lora_weights": (True, False, None, "gaussian", "orthogonal", "eva"),
}

# What may be anything: it says how the updates came about, or is read elsewhere.
_FREE = (
    *("auto_mapping", "base_model_name_or_path", "revision", "inference_mode", "task_type"),
    *("peft_version", "r", "lora_alpha", "lora_dropout", "rank_pattern", "alpha_pattern"),
    *("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern"),
    *("fan_in_fan_out", "megatron_core", "runtime_config", "ensure_weight_tying"),
    *("loftq_config", "eva_config", "corda_config", "lora_ga_config", "qalora_group_size"),
)


def save_adapter(model: Module, folder: FilePath) -> None:
    """Write the updates of a model with LoRA; the weights beside them stay behind.

    A sharded model has no weights in its module: take sk.load() of its checkpoint or image.

    Parameters
    ----------
    model
        A module with updates (nn.apply_lora).
    folder
        Is made; a file that is there is replaced when the new one is whole.

    Raises
    ------
    ConfigurationError
        If the model has no updates, other parameters are trained too, or transformers has no such
        layer.
    ShardingError
        If values live on other ranks.
    OSError
    """
    layers = lora_layers(model)
    if not layers:
        raise ConfigurationError(
            f"save_adapter of a {type(model).__name__} without LoRA; call nn.apply_lora first, or "
            "train a run with model.lora_rank"
        )
    _check_nothing_else_is_trained(model)
    names, is_transposed = _names_of(model, layers)
    arrays = {
        f"base_model.model.{names[path]}.{part}.weight": getattr(layer, part).array
        for path, layer in layers.items()
        for part in ("lora_A", "lora_B")
    }
    settings = _settings(layers, names, is_transposed, isinstance(model, GPT))
    folder = Path(usable_path(folder))
    folder.mkdir(parents=True, exist_ok=True)
    shapes = {name: array.shape for name, array in arrays.items()}
    dtypes = {name: str(array.dtype) for name, array in arrays.items()}
    write_tensors(folder / TENSORS_NAME, shapes, dtypes, arrays.values())
    write_whole(folder / SETTINGS_NAME, (json.dumps(settings, indent=2) + "\n").encode())


def load_adapter(model: Module, folder: FilePath) -> list[str]:
    """Give a model the updates of a folder; return the names of its layers.

    A layer that has no update yet gets one, and the rest of the model is frozen (nn.apply_lora).
    Call it before the model is sharded.

    Parameters
    ----------
    model
        A module that is not sharded yet.
    folder
        With adapter_config.json and adapter_model.safetensors.

    Raises
    ------
    FileNotFoundError, OSError
    CheckpointError
        If the folder is damaged, of another method than LoRA, or of another model.
    ConfigurationError
        On a layer that cannot have an update.

    Notes
    -----
    If it raises, nothing has changed.
    """
    folder = Path(usable_path(folder))
    where = folder / SETTINGS_NAME
    settings = read_json(where, error=CheckpointError)
    _check_settings(settings, where)
    stored = _stored(folder / TENSORS_NAME)
    paths = _paths_of(model, stored, folder / TENSORS_NAME)
    found = {}
    for path, pair in paths.items():
        rank = pair["lora_A"].shape[0]
        alpha = _of_layer(settings, "alpha_pattern", "lora_alpha", pair["lora_A"].name, where)
        found[path] = rank, alpha, pair
    present = lora_layers(model)
    new = [path for path in found if path not in present]
    _check_shapes(found, {**present, **(chosen_layers(model, new) if new else {})})
    for path in new:
        apply_lora(model, path, rank=found[path][0], alpha=found[path][1])
    present = lora_layers(model)
    for path, (_, _, pair) in found.items():
        for part, tensor in pair.items():
            parameter = getattr(present[path], part)
            parameter.array = tensor.read()
    return list(found)


# ---- writing -------------------------------------------------------------------------------------


def _check_nothing_else_is_trained(model: Module) -> None:
    others = [
        name
        for name, parameter in model.named_parameters().items()
        if parameter.requires_grad and not name.endswith((".lora_A", ".lora_B"))
    ]
    if others:
        raise ConfigurationError(
            f"save_adapter: {others[0]} is trained beside the updates, and an adapter has no place "
            "for it; freeze it, or merge_lora and save the whole model"
        )


def _names_of(model: Module, layers) -> tuple[dict[str, str], bool]:
    """Return {path of a layer: its name there}, and whether weights are [in, out] there."""
    if not isinstance(model, GPT):
        return {path: path for path in layers}, False
    _, family, _ = configuration_of(model.settings, model.settings.dtype)
    weights = [f"{path}.weight" for path in layers]
    by_name = {link.ours: link for link in links(model, family, weights)}
    for path in layers:
        link = by_name[f"{path}.weight"]
        if link.num_parts > 1:
            raise ConfigurationError(
                f"save_adapter: {path} is a part of {link.theirs} in {family.class_name}, and an "
                "update of it alone cannot be written; use merge_lora and save the whole model"
            )
    names = {path: by_name[f"{path}.weight"].theirs.removesuffix(".weight") for path in layers}
    return names, any(link.is_transposed for link in by_name.values())


def _settings(layers: dict[str, LoRALinear], names, is_transposed: bool, is_gpt: bool) -> dict:
    """Return the content of adapter_config.json."""
    first = next(iter(layers.values()))
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM" if is_gpt else None,
        "base_model_name_or_path": None,
        "inference_mode": True,
        "r": first.rank,
        "lora_alpha": first.alpha,
        "rank_pattern": {
            names[path]: layer.rank for path, layer in layers.items() if layer.rank != first.rank
        },
        "alpha_pattern": {
            names[path]: layer.alpha for path, layer in layers.items() if layer.alpha != first.alpha
        },
        "target_modules": sorted(names.values()),
        "fan_in_fan_out": is_transposed,
        "lora_dropout": 0.0,
        "bias": "none",
        "modules_to_save": None,
        "use_dora": False,
        "use_rslora": False,
    }


# ---- reading -------------------------------------------------------------------------------------


def _check_settings(settings: dict[str, Any], where: Path) -> None:
    """Raise CheckpointError on another method than plain updates, or a setting that is not known:
    kinds of updates that the library has later change what it computes, and not always a name.
    """
    for name, wanted in _WANTED.items():
        if settings.get(name, wanted[0]) not in wanted:
            raise _refusal(where, name, settings[name], wanted[0])
    for name, value in settings.items():
        if value and name not in (*_WANTED, *_FREE):
            raise _refusal(where, name, value, None)


def _refusal(where: Path, name: str, value: Any, wanted: Any) -> CheckpointError:
    return CheckpointError(
        f"{where} has {name} = {value!r:.200}, which is not computed here; wanted {wanted!r}"
    )


def _stored(path: Path) -> dict[str, dict[str, StoredTensor]]:
    """Return {name of a layer there: {"lora_A", "lora_B": where they are}}.

    Errors: CheckpointError.
    """
    found: dict[str, dict[str, StoredTensor]] = {}
    for name, tensor in read_header(path).items():
        match = _NAME.fullmatch(name)
        if not match or tensor.dtype not in READABLE or len(tensor.shape) != 2:
            raise CheckpointError(
                f"{path} holds {name} {list(tensor.shape)} of type {tensor.dtype}; wanted matrices "
                "of floats named base_model.model.*.lora_A.weight and lora_B.weight"
            )
        found.setdefault(match[1], {})[match[2]] = tensor
    for name, pair in found.items():
        if len(pair) != 2 or pair["lora_A"].shape[0] != pair["lora_B"].shape[1]:
            raise CheckpointError(
                f"{path}: the update of {name} is not lora_A [rank, in] and lora_B [out, rank] of "
                "one rank"
            )
    if not found:
        raise CheckpointError(f"{path} holds no update")
    return found


def _paths_of(model: Module, stored, where) -> dict[str, dict[str, StoredTensor]]:
    """Return {path of a layer of the model: its update}. Errors: CheckpointError."""
    modules = model.named_modules()
    ours = {path: path for path in modules}
    if isinstance(model, GPT):
        _, family, _ = configuration_of(model.settings, model.settings.dtype)
        weights = [name for name in model.named_parameters() if name.endswith(".weight")]
        ours = {
            link.theirs.removesuffix(".weight"): link.ours.removesuffix(".weight")
            for link in links(model, family, weights)
            if link.num_parts == 1
        }
    for name in stored:
        if name not in ours:
            raise CheckpointError(
                f"{where} has an update of {name}, which this {type(model).__name__} does not have "
                "as a layer of its own"
            )
    return {ours[name]: pair for name, pair in stored.items()}


def _of_layer(settings: dict, patterns: str, default: str, tensor: str, where: Path) -> float:
    """Return a setting of one layer. Errors: CheckpointError."""
    name = _NAME.sub(r"\1", tensor)
    by_name = settings.get(patterns) or {}
    if not isinstance(by_name, dict) or not all(map(_PLAIN.fullmatch, by_name)):
        raise CheckpointError(
            f"{where} has {patterns} = {by_name!r:.200}; wanted names of layers, without "
            "repetitions, which may take for ever to compare",
            where,
            patterns,
        )
    value = next(
        (by_name[pattern] for pattern in by_name if re.fullmatch(rf"(.*\.)?({pattern})", name)),
        settings.get(default),
    )
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise CheckpointError(f"{where} has {default} = {value!r} for {name}; wanted a number")
    return value


def _check_shapes(found, layers) -> None:
    """Raise CheckpointError unless the updates have the shapes of their layers."""
    for path, (rank, alpha, pair) in found.items():
        layer = layers[path]
        out_features, in_features = layer.weight.shape
        got = pair["lora_A"].shape, pair["lora_B"].shape
        is_same = not isinstance(layer, LoRALinear) or (layer.rank, layer.alpha) == (rank, alpha)
        if got != ((rank, in_features), (out_features, rank)) or not is_same:
            raise CheckpointError(
                f"the update of {path} has lora_A {list(got[0])}, lora_B {list(got[1])} and alpha "
                f"{alpha}; it is of another model, whose layer is {list(layer.weight.shape)}"
            )
