"""Freezing: parameters that keep their values, chosen by patterns of their names.

    freeze(model, ["embedding.*", "blocks.[01].*"])      requires_grad = False of what matches

A frozen parameter takes no gradient. Sharded, it has no gradient memory, no optimizer state, no
reduction and no step: its values are gathered where they are sharded, and nothing else happens to
it (parallel/data/partition.py).
"""

from collections.abc import Iterable
from fnmatch import fnmatchcase

from ..errors import ConfigurationError


def set_trained(parameters: Iterable, is_trained: bool) -> None:
    """Let parameters take gradients from now on, or none."""
    for parameter in parameters:
        parameter.requires_grad = is_trained


def freeze(module, patterns: Iterable[str]) -> list[str]:
    """Set requires_grad = False of the parameters whose names match a pattern; return their names.

    patterns   of dotted names, with the wildcards *, ? and [...] of fnmatch; a tied parameter has
               its first name
    Errors: ConfigurationError on a pattern that matches nothing; nothing has changed then.
            ShardingError if a parameter already belongs to a sharded model, which trains it.
    """
    parameters = module.named_parameters()
    names = {pattern: [n for n in parameters if fnmatchcase(n, pattern)] for pattern in patterns}
    for pattern, matched in names.items():
        if not matched:
            some = ", ".join(list(parameters)[:4])
            raise ConfigurationError(
                f"frozen: {pattern!r} matches no parameter of this {type(module).__name__}; "
                f"its {len(parameters)} parameters are named {some}, ..."
            )
    chosen = {name for matched in names.values() for name in matched}
    set_trained([parameters[name] for name in chosen], False)
    return [name for name in parameters if name in chosen]
