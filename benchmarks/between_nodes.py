"""Between two nodes: shardkit's verbs in levels against MPICH's own, over a link with delay and a
limited rate; what each sends over it; and training steps.

    python benchmarks/between_nodes.py [--turns 7] [--largest 16777216] [--verbs-only]

2 nodes x 2 ranks, made of network namespaces (link.py; needs root and /dev/net/tun). Both
contestants live in the same processes and take turns. MPICH is called in place through mpi4py's
buffers. Bytes are those that one node's network device has sent per call, headers of packets
included; the least is what any algorithm must send from a node: for an all-reduce the sums of the
node; for a reduce-scatter its sums of what the other node gets; for an all-gather its own slices.
The time is the slowest rank's time per call. Steps: model S, whole steps as in train_step.py; hsdp
shards within a node and replicates between the two; "messages only" is shardkit without shared
memory of nodes (SHARDKIT_SHARED=0). The ranks of both nodes, and the link, share the cores of this
machine.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from collectives import MPI, OURS, VERBS, Shardkit, made_arrays, seconds_per_call, size_text
from contestants import Shardkit as TrainingShardkit
from contestants import Spec
from link import TwoNodes
from race import ONE_THREAD
from report import Table, machine, machine_text, save
from train_step import MODELS

from shardkit.comm.node.channel import CALLS_BEFORE_OPENING

LINKS = ((2e-4, 1e9), (2e-3, 1e9))  # seconds one way, bits per second each way
RANKS_PER_NODE, NODES = 2, 2
RANKS = RANKS_PER_NODE * NODES
SIZES = [8, 512, 4 << 10, 8 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20]
STRATEGIES = ("ddp", "fsdp", "hsdp")
MPICH = "MPICH"
MODES = {OURS: {}, "shardkit, messages only": {"SHARDKIT_SHARED": "0"}}
TURN_SECONDS, MOST_CALLS = 0.2, 100
STEPS_PER_TURN, WARM_UP_STEPS = 2, 14  # in which overlap is tried
JOB_SECONDS = 420
_SENT = Path("/sys/class/net/eth0/statistics/tx_bytes")
PART_OF_ARRAY = {"all-reduce": 1, "reduce-scatter": 1 / 2, "all-gather": 1 / 2}


# ---- on the nodes --------------------------------------------------------------------------------


class Scale:
    """What a call costs: the slowest rank's seconds, and bytes that this node's device sent."""

    def __init__(self, comm):
        self._comm = comm

    def weigh(self, measure):
        """Return (seconds, bytes) of measure() -> seconds; on all ranks. Collective."""
        self._comm.Barrier()
        before = int(_SENT.read_text())
        seconds = measure()
        self._comm.Barrier()
        sent = int(_SENT.read_text()) - before
        return max(self._comm.allgather(seconds)), max(self._comm.allgather(sent))


def measure_verbs(turns: int, largest: int) -> dict:
    """Return {verb: {bytes: {contestant: [[seconds, bytes sent per call], one per turn]}}}."""
    members = {OURS: Shardkit(True), MPICH: MPI()}
    scale, found = Scale(members[MPICH].comm), {verb: {} for verb in VERBS}
    for _ in range(CALLS_BEFORE_OPENING):  # those that are compared, and that load what is slow
        members[OURS].barrier()
    for num_bytes in [size for size in SIZES if size <= largest]:
        arrays = {name: made_arrays(member, num_bytes) for name, member in members.items()}
        for verb in VERBS:
            calls = {name: members[name].call(verb, *arrays[name]) for name in members}
            found[verb][num_bytes] = {name: [] for name in members}
            for turn in range(turns):
                for name in list(members)[:: -1 if turn % 2 else 1]:
                    take_turn(scale, members[name], calls[name], found[verb][num_bytes][name])
    members[OURS].backend.shutdown()
    return found


def take_turn(scale, member, call, turns_so_far: list) -> None:
    """Add a turn to those of a contestant."""
    num_calls = calls_for(turns_so_far)
    seconds, sent = scale.weigh(lambda: seconds_per_call(member, call, num_calls))
    turns_so_far.append([seconds, sent / (num_calls + 1)])


def calls_for(turns_so_far: list) -> int:
    """Return how many calls make a turn; the same on all ranks."""
    if not turns_so_far:
        return 3
    return max(1, min(MOST_CALLS, int(TURN_SECONDS / turns_so_far[-1][0])))


def measure_steps(strategy: str, turns: int) -> list:
    """Return [[seconds of a step, bytes sent in it], one per turn]."""
    contestant = TrainingShardkit(Spec(OURS, "shardkit", RANKS, strategy), MODELS["S"])
    scale = Scale(MPI().comm)

    def steps(count):
        began = time.perf_counter()
        for number in range(count):
            contestant.step(number)
        return (time.perf_counter() - began) / count

    steps(WARM_UP_STEPS)
    found = []
    for _ in range(turns):
        seconds, sent = scale.weigh(lambda: steps(STEPS_PER_TURN))
        found.append([seconds, sent / STEPS_PER_TURN])
    contestant.close()
    return found


def serve(order: dict, path: str) -> None:
    """Do what the driver asks of all ranks, and write what rank 0 found."""
    rank = MPI().rank
    found = {"verbs": measure_verbs, "steps": measure_steps}[order.pop("what")](**order)
    if rank == 0:
        Path(path).write_text(json.dumps(found), encoding="utf-8")


# ---- the driver ----------------------------------------------------------------------------------


def job(nodes: TwoNodes, environment: dict, **order):
    """Run one job on both nodes; return what it found. Errors: CalledProcessError."""
    with tempfile.TemporaryDirectory(prefix="between-") as folder:
        path = str(Path(folder, "found.json"))
        subprocess.run(
            [*nodes.mpiexec(RANKS_PER_NODE), sys.executable, __file__]
            + ["--serve", json.dumps(order), path],
            env={**os.environ, **ONE_THREAD, **environment},
            stdin=subprocess.DEVNULL,
            check=True,
            timeout=JOB_SECONDS,
        )
        return json.loads(Path(path).read_text(encoding="utf-8"))


def medians(turns: list) -> tuple[float, float]:
    """Return the median seconds and bytes of turns, of which the first does not count."""
    seconds, sent = zip(*turns[1:])
    return median(seconds), median(sent)


def verbs_table(verb: str, link: str, found: dict) -> Table:
    rows = []
    for num_bytes, turns in found.items():
        (ours, our_bytes), (theirs, their_bytes) = medians(turns[OURS]), medians(turns[MPICH])
        whole = max(int(num_bytes), 4 * RANKS)
        least = whole * PART_OF_ARRAY[verb]
        rows.append(
            [
                size_text(int(num_bytes)),
                1e6 * ours,
                1e6 * theirs,
                theirs / ours,
                our_bytes / 1024,
                their_bytes / 1024,
                least / 1024,
            ]
        )
    return Table(
        f"{verb}, 2 nodes x 2 ranks, {link}",
        ["bytes", "shardkit, us", "MPICH, us", "MPICH / shardkit"]
        + ["shardkit sends, KiB", "MPICH sends, KiB", "least, KiB"],
        rows,
        "sends: one node per call, with the headers of packets.",
    )


def steps_table(link: str, found: dict) -> Table:
    rows = []
    for (strategy, mode), turns in found.items():
        seconds, sent = medians(turns)
        rows.append([f"{strategy}, {mode}", 1e3 * seconds, sent / 2**20])
    return Table(
        f"step of S, 2 nodes x 2 ranks on 2 cores, {link}",
        ["policy", "ms per step", "one node sends, MiB"],
        rows,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--largest", type=int, default=SIZES[-1], help="bytes")
    parser.add_argument("--verbs-only", action="store_true", help="leave the steps out")
    parser.add_argument("--serve", nargs=2, metavar=("ORDER", "PATH"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        return serve(json.loads(asked.serve[0]), asked.serve[1])
    about, tables, raw = machine(), [], {}
    for delay, rate in LINKS:
        link = f"link of {1e3 * delay:g} ms and {rate / 1e9:g} Gbit/s"
        with TwoNodes(delay_seconds=delay, bits_per_second=rate) as nodes:
            verbs = job(nodes, {}, what="verbs", turns=asked.turns, largest=asked.largest)
            tables += [verbs_table(verb, link, verbs[verb]) for verb in VERBS]
            steps = {
                (strategy, mode): job(
                    nodes, environment, what="steps", strategy=strategy, turns=asked.turns
                )
                for strategy in ([] if asked.verbs_only else STRATEGIES)
                for mode, environment in MODES.items()
            }
        tables += [steps_table(link, steps)] if steps else []
        raw[link] = {"verbs": verbs, "steps": {", ".join(key): steps[key] for key in steps}}
        save(
            "between_nodes",
            "Between two nodes",
            tables,
            about=about,
            settings={"turns": asked.turns},
            measured=raw,
        )
    print(machine_text(about), *[made.markdown() for made in tables], sep="\n\n")


if __name__ == "__main__":
    main()
