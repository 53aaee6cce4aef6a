"""Write a table for surrogate.py: python examples/surrogate_table.py table.h5 [rows]

x [rows, 4] are the widths and stiffnesses of a beam's two parts, y [rows, 1] is how far it bends.
"""

import sys

import h5py
import numpy


def main(path, rows="20000"):
    x = numpy.random.default_rng(len(path)).uniform(1.0, 2.0, (int(rows), 4))
    width, other_width, stiffness, other_stiffness = x.T
    bend = 7 / (stiffness * width**3) + 1 / (other_stiffness * other_width**3)
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=x, chunks=(256, 4))
        file.create_dataset("y", data=bend[:, None], chunks=(256, 1))


if __name__ == "__main__":
    main(*sys.argv[1:])
