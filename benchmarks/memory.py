"""Resident memory per rank: shardkit's policies against the ZeRO formulas, and against PyTorch DDP
and FSDP2.

    python benchmarks/memory.py [--model M] [--ranks 2] [--steps 3]

One contestant at a time, in processes of its own. "peak" is the most that was ever resident
(VmHWM), libraries included; "libraries" is what was resident before the model was made. "formula"
is parameters, gradients and optimizer state by the ZeRO paper (arXiv 1910.02054); "accounted" is
what shardkit counts itself between two steps. Pages that ranks share count for each of them in
"peak"; in "proportional" they are divided by the ranks that share them.
"""

import argparse
import sys

from contestants import Sizes, Spec, shardkit_gpt
from race import Race
from report import Table, machine, machine_text, save
from train_step import BEST, MODELS

SPECS = [
    Spec("shardkit DDP", "shardkit", strategy="ddp"),
    Spec("shardkit ZeRO-1", "shardkit", strategy="zero1"),
    Spec("shardkit ZeRO-2", "shardkit", strategy="zero2"),
    Spec("shardkit FSDP", "shardkit", strategy="fsdp"),
    Spec("torch DDP", "torch", strategy="ddp", **BEST),
    Spec("torch FSDP2", "torch", strategy="fsdp", **BEST),
]
COLUMNS = [
    "contestant",
    "peak MiB",
    "libraries",
    "proportional now",
    "shared now",
    "accounted",
    "formula",
]


def measure(sizes: Sizes, spec: Spec, steps: int) -> tuple[list[dict], str | None]:
    """Return the memory of each rank after this many steps, and why there is none."""
    with Race(sizes) as race:
        race.enter(spec)
        race.run(turns=1, steps=steps)
        return race.contestants[spec.name].memory, race.failed.get(spec.name)


def formula(spec: Spec, parameter_count: int) -> float | None:
    """Return the bytes on each rank by the formula of the policy; the policies are shardkit's."""
    from shardkit.parallel import POLICIES

    return (
        POLICIES[spec.strategy].bytes_per_rank(parameter_count, spec.ranks)
        if spec.strategy in POLICIES
        else None
    )


def row(spec: Spec, memory: list[dict], parameter_count: int) -> list:
    """Return the row of the rank that needs most, in MiB."""
    fullest = max(memory, key=lambda of_rank: of_rank["peak"])
    accounted = (
        sum(fullest.get(f"{what}_bytes", 0) for what in ("parameter", "gradient", "optimizer"))
        or None
    )
    figures = [
        fullest["peak"],
        fullest["before"],
        fullest["proportional"],
        fullest["shared"],
        accounted,
        formula(spec, parameter_count),
    ]
    return [spec.name, *[None if number is None else number / 2**20 for number in figures]]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="M", choices=MODELS)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3)
    asked = parser.parse_args()
    sizes = MODELS[asked.model]
    about = machine()
    parameter_count = shardkit_gpt(sizes).parameter_count
    rows = []
    measured = {}
    wrong = []
    for spec in (Spec(**{**vars(spec), "ranks": asked.ranks}) for spec in SPECS):
        memory, reason = measure(sizes, spec, asked.steps)
        measured[spec.name] = memory
        rows.append(
            row(spec, memory, parameter_count)
            if memory
            else [spec.name, *[None] * (len(COLUMNS) - 1)]
        )
        wrong += [f"{spec.name} failed: {reason}"] if reason else []
    table = Table(
        f"{sizes.name}, {asked.ranks} ranks, MiB on the fullest rank",
        COLUMNS,
        rows,
        note="; ".join(wrong),
    )
    save(
        "memory",
        "Memory per rank",
        [table],
        about=about,
        measured=measured,
        settings={"model": str(sizes), "parameters": f"{parameter_count:,}", "steps": asked.steps},
    )
    print("\n".join([table.markdown(), machine_text(about)]), flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
