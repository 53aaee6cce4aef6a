"""`shardkit bench hardware`: measure what this machine does per second, with all ranks at work, and
write it into a TOML file to plan with.

    mpiexec -n 4 shardkit bench hardware --output my-node.toml

    STREAM-like    the sum of two long arrays into a third, and the part of it that kernels reach
    products       square matrix products of growing size, through the function that a step calls
    attention      fused, of some sizes of heads and lengths (measure_attention.py)
    calls          a transformer block on tiny inputs
    runtime        whole steps of a rank, and of several at once (measure_runtime.py)
    collectives    empty and long ones, those that a step calls, on 2, 3, 4, 8, ... ranks
                   (measure_collectives.py)
    storage        a file that is forced to disk

The work of one rank is timed in processor time on one thread, so it is the speed of a core that the
rank has to itself, except for shared caches: the median of some tries, then the mean over the
ranks.
"""

import os
import tempfile
import time
from collections.abc import Callable
from itertools import cycle, islice
from pathlib import Path
from statistics import mean, median

import numpy
from threadpoolctl import threadpool_limits

from ..array import kernels, products
from ..array.blas import Library, library_named
from ..comm.backend import CommunicationBackend
from ..comm.failure.agreement import by_first, collectively
from ..comm.seats import all_seats
from ..files.writing import check_can_write, write_whole
from ..nn.autograd import Tensor
from ..nn.transformer import TransformerBlock
from ..plain import counted
from .hardware import Cluster
from .hardware_file import cluster_from
from .measure_attention import attention_rows, attention_speeds
from .measure_collectives import collectives, group_sizes, link_of
from .measure_runtime import crowding_rows, unit_seconds
from .software import SHARDKIT

EDGES = (32, 64, 128, 256, 512, 1024)
DTYPES = ("float32", "float64")
_STREAM_ELEMENTS = 4 << 20  # of each of three arrays: 16 MiB, beyond the caches of a core
_COLD_BYTES = 32 << 20  # of matrices between two uses of one
_TRIES = 5
_PART_SECONDS = 0.5  # at least this long, and _TRIES times, unless a try is long
_MEMORY_SHARE = 0.9  # of the memory that the system reports as available


def measure_hardware(
    backend: CommunicationBackend, folder: Path, library: Library | None = None
) -> dict:
    """Return the tables of a hardware file. Collective; it takes a minute or two.

    folder    where checkpoints would go: a file is written there and deleted
    library   of matrix products; None: NumPy's
    Errors, on all ranks: OSError if the file cannot be written.
    """
    seats = all_seats(backend, 1)
    hosts = [seat.host for seat in seats]
    here = max(hosts.count(host) for host in set(hosts))
    cores = len({core for seat in seats if seat.host == hosts[0] for core in seat.cores})
    with threadpool_limits(1), products.multiplied_by(library):
        speeds = {
            dtype: _everyones(backend, lambda dtype=dtype: _product_speeds(dtype))
            for dtype in DTYPES
        }
        stream, fused = _everyones(backend, _memory_speeds)
        calls = _everyones(backend, _call_seconds)[0]
        attention = _everyones(backend, lambda: attention_speeds(_usual_seconds))
        own = backend.split(backend.rank)
        unit = _everyones(backend, lambda: [unit_seconds(own)])[0]
        crowding = crowding_rows(backend, own, [1, *group_sizes(hosts)], cores)
        own.close()
    peak = {dtype: float(max(of_edges)) / 0.99 for dtype, of_edges in speeds.items()}
    measured = collectives(backend, hosts)
    link = link_of(measured, stream)
    name = f"{_processor()}, {cores} cores, {counted(here, 'rank')} on a node"
    if library:
        name += f", products by {library.name}"
    return {
        "name": name,
        "devices": here,
        "cores": cores,
        "storage_bytes_per_second": _storage_speed(backend, folder),
        "device": {
            "name": _processor(),
            "memory_bytes": _memory_bytes() / here,
            "bytes_per_second": float(stream),
            "memory_fraction": min(float(fused / stream), 1.0),
            "call_seconds": float(calls),
            "unit_seconds": float(unit),
            "peak": peak,
            "products": {
                "edges": list(EDGES),
                "fractions": [float(speed) / peak["float32"] for speed in speeds["float32"]],
            },
            "attention": attention_rows(attention, peak["float32"]),
        },
        "inside": link,
        "between": {**link, "bytes_per_second": link["bytes_per_second"] * here},
        "measured": measured,
        "crowding": crowding,
    }


def to_toml(tables: dict) -> str:
    """Return the tables as the text of a hardware file."""
    plain = {k: value for k, value in tables.items() if not isinstance(value, (dict, list))}
    lines = ["# Written by `shardkit bench hardware`: measured with all ranks at work."]
    lines += _lines(plain)
    for name in ("device", "inside", "between"):
        table = dict(tables[name])
        inner = table.pop("products", None)
        rows = table.pop("attention", [])
        lines += ["", f"[{name}]", *_lines(table)]
        if inner:
            lines += ["", f"[{name}.products]", *_lines(inner)]
        for row in rows:
            lines += ["", f"[[{name}.attention]]", *_lines(row)]
    for name in ("measured", "crowding"):
        for row in tables[name]:
            lines += ["", f"[[{name}]]", *_lines(row)]
    return "\n".join(lines) + "\n"


def _lines(table: dict) -> list[str]:
    return [f"{key} = {_value(value)}" for key, value in table.items()]


def hardware_run(backend: CommunicationBackend, output: str, blas: str = "numpy") -> Cluster:
    """Measure this machine, write the file on rank 0, and return its cluster. Collective.

    blas   the library of matrix products, as in settings
    Errors, on all ranks: OSError; ConfigurationError if it cannot multiply here.
    """
    with collectively(backend):
        library = library_named(blas)
        if backend.rank == 0:
            check_can_write(output)  # before the work, not after it
    tables = measure_hardware(backend, Path("."), library)
    with collectively(backend):
        if backend.rank == 0:
            write_whole(output, to_toml(tables).encode())
            print(describe(tables))
            print(f"{output}: shardkit plan settings.toml {output} --devices {backend.world_size}")
    return cluster_from(tables)


def describe(tables: dict) -> str:
    """Return the figures in a few lines."""
    device = tables["device"]
    curve = zip(device["products"]["edges"], device["products"]["fractions"])
    fractions = ", ".join(f"{edge}: {fraction:.0%}" for edge, fraction in curve)
    lines = [
        tables["name"],
        f"memory         {device['bytes_per_second'] / 1e9:.2f} GB/s per rank, of which kernels "
        f"reach {device['memory_fraction']:.0%}",
        f"products       {device['peak']['float32'] / 1e9:.1f} GFLOP/s in float32; {fractions}",
        f"attention      {max(row['forward'][-1] for row in device['attention']):.0%} of that "
        f"forward, {max(row['backward'][-1] for row in device['attention']):.0%} backward",
        f"calls          {device['call_seconds'] * 1e6:.1f} us each",
        f"runtime        {device['unit_seconds'] * 1e6:.1f} us for a unit and micro-batch",
        f"storage        {tables['storage_bytes_per_second'] / 1e9:.2f} GB/s",
    ]
    for row in tables["measured"]:
        lines.append(
            f"{row['operation']:<15}{row['ranks']} ranks: {row['latency_seconds'] * 1e6:.1f} us, "
            f"{row['bytes_per_second'] / 1e9:.2f} GB/s"
        )
    for row in tables["crowding"]:
        lines.append(
            f"work at once   {counted(row['ranks'], 'rank')}: {row['slowdown']:.3f} times the "
            f"processor time of all at once; the last {row['lag']:.1%} late"
        )
    return "\n".join(lines)


def _value(value) -> str:
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_value(each)}" for key, each in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    return str(value) if isinstance(value, int) else f"{value:.6g}"


# ---- one rank ------------------------------------------------------------------------------------


def _usual_seconds(act: Callable[[], object]) -> float:
    """Return the median of some tries, in processor seconds of this thread."""
    act()
    began = time.perf_counter()
    tries = []
    while len(tries) < _TRIES or time.perf_counter() - began < _PART_SECONDS:
        start = time.thread_time()
        act()
        tries.append(time.thread_time() - start)
    return median(tries)


def _memory_speeds() -> list[float]:
    """Return the bytes per second of a sum of arrays, and of fused kernels by the bytes that they
    cannot avoid.
    """
    a, b, c = (numpy.ones(_STREAM_ELEMENTS, "float32") for _ in range(3))
    stream = 12 * _STREAM_ELEMENTS / _usual_seconds(lambda: numpy.add(a, b, out=c))
    rows = a.reshape(-1, 512)
    weight = numpy.ones(512, "float32")
    norm = _usual_seconds(
        lambda: kernels.layer_norm(rows, weight, weight, 1e-5, out=c.reshape(-1, 512))
    )
    bend = _usual_seconds(lambda: kernels.gelu(a, out=c))
    return [stream, mean([8 * _STREAM_ELEMENTS / norm, 8 * _STREAM_ELEMENTS / bend])]


def _product_speeds(dtype: str) -> list[float]:
    """Return the operations per second of square products, by edge.

    Each product has other matrices than the one before it, as in a step.
    """
    speeds = []
    for edge in EDGES:
        matrix_bytes = edge * edge * numpy.dtype(dtype).itemsize
        num_sets = 1 + _COLD_BYTES // (3 * matrix_bytes)
        sets = cycle(numpy.ones((num_sets, 3, edge, edge), dtype))
        times = max(1, (256 // edge) ** 2)
        seconds = _usual_seconds(
            lambda: [products.matmul(a, b.T, out=out) for a, b, out in islice(sets, times)]
        )
        speeds.append(2.0 * edge**3 * times / seconds)
    return speeds


def _call_seconds() -> list[float]:
    """Return the seconds of Python around one kernel call, forward and backward: those of a
    transformer block on tiny inputs.
    """
    block = TransformerBlock(16, 2).finish(0)
    gradient = numpy.ones((1, 8, 16), "float32")
    x = Tensor(gradient.copy(), requires_grad=True)
    return [_usual_seconds(lambda: block(x).backward(gradient)) / (2 * SHARDKIT.calls_per_layer)]


def _memory_bytes() -> float:
    """Return the bytes of memory that ranks may use on this machine."""
    lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    available = next((line.split()[1] for line in lines if line.startswith("MemAvailable")), None)
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return _MEMORY_SHARE * (int(available) * 1024 if available else whole)


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        "processor",
    )


# ---- all ranks -----------------------------------------------------------------------------------


def _everyones(backend: CommunicationBackend, act: Callable[[], list[float]]):
    """Return the figures of `act`, which all ranks run together, as means. Collective."""
    backend.barrier()
    mine = numpy.array(act(), numpy.float64)
    everyones = numpy.empty((backend.world_size, mine.size))
    backend.all_gather(mine, everyones)
    return everyones.mean(0)


def _storage_speed(backend: CommunicationBackend, folder: Path) -> float:
    """Return the bytes per second of a file of rank 0 until it is on disk. Collective.

    Errors, on all ranks: OSError.
    """

    def speed() -> float:
        block = os.urandom(1 << 20)
        with tempfile.TemporaryFile(dir=folder) as file:
            began = time.perf_counter()
            for _ in range(64):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
            return (64 << 20) / (time.perf_counter() - began)

    return by_first(backend, speed)
