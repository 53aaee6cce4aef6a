"""Tokens per second of every strategy on 2 and 4 ranks, the global batch being the same.

    python benchmarks/scaling.py [--models S,M] [--ranks 2,4] [--turns 5]

Efficiency is tokens/s by those of one rank times the ranks, or times the cores if there are fewer:
more ranks than cores are not bound to cores. One rank takes turns with the strategies that it is
the measure of.
"""

import argparse
import os
import sys

from contestants import Spec
from race import Race
from report import Table, machine, machine_text, save
from train_step import MODELS, STEPS_PER_TURN, ratio

GROUPS = (("ddp", "zero1", "zero2"), ("fsdp", "tensor", "pipeline"))  # in memory at once
COLUMNS = ["strategy", "ranks", "ms per step", "tokens/s", "efficiency"]
ONE = Spec("1 rank", "shardkit")


def run_group(sizes, ranks: int, strategies: tuple, turns: int) -> tuple[list[list], dict, dict]:
    """Return rows, raw numbers, and failures of these strategies on this many ranks."""
    print(f"{sizes.name} on {ranks} ranks", flush=True)
    specs = [Spec(name, "shardkit", ranks, name) for name in strategies]
    rows = []
    at_once = min(ranks, len(os.sched_getaffinity(0)))
    with Race(sizes) as race:
        race.enter(ONE, *specs)
        race.run(turns=2, steps=1, counts=False)
        race.run(turns=turns, steps=STEPS_PER_TURN[sizes.name])
        for spec in specs:
            seconds = race.seconds(spec.name)
            speedup = ratio(race, ONE.name, spec.name)
            rows.append(
                [
                    spec.name,
                    ranks,
                    *(
                        [None] * 3
                        if seconds is None
                        else [seconds * 1e3, sizes.tokens / seconds, speedup / at_once]
                    ),
                ]
            )
        return (
            rows,
            {f"{ranks} {name}": c.turns for name, c in race.contestants.items()},
            race.failed,
        )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default="S,M")
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--turns", type=int, default=5)
    asked = parser.parse_args()
    about = machine()
    tables = []
    measured = {}
    wrong = []
    for model in asked.models.split(","):
        rows = []
        for ranks in map(int, asked.ranks.split(",")):
            for strategies in GROUPS:
                found, turns, failed = run_group(MODELS[model], ranks, strategies, asked.turns)
                rows += found
                measured |= {f"{model} {name}": seconds for name, seconds in turns.items()}
                wrong += [
                    f"{model} {name} on {ranks} ranks failed: {reason}"
                    for name, reason in failed.items()
                ]
        tables.append(Table(f"{model}, shardkit", COLUMNS, rows))
        print(tables[-1].markdown(), flush=True)
        save(
            "scaling",
            "Scaling",
            tables,
            about=about,
            settings={"threads per rank": 1, "turns": asked.turns},
            measured={**measured, "wrong": wrong},
        )
    print("\n".join([machine_text(about), *wrong]), flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
