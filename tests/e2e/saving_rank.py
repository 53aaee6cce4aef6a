"""mpiexec -n 2 python saving_rank.py FOLDER WAY: train a small model and save it at every step,
until somebody kills us.

WAY  sync or async. Each step is said aloud once its checkpoint is committed, so that the killer
     knows what must still be there.
Every other step is saved twice, so that replacements are interrupted too. A folder with checkpoints
is gone on with.
"""

import sys
from pathlib import Path

from builders import small_gpt, token_batch

import shardkit as sk

folder, way = sys.argv[1:]
backend = sk.MPICommunicationBackend()
backend.initialize()
config = sk.ShardingConfiguration(
    backend, optimizer=sk.AdamW(lr=1e-2), minimum_parameter_group_size=64
)
model = sk.FSDPModel(small_gpt(), config)
if (Path(folder) / "newest").exists():
    model.load_model(folder)


def say(step):
    if backend.rank == 0:
        print(f"committed {step}", flush=True)


pending = None
while True:
    model.train(*sk.split_batch(model.mesh, *token_batch(model.step_number)))
    step = model.step_number
    for _ in range(1 + step % 2):
        if way == "sync":
            model.save_model(folder, keep=2)
            say(step)
        else:
            if pending is not None:
                pending.wait()
                say(int(pending.folder[-8:]))
            pending = model.save_model_async(folder, keep=2)
