"""A test that hangs ends, whatever it hangs in, and the run says which one it was."""

import ast
import configparser
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from shardkit.testing.base import environment_without_launcher

ROOT = Path(__file__).parents[2]
HANGS = """
import ctypes, time
import pytest

@pytest.mark.timeout({seconds})
def test_that_hangs():
    {hang}

def test_of_another_worker():
    pass
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    "hang", ["time.sleep(400)", "ctypes.PyDLL(None).sleep(400)  # which keeps the lock of Python"]
)
def test_a_test_that_hangs_ends_and_is_named(tmp_path, hang):
    (tmp_path / "tests/pure").mkdir(parents=True)
    copied = ("conftest", "mpi_run", "quick", "shared_files")
    for name in ("setup.cfg", *(f"tests/{name}.py" for name in copied)):
        shutil.copy(ROOT / name, tmp_path / name)
    conftest = tmp_path / "tests/conftest.py"
    text = conftest.read_text()
    assert text.count("SPARE_SECONDS = 300") == 1
    conftest.write_text(text.replace("SPARE_SECONDS = 300", "SPARE_SECONDS = 2"))
    (tmp_path / "tests/pure/test_some.py").write_text(HANGS.format(seconds=1, hang=hang))
    done = subprocess.run(
        [sys.executable, *"-m pytest -q --color=no -n 2 --max-worker-restart=0".split()],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        env={**environment_without_launcher(), "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode and "crashed while running" in done.stdout, done.stdout + done.stderr
    assert "FAILED tests/pure/test_some.py::test_that_hangs" in done.stdout


FORKS = {"fork", "forkpty", "Process", "Pool"}


def forks_by_itself(node) -> bool:
    """Return True of os.fork() and its like, of multiprocessing's default and of "fork"."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    owner = node.func.value.id if isinstance(node.func.value, ast.Name) else ""
    if node.func.attr == "get_context":
        return not node.args or getattr(node.args[0], "value", "") == "fork"
    return owner in ("os", "pty", "multiprocessing") and node.func.attr in FORKS


@pytest.mark.parametrize(
    "call, is_one",
    [
        ("os.fork()", True),
        ("multiprocessing.Process(target=f)", True),
        ("multiprocessing.get_context('fork')", True),
        ("multiprocessing.get_context()", True),
        ("multiprocessing.get_context('spawn')", False),
        ("PROCESSES.Process(target=f)", False),
        ("subprocess.run(['true'])", False),
    ],
)
def test_what_forks(call, is_one):
    assert any(map(forks_by_itself, ast.walk(ast.parse(call)))) == is_one


@pytest.mark.thorough
def test_no_test_forks_the_process_that_runs_it():
    """That has threads: a fork may wait for ever for a lock that one of them held. It also has the
    pipes of a worker, so that pytest-xdist waits with it after the worker has ended.
    """
    found = [
        path.name
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if any(map(forks_by_itself, ast.walk(ast.parse(path.read_text()))))
    ]
    assert found == []


def test_no_test_has_less_time_than_all_have():
    """A limit that a busy machine meets fails a test that is right."""
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    usual = settings.getint("tool:pytest", "timeout")
    limits = [
        (path.name, int(seconds))
        for path in (ROOT / "tests").rglob("test_*.py")
        for seconds in re.findall(r"mark\.timeout\((\d+)[,)]", path.read_text())
    ]
    assert usual >= 600 and limits and not [limit for limit in limits if limit[1] < usual]
