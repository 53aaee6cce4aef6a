"""A race that guards itself: S on 1 and 2 ranks, in float32 and bfloat16, and the models of science
on 1 rank, against PyTorch's best form, in less than six minutes. In bfloat16 only where the CPU
multiplies it: elsewhere PyTorch takes seconds for a step. Models of science are not compiled here.

    python benchmarks/guard.py                   exit 1 if a ratio fell below what is kept for such
                                                 a CPU
    python benchmarks/guard.py --keep            keep the ratios of this run for such CPUs
    python benchmarks/guard.py --only science    only these races: language or science

A ratio is PyTorch's time of a step by ours (processor time, on one rank), the median over turns;
PyTorch's form with the smallest one counts. Ratios are kept in results/guard.json, for each kind of
CPU (model, instructions, PyTorch's version). A ratio fell if it is below the kept one by more than
3% and three standard errors of both medians.
"""

import argparse
import json
import math
import sys
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import median, quantiles

from contestants import Spec
from problems import PROBLEMS, SECOND
from race import Race
from report import RESULTS, machine
from science import contestants
from train_step import BEST, MODELS, our_products

from shardkit.array.blas.processor import multiplies_bfloat16

KEPT = RESULTS / "guard.json"
BUDGET_SECONDS = 340
MARGIN = 0.03
TURNS_AT_LEAST, TURNS_AT_MOST, STEPS = 5, 25, 3
HALVES = {"compute": "bfloat16"}


def races_of_science() -> dict[str, tuple]:
    """Return {race: (sizes, contestants)}, ours first."""
    return {
        name: (problem, [spec for spec in contestants(problem, "alone") if not spec.compiled])
        for name, problem in PROBLEMS.items()
        if name not in SECOND
    }


def races_of_language() -> dict[str, tuple]:
    """Return {race: (sizes, contestants)}, ours first."""
    in_float32 = {
        "1 rank, float32": [
            Spec("shardkit", "shardkit", **our_products()),
            Spec("torch", "torch", **BEST),
            Spec("torch.compile", "torch", compiled=True, **BEST),
        ],
        "2 ranks, DDP, float32": [
            Spec("shardkit", "shardkit", 2, "ddp", **our_products()),
            Spec("torch", "torch", 2, "ddp", **BEST),
        ],
    }
    in_bfloat16 = {
        "1 rank, bfloat16": [
            Spec("shardkit", "shardkit", **our_products(), **HALVES),
            Spec("torch", "torch", **BEST, **HALVES),
            Spec("torch.compile", "torch", compiled=True, **BEST, **HALVES),
        ],
        "2 ranks, DDP, bfloat16": [
            Spec("shardkit", "shardkit", 2, "ddp", **our_products(), **HALVES),
            Spec("torch", "torch", 2, "ddp", **BEST, **HALVES),
        ],
    }
    entered = in_float32 | in_bfloat16 if multiplies_bfloat16() else in_float32
    return {name: (MODELS["S"], specs) for name, specs in entered.items()}


RACES = {"language": races_of_language, "science": races_of_science}


@dataclass(frozen=True)
class Ratio:
    """PyTorch's time of a step by ours.

    error   standard error of the median, from its quartiles over turns
    form    of PyTorch; products: the library of ours
    """

    value: float
    error: float
    form: str
    products: str

    @classmethod
    def of(cls, race: Race, ours: str, theirs: str) -> "Ratio":
        """Return the ratio of two contestants, turn by turn."""
        ratios = [their / our for their, our in race.paired(theirs, ours)]
        low, _, high = quantiles(ratios, n=4)
        return cls(
            median(ratios),
            1.253 * (high - low) / 1.349 / math.sqrt(len(ratios)),
            theirs,
            race.contestants[ours].spec.blas,
        )

    def has_fallen(self, kept: "Ratio") -> bool:
        """Return True if this is less than the kept one beyond the margin."""
        return self.value < self.least(kept)

    def least(self, kept: "Ratio") -> float:
        """Return the smallest value that has not fallen."""
        return (1 - MARGIN) * kept.value - 3 * math.hypot(self.error, kept.error)


def measure(kinds: list[str], budget: float) -> tuple[dict[str, Ratio], list[str]]:
    """Return the ratio of each race of these kinds, and what went wrong, in words."""
    deadline = time.monotonic() + budget
    found: dict[str, Ratio] = {}
    wrong: list[str] = []
    entered = [race for kind in kinds for race in RACES[kind]().items()]
    for number, (name, (sizes, specs)) in enumerate(entered):
        share = (deadline - time.monotonic()) / (len(entered) - number)
        began = time.monotonic()
        with Race(sizes) as race:
            race.enter(*specs)
            race.run_for(
                share - (time.monotonic() - began),
                steps=STEPS,
                turns_at_least=TURNS_AT_LEAST,
                turns_at_most=TURNS_AT_MOST,
            )
            wrong += [f"{name}: {who} failed: {reason}" for who, reason in race.failed.items()]
            theirs = [spec.name for spec in specs[1:] if spec.name not in race.failed]
            if theirs and specs[0].name not in race.failed:
                ratios = [Ratio.of(race, specs[0].name, other) for other in theirs]
                found[name] = min(ratios, key=lambda ratio: ratio.value)
    return found, wrong


def cpu_of(about: dict) -> str:
    """Return the kind of CPU and of PyTorch that ratios are kept for."""
    return f"{about['processor']}, torch {about.get('torch', 'none')}"


def kept_ratios(path: Path, cpu: str) -> dict[str, Ratio]:
    """Return {race: ratio} that is kept for such a CPU; {} if there is none."""
    table = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    entries = table.get(cpu, {}).get("ratios", {}).items()
    names = [field.name for field in fields(Ratio)]
    return {race: Ratio(**{name: entry[name] for name in names}) for race, entry in entries}


def keep(path: Path, about: dict, found: dict[str, Ratio]) -> None:
    """Write the ratios in place of those that were kept of these races for such a CPU."""
    table = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    kept = table.setdefault(cpu_of(about), {"ratios": {}})["ratios"]
    where = {"commit": about["commit"], "date": about["date"]}
    kept.update({name: asdict(ratio) | where for name, ratio in found.items()})
    path.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


def judged(found: dict[str, Ratio], kept: dict[str, Ratio]) -> tuple[list[str], list[str]]:
    """Return a line for each ratio, and a sentence for each that fell."""
    lines, fallen = [], []
    for name, ratio in found.items():
        text = f"{name}: {ratio.value:.3f} of {ratio.form} (+-{ratio.error:.3f})"
        before = kept.get(name)
        if before is not None:
            text += f", kept {before.value:.3f}, at least {ratio.least(before):.3f}"
            if before.products != ratio.products:
                text += f"; products by {ratio.products}, kept by {before.products}"
            if ratio.has_fallen(before):
                fallen.append(
                    f"{name} fell from {before.value:.3f} to {ratio.value:.3f}; wanted at least "
                    f"{ratio.least(before):.3f}: find the commit that made it slower, or keep the "
                    "new ratio with --keep and say why"
                )
        lines.append(text)
    if not kept:
        lines.append("nothing is kept for this CPU, so nothing was compared; --keep keeps these")
    return lines, fallen


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keep", action="store_true", help="keep the ratios of this run")
    parser.add_argument("--only", choices=RACES, help="only races of this kind")
    parser.add_argument("--budget", type=float, default=BUDGET_SECONDS, help="seconds for all")
    asked = parser.parse_args()
    about = machine()
    found, wrong = measure([asked.only] if asked.only else list(RACES), asked.budget)
    lines, fallen = judged(found, kept_ratios(KEPT, cpu_of(about)))
    if asked.keep and not wrong:
        keep(KEPT, about, found)
        fallen = []
    print(cpu_of(about), *lines, *wrong, *fallen, sep="\n")
    return int(bool(wrong or fallen))


if __name__ == "__main__":
    sys.exit(main())
