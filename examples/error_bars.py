"""Error bars from an ensemble: twelve networks that differ in their seeds, trained side by side.

mpiexec -n 4 python examples/error_bars.py runs/error_bars      two groups of two ranks

The same command goes on where it was stopped. shardkit report runs/error_bars draws a page. Another
number of networks may stand behind the folder.
"""

import sys

import numpy

import shardkit as sk

SEEDS = 12
SETTINGS = {"run.steps": 200, "batch.sequences": 48, "batch.micro_batch": 12}
SETTINGS |= {"optimizer.learning_rate": 1e-2, "run.validate_every": 100}


def measured(num_rows=240):
    """Return noisy values of a sine between -1 and 1, where the networks have seen something."""
    random = numpy.random.default_rng(0)
    x = random.uniform(-1, 1, (num_rows, 1)).astype("float32")
    noise = random.normal(0, 0.05, x.shape)
    return x, (numpy.sin(4 * x) + noise).astype("float32")


def make(settings, **place):
    """Return the training of one trial, in the place that the ensemble has for it."""
    model = sk.models.MLP([1, 48, 48, 1], seed=settings["run.seed"])
    return sk.Training(model, measured(), settings={**SETTINGS, **settings}, **place)


if __name__ == "__main__":
    folder, *number = sys.argv[1:]
    backend = sk.MPICommunicationBackend()
    backend.initialize()
    groups = 2 if backend.world_size % 2 == 0 else 1
    seeds = [{"run.seed": seed} for seed in range(*map(int, number or [SEEDS]))]
    ensemble = sk.Ensemble(make, seeds, groups=groups, folder=folder, backend=backend)
    ensemble.run()
    x = numpy.linspace(-2, 2, 9, dtype="float32").reshape(-1, 1)
    found = ensemble.predict(x, f"{folder}/error_bars.h5")
    if backend.rank == 0:
        print("     x   sine   mean   error bar")
        for row, mean, spread in zip(x, found["prediction_mean"], found["prediction_spread"]):
            print(f"{row[0]:6.2f} {numpy.sin(4 * row[0]):6.2f} {mean[0]:6.2f} +- {spread[0]:.3f}")
    backend.shutdown()
