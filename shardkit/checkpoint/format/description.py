"""Check the description of a checkpoint: what a model needs to go on, beside its tensors.

{"step": 100, "samples_seen": 3200, "seed": 0, "last_loss": 2.3, "mesh": {"data": 4, ...},
 "strategy": "FSDP", "active_features": null, "model": {"class": "GPT", "configuration": {...}},
 "optimizer": {"rule": "AdamW", ...}, ...}
"""

import json
from collections.abc import Iterable
from math import inf, isfinite
from types import NoneType
from typing import NoReturn

from ...errors import CheckpointError
from ...plain import plain


def is_count(value) -> bool:
    """Return True for an integer from 0 on that fits 64 bits."""
    return type(value) is int and 0 <= value < 1 << 63


def _is_table_of_counts(value) -> bool:
    return isinstance(value, dict) and all(map(is_count, value.values()))


def _is_loss(value) -> bool:
    return value is None or type(value) in (int, float) and isfinite(value)


def _is_list_of_counts(value) -> bool:
    return value is None or isinstance(value, list) and all(map(is_count, value))


def _is_list_of_names(value) -> bool:
    return value is None or isinstance(value, list) and all(isinstance(n, str) for n in value)


def _is_model(value) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("class"), str)
        and isinstance(value.get("configuration"), dict)
        and _is_table_of_tables(value.get("attributes", {}))
    )


def _is_table_of_tables(value) -> bool:
    return isinstance(value, dict) and all(isinstance(each, dict) for each in value.values())


def _is_evaluation(value) -> bool:
    return value is None or (
        isinstance(value, dict)
        and is_count(value.get("step"))
        and _is_loss(value.get("loss"))
        and isinstance(value.get("metrics"), dict)
        and all(map(_is_loss, value["metrics"].values()))
    )


def _is_optimizer(value) -> bool:
    """Return True for what optim/description.py tells of a rule; only the name is required."""
    if value is None:
        return True
    if not isinstance(value, dict):
        return False
    names, spared = value.get("state", []), value.get("spared", {})
    return (
        isinstance(value.get("rule"), str)
        and isinstance(names, list)
        and all(isinstance(name, str) for name in names)
        and isinstance(spared, dict)
        and all(each is not None and _is_list_of_names(each) for each in spared.values())
        and isinstance(value.get("settings", {}), dict)
        and is_count(value.get("state_since", 0))
    )


def _is_loss_scale(value) -> bool:
    return value is None or (
        isinstance(value, dict)
        and type(value.get("value")) in (int, float)
        and 0 < value["value"] < inf
        and is_count(value.get("good_steps"))
    )


def _is_validation(value) -> bool:
    return value is None or (
        isinstance(value, dict)
        and _is_loss(value.get("loss"))
        and all(value.get(name) is None or is_count(value[name]) for name in _OF_VALIDATION)
    )


_OF_VALIDATION = ("best_step", "patience")

# {field: (whether a value is right, what is wanted)}
_REQUIRED = {
    "step": (is_count, "an integer >= 0"),
    "samples_seen": (is_count, "an integer >= 0"),
    "seed": (lambda value: type(value) is int, "an integer"),
    "last_loss": (_is_loss, "a finite number or null"),
    "mesh": (_is_table_of_counts, "{axis: size}"),
    "strategy": (lambda value: isinstance(value, str), "a string"),
    "active_features": (_is_list_of_counts, "a list of integers, or null"),
    "model": (_is_model, '{"class": ..., "configuration": {...}}'),
    "optimizer": (
        _is_optimizer,
        '{"rule": name, "state": [names], "settings": {...}, "state_since": an integer >= 0} '
        "or null",
    ),
}
_OPTIONAL = {
    "skipped_steps": (lambda value: value is None or is_count(value), "an integer >= 0"),
    "objectives": (lambda v: v is None or _is_table_of_counts(v), "{name: count} or null"),
    "validation": (
        _is_validation,
        '{"loss": a finite number or null, "best_step" and "patience": integers >= 0 or null}',
    ),
    "frozen": (_is_list_of_names, "a list of names of parameters, or null"),
    "evaluation": (
        _is_evaluation,
        '{"loss": a number, "step": an integer >= 0, "metrics": {name: a number}} or null',
    ),
    "loss_scale": (
        _is_loss_scale,
        '{"value": a number above 0, "good_steps": an integer >= 0} or null',
    ),
}


def check_description(description) -> None:
    """Raise CheckpointError unless this has all that a model needs to go on, in the right types."""
    if not isinstance(description, dict):
        raise CheckpointError(
            f"the description of a checkpoint is a {type(description).__name__}; wanted a dict"
        )
    for name, (is_right, wanted) in {**_REQUIRED, **_OPTIONAL}.items():
        is_missing = name in _REQUIRED and name not in description
        if is_missing or not is_right(description.get(name)):
            raise CheckpointError(
                f"the description of the checkpoint has {name} = {description.get(name)!r:.100}; "
                f"wanted {wanted}"
            )
    step = description["step"]
    num_skipped = description.get("skipped_steps") or 0
    since = state_since(description)
    if num_skipped + since > step:
        raise CheckpointError(
            f"the description of the checkpoint has step = {step}, of which {num_skipped} were "
            f"skipped, and optimizer = {description['optimizer']!r:.300}, whose state began after "
            f"{since}"
        )


def state_since(description: dict) -> int:
    """Return after how many updates the stored optimizer state was zero."""
    return (description["optimizer"] or {}).get("state_since") or 0


def storable(description: dict) -> dict:
    """Return this as plain data, as JSON can hold it and give it back.

    Errors: CheckpointError that names what is none.
    """
    try:
        description = plain(description)
        _check_plain(description, ())
        json.dumps(description, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"the description of the checkpoint cannot be stored: {error}; {_WANTED}"
        ) from None
    return description


_WANTED = "pass plain numbers, strings, lists and dicts with names"
_PLAIN = (NoneType, bool, int, float, str)


def _check_plain(value, place: tuple[str, ...]) -> None:
    """Raise CheckpointError on what JSON cannot hold, and on keys that it would turn into strings.

    place   where the value stands: names and numbers
    """
    inner: Iterable = ()
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                _refuse(place, f"the key {key!r} of {value!r:.100} would come back as a string")
        inner = value.items()
    elif isinstance(value, (list, tuple)):
        inner = enumerate(value)
    elif not isinstance(value, _PLAIN):
        _refuse(place, f"{value!r:.100} of type {type(value).__name__}")
    elif isinstance(value, float) and not isfinite(value):
        _refuse(place, repr(value))
    for name, each in inner:
        _check_plain(each, (*place, str(name)))


def _refuse(place: tuple[str, ...], what: str) -> NoReturn:
    where = ".".join(place) or "it"
    raise CheckpointError(
        f"the description of the checkpoint cannot be stored: {where} is {what}; {_WANTED}"
    )
