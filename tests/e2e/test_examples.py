"""The examples run, quickly, and do what they say."""

import contextlib
import importlib.util
import io
import json
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest
from test_command_line import MPIEXEC

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
MOST_LINES = 60
LONGER = {"forces.py": 108, "poisson.py": 64}  # a potential, an equation: they may only get shorter


def run(folder, name, *arguments, ranks=None):
    """Return what the example prints on these ranks; None: without a launcher."""
    launcher = [] if ranks is None else [MPIEXEC, "-n", str(ranks)]
    threads = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*launcher, sys.executable, str(EXAMPLES / name), *arguments],
        cwd=folder,
        env={**os.environ, **threads},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_an_example_is_short_and_listed(path):
    assert len(path.read_text().splitlines()) <= LONGER.get(path.name, MOST_LINES)
    assert f"`{path.name}`" in (EXAMPLES / "README.md").read_text()


def test_a_residual_network_learns_and_h5py_reads_its_checkpoint(tmp_path):
    printed = run(tmp_path, "residual.py", "2", ranks=4)
    losses = [float(number) for number in re.findall(r"loss ([\d.]+)", printed)]
    assert len(losses) == 3 and losses[-1] < 0.1 * losses[0]
    name = "model/layers.0.up.weight"
    told = run(tmp_path, "read_checkpoint.py", "runs/residual/step-00000060", name)
    assert "step 60 of a Residual, written on pipeline 2 x data 2 x domain 1 x tensor 1" in told
    assert f"{name} (128, 32) float32, from 2 files" in told


def test_a_convolutional_network_tells_stripes_apart(tmp_path):
    assert int(run(tmp_path, "convolution.py", ranks=2).partition("%")[0]) >= 95


def test_a_hybrid_mesh_has_the_loss_of_another(tmp_path):
    printed = [run(tmp_path, "hybrid.py", "2", "2", ranks=4), run(tmp_path, "hybrid.py", "1", "1")]
    losses = [float(re.search(r"loss ([\d.]+) after", each)[1]) for each in printed]
    assert losses[0] == pytest.approx(losses[1], abs=2e-3) and losses[0] < 4.1


def test_an_elastic_loop_ends_and_is_done_when_it_is_started_again(tmp_path):
    assert "step 20: loss" in run(tmp_path, "elastic.py", ranks=2)
    assert "loss" not in run(tmp_path, "elastic.py", ranks=2)


def test_a_pretrained_model_is_fine_tuned_and_opens_in_transformers(tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("torch")
    losses = re.findall(r"loss ([\d.]+)", run(tmp_path, "finetune.py", "here", ranks=2))
    assert float(losses[1]) < 0.2 * float(losses[0])
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "here/tuned")
    assert model.config.vocab_size == 64


def test_a_plan_is_made_for_each_number_of_devices(tmp_path):
    rows = re.findall(r"(\d+) devices: +\d+ x \d+ x \d+ \w+", run(tmp_path, "plan.py"))
    assert rows == ["8", "16", "32", "64"]


class Shown:
    """Stands for IPython.display.SVG, where there is no IPython."""

    def __init__(self, data):
        assert data.startswith("<svg"), data[:40]


def test_every_cell_of_the_notebook_runs(monkeypatch):
    if importlib.util.find_spec("IPython") is None:
        display = types.ModuleType("IPython.display")
        display.SVG = Shown
        monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
        monkeypatch.setitem(sys.modules, "IPython.display", display)
    cells = json.loads((EXAMPLES / "classroom.ipynb").read_text())["cells"]
    names, said = {}, io.StringIO()
    with contextlib.redirect_stdout(said):
        for cell in cells:
            if cell["cell_type"] == "code":
                exec("".join(cell["source"]), names)
    assert said.getvalue().count("same bits: True") == 4
    assert not any(cell.get("outputs") for cell in cells), "store it without outputs"
