"""The README is short, and what it says of this folder is true; tests/docs runs its code."""

import re
from pathlib import Path

from docs.code_blocks import blocks_of

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
LONGEST = 120


def test_it_is_read_in_a_sitting():
    assert len(README.splitlines()) <= LONGEST


def test_a_model_of_ones_own_is_run_on_four_ranks_and_learns():
    program, printed = [
        block for block in blocks_of(ROOT / "README.md") if {"ranks", "prints"} & set(block.marks)
    ]
    losses = [float(number) for number in re.findall(r"loss ([\d.]+)", printed.code)]
    assert program.marks["ranks"] == "4" and "nn.Module" in program.code
    assert len(losses) == 4 and losses[-1] < losses[0] / 10


def test_every_file_that_the_readme_names_exists():
    named = set(re.findall(r"bash ([\w/.]+\.sh)", README))
    assert {"jobs/quickstart.sh", "jobs/test.sh"} <= named
    assert not [name for name in named if not (ROOT / name).exists()]


def results(name):
    """Return the table of this title in the measured results, as text."""
    page = (ROOT / "benchmarks/results/README.md").read_text()
    return re.search(rf"^\*\*{re.escape(name)}\*\*\n\n(.*?)\n\n", page, re.S | re.M)[1]


def ratio(size, ours, theirs, column):
    """Return ours / theirs of one column of the fully sharded step."""
    rows = {}
    for line in results(f"{size}, 2 ranks, fully sharded").splitlines():
        cells = [cell.strip().replace(",", "") for cell in line.strip("|").split("|")]
        rows[cells[0]] = cells
    return float(rows[ours][column]) / float(rows[theirs][column])


def test_the_figures_of_the_fully_sharded_step_are_those_measured():
    times = [ratio(size, "shardkit FSDP", "torch FSDP2", 1) for size in "SM"]
    memory = [ratio(size, "shardkit FSDP", "torch FSDP2", 6) for size in "SM"]
    low, high = f"{min(times):.2f}", f"{max(times):.2f}"
    assert f"{low} to {high} of the time of PyTorch's FSDP2" in README
    assert f"{min(memory):.0%} to {max(memory):.0%} of its memory".replace("% to", " to") in (
        " ".join(README.split())
    )
