"""Check that a program is well formed, so that `simulate` and the runtime can rely on it."""

from collections import Counter
from typing import Any

from ..errors import ScheduleError
from .actions import COMPUTE, RECEIVES, SENDS, WAITS, Action, Kind, Program, receive_of, wait_of

_ENDS = {Kind.BEGIN_GATHER: Kind.GATHER, Kind.BEGIN_REDUCE: Kind.REDUCE}
_DISTURBS = {
    Kind.BEGIN_GATHER: (Kind.BEGIN_GATHER, Kind.RELEASE, Kind.STEP),
    Kind.BEGIN_REDUCE: (Kind.WEIGHT, Kind.TIE, Kind.CLIP, Kind.STEP),
}
ONCE_PER_RANK = (
    *COMPUTE,
    *SENDS,
    *RECEIVES,
    *WAITS,
    Kind.BEGIN_REDUCE,
    Kind.REDUCE,
    Kind.TIE,
    Kind.CLIP,
    Kind.STEP,
)


def validate(program: Program) -> None:
    """Check that the program is well formed, at stage or unit level, before or after any pass.

    Only GATHER, its BEGIN and RELEASE may happen twice. A stage lives on one rank. Each kind of F,
    B and W in the program is there for every stage, unit and micro-batch, B after F and W after B
    (a program of F alone, for evaluation, is well formed). Every SEND has one RECV, on another
    rank, and one WAIT, after it; no RECV or WAIT lacks its SEND. A BEGIN is followed by its GATHER
    or REDUCE before anything else is done to the parameters, or the gradient, of its unit.
    Errors: ScheduleError naming the first action that is wrong. `simulate` finds out whether the
    program ends.
    """
    _check_repeats(program)
    _check_stages(program)
    _check_compute(program)
    _check_transfers(program)
    _check_begun(program)


def _check_repeats(program: Program) -> None:
    for rank, actions in program.items():
        for action, count in Counter(actions).items():
            if count > 1 and action.kind in ONCE_PER_RANK:
                raise ScheduleError(
                    f"{action} stands {count} times on rank {rank}; it must stand once"
                )


def _check_stages(program: Program) -> None:
    home: dict[Any, Any] = {}
    for rank, actions in program.items():
        for action in actions:
            if action.stage is not None and home.setdefault(action.stage, rank) != rank:
                raise ScheduleError(
                    f"{action} on rank {rank}: stage {action.stage} already lives on rank "
                    f"{home[action.stage]}; a stage lives on one rank"
                )


def _check_compute(program: Program) -> None:
    place = _places(program, COMPUTE)
    kinds = [kind for kind in COMPUTE if any(action.kind is kind for action in place)]
    micro_batches = sorted({action.micro_batch for action in place})
    units = dict.fromkeys((action.stage, action.unit) for action in place)
    for unit in units:
        for micro_batch in micro_batches:
            needed = [Action(kind, *unit, micro_batch) for kind in kinds]
            for action in needed:
                if action not in place:
                    raise ScheduleError(
                        f"{action} is missing; every stage needs "
                        f"{', '.join(k.value for k in kinds)} of every micro-batch in the program"
                    )
            for one, two in zip(needed, needed[1:]):
                if place[one] > place[two]:
                    raise ScheduleError(f"{two} stands before {one}; the order must be F, B, W")


def _check_transfers(program: Program) -> None:
    place = _places(program, (*SENDS, *RECEIVES, *WAITS))
    expected: dict[Any, Any] = {}
    for send in (action for action in place if action.kind in SENDS):
        receive, wait = receive_of(send), wait_of(send)
        expected |= {send: None, receive: send, wait: send}
        for other in (receive, wait):
            if other not in place:
                raise ScheduleError(
                    f"{send} has no {other}; the message would never be taken, or its buffer "
                    "never freed"
                )
        if place[receive][0] == place[send][0]:
            raise ScheduleError(
                f"{send} and {receive} are both on rank {place[send][0]}; a rank does not send to "
                "itself"
            )
        if place[wait] < place[send]:
            raise ScheduleError(f"{wait} stands before {send}; there is nothing to wait for yet")
    for action in place:
        if action not in expected:
            raise ScheduleError(
                f"{action} on rank {place[action][0]} has no SEND that it belongs to; it would "
                "wait forever"
            )


def _check_begun(program: Program) -> None:
    for rank, actions in program.items():
        for at, action in enumerate(actions):
            if action.kind in _ENDS:
                end = Action(_ENDS[action.kind], action.stage, action.unit)
                following = next(
                    (a for a in actions[at + 1 :] if a == end or _disturbs(a, action)), None
                )
                if following != end:
                    raise ScheduleError(
                        f"{action} on rank {rank} is followed by {following or 'nothing'} and not "
                        f"by {end}; its messages would be on the way forever, or overwritten"
                    )


def _disturbs(action: Action, begun: Action) -> bool:
    is_same_unit = (action.stage, action.unit) == (begun.stage, begun.unit)
    return action.kind in _DISTURBS[begun.kind] and (action.kind is Kind.CLIP or is_same_unit)


def _places(program: Program, kinds: tuple[Kind, ...]) -> dict[Action, tuple[int, int]]:
    """Return where each action of these kinds stands: {action: (rank, position)}."""
    return {
        action: (rank, at)
        for rank, actions in program.items()
        for at, action in enumerate(actions)
        if action.kind in kinds
    }
