"""A rank that runs a command of shardkit, or a script's training, of its own kind.

    differing_rank.py ODD JSON     {"usual": [arguments], "odd": [arguments of rank ODD]}

With "training" in place of the first argument: sk.Training with these settings, "key=value" each.
"""

import json
import os
import sys

import numpy

import shardkit as sk
from shardkit.testing.cli import main

odd, given = int(sys.argv[1]), json.loads(sys.argv[2])
rank = int(os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK", "0")))
arguments = given["odd" if rank == odd else "usual"]
if arguments[0] != "training":
    sys.exit(main(arguments))


class Told(sk.Callback):
    on_all_ranks = True

    def after_step(self, step, loss):
        print("a step was trained", flush=True)


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
