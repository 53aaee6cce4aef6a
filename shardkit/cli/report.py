"""`shardkit report`."""

from pathlib import Path

from ..errors import ConfigurationError
from ..files.shown import shown
from ..files.writing import write_whole
from ..report import (
    describe_run,
    describe_sweep,
    is_sweep,
    page_of,
    page_of_sweep,
    read_run_folder,
    read_sweep,
)
from .arguments import local_path, option

_REPORT = """draw a run, or several side by side, in one HTML file

Write one HTML file with the curves, memory, mesh, timeline and settings of a run, or of
several side by side; of a sweep, with its trials and their curves. It needs no network and no
other file."""


def add_commands(add_command) -> None:
    """Add the parser of the command."""
    report = add_command("report", _report, _REPORT)
    option(report, "path", "folder of a run, or of a sweep", nargs="+", type=local_path)
    option(
        report,
        "--output",
        "file to write; default: report.html in the (first) run folder",
        type=local_path,
    )


def _report(known, overrides) -> int:
    page, text = _page_and_text(known.path)
    target = Path(known.output) if known.output else Path(known.path[0]) / "report.html"
    write_whole(target, page.encode())
    print(shown(text + str(target)))
    return 0


def _page_and_text(paths: list[str]) -> tuple[str, str]:
    """Return the page of these folders, and what is printed. Errors: ConfigurationError."""
    sweeps = [path for path in paths if is_sweep(path)]
    if not sweeps:
        runs = [read_run_folder(path) for path in paths]
        return page_of(runs), "".join(map(describe_run, paths))
    if len(paths) > 1:
        raise ConfigurationError(
            f"{sweeps[0]} is a sweep, which has a page of its own; wanted it alone, or the folders "
            f"of runs, such as {sweeps[0]}/trials/0000"
        )
    return page_of_sweep(read_sweep(paths[0])), describe_sweep(paths[0])
