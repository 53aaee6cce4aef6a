"""mpiexec -n N python struck_rank.py HOW PHASE DELAY STRATEGY ENDING FOLDER: a user's program,
struck at some moment on rank 1.

HOW       a key of FROM_INSIDE (in a signal handler, between any two steps of the interpreter) or of
          FROM_OUTSIDE
PHASE     one of PHASES; DELAY seconds after it begins on rank 1 the blow falls, in whatever phase
          it is then
ENDING    shutdown, or none: the end of the script
FOLDER    gets `struck`, made when the blow falls, `watched`, made when rank 1 has initialized its
          backend, and a checkpoint

No abort_on_error, and a limit of 4 seconds.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

TIMEOUT = 4.0
PHASES = (
    "start",
    "constructed",
    "initialize",
    "build",
    "train",
    "save",
    "close",
    "shutdown",
    "end",
)
STRATEGIES = ("DDP", "FSDP", "ZeRO-2", "pipeline", "tensor", "hybrid")


class EndOfScript(BaseException):
    """The program ends here, as if this were its last line."""


def throw(error):
    def run():
        raise error

    return run


def recurse():
    return recurse()


def loop():
    while True:
        pass


FROM_INSIDE = {
    "KeyError": throw(KeyError("lost")),
    "ValueError": throw(ValueError("bad")),
    "RecursionError": recurse,
    "exit 0": lambda: sys.exit(0),
    "exit 3": lambda: sys.exit(3),
    "_exit 0": lambda: os._exit(0),
    "loop": loop,
    "sleep": lambda: time.sleep(3600),
    "spin in C": lambda: ctypes.PyDLL(None).sleep(3600),
    "end of script": throw(EndOfScript()),
}
FROM_OUTSIDE = {"kill": "KILL", "stop": "STOP", "segmentation fault": "SEGV"}


def main(how, phase, delay, strategy, ending, folder):
    strikes = []

    def strike(*_):
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        (folder / "struck").touch()
        FROM_INSIDE[how]()

    def enter(now):
        """Rank 1 arms the blow at the beginning of its phase, and says when the job is watched."""
        if os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK")) != "1":
            return
        if now == "build":
            (folder / "watched").touch()
        if now != phase:
            return
        if how in FROM_INSIDE:
            signal.signal(signal.SIGALRM, strike)
            signal.setitimer(signal.ITIMER_REAL, max(delay, 1e-6))
        else:
            command = (
                f"sleep {delay}; touch {folder}/struck; kill -{FROM_OUTSIDE[how]} {os.getpid()}"
            )
            strikes.append(
                subprocess.Popen(
                    ["sh", "-c", command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                )
            )

    enter("start")
    sys.path.insert(0, str(Path(__file__).parents[1]))
    import builders

    import shardkit as sk

    backend = sk.MPICommunicationBackend(timeout=TIMEOUT)
    enter("constructed")
    time.sleep(0.05)
    enter("initialize")
    backend.initialize()
    enter("build")
    model = make_model(sk, builders, backend, strategy)
    enter("train")
    for step in range(8):
        model.train(*sk.split_batch(model.mesh, *builders.token_batch(step, 16)))
    enter("save")
    model.save_model(folder / "checkpoints")
    enter("close")
    if ending == "shutdown":
        model.mesh.close()
        enter("shutdown")
        backend.shutdown()
    enter("end")
    print(f"rank {backend.rank} reached its end", flush=True)


def make_model(sk, builders, backend, strategy):
    config = sk.ShardingConfiguration(
        backend, optimizer=sk.AdamW(lr=1e-2), max_gradient_norm=1.0, minimum_parameter_group_size=64
    )
    if strategy in builders.STRATEGIES:
        return builders.STRATEGIES[strategy](builders.small_gpt(), config)
    pipeline, tensor = {"pipeline": (2, 1), "tensor": (1, 2), "hybrid": (2, 2)}[strategy]
    return sk.HybridShardedModel(
        sk.models.GPT(64, 12, width=16, layers=3, heads=2, seed=3), config, pipeline, tensor
    )


if __name__ == "__main__":
    try:
        main(
            sys.argv[1],
            sys.argv[2],
            float(sys.argv[3]),
            sys.argv[4],
            sys.argv[5],
            Path(sys.argv[6]),
        )
    except EndOfScript:
        pass
