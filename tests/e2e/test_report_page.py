"""`shardkit report` in a real browser: what it draws are the numbers of the run."""

import json
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy
import pytest

from shardkit.testing.ensemble import SweepRecord, Trial
from shardkit.testing.report import page_of_sweep, read_sweep

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
QUIET = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-logging=stderr",
    "--virtual-time-budget=2000",
]
MPIEXEC = str(Path(sys.executable).parent / "mpiexec")
SETTINGS = [
    "--model.width=16",
    "--model.layers=2",
    "--model.heads=2",
    "--model.sequence_length=32",
    "--batch.sequences=8",
    "--batch.micro_batch=2",
    "--run.report_every=2",
    "--run.validate_every=4",
    "--run.validation_batches=2",
    "--run.checkpoint_every=6",
    "--run.steps=18",
    "--sample.tokens=0",
    "--data.path=text.txt",
    "--mesh.pipeline=2",
]


def shardkit(folder, *arguments, ranks=None):
    command = [sys.executable, "-m", "shardkit", *arguments]
    launcher = [MPIEXEC, "-n", str(ranks)] if ranks else []
    done = subprocess.run(
        [*launcher, *command],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=500,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


pytestmark = pytest.mark.xdist_group("report")  # they share two runs


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with two runs: on 4 ranks, elastic and traced; on 2."""
    path = tmp_path_factory.mktemp("runs")
    (path / "text.txt").write_text(
        "".join(f"line {i} of a text, with the number {i * i}\n" for i in range(600))
    )
    asked = ["--run.folder=first", "--run.trace_steps=4..6", "--run.elastic=true"]
    shardkit(path, "train", *SETTINGS, *asked, ranks=4)
    shardkit(path, "train", *SETTINGS, "--run.folder=second", "--model.width=32", ranks=2)
    return path


class Page(HTMLParser):
    """The tables of a page as rows of text, and its words."""

    def __init__(self, text):
        super().__init__()
        self.tables, self.words, self._cell = [], [], None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self._cell = []

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self.tables[-1][-1].append("".join(self._cell))
            self._cell = None

    def handle_data(self, text):
        self.words.append(text)
        if self._cell is not None:
            self._cell.append(text)


TOO_WIDE = """<script>
const room = document.documentElement;
if (room.scrollWidth > room.clientWidth) room.setAttribute("data-wide", room.scrollWidth);
</script></body>"""


def browsed(folder, path, width=1280):
    """Return the page as the browser made it; a message in its console fails the test."""
    if CHROMIUM is None:
        pytest.skip("no Chromium; apt-get install chromium")
    looked_at = folder / "looked_at.html"
    looked_at.write_text(path.read_text().replace("</body>", TOO_WIDE))
    done = subprocess.run(
        [
            CHROMIUM,
            *QUIET,
            f"--window-size={width},900",
            f"--user-data-dir={folder / 'browser'}",
            "--dump-dom",
            f"file://{looked_at}",
        ],
        capture_output=True,
        text=True,
        timeout=500,
        env={**os.environ, "HOME": str(folder)},
    )
    shutil.rmtree(folder / "browser", ignore_errors=True)
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert done.returncode == 0 and not console, console
    assert 'data-wide="' not in done.stdout, "the page is wider than the window"
    return Page(done.stdout), done.stdout


def metrics(folder, run):
    return [json.loads(line) for line in (folder / run / "metrics.jsonl").read_text().splitlines()]


def numbers_of(page, at=-1):
    """Return {(step, name): value} of the last table, which has all numbers."""
    heads, *rows = page.tables[at]
    return {
        (int(row[0].replace(",", "")), name): float(cell)
        for row in rows
        for name, cell in zip(heads[1:], row[1:])
        if cell
    }


def written(folder, run):
    left_out = ("step", "time", "memory_bytes", "skipped_steps")
    return {
        (record["step"], name.replace("_", " ")): value
        for record in metrics(folder, run)
        for name, value in record.items()
        if name not in left_out and not name.startswith("checkpoint_")
    }


@pytest.mark.parametrize("width", [1280, 390])
def test_the_numbers_on_the_page_are_those_of_the_run(folder, width):
    assert "first/report.html" in shardkit(folder, "report", "first")
    page, text = browsed(folder, folder / "first/report.html", width)
    expected = written(folder, "first")
    assert len(expected) > 40 and numbers_of(page) == expected
    words = " ".join(page.words)
    loss = [r["validation_loss"] for r in metrics(folder, "first") if "validation_loss" in r][-1]
    assert f"{loss:.4g}" in words and "18 of 18" in words and "tokens/s" in words
    assert "pipeline 2 × data 2 × tensor 1 = 4 ranks" in words and "optimizer state" in words
    assert text.count("<svg") >= 9 and "Measured" in words and "predicted" in words
    drawn = "".join(re.findall("<svg.*?</svg>", text, re.S))
    assert len(drawn) > 5000 and not re.search("NaN|undefined|Infinity|null", drawn)


POINT = """<script>
const drawn = document.querySelector("svg"), box = drawn.getBoundingClientRect();
const where = {clientX: box.left + box.width, clientY: box.top + 40};
drawn.dispatchEvent(new PointerEvent("pointermove", where));
</script></body>"""


def test_the_pointer_shows_the_values_of_a_step_with_their_names(folder):
    shardkit(folder, "report", "first")
    whole = (folder / "first/report.html").read_text()
    path = folder / "pointed.html"
    path.write_text(whole.replace("</body>", POINT))
    _, text = browsed(folder, path)
    tip = re.search(r'id="tip"[^>]*>(.*?)</div></div>', text, re.S)[0]
    records = [record for record in metrics(folder, "first") if record["step"] == 18]
    for name in ("train_loss", "validation_loss"):
        (value,) = [record[name] for record in records if name in record]
        assert f"{value:#.4g}" in tip, tip
    assert "step 18" in tip and "hidden" not in tip and "checkpoint" in tip


def test_two_runs_stand_side_by_side_with_what_differs(folder):
    shardkit(folder, "report", "first", "second", "--output", "both.html")
    page, text = browsed(folder, folder / "both.html")
    assert numbers_of(page) == written(folder, "second")
    assert numbers_of(page, -2) == written(folder, "first")
    heads = page.tables[0][0]
    assert heads[1:3] == ["first", "second"]
    differ = next(table for table in page.tables if table[0][0] == "setting")
    width = next(row for row in differ if row[0] == "model.width")
    assert width[1:3] == ["16", "32"]
    assert "model.layers" not in [row[0] for row in differ]


def test_ranks_that_share_samples_are_told_apart(folder):
    path = folder / "second/ranks.json"
    ranks = json.loads(path.read_text())
    ranks["mesh"] |= {"domain": 2, "pipeline": 1}
    for each in ranks["ranks"]:
        each |= {"domain": each["rank"], "pipeline": 0}
    shutil.copytree(folder / "second", folder / "third")
    (folder / "third/ranks.json").write_text(json.dumps(ranks))
    shardkit(folder, "report", "third")
    page, _ = browsed(folder, folder / "third/report.html", 390)
    words = " ".join(page.words).replace("\u00a0", " ")
    assert "pipeline 1 × data 1 × domain 2 × tensor 1 = 2 ranks" in words
    assert "part 0" in words and "part 1" in words


@pytest.mark.parametrize("width", [1280, 390])
def test_a_sweep_is_drawn_from_the_lowest_loss_on(width, tmp_path):
    shown = {"optimizer.learning_rate": 0.25, "model.style": "llama"}
    trials = [
        Trial(0, shown | {"model.style": "gpt2"}, "failed", error="ValueError: no more <b>"),
        Trial(1, shown, "finished", 40, 0.75),
        Trial(2, shown | {"optimizer.learning_rate": 0.001}, "stopped", 20, 2.5),
    ]
    curves = {1: {"validation_loss": numpy.array([[20, 1.5], [40, 0.75]])}}
    SweepRecord({}, trials, curves).write(tmp_path)
    (tmp_path / "report.html").write_text(page_of_sweep(read_sweep(tmp_path)))
    page, text = browsed(tmp_path, tmp_path / "report.html", width)
    heads, *lines = page.tables[0]
    assert heads[4:] == ["optimizer.learning_rate", "model.style", ""]
    assert [line[0] for line in lines] == ["1", "2", "0"]
    assert lines[0][1:6] == ["finished", "40", "0.7500", "0.2500", "llama"]
    assert lines[2][-1] == "ValueError: no more <b>"
    assert text.count("<svg") == 3 and text.count("<circle") == 2 + 1 + 2 * 2
    assert not re.search("NaN|undefined|Infinity", "".join(re.findall("<svg.*?</svg>", text, re.S)))


def test_a_folder_without_a_run_is_refused(folder):
    done = subprocess.run(
        [sys.executable, "-m", "shardkit", "report", "nowhere"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 1 and "nowhere holds no metrics.jsonl" in done.stderr


def test_the_same_runs_left_a_trace_that_keeps_the_rules(folder):
    from trace_rules import read_trace, steps_of

    content = read_trace(folder / "first/traces/steps-4-6.json")
    for rank in range(4):
        assert [step["name"] for step, _ in steps_of(content, rank)] == [
            "step 4",
            "step 5",
            "step 6",
        ]
    timeline = json.loads((folder / "first/timeline.json").read_text())
    assert timeline["step"] == 4 and set(timeline["ranks"]) == {"0", "1"}
