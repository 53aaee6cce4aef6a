"""Count what grows with the ranks, without a cluster: ranks are simulated one after the other.

    python benchmarks/scale.py costs 64 512 4096        the rows of docs/scale.md: counts
    python benchmarks/scale.py hang 64 512 4096         ledgers of so many ranks, and their report;
                                                        and again, if opening one takes 1 ms
    python benchmarks/scale.py save 70b 4096            a checkpoint: what is said, not its values
    python benchmarks/scale.py save 405b 16384

CPU seconds and bytes of this process. Ledgers and tables are as ranks write them; of the files of a
checkpoint only the tables have bytes on the disk.
"""

import argparse
import json
import pickle
import resource
import shutil
import sys
import tempfile
import threading
import time
import tracemalloc
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import get_ident

import numpy

from shardkit.testing.checkpoint import (
    StoredBox,
    Summary,
    TabledBoxes,
    TensorCut,
    are_whole,
    checksum,
    encoded,
    num_segments,
    range_of,
    read_manifest,
    table_bytes,
    tables_of,
    write_manifest,
)
from shardkit.testing.comm import (
    LEDGER_NAME,
    Ledger,
    LedgerPlace,
    Seat,
    compact,
    crowding,
    read_ledgers,
    recorded,
    report_of,
    rounds_of_gather,
    rounds_of_sum,
    suspects_of,
)
from shardkit.testing.layout import Box, FlatLayout

OPEN_SECONDS = 1e-3  # of a file on a shared file system
RANKS_PER_NODE = 8
STATES = ("model", "optimizer/first_moment", "optimizer/second_moment")
DESCRIPTION = {
    "step": 1,
    "samples_seen": 0,
    "seed": 0,
    "last_loss": None,
    "mesh": {"data": 1},
    "strategy": "FSDP",
    "active_features": None,
    "model": {"class": "Llama", "configuration": {}},
    "optimizer": {"rule": "AdamW", "state": ["first_moment", "second_moment"]},
}


@dataclass(frozen=True)
class Model:
    """A Llama: sizes, and the mesh that it is saved from, without the data axis."""

    layers: int
    width: int
    hidden: int
    kv: int
    vocabulary: int
    tensor: int = 1
    pipeline: int = 1

    def unit(self, number: int) -> list[tuple[str, tuple[int, int], int]]:
        """Return (name, shape, dim that the tensor axis cuts) of a block, or of both ends."""
        if number == self.layers:
            ends = (self.vocabulary, self.width)
            return [("embedding.weight", ends, 0), ("head.weight", ends, 0)]
        squares = [("q", self.width, 0), ("k", self.kv, 0), ("v", self.kv, 0)]
        rows = [*squares, ("gate", self.hidden, 0), ("up", self.hidden, 0)]
        found = [(name, (size, self.width), dim) for name, size, dim in rows]
        found += [("o", (self.width, self.width), 1), ("down", (self.width, self.hidden), 1)]
        return [(f"blocks.{number}.{name}.weight", shape, dim) for name, shape, dim in found]

    def units_of(self, stage: int) -> range | list[int]:
        """Return the numbers of the units on a stage of the pipeline; the ends are on the first."""
        per_stage = -(-self.layers // self.pipeline)
        blocks = range(stage * per_stage, min((stage + 1) * per_stage, self.layers))
        return [*blocks, self.layers] if stage == 0 else blocks


MODELS = {
    "70b": Model(80, 8192, 28672, 1024, 128256),
    "405b": Model(126, 16384, 53248, 1024, 128256, tensor=8, pipeline=16),
}


# ---- checkpoints ---------------------------------------------------------------------------------


class Written:
    """What the ranks of a mesh (pipeline, data, tensor) own of a model, and where it would be."""

    def __init__(self, model: Model, num_ranks: int):
        self.model = model
        self.data = num_ranks // (model.tensor * model.pipeline)
        self._layouts: dict[int, FlatLayout] = {}

    def pieces(self, rank: int):
        """Yield (tensor, box of the whole tensor, its shape) of what a rank owns."""
        model = self.model
        place, column = divmod(rank, model.tensor)
        stage, row = divmod(place, self.data)
        for number in model.units_of(stage):
            whole = {name: (shape, dim) for name, shape, dim in model.unit(number)}
            for piece in self._layout(number).pieces(row):
                shape, dim = whole[piece.name]
                offset = [*piece.box.offset]
                offset[dim] += column * (shape[dim] // model.tensor)
                yield piece.name, Box(tuple(offset), piece.box.shape), shape

    def _layout(self, number: int) -> FlatLayout:
        if number not in self._layouts:
            shapes = {
                name: tuple(
                    s // (self.model.tensor if d == dim else 1) for d, s in enumerate(shape)
                )
                for name, shape, dim in self.model.unit(number)
            }
            self._layouts[number] = FlatLayout.of(shapes, self.data)
        return self._layouts[number]

    def boxes(self, rank: int) -> list[StoredBox]:
        """Return the boxes of a rank's file, laid out one after the other behind the table."""
        at, boxes, numbers = 1 << 24, [], {}
        for state in STATES:
            for name, box, shape in self.pieces(rank):
                tensor = f"{state}/{name}"
                number = numbers[tensor] = numbers.get(tensor, -1) + 1
                checksums = ("0" * 16,) * num_segments(4 * box.size)
                place = f"rank-{rank:05d}.h5", f"{tensor}/{number}"
                boxes.append(StoredBox(tensor, *place, box, shape, "float32", at, checksums))
                at += 4 * box.size
        return boxes


def save(name: str, num_ranks: int) -> None:
    """Print what a checkpoint of many ranks takes."""
    written = Written(MODELS[name], num_ranks)
    folder = Path(tempfile.mkdtemp(prefix="scale-"))
    records, summaries, seconds, num_boxes = {}, [], 0.0, 0
    for rank in range(num_ranks):
        boxes = written.boxes(rank)
        began = time.process_time()
        content, summary = encoded(boxes), Summary.of(boxes)
        assert len(content) == table_bytes(boxes)
        seconds = max(seconds, time.process_time() - began)
        size = boxes[-1].at + boxes[-1].box_bytes
        with open(folder / boxes[0].file, "wb") as file:
            file.write(content)
            file.truncate(size)
        segments = sum(len(box.checksums) for box in boxes)
        place = [0, len(content), segments, checksum(content)]
        records[boxes[0].file] = {"bytes": size, "crc32": "00000000", "table": place}
        summaries.append(summary)
        num_boxes += len(boxes)
    print(f"{name} on {num_ranks:,} ranks: {num_boxes:,} boxes; a rank's table {seconds:.2f} s")
    began = time.process_time()
    tensors, parts = tables_of(summaries)
    assert are_whole(tensors, summaries)
    write_manifest(folder, DESCRIPTION, records, tensors, parts)
    size = (folder / "manifest.json").stat().st_size
    print(f"  first rank: {time.process_time() - began:.2f} s, manifest {size / 1e6:.2f} MB")
    began = time.process_time()
    message = pickle.dumps(read_manifest(folder))
    print(f"  read again: {time.process_time() - began:.2f} s, sent {len(message) / 1e6:.2f} MB")
    for ranks in (num_ranks, num_ranks // 2, num_ranks * 2):
        wanted = Written(written.model, ranks)
        own = [*wanted.pieces(ranks // 2)]
        began = time.process_time()
        files = opened(folder, message, own)
        seconds = time.process_time() - began
        tracemalloc.start()
        opened(folder, message, own)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        print(
            f"  opened by a rank of {ranks:,}: {seconds:.2f} s, {most / 1e6:.1f} MB, {files} files"
        )
    shutil.rmtree(folder)


def opened(folder: Path, message: bytes, own) -> int:
    """Find what a rank reads, as it does; return from how many files."""
    stored = TabledBoxes(folder, pickle.loads(message))
    found = [stored.of(f"{state}/{name}", box) for state in STATES for name, box, _ in own]
    return len({box.file for boxes in found for box in boxes})


# ---- hangs ---------------------------------------------------------------------------------------


def ledgers(folder: Path, num_ranks: int, tensor: int = 8) -> None:
    """Write the ledgers of a mesh whose ranks wait in a barrier, but for two that do not come."""
    world = compact(range(num_ranks))
    columns = [compact(range(column, num_ranks, tensor)) for column in range(tensor)]
    for rank in range(num_ranks):
        place, column = divmod(rank, tensor)
        first = place * tensor
        own = [
            (f"world/1.{place}", range(first, first + tensor)),
            (f"world/2.{column}", columns[column]),
            ("world", world),
        ]
        place = LedgerPlace(rank - rank % RANKS_PER_NODE, rank % RANKS_PER_NODE, 1)
        ledger = Ledger(folder, rank, num_ranks, place=place)
        for group, ranks in own:
            ledger.begin("all_reduce", group, ranks, 1, numpy.dtype("float32"), 10)
            ledger.end()
        if rank not in (3, num_ranks - 2):
            ledger.begin("barrier", "world", world, 2)
        ledger.close()


def hang(num_ranks: int) -> None:
    """Print what the report of many ranks takes, of which two do not come to a barrier."""
    folder = Path(tempfile.mkdtemp(prefix="scale-"))
    ledgers(folder, num_ranks)
    began = time.process_time()
    suspects, report = reported(folder)
    seconds, most = time.process_time() - began, memory()
    assert suspects == f"ranks 3, {num_ranks - 2} are missing", suspects
    print(f"{num_ranks:,} ranks: {seconds:.2f} s, {most / 1e6:.0f} MB, {len(report):,} characters")
    with opening(OPEN_SECONDS) as opens:
        began = time.perf_counter()
        reported(folder)
    seconds = time.perf_counter() - began
    print(f"  {len(opens):,} files opened, each in {1e3 * OPEN_SECONDS:g} ms: {seconds:.1f} s")
    shutil.rmtree(folder)


def reported(folder: Path) -> tuple[str, str]:
    """Return who is missing and the report, as a rank makes them."""
    found = read_ledgers(folder)
    return suspects_of(found, folder, 60.0), report_of(found, folder)


@contextmanager
def opening(seconds: float):
    """Return a context manager: to open a file takes so long in it; it is the list of these."""
    real, opens = recorded.opened, []

    def slow(path, **given):
        opens.append(path)
        time.sleep(seconds)
        return real(path, **given)

    recorded.opened = slow
    try:
        yield opens
    finally:
        recorded.opened = real


def memory() -> int:
    """Return the largest memory of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


# ---- what grows ----------------------------------------------------------------------------------


def calls_of(function) -> int:
    """Return how many functions it calls, those in C too."""
    counts = defaultdict(int)  # of each thread

    def note(frame, event, argument):
        counts[get_ident()] += event in ("call", "c_call")

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return sum(counts.values())


def hang_costs(num_ranks: int) -> dict[str, int]:
    """Return the bytes of names in a ledger, and the calls of functions of a report."""
    folder = Path(tempfile.mkdtemp(prefix="scale-"))
    ledgers(folder, num_ranks)
    content = (folder / LEDGER_NAME.format(0)).read_bytes()[128:4096]
    calls = calls_of(lambda: reported(folder))
    with opening(0.0) as opens:
        reported(folder)
    shutil.rmtree(folder)
    return {
        "names in a ledger, bytes": len(content.rstrip(b"\0")),
        "report of a hang, calls of functions": calls,
        "report of a hang, files opened": len(opens),
    }


def save_costs(num_ranks: int) -> dict[str, int]:
    """Return bytes of what a checkpoint says, and the tables that a rank opens."""
    written = Written(SMALL, num_ranks)
    files = [written.boxes(rank) for rank in range(num_ranks)]
    summaries = [Summary.of(boxes) for boxes in files]
    tensors, parts = tables_of(summaries)
    own = [box for box in files[num_ranks // 2] if box.tensor.startswith("model/")]
    found = [
        TensorCut(parts[tensors[box.tensor]["parts"]], num_ranks).files(
            *range_of(box.box, box.global_shape)
        )
        for box in own
    ]
    middle = files[num_ranks // 2]
    return {
        "manifest, of tensors, bytes": len(json.dumps([tensors, parts])),
        "manifest, of a file, bytes": len(RECORD_OF_FILE),
        "table of a file, bytes": table_bytes(middle),
        "sent to the first rank for each file, bytes": len(pickle.dumps(summaries[num_ranks // 2])),
        "files that a rank opens for a box, at most": max(map(len, found)),
    }


def seat_costs(num_ranks: int) -> dict[str, int]:
    """Return the calls of functions that look for crowded hosts, on the first rank."""
    seats = [Seat(f"host-{rank // 8}", tuple(range(8)), 1) for rank in range(num_ranks)]
    return {"crowded hosts, calls of functions": calls_of(lambda: crowding(seats))}


def group_costs(num_ranks: int) -> dict[str, int]:
    """Return the bytes in which a rank keeps who is in its groups, and on which nodes they are."""
    groups = [range(num_ranks), range(1, num_ranks, 2), range(2)]
    lists = [[*ranks] for ranks in groups]
    nodes = [rank - rank % RANKS_PER_NODE for rank in range(num_ranks)]
    tracemalloc.start()
    kept = [compact(ranks) for ranks in (*lists, nodes)]
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [*kept[0]] == lists[0]
    return {"ranks of groups, bytes": size}


def sum_costs(num_ranks: int) -> dict[str, int]:
    """Return the messages that a rank posts for an all-reduce in the fixed order of a tree."""
    of_sum, of_gather = rounds_of_sum(0, num_ranks), rounds_of_gather(0, num_ranks)
    posts = sum(len(this.given) for this in of_sum) + sum(len(to) for to, _ in of_gather)
    return {"sum in a fixed order, messages of a rank": posts}


SMALL = Model(1, 1024, 4096, 256, 8192)
RECORD_OF_FILE = json.dumps(
    {
        "rank-00000.h5": {
            "bytes": 1 << 32,
            "crc32": "0" * 8,
            "table": [1 << 32, 1 << 16, 1 << 12, "0" * 16],
        }
    }
)
# {cost: its exponent in the number of ranks, at most}
EXPONENTS = {
    "names in a ledger, bytes": 0,
    "report of a hang, calls of functions": 1,
    "report of a hang, files opened": 1,
    "manifest, of tensors, bytes": 0,
    "manifest, of a file, bytes": 0,
    "table of a file, bytes": 0,
    "sent to the first rank for each file, bytes": 0,
    "files that a rank opens for a box, at most": 0,
    "crowded hosts, calls of functions": 1,
    "ranks of groups, bytes": 0,
    "sum in a fixed order, messages of a rank": 0.25,
}


def costs(num_ranks: int) -> dict[str, int]:
    """Return {cost: count}, of as many ranks."""
    return {
        **hang_costs(num_ranks),
        **save_costs(num_ranks),
        **seat_costs(num_ranks),
        **group_costs(num_ranks),
        **sum_costs(num_ranks),
    }


def table(sizes: list[int]) -> str:
    """Return the rows of docs/scale.md."""
    of_sizes = [costs(size) for size in sizes]
    lines = [f"| cost | exponent | {' | '.join(f'{size:,}' for size in sizes)} |"]
    lines.append("|---|---|" + "---|" * len(sizes))
    for name, exponent in EXPONENTS.items():
        cells = " | ".join(f"{found[name]:,}" for found in of_sizes)
        lines.append(f"| {name} | {exponent} | {cells} |")
    return "\n".join(lines)


def main() -> None:
    """Print what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("costs", "hang", "save"))
    parser.add_argument("numbers", nargs="+", help="of ranks; of save: a model, and numbers")
    known = parser.parse_args()
    if known.what == "costs":
        print(table([int(number) for number in known.numbers]))
    elif known.what == "hang":
        for number in known.numbers:
            hang(int(number))
    else:
        for number in known.numbers[1:]:
            save(known.numbers[0], int(number))


if __name__ == "__main__":
    main()
