"""A rank that runs commands of shardkit, or a script's trainings, of its own kind.

    differing_rank.py ODD JSON     {name: {"usual": [arguments], "odd": [arguments of rank ODD]}}

With "training" in place of the first argument: sk.Training with these settings, "key=value" each.
Of several names, each is a folder, in which one behind the other runs; what rank 0 said there is
in NAME/0.out and NAME/0.err, and the code that it ended with in NAME/0.code.
"""

import json
import os
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy

import shardkit as sk
from shardkit.testing.cli import main

odd, cases = int(sys.argv[1]), json.loads(sys.argv[2])
rank = int(os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK", "0")))


class Told(sk.Callback):
    on_all_ranks = True

    def after_step(self, step, loss):
        print("a step was trained", flush=True)


def run(arguments):
    """Return the exit code of one command, or one training."""
    if arguments[0] != "training":
        return main(arguments)
    x = numpy.arange(192, dtype=numpy.float32).reshape(48, 4) / 192
    pairs = [argument.split("=") for argument in arguments[1:]]
    settings = {key: json.loads(value) for key, value in pairs if "." in key}
    rows = int(dict(pairs).get("rows", 48))
    sk.Training(
        sk.models.MLP([4, 1]),
        (x[:rows], x[:rows, :1]),
        folder=dict(pairs).get("folder", "run"),
        settings={"run.steps": 2, "batch.sequences": 12, "batch.micro_batch": 2, **settings},
        callbacks=[Told()],
    ).run()


@contextmanager
def output_in(folder):
    """Inside, standard output and error of this rank go to files."""
    kept = [(number, os.dup(number)) for number in (1, 2)]
    for (number, _), kind in zip(kept, ("out", "err")):
        with open(folder / f"{rank}.{kind}", "wb") as file:
            os.dup2(file.fileno(), number)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, before in kept:
            os.dup2(before, number)
            os.close(before)


def run_in(folder, arguments):
    """Run it in its folder, and note how it ended."""
    before = os.getcwd()
    os.chdir(folder)
    try:
        with output_in(Path()):
            try:
                code = run(arguments) or 0
            except SystemExit as end:
                code = end.code
        Path(f"{rank}.code").write_text(str(code))
    finally:
        os.chdir(before)


for name, case in cases.items():
    mine = case["odd" if rank == odd else "usual"]
    if len(cases) == 1:
        sys.exit(run(mine))
    run_in(Path(name), mine)
