"""Make the packs of machine code that a wheel brings (packs.py), in several processes.

    python -m shardkit.array.cpu.building                            for this CPU
    python -m shardkit.array.cpu.building x86-64-v3 x86-64-v4        for others

What is made is what common runs ask for, common.txt: `asked` says what a process has asked for, and
tests/common_runs.py writes the table.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from ...environment import environment_with_kernels
from ...files.programs import python_command
from . import packs
from .common import common
from .compiled import LOOPS, loop_named
from .targets import target

Result = TypeVar("Result")


def asked() -> list[str]:
    """Return the lines of the loops and signatures that this process has code for."""
    return sorted(
        packs.key_of(name, signature)
        for name, loop in LOOPS.items()
        for signature in loop.signatures
    )


def make(line: str) -> tuple[str, bytes]:
    """Return what a pack has of a line: the digest of its sources, and its code."""
    loop, signature = loop_named(line)
    return loop.sources, loop.found_or_made(signature).pack()


def keep(line: str, places: int | None = None) -> Path | None:
    """Return the folder where new code for a line is kept; None: it was there before.

    places   how many of the folders may keep it, the best first; None: all
    """
    loop, signature = loop_named(line)
    return loop.keep(signature, places)


def of_common(work: Callable[[str], Result], processes: int) -> dict[str, Result]:
    """Return work(line) of all lines that common runs ask for; so many are compiled at a time."""
    lines = common(target().has_pairs)
    with ThreadPoolExecutor(processes) as threads:
        return dict(zip(lines, threads.map(work, lines)))


def build(processes: int, folder: Path = packs.FOLDER) -> Path:
    """Write the pack of this process's target; return its path."""
    path = packs.path_of(target(), folder)
    packs.write(path, of_common(make, processes))
    return path


def main(names: list[str]) -> int:
    """Build the packs of the targets named, or that of this CPU."""
    if not names:
        path = build(len(os.sched_getaffinity(0)))
        print(f"{path} holds {len(common(target().has_pairs))} kernels")
        return 0
    statement = f"from {packs.PACKAGE}.array.cpu.building import main; raise SystemExit(main([]))"
    command = python_command(statement)
    done = [subprocess.run(command, env=environment_with_kernels(name)) for name in names]
    return max(one.returncode for one in done)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
