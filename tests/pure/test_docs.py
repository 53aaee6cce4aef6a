"""Paths and names in the documentation exist."""

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
ROOMS = "shardkit|tests|docs|jobs|benchmarks"
WINGS = "comm|parallel|checkpoint|array|layout|schedule|nn"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_every_path_in_a_page_exists(page):
    text = page.read_text()
    paths = re.findall(rf"`((?:{ROOMS})/[\w/.-]+)`", text)
    paths += [f"shardkit/{path}" for path in re.findall(rf"`((?:{WINGS})/[\w/.-]+)`", text)]
    assert not [path for path in paths if not (ROOT / path).exists()]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_every_public_name_in_a_page_exists(page):
    shardkit = importlib.import_module("shardkit")
    names = re.findall(r"`sk\.(\w+)", page.read_text())
    assert not [name for name in names if not hasattr(shardkit, name)]


def test_the_pages_name_many_paths():
    found = [path for page in PAGES for path in re.findall(rf"`(?:{ROOMS})/", page.read_text())]
    assert len(found) > 60
