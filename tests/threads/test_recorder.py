"""The recorder: who listens hears all of it, in any order, and who does not pays nothing."""

import sys
import time

import numpy
import pytest
from builders import small_gpt, token_batch
from hypothesis import given
from hypothesis import strategies as st
from trace_rules import read_trace, steps_of, threads_of

import shardkit as sk
from shardkit.testing.comm import LEDGER_NAME, Call, read_ledger
from shardkit.testing.parallel import (
    COMMUNICATION,
    MESSAGE_WAIT,
    Record,
    Recorder,
    listening_of,
    program_of,
    runtime_of,
)


def model_on(backend, **settings):
    config = sk.ShardingConfiguration(backend, optimizer=sk.AdamW(lr=1e-2), **settings)
    return sk.FSDPModel(small_gpt(), config)


def train(model, steps=1):
    for step in range(steps):
        model.train(*sk.split_batch(model.mesh, *token_batch(step)))


def names_of_steps(path, rank=0):
    return [step["name"] for step, _ in steps_of(read_trace(path), rank)]


# ---- who listens ---------------------------------------------------------------------------------


@pytest.mark.parametrize("first_ends_first", [True, False])
def test_traces_may_be_under_way_at_once_and_end_in_any_order(first_ends_first, tmp_path):
    paths = [tmp_path / "one.json", tmp_path / "other.json"]

    def run(backend):
        model = model_on(backend)
        one = model.trace(paths[0])
        train(model)
        other = model.trace(paths[1])
        train(model)
        ending = [one, other] if first_ends_first else [other, one]
        ending[0].close()
        train(model)
        ending[1].close()
        train(model)
        assert not listening_of(model).recorders and backend.progress.ledger is None

    sk.run_ranks(2, run)
    found = [names_of_steps(path) for path in paths]
    both = ["step 1", "step 2", "step 3"]
    assert found == ([both[:2], both[1:]] if first_ends_first else [both, both[1:2]])


@pytest.mark.parametrize("is_kept_before", [True, False])
def test_a_ledger_that_is_kept_during_a_trace_has_the_calls_and_so_has_the_trace(
    is_kept_before, tmp_path
):
    def run(backend):
        model = model_on(backend)
        if is_kept_before:
            backend.keep_ledger(tmp_path / "before")
        with model.trace(tmp_path / "trace.json"):
            train(model)
            backend.keep_ledger(tmp_path)
            train(model)
            in_trace = read_ledger(tmp_path / LEDGER_NAME.format(0), backend.rank).calls
        train(model)
        after = read_ledger(tmp_path / LEDGER_NAME.format(0), backend.rank).calls
        return in_trace, after

    for in_trace, after in sk.run_ranks(2, run):
        assert 0 < len(in_trace) < len(after)
    content = read_trace(tmp_path / "trace.json")
    for _, inside in steps_of(content, 0):
        assert any(span["cat"] != "communication" for span in inside)
    verbs = [span for span in threads_of(content)[0, 0] if span["cat"] == "communication"]
    assert {span["args"].get("step") for span in verbs} >= {1, 2}


def test_a_ledger_names_the_same_callers_whether_somebody_listens_or_not(tmp_path):
    def run(backend):
        model = model_on(backend)
        backend.keep_ledger(tmp_path)
        places = []
        for recorder in (None, Recorder()):
            if recorder is None:
                train(model)
            else:
                with listening_of(model).telling(recorder):
                    train(model)
            calls = read_ledger(tmp_path / LEDGER_NAME.format(0), backend.rank).calls
            places.append({call.site for call in calls})
        return places

    for plain, recorded in sk.run_ranks(2, run):
        assert plain and plain == recorded


def test_work_of_a_rank_is_noted_while_somebody_listens(tmp_path):
    def run(backend):
        backend.keep_ledger(tmp_path)
        with listening_of(model_on(backend)).telling(Recorder()):
            backend.progress.work()
        return read_ledger(tmp_path / LEDGER_NAME.format(0), backend.rank).worked

    (worked,) = sk.run_ranks(1, run)
    assert worked == pytest.approx(time.time(), abs=60)


def test_an_action_that_raises_is_over_and_the_next_step_begins_anew(monkeypatch):
    def broken(*_):
        raise RuntimeError("broken")

    def run(backend):
        model, recorder = model_on(backend), Recorder()
        table = runtime_of(model).executor.executor.table
        with listening_of(model).telling(recorder):
            with monkeypatch.context() as patch, pytest.raises(RuntimeError):
                patch.setitem(table, program_of(model)[-1].kind, broken)
                train(model)
            failed = list(recorder.spans)
            train(model)
        return failed, recorder.spans[len(failed) :], program_of(model)

    ((failed, then, program),) = sk.run_ranks(1, run)
    until = [action.kind for action in program].index(program[-1].kind)
    assert [span.action for span in failed if span.action] == list(program[: until + 1])
    assert [span.action for span in then if span.action] == list(program)
    assert [span.name for span in then if span.kind == "step"] == ["step 1", "step 1"]
    assert then[0].kind == "step" and then[0].start < failed[0].start


def test_a_step_that_nobody_records_enters_the_recorder_at_its_ends_alone():
    def run(backend):
        model = model_on(backend)
        train(model, 3)
        entered, names = set(), ("Listening.", "Recorder.", "Heard.", "Stopwatch.")

        def note(frame, event, _):
            name = frame.f_code.co_qualname.partition(".<")[0]
            if event == "call" and name.startswith(names):
                entered.add(name)

        sys.setprofile(note)
        try:
            train(model)
        finally:
            sys.setprofile(None)
        return entered

    ends = {f"Listening.{name}" for name in ("begin_step", "end_step", "_so_far")}
    assert sk.run_ranks(2, run) == [ends, ends]


# ---- what is read from spans ---------------------------------------------------------------------


class Counted(Recorder):
    """A recorder whose clock goes on by one second whenever it is read."""

    def __init__(self):
        super().__init__(lambda: float(len(self.readings)))
        self.readings = []

    def now(self):
        self.readings.append(None)
        return super().now()


def own_seconds(calls, region, table):
    """Enter what each call takes by itself into the table, and return how long all take: one
    second from each reading of the clock to the next, and two readings for each.
    """
    total = 0
    for kind, name, inside in calls:
        of_call = region if kind in ("call", "communication") else kind
        of_inside = own_seconds(inside, of_call, table)
        what = COMMUNICATION if kind == "communication" else name
        entry = table.setdefault((of_call, what), [0.0, 0])
        entry[0] += 1 + len(inside)
        entry[1] += 1
        total += of_inside + 2
    return total


def record(recorder, calls):
    for kind, name, inside in calls:
        recorder.timed(lambda inside=inside: record(recorder, inside), name, kind)()


CALLS = st.recursive(
    st.just([]),
    lambda inside: st.lists(
        st.tuples(
            st.sampled_from(["call", "communication", "update", "compute"]),
            st.sampled_from("abc"),
            inside,
        ),
        max_size=4,
    ),
    max_leaves=20,
)


@given(CALLS)
def test_own_seconds_of_any_tree_of_calls_add_up_to_the_whole(calls):
    recorder, wanted = Counted(), {}
    own_seconds(calls, "step", wanted)
    record(recorder, calls)
    found = Record.of(recorder.spans)
    assert found.table == wanted
    assert sum(seconds for seconds, _ in found.table.values()) == found.seconds


@pytest.mark.parametrize("is_first", [True, False])
def test_a_verb_carries_what_describes_it_and_messages_are_waited_for(is_first):
    recorder = Counted()
    recorder.describe_verb("float32", 3)  # of a verb that began before
    recorder.end_verb()
    recorder.begin_verb(Call("irecv", "world", (1,), None), is_first)
    recorder.describe_verb(numpy.dtype("float64"), 5)
    recorder.end_verb()
    (span,) = recorder.spans
    assert span.num_bytes == 40 and span.name == ("irecv" if is_first else "wait for irecv")
    ((_, what),) = Record.of(recorder.spans).table
    assert what == (COMMUNICATION if is_first else MESSAGE_WAIT)


def test_the_actions_of_the_overlapped_program_are_recorded_too():
    def run(backend):
        model, recorder = model_on(backend, overlap=True, micro_batches=2), Recorder()
        train(model)
        with listening_of(model).telling(recorder, verbs=False):
            train(model)
        assert type(runtime_of(model).executor.executor).__name__ == "Pumped"
        return [str(s.action) for s in recorder.spans if s.action], list(
            map(str, program_of(model))
        )

    for found, program in sk.run_ranks(2, run):
        assert found == program
