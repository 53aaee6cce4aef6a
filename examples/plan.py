"""Plan a run from Python: how many devices of a cluster are worth their price?

python examples/plan.py [h100-80gb-ndr] [batch]
"""

import sys

from shardkit.plan import SHARDKIT_BF16, ModelShape, read_cluster, search

LLAMA_1B = ModelShape(
    vocabulary=32000, sequence_length=2048, width=2048, layers=16, heads=32, style="llama"
)


def main(cluster="h100-80gb-ndr", batch=256):
    hardware = read_cluster(cluster)
    print(f"{LLAMA_1B.parameter_count:,} parameters on {hardware.name}")
    for devices in (8, 16, 32, 64):
        found = search(LLAMA_1B, SHARDKIT_BF16, hardware, devices=devices, batch=int(batch))
        if found.best is None:
            print(f"{devices:3} devices: {'; '.join(found.what_would_fit())}")
            continue
        layout, seconds = found.best.layout, found.best.cost.seconds
        mesh = f"{layout.pipeline} x {layout.data} x {layout.tensor} {layout.policy}"
        gigabytes = found.best.memory.total / 1e9
        print(f"{devices:3} devices: {mesh:18} {seconds:6.2f} s, {gigabytes:5.1f} GB", end="")
        print(f", {devices * seconds:6.1f} device-seconds a step")


if __name__ == "__main__":
    main(*sys.argv[1:])
