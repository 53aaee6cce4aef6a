"""A run under plain mpiexec, whose output is a real terminal, a log file, or a dumb terminal."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

MPIEXEC = str(Path(sys.executable).parent / "mpiexec")
TRAIN = [
    "train",
    "--model.width=16",
    "--model.layers=2",
    "--model.heads=2",
    "--model.sequence_length=32",
    "--batch.sequences=8",
    "--batch.micro_batch=2",
    "--run.report_every=2",
    "--run.steps=6",
    "--sample.tokens=0",
    "--data.path=text.txt",
    "--run.folder=run",
]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "text.txt").write_text("".join(f"line {i} of a text\n" for i in range(600)))
    return tmp_path


def shown(folder, *command, target=None, **environment):
    """Return what a command writes to a terminal; target: a file for its standard output."""
    master, slave = pty.openpty()
    plain = {key: os.environ[key] for key in os.environ if key not in ("NO_COLOR", "FORCE_COLOR")}
    process = subprocess.Popen(
        command,
        cwd=folder,
        stdin=slave,
        stdout=slave if target is None else target,
        stderr=slave,
        env={**plain, "TERM": "xterm", "OMP_NUM_THREADS": "1", **environment},
        start_new_session=True,
    )
    os.close(slave)
    text = b""
    while True:
        try:
            piece = os.read(master, 65536)
        except OSError:  # nobody has the other end any more
            break
        if not piece:
            break
        text += piece
    os.close(master)
    assert process.wait(timeout=500) == 0, text
    return text.decode()


def shardkit(*arguments, ranks=2):
    return [MPIEXEC, "-n", str(ranks), sys.executable, "-m", "shardkit", *arguments]


def test_a_bar_stands_below_the_lines_of_mpiexec_on_a_terminal(folder):
    text = shown(folder, *shardkit(*TRAIN))
    assert "\x1b[2K" in text and re.search(r"━.*6/6", text)
    lines = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", text).replace("\r", "\n").splitlines()
    reports = [line for line in lines if re.match(r"step \d/6  loss", line)]
    assert len(reports) == 3
    # the first has no time left: its steps compile; the last has none to tell
    assert [" left" in line for line in reports] == [False, True, False]


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=str)
def test_plain_terminals_get_lines(environment, folder):
    text = shown(folder, *shardkit(*TRAIN, ranks=1), **environment)
    assert "\x1b" not in text and "step 6/6  loss" in text


def test_a_log_file_gets_lines_though_a_terminal_is_there(folder):
    with open(folder / "log", "w") as target:
        shown(folder, *shardkit(*TRAIN), target=target)
    text = (folder / "log").read_text()
    assert "\x1b" not in text and "step 6/6  loss" in text


def test_the_doctor_is_colored_on_a_terminal(folder):
    doctor = shardkit("doctor", ranks=1)
    text = shown(folder, *doctor)
    assert "\x1b[32mok" in text
    assert "\x1b" not in shown(folder, *doctor, NO_COLOR="1")


def test_settings_are_printed_once_under_mpiexec(folder):
    text = shown(folder, *shardkit(*TRAIN, "--print-settings"))
    assert text.count("[run]") == 1 and "steps = 6\r\n" in text and not (folder / "run").exists()
