"""Grid: what a picture of a timeline shows, and the command that draws it."""

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardkit.testing.cli import main
from shardkit.testing.schedule import (
    COMPUTE,
    ORDERS,
    Kind,
    describe_timeline,
    draw_svg,
    draw_text,
    from_text,
    gpipe,
    grid,
    lower,
    order_named,
    simulate,
    unit_timeline,
)

SVG = "{http://www.w3.org/2000/svg}"
runs = st.builds(
    unit_timeline, st.sampled_from(sorted(ORDERS)), st.integers(1, 4), st.integers(1, 6)
)


def boxes(svg):
    """Return (tooltip, x, width, y, number) of every action in the drawing."""
    for group in ElementTree.fromstring(svg).iter(SVG + "g"):
        rect, text = group.find(SVG + "rect"), group.find(SVG + "text")
        yield (
            group.find(SVG + "title").text,
            *(float(rect.get(key)) for key in ("x", "width", "y")),
            None if text is None else text.text,
        )


@given(runs)
@settings(max_examples=30, deadline=None)
def test_the_text_has_a_cell_per_rank_and_second_and_the_dots_are_the_bubble(run):
    rows = [row.split()[2:] for row in draw_text(run).splitlines()]
    assert [len(row) for row in rows] == [run.seconds] * len(run.events)
    assert sum(row.count(".") for row in rows) == run.seconds * len(rows) - run.compute_seconds


def test_the_text_reads_like_this():
    assert draw_text(unit_timeline("1f1b", 2, 3)) == (
        "rank 0   F0 F1  . B0 W0 F2 B1 W1  . B2 W2\nrank 1    . F0 B0 W0 F1 B1 W1 F2 B2 W2  ."
    )
    assert all(
        f"    {row}\n" in grid.__doc__
        for row in draw_text(unit_timeline("1f1b", 2, 3)).splitlines()
    )


def test_what_takes_longer_fills_more_cells_and_stages_and_units_are_named_if_there_are_several():
    whole = simulate(lower(gpipe(1, 1), {0: 1}), {Kind.FORWARD: 1, Kind.BACKWARD: 2})
    assert draw_text(whole) == "rank 0   F0 B0 B0"
    assert (
        draw_text(simulate(lower(gpipe(1, 1), {0: 2})))
        == "rank 0   0.0F0 0.1F0 0.1B0 0.1W0 0.0B0 0.0W0"
    )
    assert draw_text(unit_timeline("zb-v", 1, 1)) == "rank 0   0F0 1F0 1B0 0B0 1W0 0W0"


@given(runs)
@settings(max_examples=30, deadline=None)
def test_the_svg_has_a_box_for_every_action_where_and_when_it_runs(run):
    drawn = list(boxes(draw_svg(run)))
    expected = {
        str(e.action): (rank, e.start, e.end)
        for rank, events in run.events.items()
        for e in events
        if e.action.kind in COMPUTE
    }
    assert len(drawn) == len(expected)
    for tooltip, x, width, y, number in drawn:
        action = tooltip.partition(":")[0]
        rank, start, end = expected[action]
        assert (x, width) == (64 + 18 * start, 18 * (end - start)) and y == 66 + 26 * rank + 2
        assert action.endswith(number)


@given(runs)
@settings(max_examples=30, deadline=None)
def test_boxes_of_one_rank_do_not_overlap_and_lie_inside_the_picture(run):
    svg = draw_svg(run)
    width, height = (float(ElementTree.fromstring(svg).get(key)) for key in ("width", "height"))
    ordered = sorted((y, x, length) for _, x, length, y, _ in boxes(svg))
    assert all(
        y1 < y2 or x1 + length <= x2 for (y1, x1, length), (y2, x2, _) in zip(ordered, ordered[1:])
    )
    assert all(y + 22 < height and x + length < width for y, x, length in ordered)


def test_numbers_are_left_out_of_boxes_that_are_too_narrow_and_a_long_picture_stays_bounded():
    run = simulate(
        lower(gpipe(1, 40), {0: 1}), {Kind.FORWARD: 0.01, Kind.BACKWARD: 10, Kind.WEIGHT: 10}
    )
    svg = draw_svg(run)
    assert float(ElementTree.fromstring(svg).get("width")) < 8200
    assert {number is None for tooltip, _, _, _, number in boxes(svg) if "F" in tooltip} == {True}
    assert {number is None for tooltip, _, _, _, number in boxes(svg) if "B" in tooltip} == {False}


def test_the_title_tells_the_bubble_and_is_escaped():
    svg = draw_svg(unit_timeline("1f1b", 4, 8), "a < b & c")
    assert "a &lt; b &amp; c: 30 units, 20.0% bubble" in svg
    ElementTree.fromstring(svg)


def labels(picture):
    """Return every text of an SVG that names a unit of time: headline, tooltips, axis."""
    return [
        text
        for element in ElementTree.fromstring(picture).iter()
        for text in [element.text or ""]
        if re.search(r"\d (s|units)\b|^seconds$|^units;", text)
    ]


def test_a_picture_of_units_does_not_speak_of_seconds_and_the_other_way_round():
    units = unit_timeline("1f1b", 2, 2)
    seconds = simulate(lower(order_named("1f1b")(2, 2), {0: 1, 1: 1}), lambda action: 0.5)
    of_units, of_seconds = labels(draw_svg(units)), labels(draw_svg(seconds))
    assert len(of_units) == len(of_seconds) > 10
    assert all(
        re.search(r"\d units\b|^units; F, B and W of a stage take one each$", text)
        for text in of_units
    )
    assert all(re.search(r"\d s\b|^seconds$", text) for text in of_seconds)
    assert "seconds" in describe_timeline(seconds) and "units" not in describe_timeline(seconds)


def test_stages_of_one_rank_are_drawn_in_different_shades():
    empty = {"#eeeeee"}
    for timeline, num_colors in (
        (unit_timeline("interleaved", 2, 2, 3), 9),
        (unit_timeline("1f1b", 2, 2), 3),
    ):
        fills = re.findall(r'height="22" fill="(#[0-9a-f]{6})" stroke', draw_svg(timeline))
        assert len(set(fills) - empty) == num_colors


@pytest.mark.parametrize(
    "shortest, step", [(0.03, 0.05), (0.5, 0.5), (1.1, 2), (2, 2), (3, 5), (6, 10), (34, 50)]
)
def test_the_axis_has_round_steps(shortest, step):
    assert grid._round_step(shortest) == pytest.approx(step)


def test_a_program_without_work_can_be_drawn():
    nothing = simulate(from_text("0:\n1:"))
    assert draw_text(nothing).split() == ["rank", "0", "rank", "1"]
    ElementTree.fromstring(draw_svg(nothing))


def test_the_description_tells_time_bubble_and_memory():
    told = describe_timeline(unit_timeline("1f1b", 4, 8))
    assert "30 units" in told and "20.0%" in told and "4 3 2 1 micro-batches, by rank" in told
    assert "4 4 pairs of stage and micro-batch" in describe_timeline(unit_timeline("zb-v", 2, 8))


# --- shardkit inspect schedule --------------------------------------------------------------------


def test_the_command_prints_the_grid_and_writes_the_picture(tmp_path, capsys):
    options = ["--order", "interleaved", "--stages", "2", "--micro-batches", "4", "--virtual", "3"]
    assert main(["inspect", "schedule", *options, "--svg", str(tmp_path / "picture.svg")]) == 0
    run = unit_timeline("interleaved", 2, 4, 3)
    assert capsys.readouterr().out == describe_timeline(run) + "\n"
    assert (tmp_path / "picture.svg").read_text() == draw_svg(run, "interleaved, 4 micro-batches")


def test_the_command_without_options_draws_8_micro_batches_of_1f1b_on_4_ranks(capsys):
    assert main(["inspect", "schedule"]) == 0
    assert capsys.readouterr().out == describe_timeline(unit_timeline("1f1b", 4, 8)) + "\n"


@pytest.mark.parametrize(
    "options, message",
    [
        (["schedule", "--order", "1f2b"], "did you mean '1f1b'"),
        (["schedule", "--stages", "0"], "no schedule"),
        (["schedule", "--virtual", "2"], "2 stages per rank were asked of 1f1b"),
        (
            ["elsewhere", "--micro-batches", "8"],
            "--micro-batches goes with `inspect schedule`, not with `inspect`",
        ),
        (["./schedule"], "schedule"),
    ],
)
def test_a_wrong_use_of_the_command_is_one_sentence_and_an_exit_code(
    options, message, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert main(["inspect", *options]) in (1, 2)
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
