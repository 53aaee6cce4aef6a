"""How long the planner searches all layouts of large models: at most 10 s are wanted.

    python benchmarks/searches.py [--turns 3]

Processor seconds of one process, each search in a process of its own, since a search keeps what it
has computed. The median of the turns.
"""

import argparse
import subprocess
import sys
from statistics import median

LLAMA_3 = dict(  # arXiv 2407.21783
    layers=126,
    width=16384,
    heads=128,
    vocabulary=128256,
    sequence_length=8192,
    kv_heads=8,
    hidden=53248,
    style="llama",
    tied=False,
)
# arXiv 2104.04473
TRILLION = dict(layers=128, width=25600, heads=160, vocabulary=51200, sequence_length=2048)
SEARCHES = {  # name: shape, cluster, devices, sequences of a batch
    "1 trillion parameters, 3,072 A100": (TRILLION, "a100-80gb-hdr", 3072, 3072),
    "405 billion, 512 H100": (LLAMA_3, "h100-80gb-roce", 512, 2048),
    "405 billion, 16,384 H100": (LLAMA_3, "h100-80gb-roce", 16384, 2048),
}


def searched(sizes: dict, cluster: str, devices: int, batch: int) -> tuple[float, int]:
    """Return the processor seconds of a search, and how many layouts it considered."""
    from time import process_time

    from shardkit.plan import MIXED, ModelShape, read_cluster, search

    shape, cluster = ModelShape(**sizes), read_cluster(cluster)
    began = process_time()
    found = search(shape, MIXED, cluster, devices, batch)
    return process_time() - began, found.considered


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--search", choices=SEARCHES, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.search:
        print(*searched(*SEARCHES[asked.search]))
        return 0
    slowest = 0.0
    for name in SEARCHES:
        command = [sys.executable, __file__, "--search", name]
        turns = [
            subprocess.run(command, check=True, timeout=300, capture_output=True, text=True).stdout
            for _ in range(asked.turns)
        ]
        seconds = median(float(turn.split()[0]) for turn in turns)
        print(f"{name}: {seconds:.1f} s of {turns[0].split()[1]} layouts", flush=True)
        slowest = max(slowest, seconds)
    return 1 if slowest > 10 else 0


if __name__ == "__main__":
    sys.exit(main())
