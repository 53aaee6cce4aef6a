"""Every block of Python and bash in the documentation runs, and prints what the page shows."""

import contextlib
import io
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from code_blocks import blocks_of, indented_blocks, prints

from shardkit.testing.comm import exits

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "examples/README.md",
    ROOT / "jobs/README.md",
    ROOT / "shardkit/checkpoint/FORMAT.md",
]
PAGES += sorted((ROOT / "docs").rglob("*.md"))
RUNNABLE = ("python", "bash")
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
# May only fall. `pytest -s tests/docs -k listed` prints them.
MOST_NOT_RUN = 11
BIN = Path(sys.executable).parent


def pages_with_code():
    """Yield the pages, those that start processes as thorough."""
    for page in PAGES:
        blocks = [b for b in blocks_of(page) if b.language in RUNNABLE]
        starts = any(b.language == "bash" or "ranks" in b.marks for b in blocks)
        if blocks:
            yield pytest.param(page, marks=[pytest.mark.thorough] * starts)


class Reader:
    """Runs the blocks of one page in a folder, and keeps what the last one printed."""

    def __init__(self, page, folder):
        self.page, self.folder, self.printed = page, folder, ""
        self.names = {"__name__": "__page__"}
        paths = os.pathsep.join((str(BIN), os.environ["PATH"]))
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        self.environment = {**os.environ, **threads, "PATH": paths, "PYTHONPATH": str(ROOT)}

    def close(self):
        """Shut down what the page has left open, as the end of its program would."""
        for each in list(exits()._backends):
            each.shutdown()

    def read(self, block):
        exec(block.marks.get("run first", ""), self.names)
        if "prints" in block.marks:
            assert prints(block.code, self.printed), f"{block.line}: it printed\n{self.printed}"
        elif block.language not in RUNNABLE or "not run" in block.marks:
            return
        elif "file" in block.marks:
            (self.folder / block.marks["file"]).write_text(block.code)
        elif block.language == "bash":
            self.finish(block, "bash", "-euc", block.code)
        elif "ranks" in block.marks:
            self.run_on_ranks(block)
        else:
            self.execute(block)

    def execute(self, block):
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            lines = "\n" * block.line + block.code
            exec(compile(lines, str(self.page), "exec"), self.names)
        self.printed = said.getvalue()

    def run_on_ranks(self, block):
        (self.folder / "program.py").write_text(block.code)
        mpiexec = str(BIN / "mpiexec")
        self.finish(block, mpiexec, "-n", block.marks["ranks"], sys.executable, "program.py")

    def finish(self, block, *command):
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=500,
        )
        wanted = int(block.marks.get("fails", 0))
        assert done.returncode == wanted, f"{self.page}:{block.line}:\n{done.stdout}"
        self.printed = done.stdout


@pytest.mark.parametrize(
    "page", list(pages_with_code()), ids=lambda page: str(page.relative_to(ROOT))
)
@pytest.mark.thorough(but=3)
def test_every_block_of_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    reader = Reader(page, tmp_path)
    try:
        for block in blocks_of(page):
            reader.read(block)
    finally:
        reader.close()
    watchdogs = [each for each in threading.enumerate() if each.name == "shardkit watchdog"]
    assert not watchdogs, "a backend of the page, or of a Training, is still watched"


def test_the_blocks_that_do_not_run_are_few_and_listed():
    left_out = [
        f"{page.relative_to(ROOT)}:{block.line}: {block.marks['not run']}"
        for page in PAGES
        for block in blocks_of(page)
        if "not run" in block.marks
    ]
    print("\n".join(left_out))
    assert all(line.partition(": ")[2] for line in left_out), "say why a block is not run"
    assert len(left_out) <= MOST_NOT_RUN, "\n".join(left_out)


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_code_is_fenced_so_that_it_is_run(page):
    assert not indented_blocks(page)


def test_a_mark_that_is_misspelled_is_found():
    known = "run first|ranks|file|not run|fails|prints".split("|")
    for page in PAGES:
        for line in page.read_text().splitlines():
            if line.strip().startswith("<!-- ") and ":" in line:
                assert any(line.strip().startswith(f"<!-- {name}") for name in known), (page, line)


def test_what_a_block_prints_is_compared():
    assert prints("loss 2.1 ...\nend", "start\nloss 2.1 in 3 s\nend\n")
    assert not prints("loss 2.2 ...\nend", "start\nloss 2.1 in 3 s\nend\n")
