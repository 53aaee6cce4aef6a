"""Activations and their gradients on their way through the units of one pipeline rank.

    micro-batch x --F--> unit 0 --F--> unit 1 --SEND, RECV--> unit 2 --F--> ... last unit + loss
                         unit 0 <--B-- unit 1 <--RECV, SEND-- unit 2 <--B-- ...
                           W             W                      W

Each unit and micro-batch is computed by itself (work.py), cut at the unit's input. What units hand
on is an array or a tree of arrays, so a skip connection goes along with the state; the gradient of
a tree is a list, with None for leaves that have none.
"""

from typing import Any

import numpy

from ...nn.loss import parts_noted
from ...schedule.actions import Action, Kind
from ..pipeline.form import NOTHING, key_of
from ..pipeline.stages import Place, Stages
from .inputs import Inputs


class Flow:
    """What computing actions leave for one another.

    transfers   of this rank, to its neighbors in the pipeline
    work        what computes; CUDA graphs put others in its place
    opened      the last WEIGHT action that had its gradient buffers
    """

    def __init__(self, stages: Stages, transfers, work):
        self.stages = stages
        self.transfers = transfers
        self.work = self.plain_work = work
        self.opened: Action | None = None
        self._has_neighbors = len(set(stages.rank_of.values())) > 1  # else nothing is sent
        self._first, self._first_trained = stages.first, stages.first_trained
        self._last = stages.last
        here = work.units.at
        self._after = {place: stages.after(place) for place in here if place != self._last}
        self._before = {place: stages.before(place) for place in here if place != self._first}
        self._numbers = {place: number for number, place in enumerate(stages.places)}
        self._activations: dict[tuple, Any] = {}  # (unit, micro-batch) -> its input, until its F
        self._gradients: dict[tuple, Any] = {}  # (unit, micro-batch) -> of its output, until its B

    @property
    def table(self) -> dict:
        """What each kind of action does."""
        return {
            Kind.FORWARD: self._forward,
            Kind.BACKWARD: self._backward,
            Kind.WEIGHT: self._weight,
            Kind.SEND_F: self._send_f,
            Kind.RECV_F: self._recv_f,
            Kind.SEND_B: self._send_b,
            Kind.RECV_B: self._recv_b,
            Kind.WAIT_F: self._wait_f,
            Kind.WAIT_B: self._wait_b,
        }

    @property
    def table_of_zeros(self) -> dict:
        """What they do on a rank that computes no more: others get zeros for what they wait for."""
        return {
            Kind.FORWARD: self._compute_nothing,
            Kind.BACKWARD: self._compute_nothing,
            Kind.WEIGHT: self._weight_of_zeros,
            Kind.SEND_F: self._send_zeros_f,
            Kind.RECV_F: self._receive_and_drop,
            Kind.SEND_B: self._send_zeros_b,
            Kind.RECV_B: self._receive_and_drop,
        }

    # ---- one program -----------------------------------------------------------------------------

    def begin(self, actions: tuple[Action, ...], inputs: Inputs) -> None:
        """Begin a program: post its first receive."""
        if self._has_neighbors:
            keys = [key_of(micro_batch.x) for micro_batch in inputs.micro_batches]
            self.transfers.begin(actions, keys, self.work.arrival)

    def end(self) -> None:
        """End a program that has been executed."""
        if self._has_neighbors:
            self.transfers.end()

    def give_up(self) -> None:
        """Forget messages of a program that failed on all ranks."""
        self.transfers.give_up()

    def clear(self) -> None:
        """Let go of all that was computed."""
        for results in (self.plain_work, self._activations, self._gradients):
            results.clear()

    # ---- one unit, one micro-batch ---------------------------------------------------------------

    def _forward(self, action, inputs, results):
        place, m = Place(action.stage, action.unit), action.micro_batch
        if place == self._first:
            x = inputs.micro_batches[m].x
        else:
            x = self._activations.pop((place, m))
        notes: dict[str, Any] = {}
        with parts_noted(notes if place == self._last else None):
            output = self.work.forward(place, m, x, inputs)
        if notes:
            results.parts[m] = notes
        if place != self._last:  # the next unit is on this rank, or SEND_F picks it up
            self._activations[self._after[place], m] = output
        elif inputs.loss is not None:
            results.losses[m] = output.reshape(())  # a number once the program has ended
        else:
            results.predictions[m] = output

    def _backward(self, action, inputs, results):
        place, m = Place(action.stage, action.unit), action.micro_batch
        for_input = self.work.backward(place, m, self._gradients.pop((place, m), None), inputs)
        if place != self._first_trained:
            self._gradients[self._before[place], m] = for_input

    def _weight(self, action, inputs, results):
        place, m = Place(action.stage, action.unit), action.micro_batch
        owners, user = self.work.owners(place), self._numbers[place]
        buffers = [owner.gradients.open(user) for owner in owners]
        self.opened = action
        try:
            self.work.weight(place, m, buffers, inputs)
        finally:
            for owner, buffer in zip(owners, buffers):
                owner.gradients.close(user, inputs.first_gradient + m, buffer)

    # ---- between pipeline ranks ------------------------------------------------------------------

    def _send_f(self, action, inputs, results):
        array = self._activations.pop(((action.stage + 1, 0), action.micro_batch))
        self.transfers.send_activation(action.stage, action.micro_batch, array)

    def _recv_f(self, action, inputs, results):
        received = self.transfers.receive(action)
        self._activations[(action.stage, 0), action.micro_batch] = received

    def _send_b(self, action, inputs, results):
        stage, m = action.stage, action.micro_batch
        array = self._gradients.pop((self._before[stage, 0], m))
        self.transfers.send_gradient(stage, m, array)

    def _recv_b(self, action, inputs, results):
        last_of_stage = self.stages.before(Place(action.stage + 1, 0))
        self._gradients[last_of_stage, action.micro_batch] = self.transfers.receive(action)

    def _wait_f(self, action, inputs, results):
        self.transfers.wait("F", action.stage, action.micro_batch)

    def _wait_b(self, action, inputs, results):
        self.transfers.wait("B", action.stage, action.micro_batch)

    # ---- with zeros ------------------------------------------------------------------------------

    def _compute_nothing(self, action, inputs, results):
        """Stand in for F and B."""

    def _weight_of_zeros(self, action, inputs, results):
        place = Place(action.stage, action.unit)
        owners, user = self.plain_work.owners(place), self._numbers[place]
        buffers = [owner.gradients.open(user) for owner in owners]
        self.opened = action
        for owner, buffer in zip(owners, buffers):
            owner.gradients.close(user, inputs.first_gradient + action.micro_batch, buffer)

    def _send_zeros_f(self, action, inputs, results):
        zeros = self.transfers.zeros(Kind.RECV_F, action.stage + 1, action.micro_batch)
        if zeros is None:  # nobody knows the shape yet
            zeros = numpy.zeros(NOTHING)
        self.transfers.send_activation(action.stage, action.micro_batch, zeros)

    def _send_zeros_b(self, action, inputs, results):
        zeros = self.transfers.zeros(Kind.RECV_B, action.stage - 1, action.micro_batch)
        self.transfers.send_gradient(action.stage, action.micro_batch, zeros)

    def _receive_and_drop(self, action, inputs, results):
        self.transfers.receive(action)
