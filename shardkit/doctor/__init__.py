"""A check of the machine before a run: one line per topic, and what to do about a problem."""

from .examination import examine
from .finding import Finding, as_json, as_text, exit_code

__all__ = ["Finding", "as_json", "as_text", "examine", "exit_code"]
