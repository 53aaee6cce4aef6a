"""Findings: a topic, what was found, and what to do. A check returns a list of them, and so do
ok(), warning() and error(), each of one.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import chain

LEVELS = ("ok", "warning", "error")
_COLORS = {"ok": "32", "warning": "33", "error": "1;31"}  # green, yellow, bold red (ECMA-48, SGR)


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    level   "ok", "warning": a run works, but not well, or "error": it does not work
    topic   what was checked, one or two words
    found   the result
    advice  what to do; "" if nothing
    """

    level: str
    topic: str
    found: str
    advice: str = ""


def ok(topic: str, found: str) -> list[Finding]:
    """Return a finding without a problem."""
    return [Finding("ok", topic, found)]


def warning(topic: str, found: str, advice: str) -> list[Finding]:
    """Return a finding that a run survives, but does not run well with."""
    return [Finding("warning", topic, found, advice)]


def error(topic: str, found: str, advice: str = "") -> list[Finding]:
    """Return a finding that no run works with."""
    return [Finding("error", topic, found, advice)]


def joined(parts: Iterable[list[Finding]]) -> list[Finding]:
    """Return all findings of these checks."""
    return list(chain.from_iterable(parts))


def exit_code(findings: list[Finding]) -> int:
    """Return 1 if anything does not work, else 0."""
    return int(any(finding.level == "error" for finding in findings))


def as_text(findings: list[Finding], *, is_colored: bool = False) -> str:
    """Return a line for each finding with its advice below it, and a line that counts them.

    is_colored   the levels, for a terminal
    """
    lines = []
    for finding in findings:
        level = f"{finding.level:<8}"
        if is_colored:
            level = f"\x1b[{_COLORS[finding.level]}m{level}\x1b[0m"
        lines.append(f"{level} {finding.topic:<12} {finding.found}")
        lines += [f"{'':21} -> {finding.advice}"] * bool(finding.advice)
    counts = [f"{level} {sum(finding.level == level for finding in findings)}" for level in LEVELS]
    return "\n".join([*lines, ", ".join(counts)])


def as_json(findings: list[Finding]) -> str:
    """Return the findings and the exit code as JSON."""
    return json.dumps(
        {"findings": [asdict(finding) for finding in findings], "exit_code": exit_code(findings)},
        indent=1,
    )
