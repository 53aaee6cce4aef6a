"""Training steps of the models of science: shardkit against PyTorch, the same weights, batches and
losses, in two sizes each, of which the second was not used for tuning.

    python benchmarks/science.py [--only UNet] [--groups alone,ddp,fsdp] [--eager]
    python benchmarks/science.py --profile "LSTM 2 x 128, 32 x 128 steps"    where the time goes

One thread per rank; a step is everything, as in train_step.py, and the race is the same. PyTorch
runs eager, compiled (but FNO: PyTorch 2.13 fails to compile its complex weights), and with channels
last where there are convolutions; its best form counts. On one rank processor time is compared,
which a busy machine changes least. The table at the top has what is lost first, and the most memory
that a rank ever had resident; samples stand under tokens/s. A profile is
of the eager form of PyTorch by its own profiler, and of ours by the stopwatch of its kernels and
products, and by cProfile for functions beside them.
"""

import argparse
import cProfile
import json
import pstats
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from functools import lru_cache
from math import prod
from pathlib import Path

from contestants import Spec, make_contestant, write_weights
from problems import PROBLEMS, SECOND, Problem
from report import Table, compared_column, machine, machine_text, ratios_of, save
from train_step import TITLES, blas_of, run_group

GROUPS = ("alone", "ddp", "fsdp")
FUSED = {"fused": True}
OF_CONVOLUTIONS = ("ResNet", "UNet")
STEPS_PER_TURN = 1
PROFILED_STEPS = 5
SHOWN = 8  # functions of a profile
TIMED_BY_STOPWATCH = re.compile("shardkit.array.(cpu|blas|products|registry|reference)")
BEST_COLUMNS = [
    "model",
    "size",
    "form of PyTorch",
    "ours, ms",
    "torch, ms",
    "torch / ours",
    "ours, MiB",
    "torch, MiB",
    "loss difference",
]


def our_products(problem: Problem) -> dict:
    """Return what the library of our products adds to a Spec, as blas = "auto" chooses it."""
    return {"blas": _library(problem.name)}


@lru_cache
def _library(name: str) -> str:
    problem = PROBLEMS[name]
    return blas_of(problem.our_model(), prod(problem.x[:-1]))


def contestants(problem: Problem, group: str) -> list[Spec]:
    """Return the contestants of a group, ours first."""
    ours = our_products(problem)
    if group != "alone":
        return [
            Spec(f"shardkit {group}", "shardkit", 2, group, **ours),
            Spec(f"torch {group}", "torch", 2, group, **FUSED),
        ]
    specs = [Spec("shardkit", "shardkit", **ours), Spec("torch eager", "torch", **FUSED)]
    if problem.model != "FNO":
        specs.append(Spec("torch.compile", "torch", compiled=True, **FUSED))
    if problem.model in OF_CONVOLUTIONS:
        last = {"channels_last": True, **FUSED}
        specs.append(Spec("torch eager, channels last", "torch", **last))
        specs.append(Spec("torch.compile, channels last", "torch", compiled=True, **last))
    return specs


def best_row(problem: Problem, table: Table) -> list | None:
    """Return the line of the table at the top; None if one side has failed."""
    rows = [row for row in table.rows if isinstance(row[1], float)]
    theirs = [row for row in rows if row[0].startswith("torch")]
    if not theirs or len(theirs) == len(rows):
        return None
    column = compared_column(table.title)
    ours, best = rows[0], min(theirs, key=lambda row: row[column])
    size = "second" if problem.name in SECOND else "first"
    ratio = ratios_of([asdict(table)])[table.title]
    times = ours[column], best[column]
    return [table.title, size, best[0], *times, ratio, ours[6], best[6], best[7]]


# ---- where the time goes -------------------------------------------------------------------------


def profile_table(problem: Problem) -> Table:
    """Return the functions in which most of the time is spent, of both sides in processes of their
    own.
    """
    sides = []
    for library in ("shardkit", "torch"):
        command = [sys.executable, __file__, "--profile", problem.name, "--library", library]
        done = subprocess.run(command, capture_output=True, check=True, text=True)
        sides.append(json.loads(done.stdout.splitlines()[-1]))
    rows = [[at + 1, *ours, *theirs] for at, (ours, theirs) in enumerate(zip(*sides))]
    columns = ["", "shardkit", "ms per step", "torch", "ms per step"]
    return Table(f"{problem.name}, where the time is", columns, rows)


def print_profile(problem: Problem, library: str) -> None:
    """Print [[function, milliseconds of a step], ...], the longest first, as JSON."""
    spec = Spec(library, library, **(our_products(problem) if library == "shardkit" else FUSED))
    with tempfile.TemporaryDirectory() as folder:
        weights = str(Path(folder) / "weights.npz")
        write_weights(problem, weights)
        contestant = make_contestant(spec, problem, weights, 0)
    for number in range(3):
        contestant.step(number)
    profiled = {"shardkit": _of_ours, "torch": _of_torch}[library]
    print(json.dumps(profiled(contestant)[:SHOWN]))
    contestant.close()


def _of_ours(contestant) -> list[list]:
    profiler = cProfile.Profile()
    profiler.enable()
    for number in range(3, 3 + PROFILED_STEPS):
        contestant.step(number)
    profiler.disable()
    found: dict[str, float] = {}
    for function, (_, _, own, _, callers) in pstats.Stats(profiler).stats.items():
        if function[0] != "~":
            _add(found, function, own / PROFILED_STEPS)
        else:  # a function of C: its time is that of who calls it
            for caller, (_, _, of_caller, _) in callers.items():
                _add(found, caller, of_caller / PROFILED_STEPS)
    return _longest(_in_calls(contestant) | found)


def _in_calls(contestant) -> dict[str, float]:
    """Return {what: seconds} of kernels and products, in the step of median length."""
    from shardkit.testing.parallel import profile_steps

    step = profile_steps(contestant.model, *contestant.sizes.step_batch(0), PROFILED_STEPS)[0]
    found = {f"kernel {name}": seconds for name, (seconds, _) in step.kernels.items()}
    return {"products": step.parts["products"], **found}


def _add(found: dict[str, float], function, seconds: float) -> None:
    """Add the time of a function of Python, unless it is that of a kernel or a product."""
    file, _, name = function
    if not TIMED_BY_STOPWATCH.search(file):
        label = f"{Path(file).stem}.{name}"
        found[label] = found.get(label, 0.0) + seconds


def _longest(found: dict[str, float]) -> list[list]:
    longest = sorted(found.items(), key=lambda pair: -pair[1])
    return [[name, 1e3 * seconds] for name, seconds in longest]


def _of_torch(contestant) -> list[list]:
    from torch.profiler import profile

    with profile() as profiler:
        for number in range(3, 3 + PROFILED_STEPS):
            contestant.step(number)
    return _longest(
        {
            event.key: event.self_cpu_time_total / 1e6 / PROFILED_STEPS
            for event in profiler.key_averages()
        }
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="models whose name contains this")
    parser.add_argument("--groups", default=",".join(GROUPS))
    parser.add_argument("--eager", action="store_true", help="leave out torch.compile: quicker")
    parser.add_argument("--budget", type=float, default=1800, help="seconds for all races")
    parser.add_argument("--profile", choices=PROBLEMS, help="only show where its time goes")
    parser.add_argument("--library", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.library:
        print_profile(PROBLEMS[asked.profile], asked.library)
        return 0
    if asked.profile:
        print(profile_table(PROBLEMS[asked.profile]).markdown())
        return 0
    return race_all(asked)


def race_all(asked) -> int:
    """Race all that is asked for, and save after each."""
    problems = [problem for problem in PROBLEMS.values() if asked.only in problem.name]
    races = [(problem, group) for group in asked.groups.split(",") for problem in problems]
    about = machine()
    settings = {"threads per rank": 1, "titles": ", ".join(TITLES[each] for each in GROUPS)}
    settings |= {"left out": "torch.compile"} if asked.eager else {}
    deadline = time.monotonic() + asked.budget
    tables, profiles, best, wrong, measured = [], [], [], [], {}
    for at, (problem, group) in enumerate(races):
        seconds = (deadline - time.monotonic()) / (len(races) - at)
        specs = [
            spec for spec in contestants(problem, group) if not (asked.eager and spec.compiled)
        ]
        table, measured[f"{problem.name} {group}"], trouble = run_group(
            problem, group, specs, seconds, STEPS_PER_TURN
        )
        print(table.markdown(), flush=True)
        tables.append(table)
        wrong += trouble
        row = best_row(problem, table)
        best += [row] if row else []
        best.sort(key=lambda row: row[5])
        if group == "alone" and problem.name not in SECOND:
            profiles.append(profile_table(problem))
        top = Table("PyTorch's best form by ours, what is lost first", BEST_COLUMNS, best)
        path = save(
            "science",
            "Models of science",
            [top, *profiles, *tables],
            about=about,
            settings=settings,
            measured={**measured, "wrong": wrong},
        )
    print(top.markdown(), machine_text(about), *wrong, f"written to {path}", sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
