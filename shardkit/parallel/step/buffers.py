"""The buffers of a model on a mesh: what forwards observe, and the new values after a step.

    micro-batch   0   1   2   3         4   5   6   7
    observed      v0  v1  v2  v3        v4  v5  v6  v7
                   \\ /     \\ /           \\ /     \\ /      one tree on each data rank,
                     \\     /               \\     /        as gradients are added
                       \\____ over data ____/             and the same tree over the ranks
                                |
               old + momentum * (mean - old)             on every rank that computes with it

The ranks that compute a block hold its buffers whole, the same bits on all of them; other pipeline
ranks hold nothing of them. Sums are float64.
"""

from math import isnan, nan

import numpy

from ...array.backend import to_host, xp_of
from ...array.device import Device
from ...array.kernels import tree_sum
from ...comm.collectives.ordered import ordered_all_reduce
from ...comm.mesh import Mesh
from ...errors import ConfigurationError, ShardingError
from ...layout.axes import COPIES, Held, alike
from ...layout.box import Box
from ...layout.piece import Piece
from ...nn.buffer import Buffer, Observation
from ...nn.module import Module
from ..pipeline.stages import Stages

GROUP = "buffers"  # in a checkpoint
NUM_FACTS = 4  # of a buffer, per rank: advanced, observations, momentum, number of its counter


def check_buffers(model: Module, stages: Stages) -> None:
    """Raise ShardingError if a buffer is in no block, or in those of several pipeline ranks."""
    holders: dict[Buffer, set[int]] = {}
    for rank in set(stages.rank_of.values()):
        for buffer in _buffers_of(stages, rank):
            holders.setdefault(buffer, set()).add(rank)
    for name, buffer in model.named_buffers().items():
        ranks = sorted(holders.get(buffer, ()))
        if not ranks:
            raise ShardingError(
                f"{type(model).__name__}.blocks() does not reach buffer {name}; every buffer must "
                "belong to a block"
            )
        if len(ranks) > 1:
            raise ShardingError(
                f"buffer {name} is in blocks of pipeline ranks {', '.join(map(str, ranks))}; give "
                "each block a buffer of its own, or place them on one rank (blocks_per_stage)"
            )


def _buffers_of(stages: Stages, rank: int) -> list[Buffer]:
    """Return the buffers of the blocks of one pipeline rank, each once, in order."""
    blocks = [block for blocks in stages.blocks_of(rank).values() for block in blocks]
    return list(dict.fromkeys(b for block in blocks for b in block.named_buffers().values()))


class Buffers:
    """The buffers of one model, whose names are final; those of this rank's blocks are its own.

    The others are released.
    """

    def __init__(self, model: Module, mesh: Mesh, stages: Stages, device: Device):
        self.everyones = model.named_buffers()
        self._data = mesh.group(COPIES)
        held = set(_buffers_of(stages, mesh.group("pipeline").rank))
        self.own = {name: b for name, b in self.everyones.items() if b in held}
        self._numbers = {buffer: i for i, buffer in enumerate(self.own.values())}
        self._counts_here = mesh.coordinates.is_first(alike(Held.BLOCKS))
        self._observed: dict[int, dict[int, list[Observation]]] = {}
        for name, buffer in self.everyones.items():
            if name not in self.own:
                buffer.release()
            else:
                buffer.bind(device.from_host(buffer.numpy()))

    # ---- one step --------------------------------------------------------------------------------

    def observer(self, micro_batch: int):
        """Return what takes the observations of this micro-batch; see ForwardContext."""

        def observe(buffer: Buffer, observation: Observation):
            for one in (buffer, observation.count):
                if one is not None and one not in self._numbers:
                    raise ConfigurationError(
                        f"{one!r} was observed, but is no buffer of a block on this rank"
                    )
            of_buffer = self._observed.setdefault(self._numbers[buffer], {})
            of_buffer.setdefault(micro_batch, []).append(observation)

        return observe

    def drop(self) -> None:
        """Forget what was observed. No communication."""
        self._observed.clear()

    def apply(self) -> None:
        """Give every buffer its new value, and forget what was observed.

        Collective over the data axis, if this rank holds any.
        """
        if not self.own:
            return
        advanced, totals, momenta, counters = self._agreed_facts()
        sums = self._sums()
        self.drop()
        buffers = list(self.own.values())
        for buffer, is_larger in zip(buffers, advanced):  # weights may need the new counts
            if is_larger:
                buffer.add_one()
        for number, total in sums.items():
            if totals[number]:
                weight = momenta[number]
                if isnan(weight):
                    weight = 1.0 / max(to_host(buffers[counters[number]].array).item(), 1)
                buffer = buffers[number]
                buffer.blend((total / totals[number]).reshape(buffer.shape), weight)

    def _agreed_facts(self):
        """Return, for each own buffer: whether it is one larger, how often it was observed, with
        which momentum (NaN: 1 / count), and the number of the buffer that counts.

        A rank whose forward left a buffer out has it from the first one that did not.
        """
        mine = numpy.zeros((len(self.own), NUM_FACTS))
        for number, by_micro_batch in self._observed.items():
            for observation in (one for some in by_micro_batch.values() for one in some):
                if observation.value is None:
                    mine[number, 0] = 1
                    continue
                mine[number, 1] += 1
                mine[number, 2] = nan if observation.momentum is None else observation.momentum
                mine[number, 3] = self._numbers.get(observation.count, 0)
        facts = numpy.empty((self._data.world_size, *mine.shape))
        self._data.all_gather(mine, facts)
        first = (facts[:, :, 1] > 0).argmax(0)  # [buffers], a data rank
        of_first = facts[first, numpy.arange(len(first))]
        return (
            facts[:, :, 0].any(0).tolist(),
            facts[:, :, 1].sum(0).tolist(),
            of_first[:, 2].tolist(),
            of_first[:, 3].astype(int).tolist(),
        )

    def _sums(self) -> dict[int, object]:
        """Return {number of a buffer: sum over all observations of it [size] float64}."""
        floats = {i: b for i, b in enumerate(self.own.values()) if b.dtype.kind == "f"}
        if not floats:
            return {}
        xp = xp_of(*(buffer.array for buffer in floats.values()))
        parts = [self._own_sum(number, xp.zeros(buffer.size)) for number, buffer in floats.items()]
        flat = xp.concatenate(parts)
        ordered_all_reduce(self._data, flat)
        sums, at = {}, 0
        for number, buffer in floats.items():
            sums[number] = flat[at : at + buffer.size]
            at += buffer.size
        return sums

    def _own_sum(self, number: int, nothing):
        """Return the sum over this rank's micro-batches [size] float64, or `nothing`."""
        by_micro_batch = self._observed.get(number, {})
        of_each = [
            [one.value.reshape(-1) for one in by_micro_batch[m] if one.value is not None]
            for m in sorted(by_micro_batch)
        ]
        sums = [tree_sum(values) for values in of_each if values]
        return tree_sum(sums) if sums else nothing

    # ---- between steps ---------------------------------------------------------------------------

    def boxes(self, *, counted: bool = False) -> list[tuple]:
        """Return (path in a checkpoint, piece, 1-D view) of the elements that this rank holds.

        counted   without replicas: over all ranks they hold each element once
        """
        if counted and not self._counts_here:
            return []
        return [
            (
                f"{GROUP}/{name}",
                Piece(name, Box.whole(buffer.shape), 0, buffer.size, buffer.shape),
                buffer.array.reshape(-1),
            )
            for name, buffer in self.own.items()
            if buffer.size
        ]

    def tensors(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Return {path in a checkpoint: (shape, dtype)} of all buffers that have elements."""
        return {
            f"{GROUP}/{name}": (buffer.shape, str(buffer.dtype))
            for name, buffer in self.everyones.items()
            if buffer.size
        }

    def start_over(self) -> None:
        """Make the initial values again. No communication."""
        self.drop()
        for buffer in self.own.values():
            buffer.renew()

    def copies(self) -> list:
        """Return copies of the values that this rank holds. No communication."""
        return [buffer.array.copy() for buffer in self.own.values()]

    def put_back(self, copies: list) -> None:
        """Take back what copies() returned. No communication."""
        for buffer, values in zip(self.own.values(), copies):
            buffer.array = values
