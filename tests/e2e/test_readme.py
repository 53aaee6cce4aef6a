"""What the README says is true."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def test_the_python_example_runs_on_two_ranks_and_learns(tmp_path):
    code = re.search(r"```python\n(.*?)```", README, re.S)[1]
    (tmp_path / "example.py").write_text(code)
    done = subprocess.run(
        [str(Path(sys.executable).parent / "mpiexec"), "-n", "2", sys.executable, "example.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    losses = [
        float(line.split()[1])
        for line in done.stdout.splitlines()
        if re.fullmatch(r"\d+ \d+\.\d+", line)
    ]
    assert len(losses) == 20 and losses[-1] < losses[0] - 0.5
    assert (tmp_path / "runs" / "demo" / "step-00000020" / "index.h5").exists()


def test_every_file_that_the_readme_names_exists():
    named = set(re.findall(r"`((?:shardkit|jobs|tests)/[\w/.]+)`", README)) | set(
        re.findall(r"bash ([\w/.]+\.sh)", README)
    )
    assert len(named) > 8
    assert not [name for name in named if not (ROOT / name).exists()]
