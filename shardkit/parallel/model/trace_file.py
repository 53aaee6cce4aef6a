"""A trace file: the spans of all ranks on one clock, in Chrome's Trace Event Format.

    {"traceEvents": [{"name": "0F1", "cat": "compute", "ph": "X", "pid": 2, "tid": 0, "ts": ...

A process of the file is a rank; its thread 0 is what the rank does itself. "X" is a span, "s" and
"f" are the ends of an arrow, from the SEND of an action to its RECV. Times are microseconds.
Perfetto (ui.perfetto.dev) and chrome://tracing open it.
Source: Trace Event Format, Google, 2016.
"""

from collections.abc import Iterator
from typing import NamedTuple

from ...comm.clocks import ClockOffset, on_first_clock
from ...comm.ranks import ranks_text
from ...layout.axes import Held, alike
from ...layout.mesh_shape import Coordinates, in_words
from ...schedule.actions import RECEIVES, SENDS, receive_of
from ..step.recorder import TimeSpan


class RankSpans(NamedTuple):
    """What one rank recorded, and its clock before and after.

    names   {key of a group: what to call it}
    """

    rank: int
    at: Coordinates
    host: str
    before: ClockOffset
    after: ClockOffset
    spans: list[TimeSpan]
    names: dict[str, str]


def trace_file(ranks: list[RankSpans], about: dict) -> dict:
    """Return the content of a trace file, which JSON can hold.

    about   beside it, under otherData
    """
    origin = min((_on_clock(each, s.start) for each in ranks for s in each.spans), default=0.0)
    events = [event for each in ranks for event in _events(each, origin)]
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {**about, "clocks": [_clock(each) for each in ranks]},
    }


def _clock(each: RankSpans) -> dict:
    """Return how far the rank's clock is ahead of rank 0's, as measured before and after."""
    return {
        "rank": each.rank,
        "node": each.before.node,
        "offset_seconds": [each.before.seconds, each.after.seconds],
        "uncertainty_seconds": max(each.before.uncertainty, each.after.uncertainty),
    }


def _on_clock(each: RankSpans, at: float) -> float:
    return on_first_clock(at, each.before, each.after)


def _events(each: RankSpans, origin: float) -> Iterator[dict]:
    tracks = list(dict.fromkeys(["", *(span.track for span in each.spans)]))
    yield _named("process_name", each.rank, 0, name=f"rank {each.rank}: {each.at}; {each.host}")
    yield _named("process_sort_index", each.rank, 0, sort_index=each.rank)
    for tid, track in enumerate(tracks):
        yield _named("thread_name", each.rank, tid, name=track or "step")
    for span in sorted(each.spans, key=lambda span: (span.start, -span.end)):  # outermost first
        start, end = (round((_on_clock(each, at) - origin) * 1e9) for at in (span.start, span.end))
        where = {"pid": each.rank, "tid": tracks.index(span.track)}
        yield {
            "name": str(span.name),
            "cat": span.kind,
            "ph": "X",
            **where,
            "ts": start / 1000,
            "dur": (end - start) / 1000,
            **_arguments(span, each.names),
        }
        yield from _arrow(span, each.at, {**where, "ts": (start + end) // 2 / 1000})


def _named(kind: str, rank: int, tid: int, **arguments) -> dict:
    return {"name": kind, "ph": "M", "pid": rank, "tid": tid, "ts": 0, "args": arguments}


def _arguments(span: TimeSpan, names: dict[str, str]) -> dict:
    facts: dict = {}
    if span.carried is not None:
        call = span.carried.call
        facts |= {"group": names.get(call.group, call.group), "ranks": ranks_text(call.ranks)}
        if span.num_bytes is not None:
            facts |= {"bytes": span.num_bytes, "dtype": str(span.carried.dtype)}
    if span.step is not None:
        facts["step"] = span.step
    return {"args": facts} if facts else {}


def _arrow(span: TimeSpan, at: Coordinates, where: dict) -> Iterator[dict]:
    """Yield this end of the arrow of a message between stages, inside of a step."""
    if span.action is None or span.step is None or span.action.kind not in (*SENDS, *RECEIVES):
        return
    is_sent = span.action.kind in SENDS
    received = receive_of(span.action) if is_sent else span.action
    peers = in_words({axis: at.along[axis] for axis in alike(Held.BLOCKS)}, " ")
    yield {
        "name": str(received),
        "cat": "message",
        "ph": "s" if is_sent else "f",
        **({} if is_sent else {"bp": "e"}),
        "id": f"{received} step {span.step} {peers}",
        **where,
    }
