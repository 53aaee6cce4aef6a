"""Names that annotations share.

CuPy has no annotations, so a type checker takes its arrays wherever it wants NumPy's.
"""

import os
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy
from numpy.typing import DTypeLike

__all__ = ["Array", "DTypeLike", "FilePath", "PerDim", "Shape", "Tree"]

Array: TypeAlias = numpy.ndarray[Any, numpy.dtype[Any]]  # or a CuPy array, on a GPU
FilePath: TypeAlias = str | os.PathLike[str]
PerDim: TypeAlias = int | Sequence[int]  # one number for all dimensions, or one for each
Shape: TypeAlias = tuple[int, ...]
Tree: TypeAlias = Any  # an array, or a tuple, list, dict or dataclass of trees (tree.py)
