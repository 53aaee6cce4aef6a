"""Names that annotations share.

CuPy has no annotations, so a type checker takes its arrays wherever it wants NumPy's.
"""

import os
from typing import Any, TypeAlias

import numpy
from numpy.typing import DTypeLike

__all__ = ["Array", "DTypeLike", "FilePath", "Shape", "Tree"]

Array: TypeAlias = numpy.ndarray[Any, numpy.dtype[Any]]  # or a CuPy array, on a GPU
FilePath: TypeAlias = str | os.PathLike[str]
Shape: TypeAlias = tuple[int, ...]
Tree: TypeAlias = Any  # an array, or a tuple, list, dict or dataclass of trees (tree.py)
