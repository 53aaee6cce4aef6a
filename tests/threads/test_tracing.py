"""Traces: what is in the file, whose clock it has, and that nothing of it stays in the model."""

import time

import pytest
from builders import TINY_RUN, small_gpt, token_batch
from trace_rules import check_nesting, check_rules, read_trace, steps_of, threads_of

import shardkit as sk
from shardkit import ConfigurationError
from shardkit.testing.comm import ClockOffset, clock_offset, on_first_clock
from shardkit.testing.parallel import Recorder, parts_of, program_of, traced_parts_of
from shardkit.testing.task import Language
from shardkit.testing.train import configuration_of, train_run


def model_on(backend, pipeline=1, tensor=1, **settings):
    config = sk.ShardingConfiguration(
        backend, optimizer=sk.AdamW(lr=1e-2), max_gradient_norm=1.0, micro_batches=2, **settings
    )
    return sk.HybridShardedModel(small_gpt(), config, pipeline, tensor)


def wrapped_parts_of(model):
    """What a trace puts wrappers around."""
    return *traced_parts_of(model), *vars(parts_of(model).checkpoints)


def traced_steps(backend, path, num=2, **mesh):
    """Train some steps under a trace; return their seconds and the program of this rank."""
    model = model_on(backend, **mesh)
    part = sk.split_batch(model.mesh, *token_batch(0))
    model.train(*part)
    seconds = []
    with model.trace(path):
        for _ in range(num):
            began = time.perf_counter()
            model.train(*part)
            seconds.append(time.perf_counter() - began)
    return seconds, list(map(str, program_of(model)))


MESHES = {1: {}, 2: {"pipeline": 2}, 3: {}, 4: {"pipeline": 2}}


@pytest.mark.parametrize("num_ranks", MESHES)
def test_a_trace_has_the_actions_of_each_step_on_each_rank(num_ranks, tmp_path):
    path = tmp_path / "trace.json"
    ranks = sk.run_ranks(num_ranks, lambda b: traced_steps(b, path, **MESHES[num_ranks]))
    content = read_trace(path)
    assert [clock["rank"] for clock in content["otherData"]["clocks"]] == list(range(num_ranks))
    for rank, (seconds, program) in enumerate(ranks):
        steps = steps_of(content, rank)
        assert [step["name"] for step, _ in steps] == ["step 2", "step 3"]
        for (step, inside), took in zip(steps, seconds):
            of_step = [
                span["name"]
                for span in threads_of(content)[rank, 0]
                if span["cat"] not in ("step", "communication")
                and span.get("args", {}).get("step") == step["args"]["step"]
            ]
            assert of_step == program
            assert step["dur"] / 1e6 == pytest.approx(took, rel=0.02, abs=1e-3)
            assert sum(span["dur"] for span in inside) <= step["dur"] + 1e-3


def test_messages_between_stages_are_arrows_and_verbs_have_bytes_and_groups(tmp_path):
    path = tmp_path / "trace.json"
    sk.run_ranks(4, lambda backend: traced_steps(backend, path, pipeline=2))
    events = read_trace(path)["traceEvents"]
    sent = [event for event in events if event["ph"] == "s"]
    assert len(sent) == 2 * 2 * 2 * 2  # steps, data ranks, micro-batches, there and back
    reductions = [e for e in events if e["name"] == "all_to_all" and e["pid"] == 0]
    assert {e["args"]["group"] for e in reductions} == {"data"}
    assert all(e["args"]["bytes"] > 0 and e["args"]["ranks"] == "0-1" for e in reductions)


@pytest.mark.parametrize("mesh", [{"pipeline": 2}, {"tensor": 2}], ids=str)
@pytest.mark.thorough(but=1)
def test_a_trace_changes_no_bit_and_leaves_nothing_in_the_model(mesh, tmp_path):
    def run(backend):
        losses = []
        for path in (None, tmp_path / "trace.json"):
            model = model_on(backend, **mesh)
            parts = wrapped_parts_of(model)
            trace = None if path is None else model.trace(path)
            losses.append(
                [model.train(*sk.split_batch(model.mesh, *token_batch(step))) for step in range(3)]
            )
            if trace is not None:
                assert backend.progress.ledger is not None
                trace.close()
                trace.close()
            after = wrapped_parts_of(model)
            assert after == parts
            assert backend.progress.ledger is None
        return losses

    for plain, traced in sk.run_ranks(4, run):
        assert plain == traced


def test_a_trace_that_an_error_ends_writes_nothing_and_blocks_nobody(tmp_path):
    path = tmp_path / "trace.json"

    def run(backend):
        model = model_on(backend)
        with pytest.raises(KeyError), model.trace(path):
            raise KeyError("of one rank" if backend.rank else "of another")
        return model.train(*sk.split_batch(model.mesh, *token_batch(0)))

    assert len(sk.run_ranks(2, run)) == 2 and not path.exists()


def test_a_trace_that_cannot_be_written_is_refused_on_all_ranks(tmp_path):
    def run(backend):
        with pytest.raises(OSError, match="missing"):
            model_on(backend).trace(tmp_path / "missing" / "trace.json")

    sk.run_ranks(2, run)


def test_a_failed_step_ends_with_the_next_one():
    seconds = iter(range(100))
    recorder = Recorder(lambda: float(next(seconds)))
    recorder.begin_step(1)
    recorder.begin("0F0", "compute")  # which raised
    recorder.begin_step(2)
    recorder.end_step()
    assert [(s.name, s.start, s.end) for s in recorder.spans] == [
        ("0F0", 1.0, 2.0), ("step 1", 0.0, 3.0), ("step 2", 4.0, 5.0),
    ]  # fmt: skip


# ---- clocks --------------------------------------------------------------------------------------


def test_clocks_of_nodes_are_found_to_half_the_time_of_a_question(monkeypatch):
    monkeypatch.setenv("SHARDKIT_RANKS_PER_NODE", "2")
    ahead = [0.0, 0.0, 5000.25, 5000.25, -77.5]

    def run(backend):
        return clock_offset(backend, lambda: time.perf_counter() + ahead[backend.rank])

    for offset, seconds in zip(sk.run_ranks(5, run), ahead):
        assert offset.seconds == pytest.approx(seconds, abs=offset.uncertainty + 1e-9)
        assert (offset.uncertainty > 0) == (seconds != 0)


def test_a_clock_that_drifts_is_followed_on_a_straight_line():
    before, after = ClockOffset(100.0, 10.0, 0, ""), ClockOffset(200.0, 12.0, 0, "")
    assert on_first_clock(100.0, before, after) == 90.0
    assert on_first_clock(150.0, before, after) == 139.0
    assert on_first_clock(200.0, before, after) == 188.0


# ---- the rules -----------------------------------------------------------------------------------


def test_the_rules_see_spans_that_cross_and_arrows_without_an_end():
    with pytest.raises(AssertionError):
        check_nesting([{"ts": 0, "dur": 10}, {"ts": 5, "dur": 10}])
    arrow = {"name": "a", "cat": "message", "ph": "s", "ts": 1, "pid": 0, "tid": 0, "id": "a"}
    content = {"traceEvents": [arrow], "displayTimeUnit": "ms", "otherData": {}}
    with pytest.raises(AssertionError):
        check_rules(content)


# ---- runs ----------------------------------------------------------------------------------------


def run_settings(folder, **given):
    (folder / "a.txt").write_text("a line of text\n" * 60)
    paths = {"data.path": [str(folder / "a.txt")], "run.folder": str(folder / "run")}
    small = {**TINY_RUN, "run.steps": 6, "run.report_every": 2, "run.validate_every": 3}
    return configuration_of(Language)().replace({**small, **paths, **given})


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_run_traces_the_steps_that_it_is_asked_for(num_ranks, tmp_path):
    asked = {"run.trace_steps": "3..5", "run.checkpoint_every": 3, "mesh.pipeline": 1}
    settings = run_settings(tmp_path, **asked)
    sk.run_ranks(num_ranks, lambda backend: train_run(settings, backend))
    content = read_trace(tmp_path / "run/traces/steps-3-5.json")
    for rank in range(num_ranks):
        names = [span["name"] for span in threads_of(content)[rank, 0]]
        assert [name for name in names if name.startswith("step ")] == [
            "step 3",
            "step 4",
            "step 5",
        ]
        assert names.count("data") == 3 and names.count("validation") == 1
        assert names.count("checkpoint") == 1
        (beside,) = threads_of(content)[rank, 1]
        assert beside["name"] == "writing step-00000003" and beside["dur"] > 0


@pytest.mark.parametrize(
    ("asked", "words"),
    [("5..3", "20..22"), ("0..2", "20..22"), ("x", "20..22"), ("5..7", "ends with step 6")],
)
def test_steps_that_are_no_range_or_never_come_are_refused(asked, words, tmp_path):
    def run(backend):
        with pytest.raises(ConfigurationError, match=words):
            train_run(run_settings(tmp_path, **{"run.trace_steps": asked}), backend)

    sk.run_ranks(2, run)
