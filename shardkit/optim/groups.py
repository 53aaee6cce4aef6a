"""Parameter groups: other constants of the rule, or another rule, for some parameters, chosen by
their names.

    groups = (
        sk.ParameterGroup("*.bias", "*norm*", weight_decay=0.0),
        sk.ParameterGroup("embedding.*", lr_scale=0.1),
        sk.ParameterGroup("head.*", rule=sk.Lion(lr=1e-4)),
    )
    config = sk.ShardingConfiguration(backend, optimizer=sk.AdamW(lr=1e-3), parameter_groups=groups)

A parameter is of the first group that its name matches, and of none if it matches none: then the
rule is as it was given. Constants have no state of their own, so a checkpoint opens under other
groups; where a parameter's rule keeps other state than the checkpoint has, all state begins anew.
"""

from collections.abc import Iterable
from dataclasses import fields, is_dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from ..arguments import is_number, nearest, require
from ..errors import ConfigurationError, ShardingError
from ..refusal import check_made, check_usable
from .muon import matrix_rule_of
from .rules import Rule

_NOT_OF_GROUPS = ("lr", "rule")


class ParameterGroup:
    """Parameters by patterns of their names, and what is other for them.

    Parameters
    ----------
    names
        Patterns as in a shell, of dotted names.
    lr_scale
        The learning rate is the rule's times this.
    rule
        Another rule, without a moving average; None: that of the model.
    changes
        Fields of the model's rule: weight_decay=0.0, beta1=0.8.

    Raises
    ------
    ConfigurationError
        On no name, a scale that is no finite number of at least 0, or changes beside another rule.

    Notes
    -----
    A moving average (sk.EMA) around the model's rule is around that of the group, too.
    """

    def __init__(
        self, *names: str, lr_scale: float = 1.0, rule: Rule | None = None, **changes: Any
    ) -> None:
        self.names, self.lr_scale, self.rule, self.changes = names, lr_scale, rule, changes
        check_made(self, self._check)

    def _check(self):
        names, rule = self.names, self.rule
        are_names = bool(names) and all(isinstance(name, str) and name for name in names)
        require(are_names, "ParameterGroup with names", names, 'patterns such as "*.bias"')
        is_scale = is_number(self.lr_scale, at_least=0)
        require(
            is_scale, "ParameterGroup with lr_scale", self.lr_scale, "a finite number, at least 0"
        )
        require(
            rule is None or _is_innermost(rule),
            "ParameterGroup with rule",
            rule,
            "a rule such as AdamW(lr=1e-3); sk.EMA goes around the rule of the model",
        )
        require(
            rule is None or not self.changes,
            "ParameterGroup with a rule and",
            ", ".join(self.changes),
            f"its constants in the rule: {type(rule).__name__}(...)",
        )

    def __repr__(self) -> str:
        changes = "" if self.rule is None else f", rule={self.rule!r}"
        changes += "".join(f", {name}={value!r}" for name, value in self.changes.items())
        names = ", ".join(map(repr, self.names))
        return f"ParameterGroup({names}, lr_scale={self.lr_scale}{changes})"

    def matches(self, name: str) -> bool:
        """Return True if a parameter of this name is of the group.

        Parameters
        ----------
        name
            Dotted name of a parameter.
        """
        return any(fnmatchcase(name, pattern) for pattern in self.names)

    def applied(self, rule: Any) -> Any:
        """Return the rule with the changes of the group, or the rule of the group.

        Parameters
        ----------
        rule
            That of the model.

        Raises
        ------
        ConfigurationError
            On a field that the rule does not have, or a value that it refuses.
        """
        inner = getattr(rule, "rule", None)
        # EMA, or a rule on later state.
        if inner is not None and is_dataclass(rule) and not isinstance(rule, type):
            return replace(rule, rule=self.applied(inner))
        if self.rule is not None:
            return self.rule
        known = [f.name for f in fields(rule)] if is_dataclass(rule) else []
        for name in self.changes:
            if name not in known or name in _NOT_OF_GROUPS:
                near = nearest(name, [field for field in known if field not in _NOT_OF_GROUPS])
                hint = f"; did you mean {near}?" if near else ""
                own = "; a group has lr_scale" if name == "lr" else ""
                raise ConfigurationError(
                    f"{self!r}: {type(rule).__name__} has no {name} for a group{own or hint}"
                )
        changed = replace(rule, **self.changes) if self.changes else rule
        check_usable(changed)
        return changed

    def rate(self, rule: Any, step: int, override: float | None) -> float | None:
        """Return the learning rate of a step as a rule takes it: None is the rule's own.

        Parameters
        ----------
        rule
            As applied() returns it.
        step
            Counted from 1.
        override
            Replaces the rule's own rate; None: nothing does.
        """
        return override if self.lr_scale == 1.0 else self.lr_scale * rate_of(rule, step, override)

    def check(self, rule: Any) -> None:
        """Raise ConfigurationError unless the group goes with the rule.

        Parameters
        ----------
        rule
            That of the model.
        """
        own = self.applied(rule)
        if self.lr_scale != 1.0 and not callable(getattr(own, "rate", None)):
            raise ConfigurationError(
                f"{self!r}: {type(own).__name__} has no rate(), which lr_scale multiplies"
            )


def _is_innermost(value) -> bool:
    """Return True for a rule that is not around another one, as sk.EMA is."""
    is_rule = not isinstance(value, type) and isinstance(value, Rule)
    return is_rule and getattr(value, "rule", None) is None


def rate_of(rule, step: int, override: float | None) -> float:
    """Return the learning rate of a rule, also on state that began after the run did."""
    own = rule if hasattr(rule, "rate") else rule.rule
    return own.rate(step, override)


def groups_by_name(
    names: Iterable[str], groups: Iterable[ParameterGroup], rule
) -> dict[str, ParameterGroup]:
    """Return {name of a parameter: its group}, without those of none.

    Errors: ConfigurationError on a pattern that matches no name, or what the rule does not have.
    """
    names = list(names)
    for group in groups:
        group.check(rule)
        for pattern in group.names:
            if not any(fnmatchcase(name, pattern) for name in names):
                near = nearest(pattern, names)
                hint = f"; did you mean {near}?" if near else ""
                raise ConfigurationError(
                    f"{group!r}: {pattern!r} matches no parameter of the model{hint}"
                )
    found = {name: next((g for g in groups if g.matches(name)), None) for name in names}
    return {name: group for name, group in found.items() if group is not None}


def rule_for(name: str, rule, groups: dict[str, ParameterGroup]):
    """Return the rule of the parameter of this name. groups: {name: group}, of groups_by_name."""
    group = groups.get(name)
    return rule if group is None else group.applied(rule)


def check_successor(rule: Rule, other: Rule, groups: dict[str, ParameterGroup]) -> None:
    """Raise ShardingError unless a model can go on with another rule on the state that it keeps.

    groups   {name: group}, of groups_by_name
    """
    if isinstance(other, type) or not isinstance(other, Rule):
        raise TypeError(f"the rule is {other!r}; wanted one such as AdamW(lr=1e-3)")
    were, are = matrix_rule_of(rule), matrix_rule_of(other)
    if tuple(other.state_names) != tuple(rule.state_names) or (not were) != (not are):
        kept, wanted = (", ".join(each.state_names) or "nothing" for each in (rule, other))
        raise ShardingError(
            f"the model keeps {kept} for {type(rule).__name__}, but {type(other).__name__} keeps "
            f"{wanted}; make the sharded model with that rule"
        )
    for group in groups.values():
        group.check(other)
