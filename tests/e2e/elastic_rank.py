"""mpiexec -n N python elastic_rank.py KILLS PIPELINE TENSOR POLICY FOLDER [SIGNAL TIMEOUT]: ten
elastic steps, in which ranks die, or get another signal.

KILLS    step.place:rank,rank;... with ranks as they were numbered at the start; place: 0 between
         two steps, 1 to 3 in forward, backward, reduction of the step after it
FOLDER   gets checkpoints every 4 steps, and `struck`; prints the recoveries and the sha256 of the
         parameters
"""

import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy  # noqa: E402
from builders import sha256, small_gpt, token_batch  # noqa: E402

import shardkit as sk  # noqa: E402
from shardkit.nn import record  # noqa: E402
from shardkit.testing.parallel import units_of

STEPS, SAMPLES, MICRO_BATCH = 10, 16, 2


def die():
    (FOLDER / "struck").touch()
    os.kill(os.getpid(), getattr(signal, SIGNAL))


def num_training(num_living):
    """A power of two of replicas, so that the bits do not depend on their number."""
    replicas = num_living // (PIPELINE * TENSOR)
    return (1 << replicas.bit_length() - 1) * PIPELINE * TENSOR if replicas else 0


def make_model(backend):
    replicas = backend.world_size // (PIPELINE * TENSOR)
    gpt = (
        small_gpt(layers=3)
        if TENSOR == 1
        else sk.models.GPT(64, 12, width=16, layers=3, heads=2, seed=3)
    )
    config = sk.ShardingConfiguration(
        backend,
        optimizer=sk.AdamW(lr=1e-2),
        max_gradient_norm=1.0,
        minimum_parameter_group_size=64,
        micro_batches=SAMPLES // replicas // MICRO_BATCH,
    )
    model = sk.HybridShardedModel(gpt, config, PIPELINE, TENSOR, policy=POLICY)
    pass_through_death(gpt, model)
    return model


def pass_through_death(gpt, model):
    """Put the places where a rank dies into the layers and units of this rank."""

    def pass_by(place):
        if training.started_rank in KILLS.get((model.step_number, place), ()):
            die()

    block = gpt.blocks()[1 if model.mesh.coordinates.pipeline == 0 else -2][1]
    forward, unit = block.forward, units_of(model)[-1]

    def backward(gradient, wanted):
        pass_by(2)
        return (gradient,)

    def passing_forward(x, *arguments):
        pass_by(1)
        out = forward(x, *arguments)
        return record(out.array.copy(), (out,), backward)

    block.forward, reduce = passing_forward, unit.reduce

    def passing_reduce(*arguments):
        pass_by(3)
        reduce(*arguments)

    unit.reduce = passing_reduce
    model.pass_by = pass_by


def work(model, commit):
    while model.step_number < STEPS:
        model.pass_by(0)
        model.train(*sk.split_batch(model.mesh, *token_batch(model.step_number, SAMPLES)))
        commit()
        if model.step_number % 4 == 0:
            model.save_model_async(FOLDER / "checkpoints")
    parameters = model.gather_full_parameters()
    if model.rank == 0:
        for recovery in training.recoveries:
            print(f"recovered: {recovery}", flush=True)
        print(f"bits: {sha256(parameters)}", flush=True)


def parse(text):
    """{(step, place): ranks}."""
    kills = {}
    for part in filter(None, text.split(";")):
        when, ranks = part.split(":")
        step, place = when.split(".")
        kills[int(step), int(place)] = [int(rank) for rank in ranks.split(",")]
    return kills


numpy.seterr(all="ignore")
KILLS, PIPELINE, TENSOR, POLICY, FOLDER = (
    parse(sys.argv[1]),
    int(sys.argv[2]),
    int(sys.argv[3]),
    sys.argv[4],
    Path(sys.argv[5]),
)
SIGNAL, TIMEOUT = sys.argv[6:] or ("SIGKILL", 600.0)
training = sk.ElasticTraining(
    make_model,
    work,
    pipeline=PIPELINE,
    tensor=TENSOR,
    num_training=num_training,
    checkpoints=FOLDER / "checkpoints",
    timeout=float(TIMEOUT),
)
training.run()
print(f"rank {training.started_rank} reached the end", flush=True)
os._exit(0)
