"""Which tests are quick: pytest runs those, and `pytest --all` runs all.

marked thorough   a test, a case or a file with this marker is left out; THOROUGH_FOLDERS are
                  not even collected
each choice       of the cases of one test run those in which each value of each parameter
                  occurs, and not all products of the values
thorough(but=3)   of those, 3 run, spread over them: where more of them show nothing else; of a test
                  without this marker, as many as MOST_CASES allows its room
all pairs         of a product of three and more parameters --all runs the cases in which each
                  pair of values occurs, those of each choice first; the others are of the sweep:
                  --all -m sweep
strength(1)       of the products of this test --all runs the cases in which each value occurs:
                  where the parameters are known not to meet, as schedules and kinds of file, or
                  where a case takes long
named             a file or test that the command line names is run whole; and with --all what -k
                  names
"""

import math
from functools import cache
from itertools import combinations
from pathlib import Path

import pytest

HERE = Path(__file__).parent
THOROUGH_FOLDERS = ("e2e",)  # these start the command and MPI jobs: seconds each
MOST_CASES = {"threads": 2, "mpi": 2, "gpu": 2}  # of one test: each is a job of several ranks
WORTH = 1.5  # a product that is not longer than its pairs by this factor is run whole


class QuickTests:
    """Leave out what is not quick, and say how many tests that were; leave to the sweep what is
    beyond all pairs.
    """

    NAME = "shardkit quick tests"

    def __init__(self, config, here):
        self._here, self._runs_all = here, config.option.run_all
        self._num_left_out = 0
        self._folders_left_out = set()

    @pytest.hookimpl(trylast=True)
    def pytest_ignore_collect(self, collection_path, config):
        """Leave out a folder that is not named, so that nothing in it is imported."""
        in_tests = collection_path.parent == self._here
        if in_tests and collection_path.name in THOROUGH_FOLDERS and not self._runs_all:
            if asked_for(config) & {*collection_path.parents}:
                self._folders_left_out.add(f"tests/{collection_path.name}")
            return True

    @pytest.hookimpl(wrapper=True)
    def pytest_collection_modifyitems(self, config, items):
        """Mark what -m shall choose from, and choose among what -k and -m have left."""
        beyond = self._beyond_pairs(config, items)
        if self._runs_all:
            for case in beyond:
                case.add_marker("sweep")
        result = yield
        if not self._runs_all:
            self._leave_out(config, items, beyond)
        return result

    def _beyond_pairs(self, config, items) -> set:
        """Return the cases that --all leaves to the sweep."""
        if config.option.keyword:
            return set()
        named = asked_for(config)
        cases = [
            item
            for item in items
            if item.path not in named and item.get_closest_marker("sweep") is None
        ]
        quick = [case for case in cases if not self._is_thorough(case)]
        return beyond_pairs(cases, each_choice(quick, usual_most))

    def _leave_out(self, config, items, beyond):
        named = {path for path in asked_for(config) if path.is_file()}
        kept = [item for item in items if item.path in named or not self._is_thorough(item)]
        chosen = each_choice([item for item in kept if item.path not in named], usual_most)
        kept = {item for item in kept if item.path in named} | chosen
        left_out = [item for item in items if item not in kept]
        if left_out:
            self._num_left_out = sum(item not in beyond for item in left_out)
            config.hook.pytest_deselected(items=left_out)
            items[:] = [item for item in items if item in kept]

    def _is_thorough(self, item) -> bool:
        marks = item.iter_markers("thorough")
        return room_of(item.path) in THOROUGH_FOLDERS or any(not mark.kwargs for mark in marks)

    def pytest_sessionfinish(self, session):
        """Hand both to the process that shares tests among workers, which collects none."""
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["num_left_out"] = self._num_left_out
            session.config.workeroutput["folders_left_out"] = sorted(self._folders_left_out)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node):
        output = getattr(node, "workeroutput", {})
        self._num_left_out = max(self._num_left_out, output.get("num_left_out", 0))
        self._folders_left_out.update(output.get("folders_left_out", ()))

    def pytest_terminal_summary(self, terminalreporter):
        tests = [f"{self._num_left_out} thorough tests"] if self._num_left_out else []
        left_out = " and ".join([*tests, *sorted(self._folders_left_out)])
        if left_out:
            terminalreporter.write_line(f"left out: {left_out}; --all runs them too")


@cache
def room_of(path) -> str:
    """Return the folder of tests that a file is in."""
    return path.relative_to(HERE).parts[0]


def usual_most(case) -> float:
    """Return how many cases of a test are quick, where its markers do not say it."""
    return MOST_CASES.get(room_of(case.path), math.inf)


def asked_for(config) -> set:
    """Return the files and folders that the command line names, by themselves or by tests."""
    folder = config.invocation_params.dir
    return {(folder / argument.split("::")[0]).resolve() for argument in config.args}


def each_choice(items, most_cases=lambda case: math.inf) -> set:
    """Return the fewest cases, found greedily, in which each value of each parameter occurs; and
    of a test with more of them than its marker allows, or most_cases(case), so many.

    Source: Ammann and Offutt, Introduction to Software Testing, "each choice coverage".
    """
    return {
        item
        for cases in _by_test(items)
        for item in _few_of(
            covering({case: _values(case) for case in cases}), _most_of(cases[0], most_cases)
        )
    }


def beyond_pairs(items, first) -> set:
    """Return the cases of products of three and more parameters without which each pair of values
    occurs still: all but `first` and the fewest others, found greedily.

    What pytest.mark.parametrize lists in one go is one parameter, however many names it has. Of a
    test of another strength n, it is the values of each n parameters that occur together.
    Sources: Kuhn, Kacker and Lei, Practical Combinatorial Testing, NIST SP 800-142 (most faults
    are found by pairs); Cohen et al., The AETG system, IEEE TSE 23(7), 1997 (greedy arrays).
    """
    beyond = set()
    for cases in _by_test(items):
        lists, strength = _lists(cases[0]), _strength_of(cases[0])
        if len(_lines(cases[0], lists)) <= strength:  # of two parameters all pairs are the product
            continue
        found = {case: set(combinations(_lines(case, lists), strength)) for case in cases}
        chosen = covering(found, [case for case in cases if case in first])
        if len(cases) > WORTH * len(chosen):
            beyond |= set(cases).difference(chosen)
    return beyond


def _by_test(items):
    """Return lists of the cases of one test each."""
    tests: dict = {}
    for item in items:
        function = getattr(item, "originalname", item.name)
        tests.setdefault((item.path, item.cls, function), []).append(item)
    return tests.values()


def _few_of(cases, most) -> list:
    """Return so many of the cases, spread over them, the first and the last too."""
    if len(cases) <= most:
        return cases
    return [cases[round(number * (len(cases) - 1) / max(most - 1, 1))] for number in range(most)]


def _most_of(case, most_cases) -> float:
    allowed = [mark.kwargs["but"] for mark in case.iter_markers("thorough")]
    return min(allowed) if allowed else most_cases(case)


def _strength_of(case) -> int:
    return next((mark.args[0] for mark in case.iter_markers("strength")), 2)


def covering(found, first=()) -> list:
    """Return the fewest cases, from `first` on, that have all that is in any: found {case: set}."""
    missing, chosen = set().union(*found.values()), list(first)
    missing -= set().union(*(found[case] for case in first))
    for gain in range(max(map(len, found.values())), 0, -1):  # what a case adds only ever falls
        for case in found:
            if len(found[case] & missing) == gain:
                chosen.append(case)
                missing -= found[case]
    return chosen


def _values(case) -> set:
    """Return the (parameter, value) of a case; of a test without parameters, its name."""
    parameters = getattr(getattr(case, "callspec", None), "params", None) or {"": case.name}
    return {(name, *_key(value)) for name, value in parameters.items()}


def _lists(case) -> dict:
    """Return {name of a parameter: the names in its list of values}, for all cases of a test."""
    lists = {}
    for mark in case.iter_markers("parametrize"):
        names = mark.args[0] if mark.args else mark.kwargs["argnames"]
        names = tuple(names.replace(" ", "").split(",") if isinstance(names, str) else names)
        lists |= dict.fromkeys(names, names)
    return lists


def _lines(case, lists) -> list:
    """Return what a case has of each list of values: (names of the list, values), by names."""
    lines: dict = {}
    for name, value in getattr(getattr(case, "callspec", None), "params", {}).items():
        lines.setdefault(lists.get(name, (name,)), []).append(_key(value))
    return [(names, tuple(lines[names])) for names in sorted(lines)]


def _key(value) -> tuple:
    """Return what equal values have in common; an array or a list equals itself alone."""
    try:
        hash(value)
    except TypeError:
        value = id(value)
    return type(value).__name__, value
