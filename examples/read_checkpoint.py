"""Read a checkpoint with h5py alone: no shardkit, no MPI.

python examples/read_checkpoint.py runs/residual/step-00000060 [model/layers.0.up.weight]
"""

import json
import sys
from pathlib import Path

import h5py


def main(folder, path=None):
    folder = Path(folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    print(f"step {manifest['step']} of a {manifest['model']['class']}, written on", end=" ")
    print(" x ".join(f"{axis} {size}" for axis, size in manifest["mesh"].items()))
    for name, size in ((name, entry["bytes"]) for name, entry in manifest["files"].items()):
        assert (folder / name).stat().st_size == size, f"{name} is not whole"
    with h5py.File(folder / "index.h5") as index:
        for name, entry in manifest["tensors"].items():
            if name == path or path is None and name.startswith("model/"):
                values = index[name][...]  # whole, whatever ranks wrote it
                writers = len({box[0] for box in entry["boxes"]})
                print(f"{name} {values.shape} {values.dtype}, from {writers} files,", end=" ")
                print(f"from {values.min():.3f} to {values.max():.3f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
