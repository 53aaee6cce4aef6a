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
from .sweep import SweepPage

_HERE = Path(__file__).parent
_COMMON = "values.js", "charts.js"  # in this order, and before those of a page
_OF_RUNS = *_COMMON, "ranks.js", "timeline.js", "page.js"
_OF_SWEEP = *_COMMON, "sweep.js"


def page_of(runs: Sequence[RunRecord]) -> str:
    """Return the HTML of these runs, side by side if there are several."""
    title = " and ".join(run.name for run in runs)
    return _page(title, _OF_RUNS, [asdict(run) for run in runs])


def page_of_sweep(sweep: SweepPage) -> str:
    """Return the HTML of an ensemble."""
    return _page(sweep.name, _OF_SWEEP, asdict(sweep))


def _page(title: str, scripts: tuple[str, ...], content) -> str:
    records = json.dumps(content, separators=(",", ":"))
    parts = {
        "title": escape(title),
        "style": _text("page.css"),
        "script": "\n".join(map(_text, scripts)),
        "records": records.replace("<", "\\u003c"),  # no text of a run ends the script element
    }
    return re.sub(r"%(\w+)%", lambda place: parts[place[1]], _text("page.html"))


def _text(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")
