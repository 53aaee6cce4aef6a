"""Convolutions and attention between pages that nobody may touch."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(sys.platform != "linux", reason="pages are protected as Linux does"),
]
TESTS = Path(__file__).parents[1]


def in_a_process(code):
    paths = f"import sys; sys.path[:0] = {[str(TESTS), str(TESTS.parent)]!r}\n"
    command = [sys.executable, "-c", paths + code]
    return subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)


def test_convolutions_and_attention_touch_nothing_beside_their_arrays():
    done = in_a_process("import fenced; fenced.main()")
    assert done.returncode == 0, done.stderr


BESIDE = """
import ctypes, numpy, os
from fenced import fenced
for at_end, inside, beyond in ((True, 11, 12), (False, 0, -1)):
    array = fenced(numpy.ones(12, "uint8"), at_end)
    assert array.sum() == 12
    for place in (inside, beyond):
        process = os.fork()
        if not process:
            ctypes.string_at(array.ctypes.data + place, 1)
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))
"""


def test_a_number_beside_an_array_is_noticed():
    done = in_a_process(BESIDE)
    assert done.stdout.split() == ["0", f"{-signal.SIGSEGV}"] * 2, done.stderr
