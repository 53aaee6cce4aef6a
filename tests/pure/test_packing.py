"""What ranks read at their start, packed for the memory of nodes."""

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from shardkit import ConfigurationError
from shardkit.testing.files import packing

ROOT = Path(__file__).parents[2]
PLACES = """
import json, sys
import shardkit as sk
[getattr(sk, name) for name in sk.__all__]
import h5py, numpy.random, rich.console
config = sk.ShardingConfiguration(sk.InMemoryCommunicationBackend(0, 1, environment_id="one"))
loss = sk.FSDPModel(sk.models.MLP((4, 8, 1)), config).train(
    numpy.ones((4, 4), "float32"), numpy.ones((4, 1), "float32")
)
places = {name: getattr(each, "__file__", None) for name, each in sys.modules.items()}
print(json.dumps({name: place for name, place in places.items() if place}))
"""

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("node")
    packing.pack(folder / "packed")
    with tarfile.open(folder / "packed") as archive:
        archive.extractall(folder)
    return folder


@pytest.mark.thorough
def test_a_rank_finds_nearly_all_of_its_modules_there(unpacked):
    folders = [unpacked / each for each in ("site-packages", "stdlib", "stdlib/lib-dynload")]
    done = subprocess.run(
        [sys.executable, "-P", "-c", PLACES],
        cwd=unpacked,
        env={**os.environ, "PYTHONPATH": ":".join(map(str, folders))},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    places = json.loads(done.stdout.splitlines()[-1])
    tops = {*packing.required(), "json", "numpy", "h5py", "_json"}
    elsewhere = {
        name: place
        for name, place in places.items()
        if not place.startswith(str(unpacked)) and name.partition(".")[0] in tops
    }
    assert len(places) > 600 and not elsewhere


@pytest.mark.thorough
def test_it_holds_what_is_run_and_no_tests(unpacked):
    names = {path.relative_to(unpacked).as_posix() for path in unpacked.rglob("*")}
    own = {name for name in names if name.startswith("site-packages/shardkit/")}
    assert {"site-packages/shardkit/py.typed", "stdlib/os.py"} <= names
    assert len([name for name in own if name.endswith(".py")]) > 500
    assert not [name for name in names if {"tests", "test"} & set(name.split("/"))]


def test_packages_are_those_that_are_required_and_what_they_require():
    found = packing.required()
    assert found[0] == "shardkit" and {"numpy", "mpi4py", "numba", "markdown-it-py"} <= set(found)
    assert len(found) == len(set(found)) and "pytest" not in found


def test_where_shardkit_is_not_installed_it_says_so(monkeypatch):
    monkeypatch.setattr(packing, "_OWN", "no-such-package")
    with pytest.raises(ConfigurationError, match="no-such-package is not installed.*--stage"):
        packing.required()


def test_as_a_program_it_says_what_is_wrong_in_one_line(tmp_path):
    done = subprocess.run(
        [sys.executable, "-P", "-m", "shardkit.files.packing", str(tmp_path / "no" / "packed")],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "no/packed" in done.stderr
