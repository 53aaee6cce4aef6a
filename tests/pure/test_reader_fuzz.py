"""Damaged files of others end no process, take no memory, and are refused by name: see
fuzz_readers.py, which runs apart.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("fuzz_readers.py")
ROOT = Path(__file__).parents[2]
GROUPS = {
    "language data": ["tokens", "tokens with a tokenizer", "megatron", "npy", "npz", "nanogpt"],
    "texts": ["text", "text file", "inputs", "tokenizer", "ledgers"],
    "tables": ["arrays", "hdf5", "csv", "columns"],
    "models and runs": ["safetensors", "adapter", "toml", "report", "run", "sweep"],
}
NAMES = [name for names in GROUPS.values() for name in names]
LIBRARIES = {
    "csv": "pyarrow",
    "columns": "pyarrow",
    "inputs": "pyarrow",
    "tokenizer": "tokenizers",
    "tokens with a tokenizer": "tokenizers",
    "safetensors": "tokenizers",
}
SHARE = 50  # files of each reader; another SEED has others
SWEEP, STEP, SEED = 10_000, 2500, 0


def fuzz(folder, names, first, count):
    """{reader: {outcome: how many}} of damaged files, in a process of their own."""
    for name in names:
        pytest.importorskip(LIBRARIES.get(name, "numpy"))
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "tests"))),
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, SCRIPT, folder, ",".join(names), str(first), str(count)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=1200,
    )
    last = done.stdout.splitlines()[-1:] or ["nothing"]
    assert done.returncode == 0, f"{last[0]} ended with {done.returncode}: {done.stderr[-2000:]}"
    result = json.loads(last[0])
    assert not result["problems"], "\n".join(result["problems"])
    return result["outcomes"]


@pytest.mark.timeout(1300)
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.thorough
def test_damaged_files_are_read_or_refused_by_name(group, tmp_path):
    names = GROUPS[group]
    for name, outcomes in fuzz(tmp_path / "fuzz", names, SEED, SHARE).items():
        assert sum(outcomes.values()) == SHARE
        assert outcomes.get("refused", 0) > 0 or name == "text"  # which passes over what is none


@pytest.mark.sweep
@pytest.mark.timeout(4000)
@pytest.mark.parametrize("name", NAMES)
def test_ten_thousand_damaged_files(name, tmp_path):
    total = 0
    for first in range(0, SWEEP, STEP):
        outcomes = fuzz(tmp_path / str(first), [name], SEED + first, STEP)[name]
        print(name, first, outcomes)
        total += sum(outcomes.values())
    assert total == SWEEP
