"""Paths and names in the documentation exist."""

import ast
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
ROOMS = "shardkit|tests|docs|jobs|benchmarks"
WINGS = "comm|parallel|checkpoint|array|layout|schedule|nn"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_path_in_a_page_exists(page):
    text = page.read_text()
    paths = re.findall(rf"`((?:{ROOMS})/[\w/.-]+)`", text)
    paths += [f"shardkit/{path}" for path in re.findall(rf"`((?:{WINGS})/[\w/.-]+)`", text)]
    assert not [path for path in paths if not (ROOT / path).exists()]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_public_name_in_a_page_exists(page):
    shardkit = importlib.import_module("shardkit")
    names = re.findall(r"`sk\.(\w+)", page.read_text())
    assert not [name for name in names if not hasattr(shardkit, name)]


def test_every_page_is_in_the_navigation():
    named = re.findall(r"^\s+- ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M)
    stored = {str(page.relative_to(ROOT / "docs")) for page in PAGES[1:]}
    assert stored == set(named) - {"command-line.md"} and len(named) == len(set(named))


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_to_a_file_leads_to_one(page):
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
    files = [link for link in links if "://" not in link and link != "command-line.md"]
    assert not [link for link in files if not (page.parent / link).exists()]


def test_every_command_says_what_it_reads_and_what_it_runs():
    make_parser = importlib.import_module("shardkit.testing.cli").make_parser
    rows = re.findall(
        r"^\| `([a-z ]+)` \| (.+) \| (.+) \|$", (ROOT / "docs/trust.md").read_text(), re.M
    )
    assert [name for name, _, _ in rows] == list(dict.fromkeys(name for name, _, _ in rows))
    assert {name for name, _, _ in rows} == set(make_parser()[1])


def test_commands_that_take_trust_are_those_that_run_the_task_of_a_run_folder():
    commands = importlib.import_module("shardkit.testing.cli").make_parser()[1]
    rows = re.findall(
        r"^\| `([a-z ]+)` \| .+ \| (.+) \|$", (ROOT / "docs/trust.md").read_text(), re.M
    )
    said = {name for name, runs in rows if "--trust" in runs or "as `evaluate`" in runs}
    taking = {name for name, parser in commands.items() if "--trust" in parser.format_help()}
    assert said == taking == {"train", "evaluate", "predict"}


def test_the_pages_name_many_paths():
    found = [path for page in PAGES for path in re.findall(rf"`(?:{ROOMS})/", page.read_text())]
    assert len(found) > 60


def definitions_of(path):
    """Return the names of all functions, classes and assignments of a file, with their classes."""
    names = set()

    def note(body, prefix):
        for node in body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                names.add(prefix + node.name)
                note(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, (ast.Assign, ast.AnnAssign)):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names.update(prefix + ast.unparse(target) for target in targets)

    note(ast.parse(path.read_text()).body, "")
    return names


def test_every_definition_on_a_road_exists():
    roads = re.findall(r"- `(shardkit/[\w/.]+)`: (.*)", (ROOT / "docs/hops.md").read_text())
    missing = [
        f"{path} {name}"
        for path, names in roads
        for name in sorted(set(re.findall(r"`([\w.]+)`", names)) - definitions_of(ROOT / path))
    ]
    assert len(roads) > 20 and not missing
