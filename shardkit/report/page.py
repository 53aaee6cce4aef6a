"""One HTML file that draws records of runs, and needs nothing beside it.

    page.html, page.css, *.js of this folder + records as JSON --> text of the file

The page loads nothing: its content security policy forbids it.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path

from .run import RunRecord

_HERE = Path(__file__).parent
_SCRIPTS = ("values.js", "charts.js", "ranks.js", "timeline.js", "page.js")  # in this order


def page_of(runs: Sequence[RunRecord]) -> str:
    """Return the HTML of these runs, side by side if there are several."""
    records = json.dumps([asdict(run) for run in runs], separators=(",", ":"))
    parts = {
        "title": escape(" and ".join(run.name for run in runs)),
        "style": _text("page.css"),
        "script": "\n".join(map(_text, _SCRIPTS)),
        "records": records.replace("<", "\\u003c"),  # no text of a run ends the script element
    }
    return re.sub(r"%(\w+)%", lambda place: parts[place[1]], _text("page.html"))


def _text(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")
