"""A rank that runs commands of shardkit, or a script's trainings, of its own kind.

    differing_rank.py ODD JSON     {name: {"usual": [arguments], "odd": [arguments of rank ODD]}}

With "training" in place of the first argument: sk.Training with these settings, "key=value" each.
Of several names, each is a folder: see in_folders_rank.py.
"""

import json
import sys

import numpy
from in_folders_rank import RANK, run_in

import shardkit as sk
from shardkit.testing.cli import main

odd, cases = int(sys.argv[1]), json.loads(sys.argv[2])


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


for name, case in cases.items():
    mine = case["odd" if RANK == odd else "usual"]
    if len(cases) == 1:
        sys.exit(run(mine))
    run_in(name, run, mine)
