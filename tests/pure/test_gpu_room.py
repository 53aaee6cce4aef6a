"""All that is for GPUs alone stands in one room: CPUs import none of it, and the rooms on which it
stands reach it by one function.
"""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from sources import files
from test_rooms import LEVEL, files_and_imports, room_of

import shardkit as sk
from shardkit.testing.comm import TRANSPORTS
from shardkit.testing.gpu import gpu_transports

pytestmark = pytest.mark.xdist_group("sources")  # they read the package once

PACKAGE = Path(sk.__file__).parent
# The highest room that a part of the GPU room may stand on: as if it were a wing of that room.
STANDS_ON = {
    "library": "errors",
    "memory": "array",
    "copies": "array",
    "graphs": "array",
    "kernels": "array",
    "products": "array",
    "joint": "nn",
    "transports": "comm",
    "step": "parallel",
}
ASKING = {"array", "comm", "nn", "parallel"}  # rooms on which it stands, and that ask for it
CPU_RUN = """
import json, sys, tempfile
import numpy
import shardkit as sk
config = sk.ShardingConfiguration(
    sk.InMemoryCommunicationBackend(0, 1, environment_id="one"), optimizer=sk.AdamW(lr=1e-3)
)
model = sk.FSDPModel(sk.models.GPT(64, 16, width=32, layers=2, heads=2), config)
tokens = numpy.random.default_rng(0).integers(0, 64, (4, 17))
model.train(tokens[:, :-1], tokens[:, 1:])
with tempfile.TemporaryDirectory() as folder:
    model.save_model(folder)
    model.load_model(folder)
model.generate(tokens[:1, :4], 2)
assert not model.supports_compilation
print(json.dumps([name for name in sys.modules if name.split(".")[:2] == ["shardkit", "gpu"]]))
"""


def calls_for_parts():
    """Yield (file, the name asked for; "*" where an expression stands in it) of each gpu_part()."""
    for path, module in files():
        for node in module.nodes:
            if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "gpu_part":
                name = node.args[0]
                pieces = name.values if isinstance(name, ast.JoinedStr) else [name]
                constants = [each.value for each in pieces if isinstance(each, ast.Constant)]
                yield path, "".join(constants) + "*" * (len(constants) < len(pieces))


def test_a_run_on_cpus_imports_nothing_of_the_room():
    done = subprocess.run(
        [sys.executable, "-P", "-c", CPU_RUN],
        env={**os.environ, "PYTHONPATH": str(PACKAGE.parent)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.strip().splitlines()[-1]) == []


def test_what_is_asked_for_is_there():
    asked = list(calls_for_parts())
    assert {room_of(path) for path, _ in asked} == ASKING
    for path, name in asked:
        assert list(PACKAGE.glob(f"gpu/{name.replace('.', '/')}.py")), f"{path} asks for {name}"


def test_the_door_is_the_only_way_from_below():
    """An import by a statement would be seen by test_rooms; here, one by a text."""
    found = {
        str(path)
        for path, module in files()
        if room_of(path) not in ("gpu", "testing")
        for node in module.nodes
        if isinstance(node, ast.Constant) and re.search(r"\.gpu\b", str(node.value))
    }
    assert found == {"on_gpu.py"}


def test_each_part_stands_on_no_more_rooms_than_before_it_moved():
    parts = {
        path.stem if path.suffix == ".py" else path.name
        for path in (PACKAGE / "gpu").iterdir()
        if "__" not in path.name
    }
    assert parts == set(STANDS_ON)
    wrong = []
    for path, module, level in files_and_imports():
        if room_of(path) != "gpu" or path.name == "__init__.py":
            continue
        highest = LEVEL[STANDS_ON[path.parts[1].removesuffix(".py")]]
        there = module.split(".")[0]
        if level == len(path.parts) and LEVEL.get(there, highest) > highest:
            wrong.append(f"{path} imports {module}")
    assert not wrong, "\n".join(wrong)


def test_every_transport_in_settings_is_opened():
    assert list(gpu_transports.OPENED_BY) == list(TRANSPORTS)
