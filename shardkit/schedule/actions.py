"""Actions: the instructions of a training step, and their text form.

A model is cut into stages, one after another along the pipeline. A stage is a row of units, each a
block of the model with its flat parameter buffer. The batch is cut into micro-batches. An action
names what it touches:

    2F5         forward of stage 2, micro-batch 5
    2.1F5       forward of unit 1 of that stage only
    2.1B5       its input gradient
    2.1W5       its weight gradient
    2SEND_F5    post the activations to stage 3
    3RECV_F5    wait for them to arrive
    2WAIT_F5    the buffer of 2SEND_F5 is free again
    2SEND_B5    post the gradient to stage 1; 1RECV_B5 and 2WAIT_B5 as above
    2.1GATHER   make the unit's parameters whole
    2.1RELEASE  keep only this rank's shard of them
    2.1REDUCE   sum the unit's gradient over data ranks
    2.1STEP     apply the optimizer to the unit
    2.1BEGIN_GATHER, 2.1BEGIN_REDUCE
                let its messages travel from now on; the GATHER or REDUCE then waits for them
    2.1TIE      add the gradients of a tied unit's replicas on other pipeline ranks
    CLIP        bound the gradient norm, over all ranks

Backward is two actions because another rank waits for B only; W can be done at any later time.
Source: Zero Bubble Pipeline Parallelism (arXiv 2401.10241); the text form follows PyTorch's
pipelining schedules.

A program is one tuple of actions per pipeline rank. Its text has one line per rank:
`0: 0F0 0F1 0B0 0W0 0B1 0W1`.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from ..errors import ScheduleError


class Kind(Enum):
    """What an action does; the value is its text form."""

    __hash__ = object.__hash__  # as members are compared; Enum hashes their names, in Python

    FORWARD = "F"
    BACKWARD = "B"
    WEIGHT = "W"
    SEND_F = "SEND_F"
    RECV_F = "RECV_F"
    WAIT_F = "WAIT_F"
    SEND_B = "SEND_B"
    RECV_B = "RECV_B"
    WAIT_B = "WAIT_B"
    BEGIN_GATHER = "BEGIN_GATHER"
    GATHER = "GATHER"
    RELEASE = "RELEASE"
    BEGIN_REDUCE = "BEGIN_REDUCE"
    REDUCE = "REDUCE"
    TIE = "TIE"
    CLIP = "CLIP"
    STEP = "STEP"


COMPUTE = (Kind.FORWARD, Kind.BACKWARD, Kind.WEIGHT)
SENDS = (Kind.SEND_F, Kind.SEND_B)
RECEIVES = (Kind.RECV_F, Kind.RECV_B)
WAITS = (Kind.WAIT_F, Kind.WAIT_B)
_PER_UNIT = (
    Kind.BEGIN_GATHER,
    Kind.GATHER,
    Kind.RELEASE,
    Kind.BEGIN_REDUCE,
    Kind.REDUCE,
    Kind.TIE,
    Kind.STEP,
)

_TEXT = re.compile(r"(?:(\d+)(?:\.(\d+))?)?([A-Z]+(?:_[A-Z]+)?)(\d+)?")


@dataclass(frozen=True, slots=True)
class Action:
    """One instruction; its kind decides which of stage, unit and micro-batch it carries."""

    kind: Kind
    stage: int | None = None
    unit: int | None = None
    micro_batch: int | None = None

    def __post_init__(self):
        has = self.stage is not None, self.unit is not None, self.micro_batch is not None
        if has not in _CARRIES[self.kind]:
            raise ScheduleError(
                f"{self} is not an action: {self.kind.value} is written like {_EXAMPLE[self.kind]}"
            )

    @classmethod
    def parse(cls, text: str) -> "Action":
        """Return the action with this text form. Errors: ScheduleError if there is none."""
        match = _TEXT.fullmatch(text)
        if match is None or match[3] not in _KINDS:
            raise ScheduleError(
                f"{text!r} is not an action; one looks like 2F5, 2.1GATHER or CLIP, "
                f"and the kinds are {', '.join(_KINDS)}"
            )
        stage, unit, micro_batch = (
            None if part is None else int(part) for part in match.group(1, 2, 4)
        )
        return cls(_KINDS[match[3]], stage, unit, micro_batch)

    def __str__(self) -> str:
        unit = "" if self.unit is None else f".{self.unit}"
        stage, micro_batch = ("" if n is None else n for n in (self.stage, self.micro_batch))
        return f"{stage}{unit}{self.kind.value}{micro_batch}"

    def __lt__(self, other: "Action") -> bool:
        return self._order() < other._order()

    def _order(self) -> tuple:
        """Return the sort key: stage, unit, micro-batch, kind; a missing number comes first."""
        numbers = (-1 if n is None else n for n in (self.stage, self.unit, self.micro_batch))
        return (*numbers, list(Kind).index(self.kind))


_KINDS = {kind.value: kind for kind in Kind}
_EXAMPLE = {kind: f"2{kind.value}5" for kind in Kind}
_EXAMPLE |= {kind: f"2.1{kind.value}" for kind in _PER_UNIT}
_EXAMPLE |= {
    Kind.FORWARD: "2F5 or 2.1F5",
    Kind.BACKWARD: "2B5 or 2.1B5",
    Kind.WEIGHT: "2W5 or 2.1W5",
    Kind.CLIP: "CLIP",
}
_CARRIES = {kind: {(True, False, True)} for kind in Kind}  # (stage, unit, micro_batch)
_CARRIES |= {kind: {(True, False, True), (True, True, True)} for kind in COMPUTE}
_CARRIES |= {kind: {(True, True, False)} for kind in _PER_UNIT}
_CARRIES |= {Kind.CLIP: {(False, False, False)}}

Program = dict[int, tuple[Action, ...]]


def to_text(program: Program) -> str:
    """Return the program as text, one line per pipeline rank."""
    return "\n".join(
        f"{rank}: {' '.join(map(str, actions))}".rstrip() for rank, actions in program.items()
    )


def from_text(text: str) -> Program:
    """Return the program that `to_text` wrote; blank lines do not count.

    Errors: ScheduleError naming the bad line.
    """
    program = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        rank, colon, actions = line.partition(":")
        if not colon or not rank.strip().isdecimal() or int(rank) in program:
            raise ScheduleError(
                f"line {line!r} does not begin with a new rank and a colon, like '0: 0F0 0B0 0W0'"
            )
        program[int(rank)] = tuple(map(Action.parse, actions.split()))
    return program


def receive_of(send: Action) -> Action:
    """Return the receive at the other end of a send: 2SEND_F5 -> 3RECV_F5, 2SEND_B5 -> 1RECV_B5."""
    assert send.stage is not None, f"{send} has no stage"
    if send.kind is Kind.SEND_F:
        return Action(Kind.RECV_F, send.stage + 1, None, send.micro_batch)
    assert send.kind is Kind.SEND_B, f"{send} is not a send"
    return Action(Kind.RECV_B, send.stage - 1, None, send.micro_batch)


def wait_of(send: Action) -> Action:
    """Return the wait after which the buffer of a send is free again: 2SEND_F5 -> 2WAIT_F5."""
    kind = {Kind.SEND_F: Kind.WAIT_F, Kind.SEND_B: Kind.WAIT_B}[send.kind]
    return Action(kind, send.stage, None, send.micro_batch)


def peak_live(actions: Iterable[Action]) -> int:
    """Return the most activations that a rank keeps while it runs these actions.

    An activation is a pair of stage and micro-batch, from its first F to its last W, so two stages
    on the rank count a micro-batch twice.
    """
    actions = list(actions)
    last_use = {
        (a.stage, a.micro_batch): at for at, a in enumerate(actions) if a.kind is Kind.WEIGHT
    }
    live: set[tuple] = set()
    peak = 0
    for at, action in enumerate(actions):
        key = (action.stage, action.micro_batch)
        if action.kind is Kind.FORWARD:
            live.add(key)
            peak = max(peak, len(live))
        elif last_use.get(key) == at:
            live.discard(key)
    return peak
