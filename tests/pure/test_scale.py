"""What grows with the ranks grows no faster than docs/scale.md says."""

from math import log
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def benchmarks_importable(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")


def test_costs_grow_no_faster_than_their_exponents():
    from scale import EXPONENTS, costs

    few, many = costs(48), costs(192)
    for name, exponent in EXPONENTS.items():
        found = log(many[name] / few[name]) / log(192 / 48)
        assert found < exponent + 0.1, f"{name}: {few[name]:,} and {many[name]:,}, {found:.2f}"


def test_the_page_has_every_cost_with_its_exponent():
    from scale import EXPONENTS

    rows = [
        [cell.strip() for cell in line.strip("| ").split("|")][:2]
        for line in (ROOT / "docs" / "scale.md").read_text().splitlines()
        if line.startswith("| ") and "cost" not in line
    ]
    assert rows[: len(EXPONENTS)] == [[name, f"{number}"] for name, number in EXPONENTS.items()]
