"""The quick tests: what `pytest` leaves out, and that every value of every parameter is kept; of
`--all`, that every pair of values is; and the limits in time, which are for hangs.
"""

import itertools
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from quick import WORTH, beyond_pairs, each_choice

from shardkit.testing.base import environment_without_launcher

ROOT = Path(__file__).resolve().parents[2]
TESTS = """
import pytest

@pytest.mark.parametrize("one", range(4))
@pytest.mark.parametrize("other", "abc")
def test_of_products(one, other):
    pass

def test_of_one_case():
    pass

@pytest.mark.thorough
def test_that_takes_long():
    pass

@pytest.mark.parametrize("case", [1, pytest.param(2, marks=pytest.mark.thorough)])
def test_of_a_long_case(case):
    pass

@pytest.mark.thorough(but=2)
@pytest.mark.parametrize("case", [*range(5), pytest.param(5, marks=pytest.mark.thorough)])
def test_of_which_few_cases_are_quick(case):
    pass

@pytest.mark.parametrize("first", range(3))
@pytest.mark.parametrize("second, third", [(1, 2), (3, 4), (5, 6)])
@pytest.mark.parametrize("fourth", ["a", pytest.param("b", marks=pytest.mark.sweep), "c", "d"])
def test_of_three_lists(first, second, third, fourth):
    pass

@pytest.mark.strength(1)
@pytest.mark.thorough
@pytest.mark.parametrize("one", range(3))
@pytest.mark.parametrize("other", "abcde")
def test_of_a_product_whose_values_do_not_meet(one, other):
    pass
"""
QUICK, ALL = 4 + 1 + 1 + 2 + 3, 12 + 1 + 1 + 2 + 6 + 9 + 5  # of TESTS
WHOLE, SWEPT = ALL - 9 + 27 - 5 + 15, 9


class Case(SimpleNamespace):
    """A test with these parameters, as pytest collects it."""

    __hash__ = object.__hash__
    __eq__ = object.__eq__

    def iter_markers(self, name):
        return (mark for mark in self.marks if mark.name == name)


def cases_of(name, parameters, *marks):
    names = sorted({name for params in parameters for name in params})
    marks = [*marks, *(pytest.mark.parametrize(each, []).mark for each in names)]
    usual = {"path": "file", "cls": None, "name": name, "originalname": name, "marks": marks}
    return [Case(**usual, callspec=SimpleNamespace(params=each)) for each in parameters]


values = st.dictionaries(st.sampled_from("abc"), st.integers(0, 4), min_size=3, max_size=3)


@given(st.lists(values, min_size=1, max_size=30))
def test_each_value_that_occurs_occurs_in_a_chosen_case(parameters):
    cases = cases_of("test", parameters)
    chosen = each_choice(cases)
    found, wanted = (
        {pair for case in some for pair in case.callspec.params.items()} for some in (chosen, cases)
    )
    assert found == wanted and len(chosen) <= len(wanted)


@given(st.lists(st.integers(1, 6), min_size=1, max_size=3))
def test_of_a_product_as_many_cases_are_chosen_as_the_longest_parameter_has_values(lengths):
    product = itertools.product(*map(range, lengths))
    cases = cases_of("test", [dict(zip("abc", numbers, strict=False)) for numbers in product])
    assert len(each_choice(cases)) == max(lengths)


@given(st.integers(1, 30), st.integers(1, 30))
def test_of_a_test_that_is_thorough_but_for_some_cases_so_many_are_chosen(length, most):
    few = pytest.mark.thorough(but=most).mark
    cases = cases_of("test", [{"a": number} for number in range(length)], few)
    chosen = sorted(case.callspec.params["a"] for case in each_choice(cases))
    gaps = [after - before for before, after in itertools.pairwise(chosen)]
    assert len(chosen) == min(length, most) and chosen[0] == 0
    assert (
        most == 1 or chosen[-1] == length - 1 and max(gaps, default=0) <= min(gaps, default=0) + 1
    )


def test_a_room_has_a_most_of_cases_that_a_marker_raises():
    few = pytest.mark.thorough(but=5).mark
    parameters = [{"a": number} for number in range(9)]
    cases = cases_of("test", parameters) + cases_of("other", parameters, few)
    chosen = each_choice(cases, lambda case: 2)
    numbers = {
        name: sorted(case.callspec.params["a"] for case in chosen if case.name == name)
        for name in ("test", "other")
    }
    assert numbers == {"test": [0, 8], "other": [0, 2, 4, 6, 8]}


def test_two_tests_do_not_stand_for_each_other():
    cases = cases_of("one", [{"a": 1}]) + cases_of("other", [{"a": 1}])
    assert len(each_choice(cases)) == 2


def test_values_that_are_equal_are_one_and_arrays_are_themselves():
    array = [1]
    assert len(each_choice(cases_of("test", [{"a": 1}, {"a": 1}, {"a": True}]))) == 2
    assert len(each_choice(cases_of("test", [{"a": array}, {"a": array}, {"a": [1]}]))) == 2


def pairs_of(cases):
    return {
        pair
        for case in cases
        for pair in itertools.combinations(sorted(case.callspec.params.items()), 2)
    }


@given(
    st.lists(st.integers(2, 4), min_size=3, max_size=3),
    st.sets(st.integers(0, 63), max_size=9),
    st.sets(st.integers(0, 63), max_size=9),
)
def test_each_pair_of_values_that_occurs_occurs_in_a_case_that_is_not_beyond(lengths, gone, first):
    product = [dict(zip("abc", line)) for line in itertools.product(*map(range, lengths))]
    parameters = [each for number, each in enumerate(product) if number not in gone] or product
    cases = cases_of("test", parameters)
    first = {case for number, case in enumerate(cases) if number in first}
    beyond = beyond_pairs(cases, first)
    kept = [case for case in cases if case not in beyond]
    assert pairs_of(kept) == pairs_of(cases) and first.isdisjoint(beyond)
    assert len(kept) <= len(pairs_of(cases)) + len(first)
    assert not beyond or len(cases) > WORTH * len(kept)


@given(st.lists(st.integers(1, 5), min_size=3, max_size=4))
def test_of_a_product_the_pairs_are_about_as_many_as_the_two_longest_parameters(lengths):
    product = itertools.product(*map(range, lengths))
    cases = cases_of("test", [dict(zip("abcd", numbers, strict=False)) for numbers in product])
    least = numpy.prod(sorted(lengths)[-2:])
    kept = len(cases) - len(beyond_pairs(cases, set()))
    assert least <= kept <= min(WORTH * 2 * least, len(cases))


def test_two_parameters_and_lists_of_cases_have_nothing_beyond_pairs():
    two = [{"a": a, "b": b} for a in range(9) for b in range(9)]
    assert not beyond_pairs(cases_of("test", two), set())
    cube = [dict(zip("abc", numbers)) for numbers in itertools.product(range(4), repeat=3)]
    listed = cases_of("test", cube)
    for names in ("a, b,c", ("a", "b", "c")):
        for case in listed:
            case.marks = [pytest.mark.parametrize(names, []).mark]
        assert not beyond_pairs(listed, set())
    assert beyond_pairs(cases_of("test", cube), set())


@given(st.lists(st.integers(1, 6), min_size=2, max_size=3))
def test_of_strength_one_each_value_occurs_in_a_case_that_is_not_beyond(lengths):
    product = itertools.product(*map(range, lengths))
    parameters = [dict(zip("abc", numbers, strict=False)) for numbers in product]
    cases = cases_of("test", parameters, pytest.mark.strength(1).mark)
    kept = set(cases) - beyond_pairs(cases, set())
    found, wanted = (
        {pair for case in some for pair in case.callspec.params.items()} for some in (kept, cases)
    )
    assert found == wanted and len(kept) <= WORTH * max(lengths)


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp("project")
    (folder / "tests/pure").mkdir(parents=True)
    (folder / "tests/e2e").mkdir()
    copied = ("conftest", "mpi_run", "quick", "shared_files")
    for name in ("setup.cfg", *(f"tests/{name}.py" for name in copied)):
        shutil.copy(ROOT / name, folder / name)
    (folder / "tests/pure/test_some.py").write_text(TESTS)
    (folder / "tests/e2e/test_job.py").write_text("def test_of_a_job():\n    pass\n")
    return folder


RUNS = """
import contextlib, io, json, sys, pytest
for line in sys.stdin:
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        pytest.main(json.loads(line))
    for name in ("conftest", "mpi_run", "quick", "shared_files", "test_some", "test_job"):
        sys.modules.pop(name, None)
    print(json.dumps(said.getvalue()), flush=True)
"""


@pytest.fixture(scope="module")
def said_by_pytest(project):
    """function (arguments) -> what pytest says: one process has imported it for all."""
    process = subprocess.Popen(
        [sys.executable, "-c", RUNS],
        cwd=project,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**environment_without_launcher(), "PYTHONPATH": str(ROOT)},
    )

    def said(arguments):
        process.stdin.write(json.dumps(["-q", "--color=no", *arguments]) + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    with process:
        yield said


def at_length(*case):
    """A case that shows what others do too, elsewhere."""
    return pytest.param(*case, marks=pytest.mark.thorough)


@pytest.mark.parametrize(
    "arguments, num_run, left_out",
    [
        (["-n", "1"], QUICK, f"{ALL - QUICK} thorough tests and tests/e2e"),
        at_length(["--all"], ALL + 1, ""),
        at_length(["--all", "-n", "1"], ALL + 1, ""),
        (["--all", "-m", "sweep"], WHOLE - ALL + SWEPT, ""),
        at_length(["--all", "-k", "three"], 27, ""),
        at_length(["--all", "tests/pure/test_some.py"], WHOLE, ""),
        at_length(["tests/pure"], QUICK, f"{ALL - QUICK} thorough tests"),
        at_length(["tests/e2e"], 0, "1 thorough tests"),
        at_length(["tests/e2e/test_job.py"], 1, ""),
        at_length(["tests/pure/test_some.py"], WHOLE, ""),
        (["tests/pure/test_some.py::test_of_products", "tests/e2e"], 12, "1 thorough tests"),
        at_length(["-k", "products or job"], 4, "8 thorough tests and tests/e2e"),
        at_length(["--all", "-m", "thorough and not sweep"], 1 + 1 + 6 + 5, ""),
    ],
)
def test_pytest_runs_the_quick_tests_and_says_what_it_left_out(
    said_by_pytest, arguments, num_run, left_out
):
    said = said_by_pytest(arguments)
    assert (f"{num_run} passed" in said) == (num_run > 0), said
    found = re.findall("^left out: (.*); --all runs them too$", said, re.MULTILINE)
    assert found == [left_out] * bool(left_out), said


# ---- workers -------------------------------------------------------------------------------------


def test_workers_share_files_and_groups_and_what_takes_long_test_by_test(monkeypatch):
    scheduler = pytest.importorskip("xdist.scheduler").LoadGroupScheduling
    from shared_files import SharedFiles

    monkeypatch.setattr(scheduler, "__init__", lambda self: None)
    scope = SharedFiles()._split_scope
    assert scope("tests/pure/test_a.py::test_it[b@c::d]") == "tests/pure/test_a.py"
    assert scope("tests/pure/test_a.py::test_it[b]@group") == "group"
    job = "tests/e2e/test_a.py::test_it[b]"
    assert (scope(job), scope(f"{job}@group")) == (job, "group")


def test_pytest_shares_by_these_rules(pytestconfig, monkeypatch):
    pytest.importorskip("xdist")
    from shared_files import SharedFiles

    monkeypatch.setattr(pytestconfig.option, "dist", "loadgroup")
    monkeypatch.setattr(pytestconfig.option, "tx", ["2*popen"])
    made = pytestconfig.hook.pytest_xdist_make_scheduler(config=pytestconfig, log=None)
    assert type(made) is SharedFiles
