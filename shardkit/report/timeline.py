"""The measured step beside the one that its own program predicts.

    measured    0F0 [wait.....] 0F1 ...     actions of each stage's rank, from timeline.json
    predicted   0F0 0F1 ...                 the same program in schedule.simulate: an action takes
                                            the median of its kind, and messages take no time

What the prediction waits for is the pipeline's bubble; what the measured step waits for beside it
are messages, other ranks, and cores that were busy with something else.
"""

from collections import defaultdict
from statistics import median

from ..errors import ScheduleError
from ..schedule.actions import COMPUTE, RECEIVES, SENDS, WAITS, Action, Kind
from ..schedule.simulate import Event, Timeline, simulate

_GROUPS = {
    Kind.FORWARD: "forward",
    Kind.BACKWARD: "backward",
    Kind.WEIGHT: "weight",
    **dict.fromkeys((*RECEIVES, *WAITS), "waiting"),
    **dict.fromkeys(SENDS, "message"),
    **dict.fromkeys((Kind.REDUCE, Kind.BEGIN_REDUCE, Kind.TIE), "gradients"),
    **dict.fromkeys((Kind.CLIP, Kind.STEP), "update"),
}  # the others: "parameters"

_TYPICAL = {Kind.CLIP: min}  # of the rank that the others wait for; of other actions the median


def read_timeline(stored: dict | None) -> dict | None:
    """Return what the page draws, of what timeline.json holds; None if there is none.

    measured, predicted   {"seconds", "compute": part of all ranks' time in F, B, W,
                          "ranks": {rank: [[text, group, start, end], ...]}}
    predicted is None where the actions of the step are no whole program (a step that was skipped).
    """
    if stored is None:
        return None
    events = {
        int(rank): tuple(Event(Action.parse(text), start, end) for text, start, end in actions)
        for rank, actions in stored["ranks"].items()
    }
    facts = {key: stored[key] for key in ("step", "schedule", "micro_batches", "device")}
    measured = Timeline(events)
    return {
        **facts,
        "measured": _drawn(measured, stored["seconds"]),
        "predicted": _drawn_prediction(measured),
    }


def _drawn_prediction(measured: Timeline) -> dict | None:
    try:
        predicted = predicted_of(measured)
    except ScheduleError:
        return None
    return _drawn(predicted, predicted.seconds)


def predicted_of(measured: Timeline) -> Timeline:
    """Return the simulation of the program that was measured, with the medians of its actions.

    Errors: ScheduleError if the actions are no program.
    """
    seconds = defaultdict(list)
    for events in measured.events.values():
        for action, start, end in events:
            seconds[_alike(action)].append(end - start)
    typical = {key: _TYPICAL.get(key[0], median)(of_key) for key, of_key in seconds.items()}
    program = {rank: tuple(e.action for e in events) for rank, events in measured.events.items()}
    waits = (*RECEIVES, *WAITS)
    return simulate(
        program, lambda action: 0.0 if action.kind in waits else typical[_alike(action)]
    )


def _alike(action: Action) -> tuple:
    return action.kind, action.stage, action.unit


def _drawn(timeline: Timeline, seconds: float) -> dict:
    compute = [
        event.end - event.start
        for events in timeline.events.values()
        for event in events
        if event.action.kind in COMPUTE
    ]
    available = seconds * len(timeline.events)
    return {
        "seconds": seconds,
        "compute": sum(compute) / available if available else 0.0,
        "ranks": {
            str(rank): [
                [str(e.action), _GROUPS.get(e.action.kind, "parameters"), e.start, e.end]
                for e in events
            ]
            for rank, events in timeline.events.items()
        },
    }
