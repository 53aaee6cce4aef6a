"""What a checkpoint says about an optimizer rule.

{"rule": "SGD", "state": [], "settings": {"lr": 0.1, "weight_decay": 0.0}}
"""

from dataclasses import fields, is_dataclass
from math import isfinite

from ..plain import unboxed
from .rules import Rule


def describe_rule(rule: Rule) -> dict:
    """Return the rule's class, the names of its state and its settings, as JSON can hold them."""
    if is_dataclass(rule):
        names = [field.name for field in fields(rule)]
    else:
        names = sorted(getattr(rule, "__dict__", {}))
    return {
        "rule": type(rule).__name__,
        "state": list(rule.state_names),
        "settings": {name: _plain(getattr(rule, name)) for name in names},
    }


def _plain(value):
    """Return a number, a name, or text for a schedule or function.

    The text has no addresses, which differ from run to run.
    """
    value = unboxed(value)
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float) and isfinite(value):
        return value
    if callable(value) and not is_dataclass(value):
        return getattr(value, "__qualname__", type(value).__name__)
    return str(value)


def rule_text(description: dict) -> str:
    """Return the description as one writes the rule: AdamW(lr=0.001, beta1=0.9, ...)."""
    if "settings" not in description:
        return description["rule"]
    settings = ", ".join(f"{name}={value}" for name, value in description["settings"].items())
    return f"{description['rule']}({settings})"
