"""Code blocks of a Markdown page, and what the marks before them ask of a test.

A mark is an HTML comment on a line before the block; readers do not see it.

    <!-- ranks: 4 -->           a program of its own, under mpiexec -n 4
    <!-- file: my_model.py -->  is written to this file, for the blocks after it
    <!-- not run: reason -->    is left out, counted and listed
    <!-- fails: 1 -->           a program or a block of bash ends with this exit code
    <!-- prints -->             before a block of text: the block before printed it; ... is any text
    <!-- run first: ... -->     Python that the page does not show, over several lines

Python without a mark runs in one namespace per page, in the order of the page; bash runs under
set -eu.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

_BLOCK = re.compile(
    r"(?P<marks>(?:^[ ]*<!--(?:(?!-->).)*-->[ ]*\n+)*)"
    r"^(?P<indent>[ ]*)```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^(?P=indent)```[ ]*$",
    re.S | re.M,
)
_MARK = re.compile(r"<!-- ?(run first|ranks|file|not run|fails|prints)(?::\s*(.*?))?\s*-->", re.S)


@dataclass(frozen=True)
class Block:
    """One block of a page.

    line    where it begins in the page, counted from 1
    marks   {name of a mark: its text}
    """

    language: str
    code: str
    line: int
    marks: dict[str, str] = field(default_factory=dict)


def blocks_of(page: Path) -> list[Block]:
    """Return the fenced blocks of a page, in order."""
    text = page.read_text()
    return [
        Block(
            found["language"],
            re.sub(rf"^{found['indent']}", "", found["code"], flags=re.M),
            text.count("\n", 0, found.start("code")),
            {name: said or "" for name, said in _MARK.findall(found["marks"])},
        )
        for found in _BLOCK.finditer(text)
    ]


def indented_blocks(page: Path) -> list[str]:
    """Return code that is indented and not fenced: no test would run it."""
    text = _BLOCK.sub("", page.read_text())
    return re.findall(r"\n\n((?:    [^\n]*\n)+)", text)


def prints(wanted: str, printed: str) -> bool:
    """Return whether the lines were printed, one behind the other; ... stands for any text."""
    parts = [re.escape(" ".join(part.split())) for part in wanted.split("...")]
    return re.search(".*?".join(parts), " ".join(printed.split())) is not None
