"""Commands one behind the other in one job, each in a folder of its own.

in_folders_rank.py JSON     {folder: words of the command in it}

FOLDER.RANK.out, FOLDER.RANK.err    what a rank said there
FOLDER.RANK.code                    the exit code that the command would have ended with
"""

import json
import os
import sys
import traceback
from contextlib import contextmanager
from pathlib import Path

RANK = int(os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK", "0")))


@contextmanager
def output_in(name):
    """Inside, standard output and error of this rank go to files."""
    kept = [(number, os.dup(number)) for number in (1, 2)]
    for (number, _), kind in zip(kept, ("out", "err")):
        with open(f"{name}.{RANK}.{kind}", "wb") as file:
            os.dup2(file.fileno(), number)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, before in kept:
            os.dup2(before, number)
            os.close(before)


def run_in(folder, run, words):
    """Run it in the folder; what it returns, or exits with, is its code."""
    folder, before = Path(folder).resolve(), os.getcwd()
    os.chdir(folder)
    try:
        with output_in(folder):
            try:
                code = run(words) or 0
            except SystemExit as end:
                code = end.code or 0
            except Exception:  # which would have ended a process of its own
                traceback.print_exc()
                code = 1
        Path(f"{folder}.{RANK}.code").write_text(str(code))
    finally:
        os.chdir(before)


def said_in(folder, num_ranks=1):
    """Return what the ranks wrote to standard output and error, and their exit codes, in order."""
    return [
        [Path(f"{folder}.{rank}.{kind}").read_text() for rank in range(num_ranks)]
        for kind in ("out", "err", "code")
    ]


if __name__ == "__main__":
    from shardkit.testing.cli import main

    for folder, words in json.loads(sys.argv[1]).items():
        run_in(folder, main, words)
