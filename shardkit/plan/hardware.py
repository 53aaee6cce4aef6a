"""Hardware: what a device computes and moves per second, and how devices are connected.

    cluster = read_cluster("a100-80gb-hdr")     (hardware_file.py)
    cluster.device.product_seconds(2048, 12288, 4608, "float16")

A figure belongs to the hardware: none depends on the model that is planned.
"""

from bisect import bisect
from dataclasses import dataclass, replace
from functools import lru_cache
from math import log

from ..array.dtypes import FLOAT8
from ..errors import ConfigurationError

HALVES = ("float16", "bfloat16")
_ALIGNED = 8  # elements of half precision in 16 bytes


@dataclass(frozen=True)
class AttentionModel:
    """How fast fused causal attention is for heads of one size, by sequence length.

    head_dim            of each head
    lengths             of sequences, ascending
    forward, backward   fractions of the peak of half-precision products at these lengths. Forward
                        has 2 products of length x length x head_dim for each head, backward 5 with
                        the scores that it computes again (arXiv 2307.08691, 4.1), and the causal
                        mask leaves half of each
    kernel              that was measured; "": the one that most programs call on this device
    """

    head_dim: int
    lengths: tuple[float, ...]
    forward: tuple[float, ...]
    backward: tuple[float, ...]
    kernel: str = ""

    def __post_init__(self):
        for name in ("forward", "backward"):
            _check_curve(f"attention of head_dim {self.head_dim}", self, "lengths", name)


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
    misaligned            part of that speed that products in half precision reach whose rows are no
                          multiple of 16 bytes, such as heads of 150
    attention             measured speeds of fused attention, for some sizes of heads; without any
                          it counts as matrix products that do not meet memory
    contention            the part of its computing that a collective beside it takes: processors,
                          caches, power
    spread                of the seconds that equal work takes on equal devices: the standard
                          deviation over the mean
    unit_seconds          that shardkit's runtime adds to a unit and micro-batch, forward and
                          backward, where it runs on this device; 0: not measured
    """

    name: str
    memory_bytes: float
    bytes_per_second: float
    peak: dict[str, float]
    edges: tuple[float, ...]
    fractions: tuple[float, ...]
    memory_fraction: float = 1.0
    misaligned: float = 1.0
    call_seconds: float = 0.0
    attention: tuple[AttentionModel, ...] = ()
    contention: float = 0.0
    spread: float = 0.0
    unit_seconds: float = 0.0

    def __post_init__(self):
        _check_curve(f"device {self.name}", self, "edges", "fractions")

    def slowed(self, factor: float) -> "DeviceModel":
        """Return the device where all that it computes takes this many times as long."""
        return replace(
            self,
            peak={dtype: speed / factor for dtype, speed in self.peak.items()},
            bytes_per_second=self.bytes_per_second / factor,
            call_seconds=self.call_seconds * factor,
            unit_seconds=self.unit_seconds * factor,
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
        operand_bytes: int | None = None,
    ) -> float:
        """Return the seconds of `batch` products [m, k] x [k, n], bound by arithmetic or memory.

        operand_bytes   of an element of what is multiplied; None: item_bytes, as the result has
        """
        flops = 2.0 * batch * m * n * k
        edge = (batch * m * n * k / self._quicker(dtype)) ** (1 / 3)
        speed = self.peak_of(dtype) * self.fraction(edge)
        if dtype in HALVES and (n % _ALIGNED or k % _ALIGNED):
            speed *= self.misaligned
        read = (m * k + k * n) * (item_bytes if operand_bytes is None else operand_bytes)
        moved = batch * (read + m * n * item_bytes)
        return max(flops / speed, self.pass_seconds(moved))

    def _quicker(self, dtype: str) -> float:
        """Return how much higher the peak of float8 is than that of halves, which the curve was
        measured with: a product of as many more operations takes as long, starts and ends like it,
        and so reaches the same fraction. 1 for other dtypes.
        """
        if dtype != FLOAT8:
            return 1.0
        halves = [self.peak[name] for name in HALVES if name in self.peak]
        return max(1.0, self.peak_of(dtype) / max(halves, default=self.peak_of(dtype)))

    def attention_seconds(
        self, heads: float, length: int, head_dim: int, dtype: str, kernel: str = ""
    ) -> tuple[float, float]:
        """Return the seconds of fused causal attention on `heads` heads: forward, backward.

        The size of heads that is nearest among those measured counts; a kernel that the file does
        not have is taken for the usual one.
        """
        flops = 2.0 * heads * length * length * head_dim / 2  # of one product
        rows = [row for row in self.attention if row.kernel == kernel] or self.attention
        if not rows:
            edge = (heads * length * length * head_dim) ** (1 / 3)
            one = flops / (self.peak_of(dtype) * self.fraction(edge))
            return 2 * one, 5 * one
        row = min(rows, key=lambda row: (abs(log(row.head_dim / head_dim)), row.head_dim))
        one = flops / self.peak_of(dtype)
        return (
            2 * one / _along(row.lengths, row.forward, length),
            5 * one / _along(row.lengths, row.backward, length),
        )

    def peak_of(self, dtype: str) -> float:
        """Return the peak of a dtype. Errors: ConfigurationError if the file does not have it."""
        if dtype not in self.peak:
            raise ConfigurationError(
                f"device {self.name} has no peak for {dtype}; it has {', '.join(self.peak)}: "
                "wanted one of these, or a device that multiplies in it"
            )
        return self.peak[dtype]

    def fraction(self, edge: float) -> float:
        """Return the fraction of the peak that products of this edge reach.

        The curve is linear in the logarithm of the edge between two points, and flat beyond its
        ends.
        """
        return _along(self.edges, self.fractions, edge)


def _along(points: tuple[float, ...], values: tuple[float, ...], point: float) -> float:
    """Return the value at a point of a curve through these: linear in the logarithm of the point
    between two of them, and flat beyond the ends.
    """
    at = bisect(points, point)
    if at in (0, len(points)):
        return values[min(at, len(points) - 1)]
    low, high = points[at - 1], points[at]
    along = log(point / low) / log(high / low)
    return values[at - 1] + along * (values[at] - values[at - 1])


def _check_curve(where: str, model, points: str, values: str) -> None:
    """Raise ConfigurationError unless a curve has as many values as points, points ascending."""
    at, of = list(getattr(model, points)), list(getattr(model, values))
    if not at or at != sorted(set(at)) or len(of) != len(at):
        raise ConfigurationError(
            f"{where}: {points} {at} and {values} {of}; wanted as many of each, {points} ascending"
        )


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
class SwitchLevel:
    """A level of switches above the nodes: a rail or leaf, an island, a core.

    nodes             below one switch, or group of switches, of this level
    oversubscription  bytes per second that its nodes can send, over those that leave it upwards
    latency_seconds   that a hop through the level above takes longer
    """

    nodes: int
    oversubscription: float = 1.0
    latency_seconds: float = 0.0

    def __post_init__(self):
        if self.nodes < 1 or self.oversubscription < 1:
            raise ConfigurationError(
                f"levels: nodes = {self.nodes!r}, oversubscription = {self.oversubscription!r}; "
                "wanted at least 1 of each"
            )

    def crossing(self, nodes: float, step: float) -> float:
        """Return the part of a ring's hops between nodes that leave this level.

        nodes   that the ring spans
        step    nodes from one of its ranks to the next
        """
        return min(1.0, step / self.nodes) if nodes > self.nodes else 0.0


@dataclass(frozen=True)
class Measured:
    """A collective measured on `ranks` ranks: seconds of an empty one, and bytes of its buffer per
    second.
    """

    operation: str
    ranks: int
    latency_seconds: float
    bytes_per_second: float


@dataclass(frozen=True)
class Crowding:
    """What the same work costs with `ranks` ranks of a node at work, by whole steps of one rank
    each.

    slowdown   processor seconds of a rank, over those with all ranks of the node at work, as the
               figures of the device were measured
    lag        by which the last rank is later than if the cores shared the work evenly and lost
               nothing, over that time
    """

    ranks: int
    slowdown: float
    lag: float


_ALONE = Crowding(1, 1.0, 0.0)


# equal only to itself, since caches look it up all the time
@dataclass(frozen=True, eq=False)
class Cluster:
    """Nodes of equal devices.

    devices        of a node: the ranks that run on it
    cores          processors that they share; 0: one each
    inside         from a device to the others of its node
    between        from a node to the others; the devices share it evenly
    storage_bytes_per_second   of all nodes together, to the file system of checkpoints; 0: unknown
    node_storage_bytes_per_second   of one node; 0: what it sends to other nodes
    failure_hours  of one device, with its part of the node, until it stops a job, on average; 0:
                   unknown
    restart_seconds   from such a stop until steps go on
    watts          of one device, with its part of the node; 0: unknown
    price_per_hour    of one device, in your currency; 0: unknown
    measured       collectives, where there are measurements; they are used instead of the links
    crowding       measured steps of ranks that share a node; none: they cost each other nothing
    levels         of switches between nodes, from below; without any the network is one switch
    """

    name: str
    device: DeviceModel
    devices: int
    inside: LinkModel
    between: LinkModel
    storage_bytes_per_second: float = 0.0
    node_storage_bytes_per_second: float = 0.0
    failure_hours: float = 0.0
    restart_seconds: float = 0.0
    watts: float = 0.0
    price_per_hour: float = 0.0
    cores: int = 0
    measured: tuple[Measured, ...] = ()
    crowding: tuple[Crowding, ...] = ()
    levels: tuple[SwitchLevel, ...] = ()

    @property
    def sharing(self) -> int:
        """Ranks of a node that see each other's memory: all, if they run on its processors."""
        return self.devices if self.cores else 1

    @lru_cache(maxsize=1024)
    def at_work(self, devices: int, efficiency: float = 1.0) -> "Cluster":
        """Return the cluster with devices as quick as with so many at work in such a program."""
        slowdown = self.crowded_by(devices).slowdown / efficiency
        return self if slowdown == 1 else replace(self, device=self.device.slowed(slowdown))

    def crowded_by(self, devices: int) -> Crowding:
        """Return what so many devices cost each other: the measurement on the nearest number of
        ranks that a node has of them.
        """
        here = min(devices, self.devices)
        if not self.crowding:
            return _ALONE
        return min(self.crowding, key=lambda row: (abs(row.ranks - here), row.ranks))

    def storage_speed(self, devices: int) -> float:
        """Return the bytes per second to the file system from the nodes of a job; 0: unknown."""
        of_node = self.node_storage_bytes_per_second or self.between.speed
        return min(self.storage_bytes_per_second, -(-devices // self.devices) * of_node)

    @property
    def per_device(self) -> float:
        """Bytes per second from a device to another node, when all of its node send."""
        return self.between.speed / self.devices
