"""Run examples on two ranks and draw what they compute: python docs/gallery.py [NAME ...]

An example runs as it stands; its models are watched (`Watched`). tests/docs asks for a new
picture when an example has changed.
"""

import hashlib
import math
import runpy
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import h5py
import numpy
from mpi4py import MPI

import shardkit as sk
from shardkit.layout.pictures import COLORS
from shardkit.svg import EMPTY, SOFT, Drawing

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs/gallery"
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 336, 230, 46, 34, 34
BLUE, ORANGE, GREEN = COLORS[:3]


class Watched:
    """The losses and predictions of the models of an example.

    names   what the example had defined when it ended
    """

    def __init__(self, name, *arguments):
        self.losses, self.predictions = [], []
        self._watch("FSDPModel")
        self._watch("HybridShardedModel")
        sys.argv = [name, *map(str, arguments)]
        self.names = {}
        with suppress(SystemExit):
            self.names = runpy.run_path(str(example(name)), run_name="__main__")
        self.names = self.names or runpy.run_path(str(example(name)))

    def _watch(self, kind):
        losses, predictions = self.losses, self.predictions

        class Model(getattr(sk, kind)):
            def train(self, *batch):
                losses.append(super().train(*batch))
                return losses[-1]

            def predict(self, x):
                predictions.append((x, super().predict(x)))
                return predictions[-1][1]

        setattr(sk, kind, Model)


class Panel:
    """Axes with a title; points are in the units of what is drawn."""

    def __init__(self, title, x, y, across="", is_log=False):
        self.drawing = Drawing(WIDTH, HEIGHT)
        self._x, self._y, self._is_log = x, y, is_log
        drawing = self.drawing
        drawing.words(LEFT, 20, title, size=13, bold=True)
        bottom, right = HEIGHT - BOTTOM, WIDTH - 12
        for tick in ticks(*y, 4) if not is_log else decades(*y):
            _, at = self.place(x[0], tick)
            drawing.line([(LEFT, at), (right, at)], EMPTY)
            drawing.words(LEFT - 6, at + 4, f"{tick:g}", size=10, anchor="end", color=SOFT)
        for tick in ticks(*x, 5):
            at, _ = self.place(tick, y[0])
            drawing.words(at, bottom + 14, f"{tick:g}", size=10, anchor="middle", color=SOFT)
        drawing.line([(LEFT, bottom), (right, bottom)])
        middle = (LEFT + right) / 2
        drawing.words(middle, HEIGHT - 6, across, size=10, anchor="middle", color=SOFT)

    def place(self, x, y):
        """Return the pixels of a point."""
        levels = map(math.log10, (y, *self._y)) if self._is_log else (y, *self._y)
        y, low, high = levels
        share = (x - self._x[0]) / (self._x[1] - self._x[0])
        down = (high - y) / (high - low)
        across = LEFT + share * (WIDTH - 12 - LEFT)
        return round(float(across), 1), round(float(TOP + down * (HEIGHT - BOTTOM - TOP)), 1)

    def curve(self, xs, ys, color, width=1.8):
        self.drawing.line([self.place(*each) for each in zip(xs, ys)], color, width)

    def dots(self, xs, ys, color, size=4):
        for point in zip(xs, ys):
            x, y = self.place(*point)
            self.drawing.rectangle(x - size / 2, y - size / 2, size, size, color)

    def legend(self, *entries):
        """Name (word, color) at the top, to the right."""
        x = WIDTH - 12
        for word, color in reversed(entries):
            x -= 6 * len(word)
            self.drawing.words(x, 20, word, size=10, color=SOFT)
            x -= 14
            self.drawing.rectangle(x, 12, 9, 9, color)
            x -= 8


def ticks(low, high, most):
    """Return at most so many round numbers between."""
    step = 10 ** math.floor(math.log10((high - low) / most))
    step *= next(each for each in (1, 2, 5, 10) if (high - low) / (each * step) <= most)
    first = math.ceil(low / step - 1e-9)
    return [round(number * step, 10) for number in range(first, math.floor(high / step + 1e-9) + 1)]


def decades(low, high):
    """Return the powers of ten between."""
    return [
        10.0**power for power in range(math.ceil(math.log10(low)), 1 + math.floor(math.log10(high)))
    ]


# ---- the examples --------------------------------------------------------------------------------


def poisson():
    run = Watched("poisson.py")
    x, rows = run.predictions[-1]
    panel = Panel("u of u'' = -pi² sin(pi x)", (-0.5, 1), (-1.1, 1.1), "x")
    panel.curve(x[:, 0], run.names["exact"](x[:, 0]), ORANGE, 4)
    panel.dots(x[::2, 0], rows[::2, 0, 0], BLUE, 6)
    panel.legend(("exact", ORANGE), ("learned", BLUE))
    return panel


def forces():
    run = Watched("forces.py")
    positions, rows = run.predictions[-1]
    _, exact = run.names["exact"](positions)
    most = math.ceil(2 * abs(exact).max()) / 2
    panel = Panel("Forces", (-most, most), (-most, most), "exact")
    panel.curve((-most, most), (-most, most), ORANGE)
    panel.dots(exact.ravel()[::5], rows[:, 1:, 0].ravel()[::5], BLUE)
    panel.legend(("predicted", BLUE))
    return panel


def error_bars():
    folder = "runs/error_bars"
    names = Watched("error_bars.py", folder).names
    seeds = [{"run.seed": seed} for seed in range(names["SEEDS"])]
    backend = sk.MPICommunicationBackend()
    backend.initialize()
    ensemble = sk.Ensemble(names["make"], seeds, groups=2, folder=folder, backend=backend)
    x = numpy.linspace(-2, 2, 81, dtype="float32").reshape(-1, 1)
    ensemble.run()  # which finds all trials finished
    found = ensemble.predict(x, f"{folder}/fine.h5")
    mean, spread = found["prediction_mean"][:, 0], found["prediction_spread"][:, 0]
    panel = Panel("12 networks", (-2, 2), (-4, 4), "x; they have seen -1 to 1")
    for at, low, high in zip(x[:, 0], mean - 2 * spread, mean + 2 * spread):
        panel.curve((at, at), (max(low, -4), min(high, 4)), "#9dbfe6", 2.4)
    panel.dots(*(each[::4, 0] for each in names["measured"]()), ORANGE, 4)
    panel.curve(x[:, 0], mean, BLUE)
    panel.legend(("measured", ORANGE), ("mean ± 2 spread", BLUE))
    return panel


def surrogate():
    if MPI.COMM_WORLD.rank == 0:
        write = runpy.run_path(str(example("surrogate_table.py")))["main"]
        write("table.h5")
        write("new.h5", 1000)
    MPI.COMM_WORLD.barrier()
    Watched("surrogate.py", "table.h5", "new.h5", "runs/surrogate")
    with h5py.File("runs/surrogate/predictions.h5") as file, h5py.File("new.h5") as new:
        predicted, exact = file["prediction"][:, 0], new["y"][:].reshape(len(new["y"]), -1)[:, 0]
    low, high = float(exact.min()), float(exact.max())
    panel = Panel("Rows that were not seen", (low, high), (low, high), "exact")
    panel.curve((low, high), (low, high), ORANGE)
    panel.dots(exact[::5], predicted[::5].clip(low, high), BLUE)
    panel.legend(("predicted", BLUE))
    return panel


def coupled_heat():
    losses = Watched("coupled_heat.py", 0).losses
    return of_losses("Loss while the solver runs", losses)


def residual():
    return of_losses("Loss of 64 samples", Watched("residual.py", 2).losses)


def of_losses(title, losses):
    """Return a panel of losses over steps; the levels are logarithmic."""
    low, high = min(losses), max(losses)
    panel = Panel(title, (0, len(losses)), (low / 1.5, high * 1.5), "step", is_log=True)
    panel.curve(range(1, len(losses) + 1), losses, BLUE)
    return panel


PICTURES = {
    each.__name__: each for each in (poisson, forces, error_bars, surrogate, coupled_heat, residual)
}


def example(name):
    return ROOT / "examples" / name


def made_from(name) -> str:
    """Return the line of a picture that says which example it was drawn from."""
    content = hashlib.sha256(example(f"{name}.py").read_bytes()).hexdigest()[:12]
    return f"<desc>docs/gallery.py drew what examples/{name}.py ({content}) computed</desc>"


def draw(name, target) -> None:
    """Run one example on the ranks of this program, and write its picture."""
    svg = PICTURES[name]().drawing.svg
    head, _, rest = svg.partition("\n")
    Path(target).write_text(f"{head}\n{made_from(name)}\n{rest}")


def main(names):
    FOLDER.mkdir(exist_ok=True)
    mpiexec = str(Path(sys.executable).with_name("mpiexec"))
    for name in names or PICTURES:
        target = FOLDER / f"{name}.svg"
        command = [mpiexec, "-n", "2", sys.executable, __file__, "--draw", name, str(target)]
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(command, cwd=folder, check=True)


if __name__ == "__main__":
    draw(*sys.argv[2:]) if sys.argv[1:2] == ["--draw"] else main(sys.argv[1:])
