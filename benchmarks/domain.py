"""Samples that are cut over ranks: time and activations of a training step, against one rank, and
the same cut written with torch.distributed.

    python benchmarks/domain.py [--parts time,memory,attention] [--turns 5]

    time        a race as in train_step.py; PyTorch's cut is that of domain_twins.py. Beside the
                clock stands the processor time of the busiest rank: on a machine that is busy
                otherwise the clock says little, and waits of a rank that spins are in both
    memory      the most that activations took on a rank, by the library's own accounts, and the
                most that was resident, libraries included
    attention   heads against rings on even spans and on pairs, processor time of the busiest rank
"""

import argparse
import json
import subprocess
import sys
import time
from statistics import median

import numpy
from contestants import Sizes, Spec
from problems import CUT
from race import Race, mpiexec
from report import Table, machine, machine_text, save

UNET, LARGE_UNET = list(CUT.values())[:2]
LLAMA = {"vocabulary": 256, "style": "llama", "batch": 1, "width": 128, "heads": 2}
GPT = Sizes("GPT of 16,384 tokens", layers=1, sequence=16384, **LLAMA)
LARGE_GPT = Sizes("GPT of 32,768 tokens", layers=2, sequence=32768, **LLAMA)
ATTENTION = {"tokens": 4096, "heads": 8, "head_dim": 64}
WANTED_SPEED, WANTED_MEMORY, WANTED_OF_TORCH = 1.7, 0.30, 1.3


def our_specs(*ranks: int) -> list[Spec]:
    return [
        Spec("shardkit, 1 rank", "shardkit")
        if count == 1
        else Spec(f"shardkit, domain {count}", "shardkit", count, "domain")
        for count in ranks
    ]


def torch_specs(sizes) -> list[Spec]:
    """Return PyTorch's best forms of one rank and of the cut."""
    last = {"fused": True, "attention": "sdpa", "channels_last": not isinstance(sizes, Sizes)}
    return [
        Spec("torch, 1 rank", "torch", **last),
        Spec("torch, the same cut over 2", "torch", 2, "domain", **last),
    ]


# ---- time ----------------------------------------------------------------------------------------

TIME_COLUMNS = [
    "contestant",
    "ms per step",
    "1 rank / it",
    "its time / ours on 2",
    "processor ms, busiest rank",
    "1 rank / it, processor",
    "loss difference",
]


def time_table(sizes, turns: int) -> tuple[Table, dict]:
    """Return the table of a race, and the seconds of all turns."""
    specs = [*our_specs(1, 2), *torch_specs(sizes)]
    with Race(sizes) as race:
        race.enter(*specs)
        race.run(turns=1, steps=1, counts=False)
        race.run(turns=turns, steps=1)
        rows = [_time_row(race, spec, specs) for spec in specs]
        wrong = "; ".join(f"{name}: {reason}" for name, reason in race.failed.items())
        seconds = {name: each.turns for name, each in race.contestants.items()}
    note = f"Wanted: {WANTED_SPEED} times one rank, {WANTED_OF_TORCH} times as quick as PyTorch."
    return Table(f"{sizes.name}, a step", TIME_COLUMNS, rows, f"{note} {wrong}".strip()), seconds


def _time_row(race: Race, spec: Spec, specs: list[Spec]) -> list:
    if spec.name in race.failed:
        return [spec.name, *[None] * (len(TIME_COLUMNS) - 1)]
    alone = next(each for each in specs if each.library == spec.library)
    busiest = _busiest(race, spec)
    return [
        spec.name,
        race.seconds(spec.name) * 1e3,
        _ratio(race, alone.name, spec.name),
        _ratio(race, spec.name, specs[1].name),
        busiest * 1e3,
        _busiest(race, alone) / busiest,
        race.loss_difference(spec.name, specs[0].name),
    ]


def _ratio(race: Race, name: str, other: str) -> float:
    """Return the median over turns of the time of one by that of another."""
    turns = zip(race.contestants[name].turns, race.contestants[other].turns)
    return median([one / two for one, two in turns])


def _busiest(race: Race, spec: Spec) -> float:
    return race.processor_seconds(spec.name) / spec.ranks


# ---- memory --------------------------------------------------------------------------------------


def facts_of(sizes, spec: Spec, steps: int) -> list[dict]:
    """Return what each rank of a contestant accounts for, after this many steps by itself."""
    with Race(sizes) as race:
        race.enter(spec)
        race.run(turns=steps, steps=1)
        if race.failed:
            raise RuntimeError(f"{spec.name}: {race.failed[spec.name]}")
        return race.contestants[spec.name].memory


def activation_bytes(facts: dict) -> int:
    """Return the most that was there at once beside what lasts from step to step."""
    lasting = ("parameter_bytes", "gradient_bytes", "optimizer_bytes")
    return facts["peak_bytes"] - sum(facts[each] for each in lasting)


def memory_table(sizes) -> Table:
    rows = []
    for spec in our_specs(1, 2, 4):
        facts = facts_of(sizes, spec, 1)
        most, resident = max(map(activation_bytes, facts)), max(each["peak"] for each in facts)
        whole = rows[0][1] * 2**20 if rows else most
        rows.append([spec.name, most / 2**20, most / whole, resident / 2**20])
    columns = ["contestant", "activations, MiB", "of one rank's", "resident, MiB"]
    note = f"On the fullest rank. Wanted: {WANTED_MEMORY} on 4 ranks."
    return Table(f"{sizes.name}, memory", columns, rows, note)


# ---- ways of attention ---------------------------------------------------------------------------


def attention_table(turns: int) -> Table:
    rows = []
    for ranks in (2, 4):
        arguments = ["--as-rank", "--turns", str(turns)]
        command = [mpiexec(), "-n", str(ranks), sys.executable, __file__, *arguments]
        done = subprocess.run(command, capture_output=True, check=True, text=True)
        rows += json.loads(done.stdout.splitlines()[-1])
    columns = ["way", "ranks", "processor ms, busiest rank", "of by heads"]
    title = "Causal attention of {tokens} tokens, {heads} heads of {head_dim}, forward and backward"
    return Table(title.format(**ATTENTION), columns, rows)


def print_ways(turns: int) -> None:
    """Print the rows of attention_table() for this number of ranks. Collective over the world."""
    import shardkit as sk
    from shardkit.testing import parallel

    backend = sk.MPICommunicationBackend()
    backend.initialize()
    ways = {
        "by heads": parallel.attention_by_heads,
        "ring, even spans": parallel.ring_attention,
        "ring, pairs of spans": parallel.balanced_ring,
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(turns + 1):
        for name in list(ways)[:: -1 if turn % 2 else 1]:
            busiest = max(backend.all_gather_object(_seconds_of(ways[name], backend, parallel)))
            seconds[name] += [busiest] * (turn > 0)
    medians = {name: median(each) for name, each in seconds.items()}
    if backend.rank == 0:
        rows = [
            [name, backend.world_size, found * 1e3, found / medians["by heads"]]
            for name, found in medians.items()
        ]
        print(json.dumps(rows))
    backend.shutdown()


def _seconds_of(way, backend, parallel) -> float:
    """Return processor seconds of this rank of one attention, forward and backward."""
    from shardkit.nn import Tensor

    table = parallel.even_spans(ATTENTION["tokens"], backend.world_size)
    own = len(parallel.positions_of(table[backend.rank]))
    shape = 1, ATTENTION["heads"], own, ATTENTION["head_dim"]
    rng = numpy.random.default_rng(backend.rank)
    drawn = [rng.standard_normal(shape, "float32") for _ in range(4)]
    q, k, v = [Tensor(each, requires_grad=True) for each in drawn[:3]]
    backend.barrier()
    began = time.process_time()
    way(q, k, v, backend, table).backward(drawn[3])
    return time.process_time() - began


# ---- all of it -----------------------------------------------------------------------------------


def tables_of(part: str, turns: int, measured: dict):
    """Yield the tables of a part, as they are measured; raw numbers go to `measured`."""
    if part == "time":
        for sizes in (UNET, GPT):
            table, measured[sizes.name] = time_table(sizes, turns)
            yield table
    elif part == "memory":
        yield from map(memory_table, (LARGE_UNET, LARGE_GPT))
    else:
        yield attention_table(turns)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", default="time,memory,attention")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--as-rank", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.as_rank:
        print_ways(asked.turns)
        return 0
    about, tables, measured = machine(), [], {}
    for part in asked.parts.split(","):
        for table in tables_of(part, asked.turns, measured):
            tables.append(table)
            print(table.markdown(), flush=True)
            settings = {"threads per rank": 1, "turns": asked.turns}
            form = {"about": about, "settings": settings, "measured": measured}
            save("domain", "Samples cut over ranks", tables, **form)
    print(machine_text(about), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
