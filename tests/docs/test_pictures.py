"""The pictures of the documentation are what shardkit draws now, and say what is so."""

import hashlib
import importlib.util
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from shardkit.testing.layout import (
    POLICIES,
    FlatLayout,
    MeshShape,
    draw_memory,
    draw_mesh,
    draw_policies,
    policy_named,
)

ROOT = Path(__file__).resolve().parents[2]


def _script():
    spec = importlib.util.spec_from_file_location("pictures", ROOT / "docs/pictures.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


DRAWN = _script().pictures()


@pytest.mark.parametrize("name", DRAWN)
def test_a_picture_is_current(name):
    stored = (ROOT / "docs/pictures" / name).read_text()
    assert stored == DRAWN[name], "run python docs/pictures.py"


def test_no_picture_is_left_over():
    assert {path.name for path in (ROOT / "docs/pictures").iterdir()} == set(DRAWN)


@pytest.mark.parametrize("name", DRAWN)
def test_a_picture_loads_nothing_and_is_read_by_xml(name):
    ElementTree.fromstring(DRAWN[name])
    assert not re.search(r"href|url\(|<script|@import", DRAWN[name])


@pytest.mark.parametrize("name", DRAWN)
def test_what_is_drawn_is_told_from_dark_paper_too(name):
    """Words have a color of the dark form, or stand on a color that both have."""
    svg = DRAWN[name]
    style = re.search("<style>(.*?)</style>", svg)[1]
    dark = dict(re.findall(r'\[fill="(#?\w+)"\] { fill: (#\w+) }', style))
    assert re.search(r'<rect [^>]*fill="(\w+)"', svg)[1] in dark, "the paper"
    used = set(re.findall(r'<text [^>]*fill="(#?\w+)"', svg))
    assert used <= {"white", *dark}
    inside = re.findall(r"<text (?:(?!fill)[^>])*>", svg)
    assert len(inside) == svg.count("</text></g>"), "words in black stand within a box"


def kept_elements(policy, num_ranks):
    """Return, by tensor, how many elements the titles of all ranks name."""
    layout = FlatLayout.of({"a": (5,), "b": (7,)}, num_ranks, alignment=1)
    counts = {"a": 0, "b": 0}
    for start, stop, name in re.findall(
        r"elements (\d+) to (\d+) of the unit, of (\w)", draw_policies(layout, [policy])
    ):
        counts[name] += int(stop) - int(start)
    return counts


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4])
def test_ranks_keep_what_the_policy_says(num_ranks):
    once, all_of_it = {"a": 5, "b": 7}, {"a": 5 * num_ranks, "b": 7 * num_ranks}
    whole_and_shards = {"a": 2 * 5 * num_ranks + 5, "b": 2 * 7 * num_ranks + 7}
    assert kept_elements("fsdp", num_ranks) == {name: 3 * n for name, n in once.items()}
    assert kept_elements("ddp", num_ranks) == {name: 3 * n for name, n in all_of_it.items()}
    assert kept_elements("zero1", num_ranks) == whole_and_shards


def test_bars_have_the_bytes_of_the_policies():
    svg = draw_memory(1_000_000, 4)
    for name in POLICIES:
        megabytes = policy_named(name).bytes_per_rank(1_000_000, 4) / 1e6
        assert f">{megabytes:,.1f}</text>" in svg


def test_every_rank_of_a_mesh_is_drawn_once_in_the_color_of_its_data_group():
    svg = draw_mesh(MeshShape(pipeline=2, data=2, tensor=1))
    colors = {
        int(rank): color
        for rank, color in re.findall(r'<title>rank (\d+):[^<]*</title><rect[^>]*"(#\w+)"', svg)
    }
    assert len(colors) == 4
    assert colors[0] == colors[1] != colors[2] == colors[3]


GALLERY = ROOT / "docs/gallery"


def test_the_gallery_shows_each_of_its_pictures():
    shown = re.findall(r'src="gallery/(\w+)\.svg"', (ROOT / "docs/gallery.md").read_text())
    assert sorted(shown) == sorted(path.stem for path in GALLERY.iterdir()) and len(shown) > 5


@pytest.mark.parametrize("path", sorted(GALLERY.iterdir()), ids=lambda path: path.stem)
def test_a_picture_of_the_gallery_was_drawn_from_the_example_as_it_is(path):
    svg = path.read_text()
    ElementTree.fromstring(svg)
    assert not re.search(r"href|url\(|<script|@import", svg) and len(svg) < 30_000
    content = hashlib.sha256((ROOT / f"examples/{path.stem}.py").read_bytes()).hexdigest()
    assert f"({content[:12]})" in svg, f"run python docs/gallery.py {path.stem}"
