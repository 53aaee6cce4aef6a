"""Saving and loading side by side: shardkit, the bare disk, torch.save,
torch.distributed.checkpoint; all in one run.

    mpiexec -n 2 python benchmarks/checkpoint.py --folder runs/benchmark --json checkpoint.json

State: an FSDP-sharded GPT and its Adam moments, 128 million parameters, 1.5 GB. The ways take
turns, and the table shows medians. Every save ends with the bytes on disk (fsync). Loads are
measured cold, after the page cache was dropped (root only), and warm. "raw" is each rank writing or
reading as many bytes as its rank file has, in one plain loop, without checksums; the ratio is raw /
way, so 1.0 is the speed of the disk and more is better.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import time
from pathlib import Path

import h5py
import numpy

import shardkit as sk
from shardkit.checkpoint.candidates import Candidates
from shardkit.parallel.model.sharded_model import parts_of

CHUNK = 1 << 20


def main():
    options = parse()
    backend = sk.MPICommunicationBackend()
    backend.initialize()
    state = State(backend, options)
    ways = {
        "raw": Raw(state),
        "shardkit": Ours(state, expendable=True),
        **torch_ways(state, options),
        "shardkit, verify first": Ours(state, expendable=False),
    }
    times = measure_pause(state, options.repeats) | measure(state, ways, options.repeats)
    if backend.rank == 0:
        report(state, times, options)
        shutil.rmtree(state.folder)
    backend.shutdown()


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--folder",
        default="runs/benchmark",
        help="on the disk to measure; made, and removed at the end",
    )
    parser.add_argument(
        "--layers", type=int, default=10, help="of width 1024: 12.6 million parameters each"
    )
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", help="also write all figures into this file")
    parser.add_argument("--no-torch", action="store_true", help="leave PyTorch out")
    return parser.parse_args()


class State:
    """The model whose state is saved, on this rank."""

    def __init__(self, backend, options):
        self.backend = backend
        self.folder = Path(options.folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.can_drop_caches = os.geteuid() == 0
        config = sk.ShardingConfiguration(backend, optimizer=sk.AdamW(lr=1e-3))
        self.model = sk.FSDPModel(
            sk.models.GPT(256, 64, width=1024, layers=options.layers, heads=16), config
        )
        for number, (_, _, array) in enumerate(
            parts_of(self.model).state.owned_boxes()
        ):  # moments that are not zero
            array += numpy.float32(number % 7)
        self.owned = parts_of(self.model).state.owned_boxes()
        self.own_bytes = sum(array.nbytes for _, _, array in self.owned)

    def settle(self, cold=False):
        """Wait until no write is under way and free memory is at hand; with `cold`, empty the page
        cache.

        A virtual machine gives free memory back to its host after seconds, and whoever takes it
        next, for the page cache too, pays up to seven times what copying costs. So as much as is
        needed is taken, touched and freed before each measurement.
        """
        self.backend.barrier()
        if self.backend.rank == 0:
            os.sync()
            if cold:
                Path("/proc/sys/vm/drop_caches").write_text("3")
        self.backend.barrier()
        numpy.empty(self.own_bytes * 3 // 2, numpy.uint8)[::4096] = 1
        self.backend.barrier()

    def timed(self, work) -> float:
        """Return the seconds until the last rank finishes."""
        self.backend.barrier()
        began = time.perf_counter()
        work()
        self.backend.barrier()
        return time.perf_counter() - began


class Raw:
    """One file per rank, written and read in one loop."""

    def __init__(self, state):
        self._path = state.folder / f"raw-{state.backend.rank}"
        self._memory = memoryview(
            numpy.random.default_rng(0).integers(0, 255, state.own_bytes, numpy.uint8)
        )

    def prepare(self):
        self._path.unlink(missing_ok=True)

    def save(self):
        with open(self._path, "wb", buffering=0) as file:
            for at in range(0, len(self._memory), CHUNK):
                file.write(self._memory[at : at + CHUNK])
            os.fsync(file.fileno())

    def load(self):
        with open(self._path, "rb", buffering=0) as file:
            for at in range(0, len(self._memory), CHUNK):
                file.readinto(self._memory[at : at + CHUNK])


class Ours:
    """save_model and load_model. expendable: as into a model that was just made."""

    def __init__(self, state, expendable):
        self._state = state
        self._expendable = expendable
        self._path = state.folder / f"shardkit-{int(expendable)}"

    def prepare(self):
        if self._state.backend.rank == 0:
            shutil.rmtree(self._path, ignore_errors=True)

    def save(self):
        self._state.model.save_model(self._path)

    def load(self):
        owned, backend = self._state.owned, self._state.backend
        Candidates.at(self._path).first_good(
            backend,
            lambda found, fit: found.read_verified(owned, backend, expendable=self._expendable),
        )


def torch_ways(state, options):
    """Return PyTorch's two ways for the same tensors in the same shards, if it is installed."""
    if options.no_torch:
        return {}
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    torch.set_num_threads(1)
    rank = state.backend.rank
    size = state.backend.world_size
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(str(state.folder / "rendezvous"), size),
        rank=rank,
        world_size=size,
    )
    mesh = init_device_mesh("cpu", (size,))
    shards = {
        name: torch.from_numpy(numpy.full((shape[0] // size, *shape[1:]), 0.5, numpy.float32))
        for name, shape in parts_of(state.model).state.shapes().items()
    }

    class TorchSave:
        """torch.save of this rank's shards; torch.load, and a copy into the tensors of the
        model.
        """

        def __init__(self):
            self._path = state.folder / f"torch-{rank}.pt"

        def prepare(self):
            self._path.unlink(missing_ok=True)

        def save(self):
            with open(self._path, "wb") as file:
                torch.save(shards, file)
                file.flush()
                os.fsync(file.fileno())

        def load(self):
            for name, values in torch.load(self._path, weights_only=True).items():
                shards[name].copy_(values)

    class DistributedCheckpoint:
        """torch.distributed.checkpoint of sharded DTensors, as FSDP2 has them."""

        def __init__(self):
            self._path = state.folder / "dcp"
            self._tensors = {
                name: DTensor.from_local(shard, mesh, [Shard(0)]) for name, shard in shards.items()
            }

        def prepare(self):
            if rank == 0:
                shutil.rmtree(self._path, ignore_errors=True)

        def save(self):
            dcp.save(self._tensors, storage_writer=FileSystemWriter(self._path, sync_files=True))

        def load(self):
            dcp.load(self._tensors, storage_reader=FileSystemReader(self._path))

    return {"torch.save": TorchSave(), "torch.distributed.checkpoint": DistributedCheckpoint()}


def measure(state, ways, repeats) -> dict:
    """Return {(what, way): seconds of each repeat}.

    The ways take turns, in another order each time, and the first round warms up.
    """
    times = {}
    for what in (
        ("save", "load, warm", "load, cold") if state.can_drop_caches else ("save", "load, warm")
    ):
        for repeat in range(repeats + 1):
            names = list(ways)
            for name in names[repeat % len(names) :] + names[: repeat % len(names)]:
                way = ways[name]
                if what == "save":
                    way.prepare()
                state.settle(cold=what == "load, cold")
                if what == "load, warm":
                    way.load()
                seconds = state.timed(way.save if what == "save" else way.load)
                times.setdefault((what, name), []).append(seconds)
    return {key: seconds[1:] for key, seconds in times.items()}


def measure_pause(state, repeats) -> dict:
    """Return how long training waits for save_model_async, and the time of one copy in memory."""
    copies = [numpy.zeros_like(array) for _, _, array in state.owned]

    def copy():
        for target, (_, _, array) in zip(copies, state.owned):
            numpy.copyto(target, array)

    times = {
        ("pause", "copy of the state"): [],
        ("pause", "save_model_async"): [],
        ("pause", "first save_model_async"): [],
    }
    for repeat in range(repeats + 1):
        state.settle()
        if repeat:
            times["pause", "copy of the state"].append(state.timed(copy))
        path = state.folder / "pause"
        started = []
        seconds = state.timed(lambda: started.append(state.model.save_model_async(path, keep=1)))
        times["pause", "save_model_async" if repeat else "first save_model_async"].append(seconds)
        started[0].wait()
    return times


BASE = {"save": "raw", "load, cold": "raw", "load, warm": "raw", "pause": "copy of the state"}


def report(state, times, options):
    total = state.own_bytes * state.backend.world_size
    print(
        f"{total / 1e9:.2f} GB on {state.backend.world_size} ranks, {len(state.owned)} boxes on "
        f"rank 0, medians of {options.repeats}\n{machine()}"
    )
    print(f"{'':14}{'':32}{'seconds':>9}{'min':>8}{'max':>8}{'GB/s':>8}{'raw / way':>11}")
    figures = []
    for (what, way), seconds in times.items():
        median = statistics.median(seconds)
        base = statistics.median(times[what, BASE[what]])
        figures.append(
            {"what": what, "way": way, "seconds": seconds, "median": median, "ratio": base / median}
        )
        print(
            f"{what:14}{way:32}{median:9.3f}{min(seconds):8.3f}{max(seconds):8.3f}"
            f"{total / median / 1e9:8.2f}{base / median:11.2f}"
        )
    if options.json:
        Path(options.json).write_text(
            json.dumps({"machine": machine(), "bytes": total, "figures": figures}, indent=1)
        )


def machine() -> str:
    model = next(
        (
            line.split(":")[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    try:
        import torch

        torch_version = f", PyTorch {torch.__version__}"
    except ImportError:
        torch_version = ""
    return (
        f"{os.cpu_count()} x {model}, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}, NumPy {numpy.__version__}, h5py {h5py.__version__}, "
        f"HDF5 {h5py.version.hdf5_version}{torch_version}"
    )


if __name__ == "__main__":
    main()
