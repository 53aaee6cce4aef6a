"""Copies of shards at the neighbors, so that the state of a model outlives some of its ranks.

    rank            0           1           2           3
    keeps         own 0       own 1       own 2       own 3     of the last committed step,
    and           own 3       own 0       own 1       own 2     of the rank before it

    rank 2 dies: its part is at rank 3. It is lost only if rank 3 dies with it; then a checkpoint
    must do.

Two generations are kept, since a rank may die while a new one is on its way: a rank that has
completed a step's copies knows that all others have completed those of the step before. So each
rank keeps four times what it owns, in host memory.
Source: the idea is from diskless checkpointing (Plank, Li and Puening, 1998).
"""

from dataclasses import dataclass
from math import prod

import numpy

from ...array.backend import is_device_array
from ...array.copies import Done
from ...array.device import Device
from ...array.waits import fill_from_host
from ...comm.backend import CommunicationBackend
from ...layout.box import Box

_TAG = 77
_NUM_GENERATIONS = 2


@dataclass(frozen=True)
class Part:
    """One box of a tensor, at [at, at + num_bytes) of the bytes that a rank keeps."""

    tensor: str
    box: Box
    dtype: str
    at: int

    @property
    def num_bytes(self) -> int:
        return prod(self.box.shape) * numpy.dtype(self.dtype).itemsize

    def view(self, data):
        """Return the box in these bytes, in its shape."""
        return data[self.at : self.at + self.num_bytes].view(self.dtype).reshape(self.box.shape)


class _Generation:
    """Bytes of one step: this rank's own, and those of the rank before it."""

    def __init__(self, own_bytes: int, other_bytes: int, device: Device):
        self.description: dict | None = None  # None: not complete
        self.other = numpy.empty(other_bytes, numpy.uint8)
        if device.kind == "cpu":
            self.own = numpy.empty(own_bytes, numpy.uint8)
        else:
            self.own = device.pinned(own_bytes, "uint8", purpose="copies for neighbors")


@dataclass(frozen=True)
class Note:
    """What a rank tells about its copies: its place among `num_ranks`, and {step: description of
    the model} that it has.
    """

    life: int
    rank: int
    num_ranks: int
    generations: dict[int, dict]


class Neighbors:
    """The copies that one rank keeps. Making it is collective over the mesh of the model.

    parts   of the model
    life    a number that grows with each mesh of a job: copies of different lives do not go
            together
    """

    def __init__(self, parts, life: int = 1):
        self._parts, self.life = parts, life
        world = self._world = parts.engine.mesh.world
        self._rank, self._num_ranks = world.rank, world.world_size
        self._own = _laid_out(parts.state.counted_boxes())
        self._other = world.all_gather_object(self._own)[self._rank - 1]
        device = parts.engine.device
        self._generations = [
            _Generation(_end(self._own), _end(self._other), device) for _ in range(_NUM_GENERATIONS)
        ]

    def commit(self) -> None:
        """Copy the state of this step, and exchange it with the neighbors. Collective over the
        mesh.
        """
        self._generations.reverse()
        newest = self._generations[0]
        newest.description = None
        device, copied = self._parts.engine.device, Done()
        for part, (_, _, array) in zip(self._own, self._parts.state.counted_boxes()):
            copied = device.copies.to_host(array, part.view(newest.own).reshape(-1), copied)
        copied.wait()
        if self._num_ranks > 1:
            sending = self._world.isend(newest.own, (self._rank + 1) % self._num_ranks, _TAG)
            self._world.irecv(newest.other, (self._rank - 1) % self._num_ranks, _TAG).wait()
            sending.wait()
        checkpoints = self._parts.checkpoints
        newest.description = checkpoints.describe(checkpoints.data_position)

    @property
    def companions(self) -> dict[str, bytes]:
        """Files that go with the model, which every rank has."""
        return self._parts.checkpoints.companions

    @property
    def note(self) -> Note:
        """What others must know to find the state."""
        steps = {
            generation.description["step"]: generation.description
            for generation in self._generations
            if generation.description is not None
        }
        return Note(self.life, self._rank, self._num_ranks, steps)

    def held(self, step: int, is_alone: bool) -> list:
        """Return (tensor, Box, array in its shape) of that step.

        is_alone: the rank before this one is gone, and its part counts too.
        """
        found = next(
            g
            for g in self._generations
            if g.description is not None and g.description["step"] == step
        )
        own = [(part.tensor, part.box, part.view(found.own)) for part in self._own]
        return own + [
            (part.tensor, part.box, part.view(found.other)) for part in self._other if is_alone
        ]


def _laid_out(boxes) -> list[Part]:
    parts, at = [], 0
    for tensor, piece, array in boxes:
        parts.append(Part(tensor, piece.box, str(array.dtype), at))
        at += -(-parts[-1].num_bytes // 8) * 8
    return parts


def _end(parts: list[Part]) -> int:
    return parts[-1].at + parts[-1].num_bytes if parts else 0


def restore(living: CommunicationBackend, copies: list[Neighbors], parts) -> int | None:
    """Put the newest state that the living ranks hold together into the model.

    Return its step, or None if some of it is lost.

    Collective over the living, which the ranks of the model are the first of.
    copies   that this rank has, perhaps of several lives, perhaps none
    parts    of a model with the same parameters, on any mesh; None on ranks that have none
    """
    everyones = living.all_gather_object([one.note for one in copies])
    found = _newest_whole([note for notes in everyones for note in notes])
    if found is None:
        return None
    life, step, living_places = found
    mine = [one for one in copies if one.life == life]
    held = [
        entry
        for one in mine
        for entry in one.held(step, (one.note.rank - 1) % one.note.num_ranks not in living_places)
    ]
    wanted = [] if parts is None else parts.state.owned_boxes()
    redistribute(living, held, [(tensor, piece.box, array) for tensor, piece, array in wanted])
    if parts is not None:
        parts.checkpoints.go_on_from(
            next(
                note.generations[step] for notes in everyones for note in notes if note.life == life
            )
        )
    holder = next(rank for rank, notes in enumerate(everyones) if notes)
    companions = living.broadcast_object(
        copies[-1].companions if living.rank == holder else None, holder
    )
    if parts is not None:
        parts.checkpoints.add_companions(companions)
    return step


def _newest_whole(notes: list[Note]) -> tuple[int, int, set[int]] | None:
    """Return (life, step, places of its living ranks) of the newest whole state, or None."""
    for life in sorted({note.life for note in notes}, reverse=True):
        of_life = [note for note in notes if note.life == life]
        steps = set.intersection(*(set(note.generations) for note in of_life))
        places = {note.rank for note in of_life}
        num_ranks = of_life[0].num_ranks
        if steps and all({rank, (rank + 1) % num_ranks} & places for rank in range(num_ranks)):
            return life, max(steps), places
    return None


def redistribute(group: CommunicationBackend, held: list, wanted: list) -> None:
    """Fill what is wanted from what is held anywhere. Collective over the group.

    Each element must be held once.

    held     (tensor, Box, array in its shape) each
    wanted   (tensor, Box, 1-D view to write into) each
    """
    everyones = group.all_gather_object(
        ([entry[:2] for entry in held], [entry[:2] for entry in wanted])
    )
    outgoing = [_meeting(held, there) for _, there in everyones]
    incoming = [_meeting(wanted, here, reverse=True) for here, _ in everyones]
    parcels = [
        [array[box.relative_to(whole).slices()] for array, whole, box in pairs]
        for pairs in outgoing
    ]
    send = numpy.concatenate(
        [
            numpy.ascontiguousarray(part).reshape(-1).view(numpy.uint8)
            for parcel in parcels
            for part in parcel
        ]
        or [numpy.empty(0, numpy.uint8)]
    )
    receive_counts = [
        sum(box.size * array.dtype.itemsize for array, _, box in pairs) for pairs in incoming
    ]
    receive = numpy.empty(sum(receive_counts), numpy.uint8)
    group.all_to_all(
        send, receive, [sum(part.nbytes for part in parcel) for parcel in parcels], receive_counts
    )
    at = 0
    for array, whole, box in (pair for pairs in incoming for pair in pairs):
        num_bytes = box.size * array.dtype.itemsize
        _put(array, whole, box, receive[at : at + num_bytes].view(str(array.dtype)))
        at += num_bytes


def _meeting(mine: list, theirs: list, reverse: bool = False) -> list:
    """Return (own array, own box, common box) of all that two ranks have in common.

    Both get the same order.

    reverse   the other one holds, and its order counts
    """
    by_tensor: dict[str, list] = {}
    for number, (tensor, box) in enumerate(theirs):
        by_tensor.setdefault(tensor, []).append((number, box))
    pairs = [
        (here, there, array, box, common)
        for here, (tensor, box, array) in enumerate(mine)
        for there, other in by_tensor.get(tensor, ())
        if (common := box.intersection(other)) is not None
    ]
    pairs.sort(key=lambda pair: (pair[1], pair[0]) if reverse else (pair[0], pair[1]))
    return [(array, box, common) for _, _, array, box, common in pairs]


def _put(array, whole: Box, box: Box, values) -> None:
    """Write a box's values into a 1-D view, in host or device memory, of the whole box."""
    # A view, also of a scalar.
    target = array.reshape(whole.shape)[(*box.relative_to(whole).slices(), ...)]
    if is_device_array(array):
        fill_from_host(target, numpy.ascontiguousarray(values.reshape(box.shape)))
    else:
        target[...] = values.reshape(box.shape)
