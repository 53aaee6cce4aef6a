"""Hardware: what a device computes and moves per second, and how devices are connected, as TOML
files with a source for each figure.

    cluster = read_cluster("a100-80gb-hdr")     one of shardkit/plan/hardware/*.toml, or your own
    cluster.device.product_seconds(2048, 12288, 4608, "float16")

`shardkit bench hardware` writes such a file for the machine that it runs on. A figure belongs to
the hardware: none depends on the model that is planned.
"""

import tomllib
from bisect import bisect
from dataclasses import MISSING, dataclass, fields
from math import log
from pathlib import Path

from ..arguments import is_number, nearest
from ..errors import ConfigurationError

FOLDER = Path(__file__).parent / "hardware"


@dataclass(frozen=True, eq=False)
class DeviceModel:
    """The device of one rank: a GPU, or a core of a CPU node.

    memory_bytes          that a rank may use
    bytes_per_second      to and from memory, by specification, with every device of the node at
                          work
    memory_fraction       of it that kernels reach
    call_seconds          from one kernel to the next, where each is short
    peak                  {dtype: floating point operations per second}
    edges, fractions      the fraction of the peak that matrix products of m x n x k reach, by
                          (m n k)^(1/3)
    """

    name: str
    memory_bytes: float
    bytes_per_second: float
    peak: dict[str, float]
    edges: tuple[float, ...]
    fractions: tuple[float, ...]
    memory_fraction: float = 1.0
    call_seconds: float = 0.0

    def __post_init__(self):
        ascending = sorted(set(self.edges))
        if not ascending or list(self.edges) != ascending or len(self.fractions) != len(ascending):
            raise ConfigurationError(
                f"device {self.name}: edges {list(self.edges)} and fractions "
                f"{list(self.fractions)}; wanted as many of each, edges ascending"
            )

    def pass_seconds(self, num_bytes: float) -> float:
        """Return the seconds of a kernel that is bound by memory."""
        return num_bytes / (self.bytes_per_second * self.memory_fraction)

    def product_seconds(
        self,
        m: float,
        n: float,
        k: float,
        dtype: str,
        *,
        batch: float = 1,
        item_bytes: int = 2,
        share: float = 1.0,
    ) -> float:
        """Return the seconds of `batch` products [m, k] x [k, n], bound by arithmetic or memory.

        share   of the product that is computed: half of it under a causal mask
        """
        flops = 2.0 * batch * m * n * k * share
        speed = self.peak_of(dtype) * self.fraction((batch * m * n * k) ** (1 / 3))
        moved = batch * (m * k + k * n + m * n) * item_bytes
        return max(flops / speed, self.pass_seconds(moved))

    def peak_of(self, dtype: str) -> float:
        """Return the peak of a dtype. Errors: ConfigurationError if the file does not have it."""
        if dtype not in self.peak:
            raise ConfigurationError(
                f"device {self.name} has no peak for {dtype}; it has {', '.join(self.peak)}"
            )
        return self.peak[dtype]

    def fraction(self, edge: float) -> float:
        """Return the fraction of the peak that products of this edge reach.

        The curve is linear in the logarithm of the edge between two points, and flat beyond its
        ends.
        """
        at = bisect(self.edges, edge)
        if at in (0, len(self.edges)):
            return self.fractions[min(at, len(self.edges) - 1)]
        low, high = self.edges[at - 1], self.edges[at]
        along = log(edge / low) / log(high / low)
        return self.fractions[at - 1] + along * (self.fractions[at] - self.fractions[at - 1])


@dataclass(frozen=True)
class LinkModel:
    """The connection of a device, or a node, to the others.

    bytes_per_second   each way, by specification
    fraction           of it that collectives reach
    latency_seconds    of one hop of a collective
    """

    bytes_per_second: float
    fraction: float = 1.0
    latency_seconds: float = 0.0

    @property
    def speed(self) -> float:
        return self.bytes_per_second * self.fraction


@dataclass(frozen=True)
class Measured:
    """A collective measured on `ranks` ranks: seconds of an empty one, and bytes of its buffer per
    second.
    """

    operation: str
    ranks: int
    latency_seconds: float
    bytes_per_second: float


# equal only to itself, since caches look it up all the time
@dataclass(frozen=True, eq=False)
class Cluster:
    """Nodes of equal devices.

    devices        of a node: the ranks that run on it
    cores          processors that they share; 0: one each
    inside         from a device to the others of its node
    between        from a node to the others; the devices share it evenly
    storage_bytes_per_second   of all nodes together, to the file system of checkpoints
    measured       collectives, where there are measurements; they are used instead of the links
    """

    name: str
    device: DeviceModel
    devices: int
    inside: LinkModel
    between: LinkModel
    storage_bytes_per_second: float = 0.0
    cores: int = 0
    measured: tuple[Measured, ...] = ()

    @property
    def sharing(self) -> int:
        """Ranks of a node that see each other's memory: all, if they run on its processors."""
        return self.devices if self.cores else 1

    @property
    def per_device(self) -> float:
        """Bytes per second from a device to another node, when all of its node send."""
        return self.between.speed / self.devices


def read_cluster(name) -> Cluster:
    """Return the description in this file, or the one of this name that comes with shardkit.

    Errors: ConfigurationError if there is none, or a key is unknown, missing or no number.
    """
    path = Path(name) if Path(name).suffix == ".toml" else FOLDER / f"{name}.toml"
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(
            f"cannot read hardware {path}: {error.strerror}; those that come with shardkit are "
            f"{', '.join(known_clusters())}"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} is not TOML: {error}") from None
    return cluster_from(tables, path)


def known_clusters() -> list[str]:
    """Return the names of the descriptions that come with shardkit."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def cluster_from(tables: dict, path="hardware") -> Cluster:
    """Return the description in these tables."""
    rest = dict(tables)
    products = _table(rest.get("device", {}), "products", path)
    device = _table(rest, "device", path) | {key: tuple(value) for key, value in products.items()}
    del device["products"]
    parts = {
        "device": _made(DeviceModel, device, f"{path}: [device]"),
        "inside": _made(LinkModel, _table(rest, "inside", path), f"{path}: [inside]"),
        "between": _made(LinkModel, _table(rest, "between", path), f"{path}: [between]"),
        "measured": tuple(
            _made(Measured, row, f"{path}: [[measured]]") for row in rest.get("measured", [])
        ),
    }
    return _made(Cluster, {**rest, **parts}, str(path))


def _table(tables: dict, name: str, path) -> dict:
    if not isinstance(tables.get(name), dict):
        raise ConfigurationError(
            f"{path} has no table [{name}]; look at {FOLDER / 'cpu-node.toml'} for one that has all"
        )
    return tables[name]


def _made(kind, values: dict, where: str):
    """Return kind(**values).

    Errors: ConfigurationError on a key that is unknown or missing, or a value that is no number
    >= 0 where one is wanted.
    """
    known = {f.name: f for f in fields(kind)}
    for key, value in values.items():
        if key not in known:
            near = nearest(key, known)
            advice = f"did you mean {near}? The" if near else "the"
            raise ConfigurationError(
                f"{where}: unknown key {key}; {advice} keys are {', '.join(known)}"
            )
        if known[key].type in (float, int) and not is_number(value, at_least=0):
            raise ConfigurationError(
                f"{where}: {key} = {value!r}; wanted a finite number, at least 0"
            )
    missing = [name for name, f in known.items() if name not in values and f.default is MISSING]
    if missing:
        raise ConfigurationError(f"{where}: {', '.join(missing)} missing")
    return kind(**values)
