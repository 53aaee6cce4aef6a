"""A loop of one's own that goes on when ranks die.

mpiexec --with-ft ulfm -n 4 python examples/elastic.py     Open MPI 5: in the same job
mpiexec -n 4 python examples/elastic.py                    others: start it again, it goes on

To see it, kill a rank while it runs: the others form a smaller mesh and lose one step at most.
"""

from pathlib import Path

import numpy

import shardkit as sk

STEPS, SAMPLES, MICRO_BATCH, FOLDER = 20, 16, 2, "runs/elastic"


def make_model(backend):
    """Return the model on these ranks, which may be fewer than were started."""
    micro_batches = SAMPLES // backend.world_size // MICRO_BATCH
    config = sk.ShardingConfiguration(
        backend, optimizer=sk.AdamW(lr=1e-2), micro_batches=micro_batches
    )
    return sk.FSDPModel(sk.models.MLP([8, 32, 1]), config)


def work(model, commit):
    """Train from where the model is; called again after a loss."""
    if model.step_number == 0 and Path(FOLDER).exists():  # the job was started again
        model.load_model(FOLDER)
    while model.step_number < STEPS:
        x = numpy.random.default_rng(model.step_number).normal(size=(SAMPLES, 8))
        y = numpy.sin(x).sum(1, keepdims=True)
        batch = sk.split_batch(model.mesh, x.astype("float32"), y.astype("float32"))
        loss = model.train(*batch)
        commit()  # the neighbors have a copy of this step now
        if model.step_number % 5 == 0:
            model.save_model(FOLDER)
            if model.rank == 0:
                print(f"step {model.step_number}: loss {loss:.3f} on {model.world_size} ranks")


def num_training(num_living):
    """Return the largest power of two: with it the bits do not depend on how many there are."""
    return 1 << num_living.bit_length() - 1


if __name__ == "__main__":
    training = sk.ElasticTraining(
        make_model, work, num_training=num_training, checkpoints=FOLDER, say=print
    )
    training.run()
