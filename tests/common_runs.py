"""What common runs ask for of compiled loops: small models of each kind, trained for a few steps.

python tests/common_runs.py             print the lines of one rank
python tests/common_runs.py --write     write shardkit/array/cpu/common.txt, from one rank and
                                        from two, with pairs of bfloat16 and without
"""

import contextlib
import io
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy
from builders import TINY_RUN

import shardkit as sk
from shardkit import nn
from shardkit.testing.array import TABLE, asked
from shardkit.testing.task import Language
from shardkit.testing.train import configuration_of, train_run

WORDS, LENGTH, SAMPLES = 61, 12, 8


def tokens(random):
    drawn = random.integers(0, WORDS, (SAMPLES, LENGTH + 1))
    return drawn[:, :-1], drawn[:, 1:]


def images(random):
    x = random.normal(size=(SAMPLES, 3, 16, 16)).astype("float32")
    return x, random.integers(0, 5, SAMPLES)


def numbers(random):
    x = random.normal(size=(SAMPLES, 8)).astype("float32")
    return x, x.sum(1, keepdims=True)


def series(random):
    x = random.normal(size=(SAMPLES, LENGTH, 8)).astype("float32")
    return x, x.sum((1, 2))[:, None]


def gpt(**changes):
    return lambda: sk.models.GPT(WORDS, LENGTH, **{"width": 16, "layers": 2, "heads": 2, **changes})


class OwnLayer(nn.Module):
    """A module of a user, as in the README."""

    def __init__(self, width):
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(nn.ops.gelu(self.up(self.norm(x))))


REGRESSION = {"loss": nn.MSELoss()}
# model, batch, settings
RUNS = [
    (gpt(dropout=0.1), tokens, {"optimizer": sk.AdamW(lr=1e-3), "max_gradient_norm": 1.0}),
    (gpt(style="llama", kv_heads=1), tokens, {"optimizer": sk.Lion(lr=1e-3)}),
    (gpt(), tokens, {"compute_dtype": "bfloat16", "optimizer": sk.AdamW(lr=1e-3)}),
    (gpt(style="llama"), tokens, {"compute_dtype": "bfloat16", "optimizer": sk.AdamW(lr=1e-3)}),
    (lambda: nn.Sequential(OwnLayer(8), nn.Linear(8, 1)), numbers, REGRESSION),
    (lambda: sk.models.MLP((8, 16, 1)), numbers, {"optimizer": sk.Adam(lr=1e-3), **REGRESSION}),
    (lambda: sk.models.MLP((8, 16, 1), "relu"), numbers, {"optimizer": sk.SGD(0.1), **REGRESSION}),
    (lambda: sk.models.ViT(16, 4, classes=5, width=16, depth=2, heads=2), images, {}),
    (
        lambda: sk.models.ResNet(3, 5, (1, 1), width=32, small_images=True),
        images,
        {"optimizer": sk.Momentum(0.1)},
    ),
    (lambda: sk.models.LSTM(8, 1, width=8), series, REGRESSION),
]


def run_all(backend, folder) -> None:
    """Train every model under two policies, and use it; then the task that the command trains."""
    for build, batch, settings in RUNS:
        for policy in (sk.FSDPModel, sk.DDPModel):
            model = policy(build(), sk.ShardingConfiguration(backend, **settings))
            for step in range(2):
                x, y = batch(numpy.random.default_rng(step))
                model.train(*sk.split_batch(model.mesh, x, y))
            model.predict(x)
            if batch is tokens:
                model.generate(x[:1, :4], 2)
            model.close()
    text = Path(folder) / "text.txt"
    text.write_text("a text of many lines\n" * 60)
    given = {
        **TINY_RUN,
        **{"data.path": [str(text)], "run.folder": f"{folder}/run", "sample.tokens": 3},
    }
    train_run(configuration_of(Language)().replace(given), backend)


def main(arguments):
    if arguments:
        write()
        return
    backend = sk.MPICommunicationBackend()
    backend.initialize()
    with tempfile.TemporaryDirectory() as own, contextlib.redirect_stdout(io.StringIO()):
        folder = backend.all_gather_object(own)[0]
        run_all(backend, folder)
        every = backend.all_gather_object(asked())
    if backend.rank == 0:
        print("\n".join(sorted(set().union(*every))))
        print("loaded:", *(name for name in ("numba", "llvmlite") if name in sys.modules))


def lines_of(num_ranks, kernels) -> set[str]:
    """Return what ranks ask for with this target."""
    mpiexec = Path(sys.executable).with_name("mpiexec")
    done = subprocess.run(
        [mpiexec, "-n", str(num_ranks), sys.executable, __file__],
        env={**os.environ, "SHARDKIT_KERNELS": kernels},
        capture_output=True,
        text=True,
        timeout=3000,
        check=True,
    )
    return {line for line in done.stdout.splitlines() if "(" in line}


def write():
    plain, paired = (
        lines_of(1, kernels) | lines_of(2, kernels) for kernels in ("x86-64-v4", "x86-64-v4bf16")
    )
    sections = {"": plain & paired, "pairs": paired - plain, "no pairs": plain - paired}
    text = "".join(
        f"# {section}".strip() + "\n" + "".join(f"{line}\n" for line in sorted(lines))
        for section, lines in sections.items()
    )
    TABLE.write_text(text)


if __name__ == "__main__":
    main(sys.argv[1:])
