"""Findings: what was looked at, what was found, and what to do."""

import json
from dataclasses import asdict, dataclass

LEVELS = ("ok", "warning", "error")


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    level   "ok", "warning": a run works, but not well, or "error": it does not work
    topic   what was looked at, one or two words
    found   what is the case
    advice  what to do; "" if nothing
    """

    level: str
    topic: str
    found: str
    advice: str = ""


def ok(topic: str, found: str) -> Finding:
    """All is well."""
    return Finding("ok", topic, found)


def warning(topic: str, found: str, advice: str) -> Finding:
    """It works, but not well."""
    return Finding("warning", topic, found, advice)


def error(topic: str, found: str, advice: str = "") -> Finding:
    """It does not work."""
    return Finding("error", topic, found, advice)


def exit_code(findings: list[Finding]) -> int:
    """1 if anything does not work, else 0."""
    return int(any(finding.level == "error" for finding in findings))


def as_text(findings: list[Finding]) -> str:
    """A line for each, with the advice below it, and one that counts them."""
    lines = []
    for finding in findings:
        lines.append(f"{finding.level:<8} {finding.topic:<12} {finding.found}")
        lines += [f"{'':21} -> {finding.advice}"] * bool(finding.advice)
    counts = [f"{level} {sum(finding.level == level for finding in findings)}" for level in LEVELS]
    return "\n".join([*lines, ", ".join(counts)])


def as_json(findings: list[Finding]) -> str:
    """The same for programs."""
    return json.dumps(
        {"findings": [asdict(finding) for finding in findings], "exit_code": exit_code(findings)},
        indent=1,
    )
