"""A 3-D UNet on volumes that one rank may not hold: four share each, and read their parts of it.

python examples/volumes.py write volumes.h5 128 120    # 2.0 GB
bash -c 'ulimit -v 1900000; mpiexec -n 1 python examples/volumes.py train volumes.h5 runs/alone 1'
bash -c 'ulimit -v 1900000; mpiexec -n 4 python examples/volumes.py train volumes.h5 runs/shared 4'

The first run ends: rank 0 ran out of memory. The second trains, and writes its predictions.
"""

import sys

import h5py
import numpy

import shardkit as sk


def write(path, size, count):
    """Write waves, and the same with noise on them, plane by plane."""
    axis = numpy.linspace(0, 6, size, dtype="float32")
    with h5py.File(path, "w") as file:
        shape = (count, 1, size, size, size)
        noisy, clean = (file.create_dataset(name, shape, "float32") for name in ("noisy", "clean"))
        for volume in range(count):
            for place, depth in enumerate(axis):
                rng = numpy.random.default_rng([volume, place])
                wave = numpy.sin(depth * (volume + 1)) * numpy.cos(axis[:, None] - axis)
                clean[volume, 0, place] = wave
                noisy[volume, 0, place] = wave + rng.normal(0, 0.3, wave.shape)


def train(path, folder, ranks, steps=3):
    file = h5py.File(path)
    rows = file["noisy"], file["clean"]  # each rank reads its part of the datasets
    settings = {"mesh.domain": ranks, "run.steps": steps, "run.validation_batches": 1}
    settings |= {"batch.sequences": 1, "batch.micro_batch": 1, "optimizer.learning_rate": 2e-3}
    unet = sk.models.UNet(1, 1, dims=3, width=8, depth=2, groups=4)
    training = sk.Training(unet, rows, folder=folder, settings=settings, loss=sk.nn.MSELoss())
    training.run()
    training.predict(file["noisy"], f"{folder}/cleaned.h5")


if __name__ == "__main__":
    what, path, *more = sys.argv[1:]
    if what == "write":
        write(path, *map(int, more))
    else:
        train(path, more[0], *map(int, more[1:]))
