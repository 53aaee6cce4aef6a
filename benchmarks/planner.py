"""The planner against the runtime: predicted and measured time and memory of shardkit's own layouts
on 2 and 4 ranks.

    python benchmarks/planner.py [--model S] [--ranks 2,4] [--turns 7] [--run 1]

With --run the tables get its number, and stand beside those of other runs in the results.

The machine is measured first, by `shardkit bench hardware` on as many ranks. Times are ratios to
the step of one rank, which takes turns with the layouts; that is predicted from the same
description, since the speed of a shared machine drifts. Memory is the most that the allocator of
the fullest rank accounted for at once: parameters, gradients, optimizer state, activations. The
last line says whether the layout that was predicted to be the quickest is one of the two that were.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import asdict, replace
from os import getloadavg
from pathlib import Path
from statistics import mean

from contestants import Spec
from race import Race, mpiexec
from report import RESULTS, Table, machine, machine_text, save
from train_step import MODELS, STEPS_PER_TURN, ratio

ONE = "1 rank"
COLUMNS = [
    "layout",
    "measured, ms",
    "predicted, ms",
    "measured / 1 rank",
    "predicted / 1 rank",
    "error",
    "measured MiB",
    "predicted MiB",
    "error of memory",
]
AT_ONCE = 3  # contestants in memory, beside one rank


def layouts(ranks: int, batch: int) -> list:
    """Return every layout on this many ranks to compare: all policies, schedules and axes."""
    from shardkit.plan import RunLayout

    def layout(
        pipeline, data, tensor, policy="ddp", schedule="1f1b", virtual=1, micro_batches=1, **more
    ):
        return RunLayout(
            pipeline,
            data,
            tensor,
            policy,
            schedule,
            virtual,
            batch // data // micro_batches,
            micro_batches,
            **more,
        )

    if ranks == 2:
        return [
            layout(1, 2, 1),
            layout(1, 2, 1, "zero1"),
            layout(1, 2, 1, "fsdp"),
            layout(1, 2, 1, "fsdp", "gpipe", 1, 2),
            layout(1, 1, 2),
            layout(1, 1, 2, is_sequence_parallel=True),
            layout(2, 1, 1, micro_batches=4),
            layout(2, 1, 1, "ddp", "zb-h1", 1, 4),
            layout(2, 1, 1, "ddp", "interleaved", 2, 4),
            layout(1, 2, 1, recomputation="full"),
        ]
    return [
        layout(1, 4, 1),
        layout(1, 4, 1, "zero2"),
        layout(1, 4, 1, "fsdp"),
        layout(2, 2, 1, micro_batches=4),
        layout(2, 2, 1, "fsdp", "1f1b", 1, 2),
        layout(1, 2, 2),
        layout(2, 1, 2, micro_batches=4),
        layout(4, 1, 1, micro_batches=8),
    ]


def shape_of(sizes):
    """Return the model as the planner sees it."""
    from shardkit.plan import ModelShape

    return ModelShape(
        sizes.layers, sizes.width, sizes.heads, sizes.vocabulary, sizes.sequence, style=sizes.style
    )


def hardware(ranks: int, folder: Path):
    """Return the tables of `shardkit bench hardware` on this many ranks."""
    from shardkit.plan import read_cluster

    path = folder / f"{ranks}.toml"
    subprocess.run(
        [
            mpiexec(),
            "-n",
            str(ranks),
            sys.executable,
            "-m",
            "shardkit",
            "bench",
            "hardware",
            "--output",
            str(path),
        ],
        check=True,
        timeout=600,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        cwd=folder,
    )
    return read_cluster(path)


def measured(sizes, specs: list[Spec], turns: int) -> tuple[dict, dict, dict]:
    """Return {name: (ms, by one rank, peak bytes)}, the turns, and failures."""
    found = {}
    raw = {}
    with Race(sizes) as race:
        race.enter(Spec(ONE, "shardkit"), *specs)
        race.run(turns=2, steps=1, counts=False)
        race.run(turns=turns, steps=STEPS_PER_TURN[sizes.name])
        for name, contestant in race.contestants.items():
            raw[name] = contestant.turns
            if contestant.turns and race.contestants[ONE].turns:
                found[name] = (
                    race.seconds(name) * 1e3,
                    ratio(race, ONE, name),
                    max(m["peak_bytes"] for m in contestant.memory),
                )
    return found, raw, race.failed


def compare(sizes, ranks: int, turns: int, folder: Path) -> tuple[Table, dict, dict, list[str]]:
    """Return the table of one number of ranks, raw numbers, errors, and failures."""
    from shardkit.plan import SHARDKIT, RunLayout, memory_of, step_cost

    cluster = hardware(ranks, folder)
    shape = shape_of(sizes)
    alone = step_cost(
        RunLayout(policy="ddp", micro_batch=sizes.batch), shape, SHARDKIT, cluster
    ).seconds
    every = layouts(ranks, sizes.batch)
    rows = []
    raw = {}
    wrong = []
    for first in range(0, len(every), AT_ONCE):
        some = every[first : first + AT_ONCE]
        specs = [
            Spec(
                str(layout),
                "shardkit",
                ranks,
                layout={k: v for k, v in asdict(layout).items() if k != "devices"},
            )
            for layout in some
        ]
        found, turns_of, failed = measured(sizes, specs, turns)
        raw |= {f"{ranks} {name}, with {some[0]}": seconds for name, seconds in turns_of.items()}
        wrong += [f"{name} failed: {reason}" for name, reason in failed.items()]
        for layout in some:
            if str(layout) in found:
                rows.append(
                    _row(
                        layout,
                        found[str(layout)],
                        step_cost(layout, shape, SHARDKIT, cluster).seconds,
                        alone,
                        memory_of(layout, shape, SHARDKIT, cluster.sharing).total,
                    )
                )
    rows.sort(key=lambda row: row[3])
    errors = {
        "time": mean(abs(row[5]) for row in rows),
        "memory": mean(abs(row[8]) for row in rows),
    }
    chosen = min(range(len(rows)), key=lambda at: rows[at][4])
    errors["place"] = chosen + 1
    errors["load"] = getloadavg()[1]
    note = (
        f"Mean error {errors['time']:.1%} in time (1 rank predicted as {alone * 1e3:.1f} ms), "
        f"{errors['memory']:.1%} in memory. Predicted to be the quickest: {rows[chosen][0]}, "
        f"number {chosen + 1} as measured. Load {errors['load']:.1f}, these ranks with it."
    )
    return (
        Table(f"{sizes.name}, {ranks} ranks", COLUMNS, [_printed(row) for row in rows], note),
        raw,
        errors,
        wrong,
    )


def _row(layout, found: tuple, seconds: float, alone: float, num_bytes: float) -> list:
    milliseconds, by_one, peak = found
    return [
        str(layout),
        milliseconds,
        seconds * 1e3,
        1 / by_one,
        seconds / alone,
        seconds / alone * by_one - 1,
        peak / 2**20,
        num_bytes / 2**20,
        num_bytes / peak - 1,
    ]


def _printed(row: list) -> list:
    return [f"{cell:+.1%}" if at in (5, 8) else cell for at, cell in enumerate(row)]


def _of_other_runs(titles: list[str]) -> tuple[list[Table], dict]:
    """Return the tables of the results but those of these titles, and what was measured."""
    path = RESULTS / "planner.json"
    stored = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"tables": []}
    tables = [Table(**table) for table in stored["tables"] if ", run " in table["title"]]
    if not tables:  # a result of one run
        return [], {}
    return [table for table in tables if table.title not in titles], stored["measured"]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="S", choices=MODELS)
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--run", type=int)
    asked = parser.parse_args()
    about = machine()
    run = f", run {asked.run}" if asked.run else ""
    every = [f"{asked.model}, {ranks} ranks{run}" for ranks in asked.ranks.split(",")]
    tables, measurements = _of_other_runs(every) if run else ([], {})
    wrong = []
    with tempfile.TemporaryDirectory(prefix="planner-") as folder:
        for ranks in map(int, asked.ranks.split(",")):
            print(f"{asked.model} on {ranks} ranks", flush=True)
            table, raw, errors, trouble = compare(
                MODELS[asked.model], ranks, asked.turns, Path(folder)
            )
            table = replace(table, title=table.title + run)
            tables.append(table)
            tables.sort(key=lambda table: table.title)
            measurements |= {f"{name}{run}": seconds for name, seconds in raw.items()}
            measurements[f"errors on {ranks} ranks{run}"] = errors
            wrong += trouble
            print(table.markdown(), flush=True)
            save(
                "planner",
                "Predicted and measured layouts",
                tables,
                about=about,
                settings={
                    "model": str(MODELS[asked.model]),
                    "turns": asked.turns,
                    "threads per rank": 1,
                },
                measured={**measurements, "wrong": wrong},
            )
    print("\n".join([machine_text(about), *wrong]), flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
