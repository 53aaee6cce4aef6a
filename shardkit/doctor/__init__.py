"""Is this machine fit for a run? One line for each thing that was looked at, and what to do about
it.
"""

from .examination import examine
from .finding import Finding, as_json, as_text, exit_code

__all__ = ["Finding", "as_json", "as_text", "examine", "exit_code"]
