"""Which tests are quick: pytest runs those, and `pytest --all` runs all.

marked thorough   a test, a case or a file with this marker is left out; of THOROUGH_FOLDERS
                  every test is
each choice       of the cases of one test run those in which each value of each parameter
                  occurs, and not all products of the values
named             a file or test that the command line names is run whole
"""

import pytest

THOROUGH_FOLDERS = ("e2e",)  # these start the command and MPI jobs: seconds each


class QuickTests:
    """Leave out what is not quick, and say how many tests that were."""

    NAME = "shardkit quick tests"

    def __init__(self, config, here):
        self._here, self._runs_all = here, config.option.run_all
        self._num_left_out = 0

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config, items):
        """Choose among what -k and -m have left."""
        if self._runs_all:
            return
        named = _named(config)
        kept = [item for item in items if item.path in named or not self._is_thorough(item)]
        chosen = each_choice([item for item in kept if item.path not in named])
        kept = {item for item in kept if item.path in named} | chosen
        left_out = [item for item in items if item not in kept]
        if left_out:
            self._num_left_out = len(left_out)
            config.hook.pytest_deselected(items=left_out)
            items[:] = [item for item in items if item in kept]

    def _is_thorough(self, item) -> bool:
        room = item.path.relative_to(self._here).parts[0]
        return room in THOROUGH_FOLDERS or item.get_closest_marker("thorough") is not None

    def pytest_sessionfinish(self, session):
        """Hand the number to the process that shares tests among workers, which collects none."""
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["num_left_out"] = self._num_left_out

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node):
        output = getattr(node, "workeroutput", {})
        self._num_left_out = max(self._num_left_out, output.get("num_left_out", 0))

    def pytest_terminal_summary(self, terminalreporter):
        if self._num_left_out:
            terminalreporter.write_line(
                f"{self._num_left_out} thorough tests were left out: --all runs them too"
            )


def _named(config) -> set:
    """Return the files that the command line names, by themselves or by their tests."""
    folder = config.invocation_params.dir
    paths = {(folder / argument.split("::")[0]).resolve() for argument in config.args}
    return {path for path in paths if path.is_file()}


def each_choice(items) -> set:
    """Return the fewest cases, found greedily, in which each value of each parameter occurs.

    Source: Ammann and Offutt, Introduction to Software Testing, "each choice coverage".
    """
    tests: dict = {}
    for item in items:
        function = getattr(item, "originalname", item.name)
        tests.setdefault((item.path, item.cls, function), []).append(item)
    return {item for cases in tests.values() for item in _covering(cases)}


def _covering(cases) -> list:
    values = {case: _values(case) for case in cases}
    missing, chosen = set().union(*values.values()), []
    for gain in range(max(map(len, values.values())), 0, -1):  # what a case adds only ever falls
        for case in cases:
            if len(values[case] & missing) == gain:
                chosen.append(case)
                missing -= values[case]
    return chosen


def _values(case) -> set:
    """Return the (parameter, value) of a case; of a test without parameters, its name."""
    parameters = getattr(getattr(case, "callspec", None), "params", None) or {"": case.name}
    return {(name, *_key(value)) for name, value in parameters.items()}


def _key(value) -> tuple:
    """Return what equal values have in common; an array or a list equals itself alone."""
    try:
        hash(value)
    except TypeError:
        value = id(value)
    return type(value).__name__, value
