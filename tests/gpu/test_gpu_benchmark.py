"""benchmarks/gpu.py runs from end to end, at sizes where nothing is fast."""

import importlib.util
import json
import math
import sys
from pathlib import Path

import pytest

BENCHMARKS = str(Path(__file__).resolve().parents[2] / "benchmarks")


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import gpu

    return gpu


def cells(tmp_path):
    """{title of a table: its rows} of the result that was written."""
    result = json.loads((tmp_path / "gpu.json").read_text())
    return {table["title"]: table["rows"] for table in result["tables"]}, result


@pytest.mark.thorough
def test_every_part_is_measured_and_written(gpu, script, tmp_path, capsys, monkeypatch):
    """PyTorch on the CPU where there is no GPU: it is the code that is tried."""
    monkeypatch.setattr(script, "CALLS", 4)  # as many as there are inputs
    where, has_torch = (
        "cuda" if gpu.is_real else "cpu",
        importlib.util.find_spec("torch") is not None,
    )
    asked = ["--size", "tiny", "--repeats", "1", "--torch-device", where, "--out", str(tmp_path)]
    assert script.main(asked) == 0, capsys.readouterr().out
    tables, result = cells(tmp_path)
    contestants = [row[0] for row in next(iter(tables.values()))]
    assert contestants[0] == "shardkit, float32" and ("torch, bfloat16" in contestants) == has_torch
    assert len(tables) == 6 and sum(map(len, tables.values())) > 40
    numbers = [
        cell for rows in tables.values() for row in rows for cell in row[1:] if cell is not None
    ]
    assert all(math.isfinite(number) and number >= 0 for number in numbers)
    assert set(result["measured"]["losses of tiny"]) == set(contestants)


def test_without_a_gpu_it_says_so_and_measures_nothing(script, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert (
        script.main(["--out", str(tmp_path)]) == 1
        and "CuPy, which is not installed" in capsys.readouterr().out
    )
    assert not (tmp_path / "gpu.json").exists()


def test_calls_take_their_inputs_in_turn_behind_something_long(gpu, script):
    if gpu.is_real:
        pytest.skip("a real GPU keeps no book")
    asked = []
    watch = script.Stopwatch(gpu.device, repeats=3, edge=8)
    watch._long_seconds = 1e-3
    gpu.machine.forget()
    seconds = watch.seconds(*[lambda number=number: asked.append(number) for number in range(4)])
    assert asked == [0, 1, 2, 3] * 25 and seconds >= 0  # two times to warm up, three measured
    assert gpu.machine.launches["gemm"] == 3  # before each of the three
    assert len(gpu.machine.host_waits) == 2 + 2 * 3  # none of them between two calls
