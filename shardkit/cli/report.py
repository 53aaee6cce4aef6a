"""`shardkit report`."""

from pathlib import Path

from ..train.report import describe_run, draw_curve


def add_commands(commands) -> None:
    """Add the parser of the command."""
    report = commands.add_parser("report", help="draw the loss curve of a run")
    report.add_argument("path", help="run folder")
    report.add_argument(
        "--output", help="file to write, .svg, .png or .pdf; default: curve.svg in the run folder"
    )
    report.set_defaults(run=_report, takes_settings=False)


def _report(known, overrides) -> int:
    target = known.output or str(Path(known.path) / "curve.svg")
    draw_curve(known.path, target)
    print(describe_run(known.path) + target)
    return 0
