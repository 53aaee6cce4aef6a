"""The examples run, quickly, and do what they say."""

import contextlib
import gzip
import importlib.util
import io
import json
import os
import re
import runpy
import subprocess
import sys
import types
from pathlib import Path

import h5py
import numpy
import pytest
from test_command_line import MPIEXEC, in_one_job

from shardkit.testing.report import read_run_folder

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
MOST_LINES = 60
# a solver, a potential, an equation: they may only get shorter
LONGER = {"coupled_heat.py": 99, "forces.py": 108, "poisson.py": 64}


def run(folder, name, *arguments, ranks=None, limit=None, code=0):
    """Return what the example prints on these ranks; None: without a launcher.

    limit   KiB of address space of each process
    code    that the example must end with
    """
    launcher = [] if ranks is None else [MPIEXEC, "-n", str(ranks)]
    if limit is not None:
        launcher = ["bash", "-c", f'ulimit -v {limit}; exec "$@"', "bash", *launcher]
    threads = {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}:{folder}"}
    done = subprocess.run(
        [*launcher, sys.executable, str(EXAMPLES / name), *arguments],
        cwd=folder,
        env={**os.environ, **threads},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


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


def test_a_gan_draws_points_on_a_ring(tmp_path):
    printed = run(tmp_path, "gan.py", ranks=2)
    radius, spread = map(float, re.findall(r"[\d.]+", printed))
    assert abs(radius - 1) < 0.2 and spread < 0.3


@pytest.mark.parametrize("trainers", ["1", "0"])
def test_a_solver_trains_its_surrogate_while_it_runs(tmp_path, trainers):
    printed = run(tmp_path, "coupled_heat.py", trainers, ranks=4)
    error = int(re.search(r"error is (\d+)% of a step's change", printed)[1])
    assert error < 60
    if trainers == "1":  # a run that can be drawn at any time
        metrics = (tmp_path / "runs/heat/metrics.jsonl").read_text()
        assert "train_loss" in metrics and "validation_loss" in metrics
        assert read_run_folder(tmp_path / "runs/heat").steps > 50


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
    runpy.run_path(str(EXAMPLES / "finetune.py"))["make_base"](tmp_path / "here/base")
    losses = re.findall(r"loss ([\d.]+)", run(tmp_path, "finetune.py", "here", ranks=2))
    assert float(losses[1]) < 0.2 * float(losses[0])
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "here/tuned")
    assert model.config.vocab_size == 64


def test_a_plan_is_made_for_each_number_of_devices(tmp_path):
    rows = re.findall(r"(\d+) devices: +\d+ x \d+ x \d+ \w+", run(tmp_path, "plan.py"))
    assert rows == ["8", "16", "32", "64"]


def test_four_ranks_train_on_a_volume_that_one_may_not_hold(tmp_path):
    run(tmp_path, "volumes.py", "write", "volumes.h5", "112", "2")
    limits = {"limit": 1_500_000, "code": 0}
    alone = ["train", "volumes.h5", "alone", "1", "1"]
    told = run(tmp_path, "volumes.py", *alone, ranks=1, **{**limits, "code": 1})
    assert "rank 0 ran out of memory" in told
    shared = ["train", "volumes.h5", "shared", "4", "1"]
    assert "step 1/1  loss" in run(tmp_path, "volumes.py", *shared, ranks=4, **limits)
    with h5py.File(tmp_path / "shared/cleaned.h5") as file:
        assert file["prediction"].shape == (2, 1, 112, 112, 112)
        assert all(file["prediction"][1, 0, row].any() for row in range(112))


def test_ranks_share_a_long_text(tmp_path):
    printed = [run(tmp_path, "long_text.py", "96", "4", ranks=ranks) for ranks in (1, 3)]
    losses = [[float(x) for x in re.findall(r"loss ([\d.]+)", each)] for each in printed]
    assert losses[0] == pytest.approx(losses[1], abs=2e-4) and len(losses[0]) == 4
    assert "rank 0 has tokens 0 to 95" in printed[0] and "tokens 0 to 31" in printed[1]


def _as_nifti(volume):
    """Return a volume as a NIfTI-1 file of uint8."""
    head = bytearray(352)
    head[40:48] = numpy.array([3, *volume.shape], "<i2").tobytes()
    head[70:72], head[108:112] = b"\2\0", numpy.float32(352).tobytes()
    return gzip.compress(bytes(head) + volume.astype("u1").tobytes(order="F"))


def test_a_brain_is_trained_on_and_predicted_in_parts(tmp_path):
    """The commands, from a file, on a rank that has whole volumes, and on three that share them."""
    folder = tmp_path / "nilearn/datasets/data"
    folder.mkdir(parents=True)
    (tmp_path / "nilearn/__init__.py").touch()
    rng = numpy.random.default_rng(0)
    for kind in ("t1", "gm"):
        name = f"mni_icbm152_{kind}_tal_nlin_sym_09a_converted.nii.gz"
        (folder / name).write_bytes(_as_nifti(rng.integers(0, 250, (100, 90, 52))))
    assert "t1 (2, 1, 96, 112, 12)" in run(tmp_path, "brain.py", "brain.h5")
    given = "--task=unet --data.path=brain.h5 --data.features=t1 --data.target=grey"
    given += " --model.depth=1 --model.width=4 --model.groups=2 --run.steps=2 --run.folder="
    found = []
    for ranks in (1, 3):
        own = [f"--mesh.domain={ranks}", "--batch.sequences=1", "--batch.micro_batch=1"]
        about = [f"run{ranks}", own[0], "--data=brain.h5"]
        commands = [["train", *f"{given}run{ranks}".split(), *own], ["evaluate", *about]]
        commands += [["predict", *about, f"--output=out{ranks}.h5"]]
        _, line, _ = in_one_job(tmp_path, *commands, ranks=ranks)
        found.append([float(x) for x in re.findall(r"(?:loss|rmse|mae) ([\d.]+)", line)])
    assert found[0] == pytest.approx(found[1], rel=1e-3) and len(found[0]) >= 3
    alone, cut = (h5py.File(tmp_path / f"out{ranks}.h5")["prediction"][:] for ranks in (1, 3))
    numpy.testing.assert_allclose(cut, alone, atol=2e-3 * abs(alone).max())


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


def test_an_ensemble_is_sure_where_it_has_seen_something_and_nowhere_else(tmp_path):
    printed = run(tmp_path, "error_bars.py", "runs/error_bars", "6", ranks=2)
    rows = [re.findall(r"-?[\d.]+", line) for line in printed.splitlines() if "+-" in line]
    found = {float(x): [float(each) for each in rest] for x, *rest in rows}
    inside, outside = (found[x] for x in (0.5, 2.0))
    assert abs(inside[0] - inside[1]) < 0.2 and outside[2] > 3 * inside[2]
