"""Write a brain as a file of volumes: the MNI152 template and its grey matter, from nilearn.

pip install --no-deps nilearn
python examples/brain.py brain.h5
mpiexec -n 4 shardkit train --task=unet --data.path=brain.h5 --data.features=t1 \\
    --data.target=grey --model.depth=2 --mesh.domain=4 --batch.sequences=1 --batch.micro_batch=1

Each row is a slab of the head, 24 mm thick, at a resolution of 2 mm; the first dim of its grid,
from left to right, is the one that ranks share.
"""

import gzip
import importlib.util
import sys
from pathlib import Path

import h5py
import numpy

THICK, GRID = 12, (96, 112, 12)  # points from left to right, back to front, below to above


def read(path):
    """Return a volume of a NIfTI-1 file, every second point of it."""
    content = gzip.decompress(path.read_bytes())
    shape = numpy.frombuffer(content, "<i2", 4, 40)[1:]
    kind = {2: "u1", 4: "<i2", 16: "<f4", 64: "<f8"}[int.from_bytes(content[70:72], "little")]
    at = int(numpy.frombuffer(content, "<f4", 1, 108)[0])
    volume = numpy.frombuffer(content, kind, shape.prod(dtype=int), at).reshape(shape, order="F")
    return volume[::2, ::2, ::2].astype("float32")


def rows(volume):
    """Return [rows, 1, *GRID]: slabs from below to above."""
    wide = [(0, max(size - have, 0)) for size, have in zip(GRID, volume.shape)]
    volume = numpy.pad(volume, [*wide[:2], (0, 0)])[: GRID[0], : GRID[1]]
    count = volume.shape[2] // THICK
    slabs = numpy.split(volume[:, :, : count * THICK], count, 2)
    return numpy.stack(slabs)[:, None] / max(volume.max(), 1)


if __name__ == "__main__":
    folder = Path(importlib.util.find_spec("nilearn").origin).parent / "datasets/data"
    with h5py.File(sys.argv[1], "w") as file:
        for name, kind in (("t1", "t1"), ("grey", "gm")):
            stored = folder / f"mni_icbm152_{kind}_tal_nlin_sym_09a_converted.nii.gz"
            file[name] = rows(read(stored))
            print(f"{name} {file[name].shape}, mean {file[name][:].mean():.4f}")
