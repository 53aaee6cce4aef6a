"""Shell completion: argcomplete is told commands, their options, tasks and settings."""

import io
import os
import subprocess
import sys
from functools import partial

import pytest

from shardkit.testing.cli import main
from shardkit.testing.task import BUILT_IN

argcomplete = pytest.importorskip("argcomplete")

DEBUG = 9  # the descriptor to which argcomplete writes what it does
HEAVY = "numba llvmlite mpi4py h5py scipy torch pyarrow".split()


@pytest.fixture
def offered(monkeypatch):
    """(line) -> what may stand at its end."""

    opened = os.fdopen

    def refused(descriptor, *arguments, **more):
        if descriptor == DEBUG:
            raise OSError("of the shell's function; another file of this process has that number")
        return opened(descriptor, *arguments, **more)

    def offered(line):
        told = io.StringIO()
        complete = partial(argcomplete.autocomplete, output_stream=told, exit_method=sys.exit)
        asked = {"COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE_IFS": "\n"}
        with monkeypatch.context() as patch:
            patch.setattr("argcomplete.autocomplete", complete)
            patch.setattr("os.fdopen", refused)
            for name, value in {"_ARGCOMPLETE": "1", "COMP_TYPE": "9", **asked}.items():
                patch.setenv(name, value)
            with pytest.raises(SystemExit):
                main([])
        return [each.strip() for each in told.getvalue().split("\n")]

    return offered


COMPLETED = {  # what is typed: what is offered
    "shardkit tr": {"train"},
    "shardkit ins": {"inspect"},
    "shardkit train --resume-": {"--resume-if-any"},
    "shardkit train --model.wi": {"--model.width", "--model.window"},
    "shardkit plan --optimizer.max_g": {"--optimizer.max_gradient_norm"},
    "shardkit train --task=uni": {""},
    "shardkit train --task un": {"unet"},
    "shardkit train --task=table --data.ki": {"--data.kind"},
    "shardkit train --task fno --model.mo": {"--model.modes"},
    "shardkit train --model.mo": {""},  # of no language model
    "shardkit train --task=mine.py:Task --run.fo": {"--run.folder"},
    "shardkit inspect --ver": {"--verify"},
    "shardkit inspect --model.": {""},
}


@pytest.mark.parametrize("line", COMPLETED)
def test_a_word_is_completed(line, offered):
    assert set(offered(line)) == COMPLETED[line]


def test_all_commands_and_all_tasks_are_offered(offered):
    commands = offered("shardkit ")
    assert {"train", "plan", "sweep", "report", "generate"} <= {*commands}
    assert not any(" " in name for name in commands)
    assert {*offered("shardkit train --task ")} == {*BUILT_IN}


def test_a_shell_is_answered_without_heavy_libraries():
    line = "shardkit train --optimizer.na"
    program = f"""
import os, sys
os._exit = lambda code: (print([name for name in {HEAVY} if name in sys.modules]), sys.exit(code))
from shardkit.__main__ import main
main()
"""
    asked = {"_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line)), "COMP_TYPE": "9"}
    read, write = os.pipe()
    done = subprocess.run(
        ["bash", "-c", f'"$0" -P -c "$1" 8>&{write}', sys.executable, program],
        env={**os.environ, **asked},
        pass_fds=[write],
        capture_output=True,
        text=True,
        timeout=300,
    )
    os.close(write)
    with os.fdopen(read) as told:
        assert told.read().strip() == "--optimizer.name"
    assert done.returncode == 0 and done.stdout.strip() == "[]", done.stderr
