"""A GPT on a mesh of pipeline x data x tensor ranks; the loss is that of any other mesh.

mpiexec -n 4 python examples/hybrid.py 2 2            pipeline 2 x data 1 x tensor 2
mpiexec -n 8 python examples/hybrid.py 2 2 zb-v       pipeline 2 x data 2 x tensor 2, under ZB-V
"""

import sys

import numpy

import shardkit as sk

STEPS, MICRO_BATCH = 10, 2


def main(pipeline=2, tensor=2, schedule="1f1b"):
    backend = sk.MPICommunicationBackend()
    pipeline, tensor = int(pipeline), int(tensor)
    data = backend.world_size // (pipeline * tensor)
    config = sk.ShardingConfiguration(
        backend,
        optimizer=sk.AdamW(lr=3e-3),
        max_gradient_norm=1.0,
        schedule=schedule,
        micro_batches=16 // data // MICRO_BATCH,
    )
    gpt = sk.models.GPT(64, 32, width=32, layers=4, heads=4)
    model = sk.HybridShardedModel(gpt, config, pipeline, tensor, policy="fsdp")
    if model.rank == 0:
        print(model.describe())
    tokens = numpy.random.default_rng(0).integers(0, 8, (16, 33))
    x, y = sk.split_batch(model.mesh, tokens[:, :-1], tokens[:, 1:])
    for step in range(STEPS):
        loss = model.train(x, y)
    if model.rank == 0:
        print(f"loss {loss:.3f} after {STEPS} steps")
    model.save_model("runs/hybrid")
    backend.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
