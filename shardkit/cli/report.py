"""`shardkit report`."""

from pathlib import Path

from ..files.shown import shown
from ..files.writing import write_whole
from ..report import describe_run, page_of, read_run_folder
from .arguments import local_path, option

_REPORT = """draw a run, or several side by side, in one HTML file

Write one HTML file with the curves, memory, mesh, timeline and settings of a run, or of
several side by side. It needs no network and no other file."""


def add_commands(add_command) -> None:
    """Add the parser of the command."""
    report = add_command("report", _report, _REPORT)
    option(report, "path", "run folder", nargs="+", type=local_path)
    option(
        report,
        "--output",
        "file to write; default: report.html in the (first) run folder",
        type=local_path,
    )


def _report(known, overrides) -> int:
    runs = [read_run_folder(path) for path in known.path]
    target = Path(known.output) if known.output else Path(known.path[0]) / "report.html"
    write_whole(target, page_of(runs).encode())
    print(shown("".join(map(describe_run, known.path)) + str(target)))
    return 0
