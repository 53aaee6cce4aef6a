"""Lowering: passes that turn an order (F, B, W of whole stages) into a program that a rank can
execute line by line.

    order            0F0 0B0 0W0
    expand           0.0F0 0.1F0  0.1B0 0.1W0 0.0B0 0.0W0
                     stages become units
    cut_backward     ends at the first unit that is trained, if others before it are frozen
    add_gathers      0.0GATHER 0.0F0 0.0RELEASE  0.1GATHER 0.1F0 0.1B0 0.1W0 0.1RELEASE ...
                     parameters are whole only while they are needed
    add_reductions   ... 0.0B0 0.0W0 0.0RELEASE 0.0REDUCE
                     one gradient sum per unit
    add_transfers    ... 0.1F0 0SEND_F0 ... 0RECV_B0 0.1B0 ... 0WAIT_F0
                     messages between ranks
    add_step         ... 0.0STEP 0.1STEP
                     the optimizer

Each pass is a pure function from program to program, does one thing, and knows nothing of the other
passes or of the order: a new order needs no new pass. The tests run the examples in the docstrings.
Source: the passes of torch.distributed.pipelining.schedules.
"""

from bisect import bisect
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

from ..errors import ScheduleError
from .actions import COMPUTE, RECEIVES, SENDS, Action, Kind, Program, receive_of, wait_of
from .check import validate

UnitKey = tuple[int, int | None]  # (stage, unit)


@dataclass(frozen=True)
class Uses:
    """Which units have the parameters that a unit uses.

    borrows         {(stage, unit): [(stage, unit), ...]}: units that use another unit's parameters
                    besides their own, for example a head that is tied to the embedding. Borrower
                    and lender must be on one rank.
    parts           {(stage, unit): [(stage, unit), ...]}: units that nothing flows through, with
                    further parameters of a unit
    frozen          units and parts whose parameters take no gradient
    gathers_parts   False: a unit with parts is gathered while it computes, and not by actions
    """

    borrows: Mapping[UnitKey, Iterable[UnitKey]] = field(default_factory=dict)
    parts: Mapping[UnitKey, Iterable[UnitKey]] = field(default_factory=dict)
    frozen: frozenset[UnitKey] = frozenset()
    gathers_parts: bool = True

    def of(self, unit: UnitKey) -> list[UnitKey]:
        """Return the unit itself, those that it borrows from, and the parts of both."""
        units = (unit, *self.borrows.get(unit, ()))
        return [each for unit in units for each in (unit, *self.parts.get(unit, ()))]

    def trained(self, unit: UnitKey) -> list[UnitKey]:
        """Return those that take a gradient."""
        return [each for each in self.of(unit) if each not in self.frozen]

    def gathered(self, unit: UnitKey) -> list[UnitKey]:
        """Return those that actions gather, ascending."""
        return sorted(self.of(unit)) if self.gathers_parts or unit not in self.parts else []


_OWN = Uses()  # each unit uses its own


def lower(
    program: Program,
    units_per_stage: Mapping[int, int],
    uses: Uses = _OWN,
    *,
    clip: bool = False,
    ties: Iterable[UnitKey] = (),
) -> Program:
    """Turn the order into a complete training step: run all passes, one after another.

    units_per_stage   {stage: number of units}
    clip              bound the gradient norm before the optimizer steps
    ties              (stage, unit) of the units that have copies on other ranks, and of the copies:
                      tied weights whose users are not on one rank
    Errors: ScheduleError for a malformed order, a stage without units, or a borrow between ranks.
    """
    validate(program)
    program = expand(program, units_per_stage)
    _check_borrows(program, uses)
    program = cut_backward(program, uses)
    program = add_gathers(program, uses)
    program = add_reductions(program, uses)
    program = add_transfers(program)
    return add_step(program, clip, ties)


# --- units ----------------------------------------------------------------------------------------


class _Job(NamedTuple):
    """Actions that are expanded together: all `kinds`, for each micro-batch, for each unit."""

    kinds: tuple[Kind, ...]
    stage: int
    micro_batches: tuple[int, ...]

    def actions(self, num_units: int) -> list[Action]:
        units = range(num_units) if self.kinds == (Kind.FORWARD,) else reversed(range(num_units))
        return [
            Action(kind, self.stage, unit, m)
            for unit in units
            for m in self.micro_batches
            for kind in self.kinds
        ]


def expand(program: Program, units_per_stage: Mapping[int, int]) -> Program:
    """Replace each action of a stage by those of its units: F ascending, B descending, W after B.

    On several pipeline ranks the order is depth first, so that a micro-batch leaves for the next
    rank as early as possible:

        >>> print(to_text(expand(from_text("0: 0F0 0F1\\n1: 1F0 1B0 1W0"), {0: 2, 1: 2})))
        0: 0.0F0 0.1F0 0.0F1 0.1F1
        1: 1.0F0 1.1F0 1.1B0 1.1W0 1.0B0 1.0W0

    On a single rank it is breadth first: neighboring actions of one kind go through a unit
    together.

        >>> print(to_text(expand(from_text("0: 0F0 0F1 0B0 0W0 0B1 0W1"), {0: 2})))
        0: 0.0F0 0.0F1 0.1F0 0.1F1 0.1B0 0.1W0 0.1B1 0.1W1 0.0B0 0.0W0 0.0B1 0.0W1

    Under FSDP each new visit to a unit is an all-gather of its parameters: gpipe on one stage
    visits a unit once forwards and once backwards per step and can reduce its gradient immediately,
    but keeps the activations of all micro-batches; 1f1b on one stage keeps those of a single one,
    but visits every unit twice per micro-batch.
    """
    breadth_first = len(program) == 1
    expanded = {}
    for rank, actions in program.items():
        jobs = _jobs(actions)
        if breadth_first:
            jobs = _merged(jobs)
        expanded[rank] = tuple(
            a for job in jobs for a in job.actions(_num_units(job.stage, units_per_stage))
        )
    return expanded


def _jobs(actions: tuple[Action, ...]) -> list[_Job]:
    """Make each action a job, but a B and the W of the same micro-batch right after it one job."""
    jobs: list[Any] = []
    for action in actions:
        b_before = _Job((Kind.BACKWARD,), action.stage, (action.micro_batch,))
        if action.kind is Kind.WEIGHT and jobs and jobs[-1] == b_before:
            jobs[-1] = b_before._replace(kinds=(Kind.BACKWARD, Kind.WEIGHT))
        else:
            jobs.append(_Job((action.kind,), action.stage, (action.micro_batch,)))
    return jobs


def _merged(jobs: list[_Job]) -> list[_Job]:
    """Merge neighboring jobs that differ only in the micro-batch."""
    runs = groupby(jobs, key=lambda job: (job.kinds, job.stage))
    return [
        _Job(kinds, stage, tuple(m for job in run for m in job.micro_batches))
        for (kinds, stage), run in runs
    ]


def _num_units(stage: int, units_per_stage: Mapping[int, int]) -> int:
    if units_per_stage.get(stage, 0) < 1:
        raise ScheduleError(
            f"stage {stage} has no units; units_per_stage is {dict(units_per_stage)} and must give "
            "every stage of the program at least one"
        )
    return units_per_stage[stage]


def cut_backward(program: Program, uses: Uses = _OWN) -> Program:
    """Leave out B and W of the units before the first one that gives a gradient to a parameter.

        >>> program = from_text("0: 0.0F0 0.1F0 0.1B0 0.1W0 0.0B0 0.0W0")
        >>> print(to_text(cut_backward(program, Uses(frozen=frozenset({(0, 0)})))))
        0: 0.0F0 0.1F0 0.1B0 0.1W0

    A frozen unit after it passes a gradient on, and a borrower of one that is trained writes there.
    """
    units = {(action.stage, action.unit) for actions in program.values() for action in actions}
    first = min(filter(uses.trained, units), default=(0, 0))
    return {
        rank: tuple(
            action
            for action in actions
            if action.kind is Kind.FORWARD or (action.stage, action.unit) >= first
        )
        for rank, actions in program.items()
    }


# --- parameters and gradients over the data axis --------------------------------------------------


def add_gathers(program: Program, uses: Uses = _OWN) -> Program:
    """Gather a unit before each run of neighboring actions that need it, and release it after.

        >>> print(to_text(add_gathers(from_text("0: 0.0F0 0.1F0 0.1B0 0.0B0"))))
        0: 0.0GATHER 0.0F0 0.0RELEASE 0.1GATHER 0.1F0 0.1B0 0.1RELEASE 0.0GATHER 0.0B0 0.0RELEASE

    A borrower needs its lenders too; a lender that was gathered already stays:

        >>> program = from_text("0: 0.0F0 0.1F0 0.2F0")
        >>> print(to_text(add_gathers(program, Uses(borrows={(0, 1): [(0, 0)]}))))
        0: 0.0GATHER 0.0F0 0.1GATHER 0.1F0 0.0RELEASE 0.1RELEASE 0.2GATHER 0.2F0 0.2RELEASE

    A unit with parts, and its borrowers, need all of them, or it sees to it by itself:

        >>> program, parts = from_text("0: 0.0F0 0.0B0"), {(0, 0): [(0, 1)]}
        >>> print(to_text(add_gathers(program, Uses(parts=parts))))
        0: 0.0GATHER 0.1GATHER 0.0F0 0.0B0 0.0RELEASE 0.1RELEASE
        >>> print(to_text(add_gathers(program, Uses(parts=parts, gathers_parts=False))))
        0: 0.0F0 0.0B0
    """
    return {rank: _gathered(actions, uses) for rank, actions in program.items()}


def _gathered(actions: tuple[Action, ...], uses: Uses) -> tuple[Action, ...]:
    needs = [uses.gathered((action.stage, action.unit)) for action in actions]
    result = []
    for before, action, now, after in zip([[], *needs], actions, needs, [*needs[1:], []]):
        result += [Action(Kind.GATHER, *unit) for unit in now if unit not in before]
        result.append(action)
        result += [Action(Kind.RELEASE, *unit) for unit in now if unit not in after]
    return tuple(result)


def add_reductions(program: Program, uses: Uses = _OWN) -> Program:
    """Sum a unit's gradient over the data ranks once per step, after the last W that adds to it;
    frozen units have none.

        >>> program = from_text("0: 0.0GATHER 0.0B0 0.0W0 0.0B1 0.0W1 0.0RELEASE 0.0STEP")
        >>> print(to_text(add_reductions(program)))
        0: 0.0GATHER 0.0B0 0.0W0 0.0B1 0.0W1 0.0RELEASE 0.0REDUCE 0.0STEP

    The REDUCE stands after the RELEASE rather than before it, so that the whole parameters are gone
    before buffers of the reduction are needed. The gradient of a lender also waits for the W of its
    borrowers:

        >>> program = from_text("0: 0.0B0 0.0W0 0.1B0 0.1W0")
        >>> print(to_text(add_reductions(program, Uses(borrows={(0, 1): [(0, 0)]}))))
        0: 0.0B0 0.0W0 0.1B0 0.1W0 0.0REDUCE 0.1REDUCE
    """
    return {rank: _reduced(actions, uses) for rank, actions in program.items()}


def _reduced(actions: tuple[Action, ...], uses: Uses) -> tuple[Action, ...]:
    complete_at = {
        unit: at
        for at, action in enumerate(actions)
        if action.kind is Kind.WEIGHT
        for unit in uses.trained((action.stage, action.unit))
    }
    released_at = {
        (action.stage, action.unit): at
        for at, action in enumerate(actions)
        if action.kind is Kind.RELEASE
    }
    reduced_at = {unit: max(at, released_at.get(unit, at)) for unit, at in complete_at.items()}
    result = []
    for at, action in enumerate(actions):
        result.append(action)
        result += [
            Action(Kind.REDUCE, *unit) for unit in sorted(reduced_at) if reduced_at[unit] == at
        ]
    return tuple(result)


def _check_borrows(program: Program, uses: Uses) -> None:
    ranks = {
        (a.stage, a.unit): rank
        for rank, actions in program.items()
        for a in actions
        if a.kind in COMPUTE
    }
    for borrower, lenders in uses.borrows.items():
        for unit in (borrower, *lenders):
            if unit not in ranks:
                raise ScheduleError(
                    f"unit {_text(unit)} borrows or is borrowed, but the program has no such unit"
                )
            if ranks[unit] != ranks[borrower]:
                raise ScheduleError(
                    f"unit {_text(borrower)} on rank {ranks[borrower]} cannot borrow from "
                    f"{_text(unit)} on rank {ranks[unit]}; tied parameters must be on one pipeline "
                    "rank"
                )


def _text(unit: UnitKey) -> str:
    return f"{unit[0]}.{unit[1]}"


# --- messages between pipeline ranks --------------------------------------------------------------


def add_transfers(program: Program) -> Program:
    """Send activations to the next stage, and gradients to the one before, if on another rank.

        >>> program = from_text("0: 0.0F0 0.1F0 0.1B0 0.0B0\\n1: 1.0F0 1.1F0 1.1B0 1.0B0")
        >>> print(to_text(add_transfers(program)))
        0: 0.0F0 0.1F0 0SEND_F0 0RECV_B0 0WAIT_F0 0.1B0 0.0B0
        1: 1RECV_F0 1.0F0 1.1F0 1.1B0 1.0B0 1SEND_B0 1WAIT_B0

    A gradient is sent to a stage that has a B for it.

    A SEND stands right after the action that makes the value, before the W of the same unit: the
    next rank waits for it. A RECV stands right before the action that needs the value. A WAIT marks
    where the buffer of a SEND may be used again, and stands where it cannot block: after the first
    RECV that proves that the receiver has passed the matching RECV (0WAIT_F0 above: the gradient of
    micro-batch 0 cannot come before its activations have left). Where no message proves it, the
    WAIT stands at the end, before the optimizer steps.
    """
    return _add_waits(_add_sends_and_receives(program))


def _add_sends_and_receives(program: Program) -> Program:
    compute = {rank: [a for a in actions if a.kind in COMPUTE] for rank, actions in program.items()}
    rank_of_stage = {a.stage: rank for rank, actions in compute.items() for a in actions}
    units = sorted({(a.stage, a.unit) for actions in compute.values() for a in actions})
    # {stage: unit}; a dictionary keeps the later one of equal stages
    last, first = dict(units), dict(reversed(units))
    backwards = {
        (a.stage, a.unit)
        for actions in compute.values()
        for a in actions
        if a.kind is Kind.BACKWARD
    }

    def transfer(
        kind: Kind, a: Action, at_unit: Mapping[int, int | None], neighbor: int
    ) -> list[Action]:
        """Return the transfer, if the action is at the edge of its stage and the neighboring stage
        is on another rank.
        """
        crosses = rank_of_stage.get(neighbor, rank_of_stage[a.stage]) != rank_of_stage[a.stage]
        if a.unit != at_unit[a.stage] or not crosses:
            return []
        return [Action(kind, a.stage, None, a.micro_batch)]

    def with_transfers(a: Action) -> list[Action]:
        if a.kind is Kind.FORWARD:
            return [
                *transfer(Kind.RECV_F, a, first, a.stage - 1),
                a,
                *transfer(Kind.SEND_F, a, last, a.stage + 1),
            ]
        if a.kind is Kind.BACKWARD:
            is_wanted = (a.stage - 1, last.get(a.stage - 1)) in backwards
            return [
                *transfer(Kind.RECV_B, a, last, a.stage + 1),
                a,
                *(transfer(Kind.SEND_B, a, first, a.stage - 1) if is_wanted else []),
            ]
        return [a]

    return {
        rank: tuple(b for a in actions for b in with_transfers(a))
        for rank, actions in program.items()
    }


def _add_waits(program: Program) -> Program:
    """Put the WAIT of a SEND after the first RECV that proves it was received, or at the end."""
    messages = _messages(program)
    replies = defaultdict(list)  # {(from, to): [(posted at, received at), ...]}, ascending
    for message in messages:
        replies[message.sender, message.receiver].append((message.sent_at, message.received_at))
    waits = defaultdict(list)  # {(rank, position): the waits that stand after it}
    for message in messages:
        proof = _first_proof(message, replies[message.receiver, message.sender])
        end = len(program[message.sender]) - 1
        waits[message.sender, end if proof is None else proof].append(wait_of(message.send))
    return {
        rank: tuple(b for at, a in enumerate(actions) for b in (a, *waits[rank, at]))
        for rank, actions in program.items()
    }


class _Sent(NamedTuple):
    send: Action
    sender: int  # rank
    sent_at: int  # position in the sender's program
    receiver: int
    received_at: int


def _messages(program: Program) -> list[_Sent]:
    """Return all messages, by sender and then by the position of the SEND."""
    place = {
        a: (rank, at)
        for rank, actions in program.items()
        for at, a in enumerate(actions)
        if a.kind in SENDS + RECEIVES
    }
    return [_Sent(a, *place[a], *place[receive_of(a)]) for a in place if a.kind in SENDS]


def _first_proof(message: _Sent, replies: list[tuple[int, int]]) -> int | None:
    """Return where the sender gets the first message posted after this one was received, if
    anywhere.
    """
    later = replies[bisect(replies, (message.received_at,)) :]
    return min((at for _, at in later if at > message.sent_at), default=None)


# --- the optimizer --------------------------------------------------------------------------------


def add_step(program: Program, clip: bool = False, ties: Iterable[UnitKey] = ()) -> Program:
    """End each rank with a TIE per tied unit, a CLIP if asked for, and a STEP per reduced unit.

        >>> program = from_text("0: 0.1W0 0.1REDUCE 0.0W0 0.0REDUCE")
        >>> print(to_text(add_step(program, clip=True, ties=[(0, 1)])))
        0: 0.1W0 0.1REDUCE 0.0W0 0.0REDUCE 0.1TIE CLIP 0.0STEP 0.1STEP

    Units ascend. CLIP needs the gradient norm of the whole model, so all ranks meet there, and no
    STEP can come before it. A TIE is a meeting of the ranks that hold replicas: here nobody waits
    for an activation anymore, so it cannot hang.
    """
    result, ties = {}, set(ties)
    for rank, actions in program.items():
        reduced = sorted((a.stage, a.unit) for a in actions if a.kind is Kind.REDUCE)
        result[rank] = (
            *actions,
            *(Action(Kind.TIE, *unit) for unit in reduced if unit in ties),
            *[Action(Kind.CLIP)] * clip,
            *(Action(Kind.STEP, *unit) for unit in reduced),
        )
    return result
