"""A check of the machine before a run: one line per topic, and what to do about a problem."""

from ..public import import_names

__all__ = import_names(
    __name__, {"examination": "examine", "finding": "Finding as_json as_text exit_code"}
)
