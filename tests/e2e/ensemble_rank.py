"""mpiexec -n 4 python ensemble_rank.py FOLDER TRIALS LOG: an ensemble on two groups, each step of
which is noted in a file: "trial step".
"""

import sys
import time

import numpy

import shardkit as sk

folder, num_trials, log = sys.argv[1:]
X = numpy.random.default_rng(0).normal(size=(64, 3)).astype("float32")
Y = (X[:, :1] * 2 - X[:, 1:2] ** 2).astype("float32")
SETTINGS = {
    "run.steps": 24,
    "batch.sequences": 8,
    "batch.micro_batch": 2,
    "run.checkpoint_every": 6,
    "run.validate_every": 6,
}


class Note(sk.Callback):
    def __init__(self, number):
        self.number = number

    def after_step(self, step, loss):
        with open(log, "a") as file:
            file.write(f"{self.number} {step}\n")
        time.sleep(0.004)


def make(settings, *, callbacks, **place):
    seed = settings["run.seed"]
    model = sk.models.MLP([3, 8, 1], seed=seed)
    own = {"settings": {**SETTINGS, **settings}, "callbacks": [*callbacks, Note(seed)]}
    return sk.Training(model, (X, Y), **own, **place)


seeds = [{"run.seed": seed} for seed in range(int(num_trials))]
sk.Ensemble(make, seeds, groups=2, folder=folder).run()
