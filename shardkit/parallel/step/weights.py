"""The weights of a model on a mesh, as whole vectors and as copies of what a rank owns.

    units of all ranks --gather--> [parameter_count]      the same vector on every mesh and policy
                       <--set-----

Every method is collective over the mesh, unless it says otherwise.
"""

import copy
from math import prod

import numpy

from ...array.backend import host_array, to_host
from ...array.device import Device
from ...array.dtypes import check_real
from ...comm.mesh import Mesh
from ...comm.same import alike
from ...errors import ShapeError, ShardingError
from ...nn.init import Unread
from ...nn.module import Module
from ..data.unit import Unit
from ..fingerprint import describe
from ..pipeline.stages import Stages
from ..tensor.claims import global_piece


class Weights:
    """The parameters of all units of one model.

    units           of this rank
    are_seeded      the seed made them, and nothing was written in their place: before the first
                    step, start_over() makes the same again
    awaits_values   they await the values of a checkpoint, on this rank at least
    """

    def __init__(
        self,
        model: Module,
        mesh: Mesh,
        stages: Stages,
        units,
        device: Device,
        *,
        is_initial: bool,
        awaits_values: bool,
    ):
        self.units = units
        self.are_seeded, self.awaits_values = is_initial, awaits_values
        self._model, self._mesh = model, mesh
        self._device = device
        self._stages = stages
        boxes = {name: parameter.box for name, parameter in model.named_parameters().items()}
        self._boxes = mesh.group("tensor").all_gather_object(boxes)  # by tensor rank

    def check(self) -> None:
        """Raise ShardingError while the model awaits the values of a checkpoint. No communication.

        Raises on all ranks alike, for they agreed on it when the model was made.
        """
        if not self.awaits_values:
            return
        unread = [p.init for p in self._model.parameters() if isinstance(p.init, Unread)]
        if unread:
            raise ShardingError(unread[0].what_to_do)
        raise ShardingError(
            "the model of another rank has no weights yet: make the same model on all ranks, and "
            "call load_model() before anything else"
        )

    def awaited(self) -> frozenset[str]:
        """Return the names of the parameters that await values; all, if only other ranks know."""
        if not self.awaits_values:
            return frozenset()
        parameters = self._model.named_parameters()
        unread = [name for name, p in parameters.items() if isinstance(p.init, Unread)]
        return frozenset(unread or parameters)

    @property
    def count(self) -> int:
        """Elements of the whole model, each counted once."""
        return sum(prod(parameter.global_shape) for parameter in self._model.parameters())

    # ---- whole vectors ---------------------------------------------------------------------------

    def gather(self):
        """Return all parameters, 1-D, in the order of the model's named_parameters()."""
        self.check()
        full = numpy.empty(self.count, self.units[0].dtype)
        views = self._canonical_views(full)
        for place, plan in self._stages.plans.items():
            if plan.is_copy:
                continue
            values, at = self._whole_unit(place, plan.parameters), 0
            for boxes in self._boxes:
                for name in plan.parameters:
                    box = boxes[name]
                    views[name][box.slices()] = values[at : at + box.size].reshape(box.shape)
                    at += box.size
        return full

    def _whole_unit(self, place, names):
        """Return the parameters of one unit, tensor rank after tensor rank, on every rank's host.

        names   of its parameters, in their order in the unit
        """
        counts = [sum(boxes[name].size for name in names) for boxes in self._boxes]
        of_ranks = numpy.empty(sum(counts), self.units[0].dtype)
        if place in self.units.at:
            unit = self.units.at[place]
            unit.gather()
            own = numpy.ascontiguousarray(to_host(unit.trained_parameters()))
            self._mesh.group("tensor").all_gather(own, of_ranks, counts)
            unit.release()
        self._mesh.group("pipeline").broadcast(of_ranks, self._stages.rank_of[place.stage])
        return of_ranks

    def local(self):
        """Return what this rank updates, 1-D, a read-only copy. No communication."""
        self.check()
        owned = numpy.concatenate([to_host(part) for part in self._local_parts()])
        owned.flags.writeable = False
        return owned

    @property
    def num_local(self) -> int:
        """The length of local(), without the copy."""
        return sum(part.size for part in self._local_parts())

    def _local_parts(self) -> list:
        """Return what this rank updates, in pieces where they lie."""
        if not self.units[0].optimizer.updates_all:
            return [unit.optimizer.parameters for unit in self.units.own]
        slots = {
            slot.name: unit.optimizer.parameters[slot.offset : slot.stop]
            for unit in self.units.own
            for slot in unit.layout.slots
        }
        order = [name for name in self._model.named_parameters() if name in slots]
        return [slots[name] for name in order]

    def set(self, vector) -> None:
        """Take what each rank owns from the same whole vector: the inverse of gather().

        Errors, on all ranks: ValueError on a wrong length, ShardingError if ranks were given
        different ones.
        """
        with alike(self._mesh.world, call="set_parameters") as facts:
            vector = host_array("the parameter vector", vector)
            if vector.shape != (self.count,):
                raise ShapeError(
                    f"a parameter vector of shape {vector.shape}; wanted ({self.count},)"
                )
            check_real("the parameter vector", vector.dtype)
            facts["the parameter vector"] = describe(vector)
        views = self._canonical_views(vector)
        for _, piece, array in self.boxes_of(lambda unit: {"model": unit.owned_parameters}):
            array[...] = self._device.from_host(views[piece.name][piece.box.slices()].reshape(-1))
        self.replace(awaits_values=False)

    def _canonical_views(self, vector) -> dict:
        """Return {name: view of its elements, in the shape of the whole parameter} of a vector."""
        views, at = {}, 0
        for name, parameter in self._model.named_parameters().items():
            size = prod(parameter.global_shape)
            views[name] = vector[at : at + size].reshape(parameter.global_shape)
            at += size
        return views

    # ---- copies, and values to come back to ------------------------------------------------------

    def fresh_module(self) -> Module:
        """Return a copy of the wrapped model that is bound to nothing, with initial values."""
        for unit in self.units:
            unit.unbind()
        module = copy.deepcopy(self._model)
        for parameter in module.parameters():
            parameter.renew()
        for unit in self.units:
            unit.gather_if_lasting()
        return module

    def copy_owned(self) -> list:
        """Return copies of what this rank owns of each unit. No communication."""
        return [unit.owned_parameters.copy() for unit in self.units]

    def put_back(self, copies) -> None:
        """Take back what copy_owned() returned on each rank."""
        self.wait_for_readers()
        for unit, values in zip(self.units, copies):
            unit.owned_parameters[...] = values
        self.replace(awaits_values=self.awaits_values)

    def start_over(self) -> None:
        """Make parameters and optimizer state as the seed makes them."""
        for unit in self.units:
            unit.start_over()
        self.settle()

    # ---- around writing to what a rank owns ------------------------------------------------------

    def wait_for_readers(self) -> None:
        """Wait until owned values may be written; not needed where all ranks have just agreed."""
        for unit in self.units:
            unit.wait_for_readers()

    def replace(self, *, awaits_values: bool) -> None:
        """Go on with values that were written in the place of those that were there."""
        self.are_seeded, self.awaits_values = False, awaits_values
        self.settle()

    def settle(self) -> None:
        """Make replicas and gathered parameters follow owned values that were written."""
        for unit in self.units:
            unit.spread()
            unit.gather_if_lasting()

    # ---- as boxes of whole tensors ---------------------------------------------------------------

    def boxes_of(self, arrays_of=Unit.owned_arrays, *, with_copies: bool = True) -> list[tuple]:
        """Return (path in a checkpoint, piece of the whole tensor, 1-D view) of arrays of units.

        No communication.
        arrays_of     function unit -> {group in the checkpoint: what this rank owns, [num_owned]}
        with_copies   also of units that are copies of another pipeline rank's
        """
        return [
            (
                f"{group}/{piece.name}",
                global_piece(unit.plan.parameters[piece.name], piece),
                array[piece.start : piece.stop],
            )
            for unit in (self.units if with_copies else self.units.own)
            for group, array in arrays_of(unit).items()
            for piece in unit.pieces()
        ]
