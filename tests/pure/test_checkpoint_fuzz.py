"""Damaged and forged checkpoints never crash, never load as something else: see fuzz_checkpoint.py,
which runs apart.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("fuzz_checkpoint.py")
ROOT = Path(__file__).parents[2]
STEP = 500


def fuzz(folder, first, count):
    """{outcome: how many}, of mutations in a process of their own, so that a crash of the
    interpreter is noticed.
    """
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "tests"))),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, SCRIPT, folder, str(first), str(count)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, f"ended with {done.returncode}: {done.stderr[-2000:]}"
    result = json.loads(done.stdout)
    assert not result["problems"], "\n".join(result["problems"])
    return Counter(result["outcomes"])


@pytest.mark.thorough
def test_damage_is_noticed_or_harmless_and_forgeries_end_in_checkpoint_error(tmp_path):
    outcomes = fuzz(tmp_path / "fuzz", 0, 400)
    assert outcomes["refused"] > 200 and outcomes["forgery refused"] > 50


@pytest.mark.sweep
@pytest.mark.timeout(1500)
def test_two_thousand_mutations(tmp_path):
    total = sum(
        (fuzz(tmp_path / str(first), first, STEP) for first in range(0, 2000, STEP)), Counter()
    )
    print(dict(total))
    assert total.total() == 2000
