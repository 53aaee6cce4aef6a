"""The rules of Chrome's Trace Event Format that a file of ours must keep, and readers of one."""

import json
from collections import defaultdict

KEYS = {
    "X": {"name", "cat", "ph", "ts", "dur", "pid", "tid"},
    "M": {"name", "ph", "pid", "tid", "args"},
    "s": {"name", "cat", "ph", "ts", "pid", "tid", "id"},
    "f": {"name", "cat", "ph", "ts", "pid", "tid", "id", "bp"},
}
METADATA = {"process_name": "name", "thread_name": "name", "process_sort_index": "sort_index"}


def read_trace(path):
    """Return the content of a trace file, once it is known to keep the rules."""
    content = json.loads(path.read_text())
    check_rules(content)
    return content


def check_rules(content):
    """Every event has the keys of its phase, spans of a thread nest, arrows have two ends."""
    assert set(content) == {"traceEvents", "displayTimeUnit", "otherData"}
    assert content["displayTimeUnit"] in ("ms", "ns")
    arrows = defaultdict(list)
    for event in content["traceEvents"]:
        phase = event["ph"]
        assert KEYS[phase] <= set(event) <= KEYS[phase] | {"args", "ts"}, event
        assert type(event["pid"]) is int and type(event["tid"]) is int
        if phase == "M":
            assert METADATA[event["name"]] in event["args"]
            continue
        assert isinstance(event["name"], str) and isinstance(event["ts"], (int, float))
        assert event["ts"] >= 0 and event.get("dur", 0) >= 0, event
        if phase != "X":
            arrows[event["id"]].append(event)
    for ends in arrows.values():
        assert sorted(end["ph"] for end in ends) == ["f", "s"], ends
        assert ends[0]["name"] == ends[1]["name"] and ends[0]["pid"] != ends[1]["pid"]
    for spans in threads_of(content).values():
        check_nesting(spans)


def threads_of(content):
    """Return {(rank, thread): its spans, those around others first}."""
    threads = defaultdict(list)
    for event in content["traceEvents"]:
        if event["ph"] == "X":
            threads[event["pid"], event["tid"]].append(event)
    return {
        key: sorted(spans, key=lambda each: (each["ts"], -each["dur"]))
        for key, spans in threads.items()
    }


def check_nesting(spans):
    """A span that begins inside another ends inside of it."""
    around = []
    for span in spans:
        end = span["ts"] + span["dur"]
        while around and around[-1] <= span["ts"] + 1e-3:  # the file has nanoseconds
            around.pop()
        assert not around or end <= around[-1] + 1e-3, span
        around.append(end)


def steps_of(content, rank):
    """Return the spans of the steps of a rank, each with those inside of it, without theirs."""
    own = threads_of(content)[rank, 0]
    return [
        (step, outermost([span for span in own if span is not step and is_inside(span, step)]))
        for step in own
        if step["cat"] == "step"
    ]


def is_inside(span, step):
    """Return whether a span belongs to a step."""
    return span.get("args", {}).get("step") == step["args"]["step"]


def outermost(spans):
    """Return the spans that no other one of them is around."""
    found = []
    for span in spans:
        if not found or span["ts"] >= found[-1]["ts"] + found[-1]["dur"] - 1e-3:
            found.append(span)
    return found
