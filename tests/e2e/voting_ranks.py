"""mpiexec -n 4 python voting_ranks.py HOW PIPELINE TENSOR: train six steps; rank 1 goes wrong in the way HOW in step 3.

HOW is one of sabotage.WAYS, or "memory in saving".
"""
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy  # noqa: E402
from builders import small_gpt, token_batch  # noqa: E402
from sabotage import no_memory, sabotage  # noqa: E402

import shardkit as sk  # noqa: E402
from shardkit.comm import abort_on_error  # noqa: E402

numpy.seterr(all="ignore")                              # NaN is the point here
how, pipeline, tensor = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
backend = sk.MPICommunicationBackend()
backend.initialize()
with abort_on_error(backend):
    config = sk.ShardingConfiguration(backend, optimizer=sk.AdamW(lr=1e-2), max_gradient_norm=1.0,
                                      minimum_parameter_group_size=64, micro_batches=2)
    gpt = small_gpt(layers=3) if tensor == 1 else sk.models.GPT(64, 12, width=16, layers=3, heads=2)
    model = sk.HybridShardedModel(gpt, config, pipeline, tensor)
    if how == "memory in saving" and backend.rank == 1:
        model.engine.counted_boxes = no_memory
    elif how != "memory in saving":
        block = 1 if model.mesh.coordinates.pipeline == 0 else -2
        sabotage(gpt, block, how, lambda: backend.rank == 1 and model.step_number == 2)
    for step in range(6):
        loss = model.train(*sk.split_batch(model.mesh, *token_batch(step, 16)))
    if how == "memory in saving":
        model.save_model(backend.broadcast_object(tempfile.mkdtemp() if backend.rank == 0 else None, 0))
    print(f"rank {backend.rank} ends with {model.engine.skips.total} skipped, loss {loss:.6f}", flush=True)
backend.shutdown()
