"""What the report reads from a run folder, and the prediction of a timeline."""

import json
import re

import pytest

from shardkit.testing.report import page_of, predicted_of, read_run_folder, read_timeline
from shardkit.testing.schedule import COMPUTE, Kind, lower, order_named, simulate

SECONDS = {Kind.FORWARD: 1.0, Kind.BACKWARD: 2.0, Kind.WEIGHT: 0.5, Kind.STEP: 0.25}


def program(stages=2, micro_batches=3):
    order = order_named("1f1b")(stages, micro_batches, 1)
    return lower(order, dict.fromkeys(range(stages), 1))


def stored(timeline):
    return {
        "step": 16,
        "seconds": timeline.seconds,
        "schedule": "1f1b",
        "micro_batches": 3,
        "device": "cpu",
        "ranks": {
            str(rank): [[str(e.action), e.start, e.end] for e in events]
            for rank, events in timeline.events.items()
        },
    }


def records(*lines):
    return "".join(json.dumps(line) + "\n" for line in lines)


def test_a_program_that_runs_as_simulated_is_predicted_as_it_was():
    measured = simulate(program(), SECONDS)
    assert predicted_of(measured) == measured


def test_messages_and_one_slow_action_are_not_in_the_prediction():
    slow = simulate(program(), SECONDS, transfer_seconds=3.0)
    quick = simulate(program(), SECONDS)
    assert slow.seconds > quick.seconds
    assert predicted_of(slow).seconds == pytest.approx(quick.seconds)
    once = iter([9.0])
    uneven = simulate(
        program(),
        lambda a: next(once, 1.0) if a.kind is Kind.FORWARD else SECONDS.get(a.kind, 0.0),
    )
    assert uneven.seconds > quick.seconds
    assert predicted_of(uneven).seconds == pytest.approx(quick.seconds)


def test_the_share_of_computing_is_of_all_ranks_time():
    measured = simulate(program(), SECONDS)
    drawn = read_timeline(stored(measured))
    assert drawn["measured"]["compute"] == pytest.approx(1 - measured.bubble_fraction)
    names = [name for name, *_ in drawn["predicted"]["ranks"]["1"]]
    assert names == [str(e.action) for e in measured.events[1]]
    assert {group for _, group, *_ in drawn["measured"]["ranks"]["0"]} >= {"forward", "waiting"}


def test_a_step_that_was_skipped_is_no_program_and_has_no_prediction():
    whole = stored(simulate(program(), SECONDS))
    for rank, actions in whole["ranks"].items():
        whole["ranks"][rank] = [a for a in actions if "SEND" not in a[0]]
    drawn = read_timeline(whole)
    assert drawn["predicted"] is None and drawn["measured"]["seconds"] == whole["seconds"]
    assert any(str(kind.value) in a[0] for kind in COMPUTE for a in whole["ranks"]["0"])


def test_a_folder_of_an_older_run_is_read_without_what_it_lacks(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(
        records(
            {"step": 2, "train_loss": 3.0, "tokens_per_second": 10.0},
            {"step": 4, "train_loss": 2.0, "tokens_per_second": 12.0},
            {"step": 4, "validation_loss": 2.5},
            {"step": 4, "checkpoint_pause_seconds": 0.01},
            {"step": 3, "skipped_steps": 1},
        )
    )
    run = read_run_folder(tmp_path)
    assert run.steps == 4 and run.curves["train_loss"] == [[2, 3.0], [4, 2.0]]
    assert run.curves["validation_loss"] == [[4, 2.5]] and run.skipped == [[3, 1]]
    assert run.checkpoints == [{"step": 4, "pause": 0.01, "write": None}]
    assert run.memory is run.ranks is run.timeline is run.began is None


def test_memory_is_the_last_that_was_recorded_by_purpose(tmp_path):
    table = {"parameters": [3, 4], "all at once": [5, 6], "resident process": [70, 80]}
    first = {name: [1, 1] for name in table}
    (tmp_path / "metrics.jsonl").write_text(
        records({"step": 1, "memory_bytes": first}, {"step": 9, "memory_bytes": table})
    )
    memory = read_run_folder(tmp_path).memory
    assert memory == {"purposes": {"parameters": [3, 4]}, "together": [5, 6], "resident": [70, 80]}


def test_a_page_holds_its_records_needs_nothing_and_is_not_broken_by_the_text_of_a_run(tmp_path):
    folder = tmp_path / "a <b> & </script> %records%"
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text(records({"step": 2, "train_loss": 3.25}))
    page = page_of([read_run_folder(folder)])
    (text,) = re.findall(r'id="records">(.*?)</script>', page, re.S)
    (held,) = json.loads(text)
    assert held["name"] == str(folder) and held["curves"] == {"train_loss": [[2, 3.25]]}
    addresses = set(re.findall(r"https?://[^\s\"'`)]+", page))
    assert addresses <= {"http://www.w3.org/2000/svg"}, "a name, which nothing loads"
    assert "<title>" + str(folder)[:5] in page and "<b>" not in page.partition("</title>")[0]


def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(records({"step": 2, "train_loss": 3.25}))
    (tmp_path / "ranks.json").write_text("{")
    with pytest.raises(ValueError, match="ranks.json is damaged"):
        read_run_folder(tmp_path)
