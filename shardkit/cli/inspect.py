"""`shardkit inspect`, `shardkit inspect schedule` and `shardkit inspect hang`."""

from functools import partial
from pathlib import Path

from ..checkpoint.tools.describe import describe
from ..comm.watch.hang import hang_report
from ..files.reading import MOST_TABLE_BYTES, read_bytes
from ..files.shown import shown
from ..files.writing import write_whole
from ..report import describe_run
from ..schedule.catalog import ORDERS
from ..schedule.grid import describe_timeline, draw_svg, unit_timeline
from ..task.described import DESCRIPTION, Described
from .arguments import local_path, option

_INSPECT = """show what a checkpoint or run folder holds

Show what a checkpoint or run folder holds. Exit code 1 if a checkpoint is damaged."""
_INSPECT_HANG = """show what the ranks of a run wait for

Show what the ranks of a run wait for, or what they did when they were ended."""
_INSPECT_SCHEDULE = """draw a pipeline schedule

Draw the timeline of a pipeline schedule."""


def add_commands(add_command) -> None:
    """Add the parsers of the three commands."""
    inspect = add_command("inspect", _inspect, _INSPECT)
    option(
        inspect,
        "path",
        "run folder, folder of checkpoints or of transformers, or one checkpoint; for folders "
        "named schedule or hang: ./schedule, ./hang",
        type=local_path,
    )
    option(inspect, "--verify", "read every file and compare its checksum")
    _add_schedule(add_command)
    hang = add_command("inspect hang", _inspect_hang, _INSPECT_HANG)
    option(hang, "run_folder run", "run folder", type=local_path)


def _add_schedule(add_command) -> None:
    schedule = add_command("inspect schedule", _inspect_schedule, _INSPECT_SCHEDULE)
    add = partial(option, schedule)
    add("--order NAME", f"one of {', '.join(ORDERS)}", default="1f1b")
    add("--stages N", "pipeline ranks", type=int, default=4)
    add("--micro-batches N", "", type=int, default=8)
    add("--virtual N", "stages on each rank; default: as many as the order runs", type=int)
    add("--svg FILE", "also draw the timeline into this file")


def _inspect(known, overrides) -> int:
    found = describe(known.path, verify=known.verify)
    print(shown(f"{describe_run(known.path)}{found}{_columns(Path(known.path))}"))
    return 1 if found.num_damaged else 0


def _columns(path: Path) -> str:
    """Return how a run, or a checkpoint, of a table reads its columns; "" of others."""
    for file in (path / DESCRIPTION, path / "data" / DESCRIPTION):
        if file.is_file():
            return f"\n\n{Described.from_json(read_bytes(file, MOST_TABLE_BYTES), file)}"
    return ""


def _inspect_schedule(known, overrides) -> int:
    timeline = unit_timeline(known.order, known.stages, known.micro_batches, known.virtual)
    if known.svg is not None:
        picture = draw_svg(timeline, f"{known.order}, {known.micro_batches} micro-batches")
        write_whole(known.svg, picture.encode())
    print(describe_timeline(timeline))
    return 0


def _inspect_hang(known, overrides) -> int:
    run = Path(known.run_folder)
    ledger = run / "ledger"
    print(shown(hang_report(ledger if ledger.is_dir() else run)))
    return 0
