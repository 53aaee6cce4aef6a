"""Run by the software CUDA: python translate.py PTX LIBRARY, files both; see driver/kernels.cpp.

What is not known here is said on standard error, in words that name it.
"""

import os
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from stand_in.emulator import EmulationError  # noqa: E402

from software_cuda.instructions import Unknown  # noqa: E402
from software_cuda.translation import translated  # noqa: E402


def main(ptx: str, library: str) -> None:
    try:
        made, _ = translated(Path(ptx).read_text())
    except (EmulationError, Unknown, ValueError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
    unfinished = f"{library}.{os.getpid()}"
    shutil.copy(made, unfinished)
    os.replace(unfinished, library)


if __name__ == "__main__":
    main(*sys.argv[1:])
