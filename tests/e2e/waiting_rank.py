"""A rank whose GPU waits for another one by NCCL, on the stand-ins for CuPy and NCCL.

mpiexec -n 2 python waiting_rank.py FOLDER HOW      folder: of the ledgers; FAKE_NCCL_FOLDER in
                                                    the environment: where ranks meet
HOW   "door": the host waits as the package does; "get": in a way that it does not see;
      "step": in a step of training
rank 1 does not come, and the job is ended
"""

import sys
import time

from builders import small_gpt, token_batch
from gpus import registry
from stand_in import fake_nccl, pretended_gpu

import shardkit as sk
from shardkit.testing.array import to_host
from shardkit.testing.gpu import open_nccl

LIMIT_SECONDS = 3.0


def _wait_by(how, backend, cupy):
    open_nccl(backend, [backend], fixed_order=False, axes={backend.group_key: "data"})
    array = cupy.ones(1000, "float32")
    backend.all_reduce(array)
    to_host(array)
    begin(backend)
    if backend.rank == 1:
        time.sleep(600)
    backend.all_reduce(array)
    print(f"returned on rank {backend.rank}", flush=True)
    array.get() if how == "get" else to_host(array)


def _train(how, backend, cupy):
    def loss(prediction, y):
        if backend.rank == 1 and step == 3:
            time.sleep(600)
        return sk.nn.ops.mean(sk.nn.ops.square(prediction))

    rule = sk.AdamW(lr=1e-2)
    config = sk.ShardingConfiguration(backend, optimizer=rule, device="cuda", loss=loss)
    model = sk.DDPModel(small_gpt(), config)
    for step in range(4):
        if step == 3:
            begin(backend)
        model.train(*sk.split_batch(model.mesh, *token_batch(step, 4)))


def begin(backend):
    """Meet, with a limit from now on."""
    backend.barrier()
    backend.timeout = LIMIT_SECONDS
    print(f"began on rank {backend.rank} at {time.time()}", flush=True)


registry.is_cupy_array = lambda x: False
with pretended_gpu(num_devices=2), fake_nccl.installed():
    import cupy

    backend = sk.MPICommunicationBackend()
    backend.initialize()
    backend.keep_ledger(sys.argv[1])
    {"step": _train}.get(sys.argv[2], _wait_by)(sys.argv[2], backend, cupy)
    print(f"not ended on rank {backend.rank}", flush=True)
    time.sleep(600)
