"""The loops and signatures that common runs ask for: common.txt, which tests/common_runs.py writes.

# pairs         lines for targets that multiply pairs of bfloat16; "no pairs": for others
"""

import re
from pathlib import Path

from . import packs

TABLE = Path(__file__).parent / "common.txt"
GRADIENTS = ("_backward", "_input", "_weight")  # how the names of those end that come after a loop


def common(has_pairs: bool) -> list[str]:
    """Return the lines that common runs ask for, the longest to compile first."""
    lines = TABLE.read_text(encoding="utf-8").splitlines()
    wanted = {"", "pairs"} if has_pairs else {"", "no pairs"}
    chosen, section = [], ""
    for line in lines:
        if line.startswith("#"):
            section = line.removeprefix("#").strip()
        elif line and section in wanted:
            chosen.append(line)
    return chosen


def going_with(line: str, has_pairs: bool) -> list[str]:
    """Return common lines that are asked for soon after this one: as gelu_backward after gelu.

    They are in the same folder, for numbers of the same dtype or for none.
    """
    folder, stem, dtype = _kind_of(line)
    found = []
    for other in common(has_pairs):
        folder_of_other, name, dtype_of_other = _kind_of(other)
        follows = folder_of_other == folder and name.removeprefix(stem) in GRADIENTS
        if follows and dtype_of_other in (dtype, ""):
            found.append(other)
    return found


def _kind_of(line: str) -> tuple[str, str, str]:
    """Return the folder and the name of a loop, and the dtype of the numbers that it takes first.

    Not of places and lengths, int64: "" if it takes no other arrays.
    """
    path = packs.parts_of_key(line)[0].split(".")
    dtype = re.search(r"\b(?!int64\b)\w+(?=\[)", line)
    return ".".join(path[:-2]), path[-1], dtype[0] if dtype else ""
