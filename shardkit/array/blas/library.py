"""What a library of matrix products is to the rest of shardkit."""

from typing import Protocol


class Library(Protocol):
    """Multiplies matrices on the CPU, the same bits in every run and at every address.

    name                of the library and its version, for people
    multiplies_halves   it multiplies bfloat16 as it is, on this CPU
    """

    name: str
    multiplies_halves: bool

    def multiply(self, a, b, out) -> bool:
        """Compute out = a b and return True; return False, and do nothing, if it cannot.

        a [..., m, k], b [..., k, n], out [..., m, n] are NumPy arrays of any strides; leading dims
        broadcast. Products of bfloat16 are added up in float32; `out` is float32 then, or bfloat16,
        which is rounded once. Which operands a library takes is its own affair: numpy.matmul, in
        float32 for half floats, multiplies the others.
        """
        ...

    def add(self, a, b, out) -> bool:
        """Compute out += a b for two matrices, and return True; or touch nothing and return False.

        a, b   of one dtype; out of the same, or float32 for bfloat16; no memory in common
        """
        ...
