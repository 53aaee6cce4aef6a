"""The README is short, and what it says of this folder is true; tests/docs runs its code."""

import re
import tomllib
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


def test_the_figures_of_one_core_are_those_measured_on_the_first_machine():
    best = results(
        "PyTorch's best form by our best, time of a step; what is lost, then what misses, first"
    )
    ratios = dict(re.findall(r"^\| (.*?) +\| +[\d.]+ \| +([\d.]+) ", best, re.M))
    times = [1 / float(ratios[f"{size}, 1 rank"]) for size in "SM"]
    assert f"alone on a core, {min(times):.2f} to {max(times):.2f} of PyTorch's best" in README
    halves = [float(each) for name, each in ratios.items() if "bfloat16" in name]
    assert f"In bfloat16 on one core PyTorch is up to {1 - min(halves):.0%} quicker" in README


def test_the_figures_of_checkpoints_are_those_measured():
    page = (ROOT / "benchmarks/results/README.md").read_text()
    seconds = {
        (kind, name): float(median)
        for kind, name, median in re.findall(r"^(pause|save) +(\S.*?)  +([\d.]+) ", page, re.M)
    }
    ratio = seconds["save", "shardkit"] / seconds["save", "torch.distributed.checkpoint"]
    words = " ".join(README.split())
    assert f"are saved in {ratio:.2f} of the time of torch.distributed.checkpoint" in words
    still = seconds["pause", "save_model_async"]
    assert f"training stands still for {still:.2f} s" in words


def test_extras_that_pages_name_are_those_of_the_package():
    """pip install '.[name]', and the names in the table of getting-started."""
    known = set(
        tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    )
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), ROOT / "examples/README.md"]
    told = {
        name
        for page in pages
        for names in re.findall(r"pip install '(?:\.|shardkit)\[([\w,]+)\]", page.read_text())
        for name in names.split(",")
    }
    table = (ROOT / "docs/getting-started.md").read_text().partition("| extra |")[2]
    listed = {
        name
        for row in re.findall(r"^\| (`.*?) \|", table.partition("\n\n")[0], re.M)
        for name in re.findall(r"`(\w+)`", row)
    }
    assert told and told <= known and listed <= known
    assert known - listed <= {"parquet", "coverage"}, "not said in getting-started"


def test_what_a_reader_opens_is_as_the_page_of_hops_says():
    hops = (ROOT / "docs/hops.md").read_text()
    found = re.search(r"^\| where 1F1B comes from \| [\d, ]+ \| \d+, (\d+), (\d+) \|", hops, re.M)
    assert f"1F1B is {found[1]} definitions, {found[2]} lines" in README
