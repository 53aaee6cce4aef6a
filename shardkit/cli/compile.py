"""`shardkit compile`."""

import os
import time
from functools import partial
from pathlib import Path

from ..array.cpu.building import keep, of_common
from ..array.cpu.compiled import keep_in
from ..array.cpu.targets import target
from ..files.paths import spelled_out
from .arguments import count, local_path, option

_COMPILE = """compile what common runs need, before the first of them

Compile the kernels that common runs ask for and that are in no file yet, for images of
machines and module trees: shardkit compile --folder /opt/kernels, and
NUMBA_CACHE_DIR=/opt/kernels for the runs. Compile on the kind of CPU that runs them, or name
its target (SHARDKIT_KERNELS)."""


def add_commands(add_command) -> None:
    """Add the parser of the command."""
    parser = add_command("compile", _compile, _COMPILE, allow_abbrev=False)
    option(
        parser,
        "--folder",
        "folder to keep them in; default: where runs keep what they compile",
        type=local_path,
    )
    option(
        parser,
        "--processes",
        "that compile at a time, 250 MB each; default: the number of cores",
        type=count,
        default=len(os.sched_getaffinity(0)),
    )


def _compile(known, overrides) -> int:
    began = time.monotonic()
    work = keep
    if known.folder is not None:
        keep_in(Path(known.folder).absolute())
        work = partial(keep, places=1)  # of all that runs look into, this is the first
    made = of_common(work, known.processes)
    new = [str(folder) for folder in made.values() if folder is not None]
    text = f"{len(made)} kernels for {target().name}: {len(made) - len(new)} were there"
    if new:
        folders = ", ".join(map(spelled_out, sorted(set(new))))
        text += f", {len(new)} new in {time.monotonic() - began:.1f} s, kept in {folders}"
    print(text)
    return 0
