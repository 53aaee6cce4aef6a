"""What an engine keeps from step to step, on its way in and out: as whole vectors, as boxes of
tensors, as copies.

units of all ranks --gather--> [parameter_count]           the same vector on every mesh and policy
units of this rank ----------> (path, box, view), ...      what a checkpoint writes and reads
"""

import copy
from dataclasses import replace
from math import prod

import numpy

from ...array.backend import host_array, to_host
from ...comm import check_same, collectively
from ...errors import ShapeError, ShardingError
from ...nn.init import Unread
from ...nn.module import Module
from ...optim.late import on_state_since
from ..data.unit import Unit
from ..step.votes import Skips
from ..tensor.layers import global_piece, is_counted
from .fingerprint import describe


class State:
    """Mixed into Engine, which has the units. Every method is collective over the mesh, but where
    it says otherwise.
    """

    def check_weights(self):
        """Raise ShardingError while the model awaits the weights of a checkpoint. No communication.

        On all ranks alike, for they agreed on it when the model was made.
        """
        if not self.awaits_weights:
            return
        unread = [p.init for p in self.model.parameters() if isinstance(p.init, Unread)]
        raise ShardingError(
            unread[0].what_to_do
            if unread
            else "the model of another rank has no weights yet: make "
            "the same model on all ranks, and call load_model() before anything else"
        )

    # ---- whole vectors ---------------------------------------------------------------------------

    @property
    def parameter_count(self) -> int:
        """Elements of the whole model, each counted once."""
        return sum(prod(parameter.global_shape) for parameter in self.model.parameters())

    def gather_full_parameters(self):
        """All parameters, 1-D, in the order of the model's named_parameters(): the same on every
        mesh and policy.
        """
        self.check_weights()
        full = numpy.empty(self.parameter_count, self.units[0].dtype)
        views = self._canonical_views(full)
        for place, plan in self.stages.plans.items():
            if plan.is_copy:
                continue
            of_ranks, at = self._whole_unit(place, plan.num_elements), 0
            for name, parameter in plan.parameters.items():
                for rank, boxes in enumerate(self._boxes):
                    views[name][boxes[name].slices()] = of_ranks[
                        rank, at : at + parameter.size
                    ].reshape(boxes[name].shape)
                at += parameter.size
        return full

    def _whole_unit(self, place, num_elements):
        """The parameters of one unit [tensor ranks, num_elements] on the host of every rank,
        wherever the unit is.
        """
        of_ranks = numpy.empty((self.tensor.world_size, num_elements), self.units[0].dtype)
        if place in self.runtime.units:
            unit = self.runtime.units[place]
            unit.gather()
            self.tensor.all_gather(
                numpy.ascontiguousarray(to_host(unit.trained_parameters())), of_ranks.reshape(-1)
            )
            unit.release()
        self.pipeline.broadcast(of_ranks, self.stages.rank_of[place.stage])
        return of_ranks

    def local_parameters(self):
        """What this rank owns and updates, 1-D, a copy. No communication."""
        if not self.units[0].updates_all:
            return numpy.concatenate([to_host(unit.owned_parameters) for unit in self.own_units])
        slots = {
            slot.name: unit.updated_parameters[slot.offset : slot.stop]
            for unit in self.own_units
            for slot in unit.layout.slots
        }
        order = [name for name in self.model.named_parameters() if name in slots]
        return numpy.concatenate([to_host(slots[name]) for name in order])

    def set_full_parameters(self, vector):
        """The inverse: every rank takes what it owns from the same whole vector.

        Errors, on all ranks: ValueError on a wrong length, ShardingError if ranks were given
        different ones.
        """
        with collectively(self.mesh.world):
            vector = host_array("the parameter vector", vector)
            if vector.shape != (self.parameter_count,):
                raise ShapeError(
                    f"a parameter vector of shape {vector.shape}; wanted ({self.parameter_count},)"
                )
        check_same(self.mesh.world, {"the parameter vector": describe(vector)})
        views = self._canonical_views(vector)
        for _, piece, array in self._boxes_of(
            {"model": lambda unit: unit.owned_parameters}, self.units
        ):
            array[...] = self.device.from_host(views[piece.name][piece.box.slices()].reshape(-1))
        self.is_initial = self.awaits_weights = False
        self._settle()

    def _canonical_views(self, vector) -> dict:
        """{name: view of its elements, in the shape of the whole parameter} of a canonical
        vector.
        """
        views, at = {}, 0
        for name, parameter in self.model.named_parameters().items():
            size = prod(parameter.global_shape)
            views[name] = vector[at : at + size].reshape(parameter.global_shape)
            at += size
        return views

    # ---- what a checkpoint holds -----------------------------------------------------------------

    def owned_boxes(self):
        """(path in the checkpoint, piece of the whole tensor, 1-D view) of all that this rank
        keeps; no communication.

        Parameters that several tensor ranks hold are here on each of them: what a rank reads.
        """
        return self._boxes_of(self._owned_arrays(), self.units)

    def counted_boxes(self):
        """The same without copies: over all ranks they tile every tensor exactly once. What a rank
        writes.
        """
        self.check_weights()
        parameters = self.model.named_parameters()
        return [
            box
            for box in self._boxes_of(self._owned_arrays(), self.own_units)
            if is_counted(parameters[box[1].name])
        ]

    def _owned_arrays(self) -> dict:
        """{group in the checkpoint: function unit -> what this rank owns of it [num_owned]}."""
        states = {
            f"optimizer/{name}": lambda unit, name=name: unit.owned_state(name)
            for name in self.rule.state_names
        }
        return {"model": lambda unit: unit.owned_parameters, **states}

    def _boxes_of(self, arrays: dict, units: list[Unit]) -> list:
        return [
            (
                f"{group}/{piece.name}",
                global_piece(unit.plan.parameters[piece.name], piece),
                array_of(unit)[piece.start : piece.stop],
            )
            for unit in units
            for group, array_of in arrays.items()
            for piece in unit.pieces()
        ]

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """{path in the checkpoint: global shape} of everything a checkpoint of this model holds."""
        names = ["model"] + [f"optimizer/{name}" for name in self.rule.state_names]
        return {
            f"{group}/{name}": parameter.global_shape
            for group in names
            for name, parameter in self.model.named_parameters().items()
        }

    def fresh_module(self) -> Module:
        """A copy of the wrapped model that is bound to nothing; its parameters have their initial
        values.
        """
        for unit in self.units:
            unit.unbind()
        module = copy.deepcopy(self.model)
        for parameter in module.parameters():
            parameter.renew()
        for unit in self.units:
            unit.gather_if_lasting()
        return module

    def copy_state_from(self, other: "State"):
        """Take over parameters, optimizer state and step of an engine on the same mesh, policy and
        model.
        """
        self._wait_for_readers()
        for (_, _, mine), (_, _, theirs) in zip(self.owned_boxes(), other.owned_boxes()):
            mine[...] = theirs
        self.restore(
            other.step_number,
            other.samples_seen,
            other.skips.total,
            other.loss_scale.state(),
            other.state_since,
        )
        self.awaits_weights = other.awaits_weights

    def restore(
        self,
        step_number: int,
        samples_seen: int,
        skipped_steps: int = 0,
        loss_scale: dict | None = None,
        state_since: int = 0,
    ):
        """After all owned boxes were written from a checkpoint: go on from there.

        state_since   after how many steps, skipped ones not counted, the optimizer state was zero
        """
        self.state_since = state_since
        self._tell_units_the_rule()
        self.step_number, self.samples_seen, self.is_initial = step_number, samples_seen, False
        self.skips = Skips(skipped_steps)
        self.loss_scale.restore(loss_scale)
        self.drop_gradients()
        self._settle()

    # ---- the rule, and parameters to come back to ------------------------------------------------

    def use_rule(self, rule):
        """Go on with another rule on the state that is there.

        Errors, on all ranks: ShardingError if it keeps other state, or is not the same on all.
        """
        with collectively(self.mesh.world):
            self._check_rule(rule)
        check_same(self.mesh.world, {"the rule": describe(rule)})
        self.config, self.rule = replace(self.config, optimizer=rule), rule
        self._tell_units_the_rule()

    def _tell_units_the_rule(self):
        for unit in self.units:
            unit.rule = on_state_since(self.rule, self.state_since)

    def _check_rule(self, rule):
        if tuple(rule.state_names) != tuple(self.rule.state_names):
            raise ShardingError(
                f"the model keeps {_listed(self.rule.state_names)} for {type(self.rule).__name__}, but "
                f"{type(rule).__name__} keeps {_listed(rule.state_names)}; make the sharded model with that rule"
            )

    def reset_rule(self):
        """Optimizer state zero, and the next step is the first; parameters stay."""
        self.clear_state()
        self.restore(0, self.samples_seen)

    def clear_state(self):
        """Optimizer state zero; restore() comes next. No communication."""
        for unit in self.units:
            unit.clear_state()

    def copy_parameters(self) -> list:
        """What this rank owns of each unit, copied. No communication."""
        return [unit.owned_parameters.copy() for unit in self.units]

    def put_parameters(self, copies):
        """Take back what copy_parameters() gave on each rank."""
        self._wait_for_readers()
        for unit, values in zip(self.units, copies):
            unit.owned_parameters[...] = values
        self.is_initial = False
        self._settle()

    def start_over(self):
        """Parameters and optimizer state as the seed makes them, which they were if
        `is_initial`.
        """
        for unit in self.units:
            unit.start_over()
        self._settle()

    # ---- after owned values were written ---------------------------------------------------------

    def _wait_for_readers(self):
        """Before owned values are written, unless all ranks have just agreed on it."""
        for unit in self.units:
            unit.wait_for_readers()

    def _settle(self):
        """After owned values were written: policies that keep whole parameters have them whole
        again.
        """
        for unit in self.units:
            unit.spread()
            unit.gather_if_lasting()


def _listed(names) -> str:
    return ", ".join(names) or "nothing"
