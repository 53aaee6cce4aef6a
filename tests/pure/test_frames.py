"""The frame of the main thread is had while the garbage collector rests."""

import ast
import gc
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import pytest
import sources

from shardkit.testing.base import environment_without_launcher, resting
from shardkit.testing.comm import main_frame

pytestmark = pytest.mark.xdist_group("sources")  # they read the package once

ROOT = Path(__file__).parents[2]
# Threads begin and end, objects go of which some let other threads go on, and one thread asks for
# frames. If each let others go on, one collection would never end: they make more meanwhile.
BUSY = """
import gc, itertools, sys, threading, time
from shardkit.testing.comm import main_frame

class Node:
    def __init__(self):
        self.me = self
    def __del__(self):
        if next(gone) % 50 == 0:
            time.sleep(0)

def work(depth):
    Node()
    return work(depth - 1) if depth else 0

def start():
    while time.monotonic() < end:
        thread = threading.Thread(target=work, args=(20,))
        thread.start()
        thread.join()

gone = itertools.count()
end = time.monotonic() + 2
sys.setswitchinterval(1e-5)
gc.set_threshold(3, 1000, 1000)
for _ in range(6):
    threading.Thread(target=start, daemon=True).start()
while time.monotonic() < end:
    time.sleep(1e-4)
    main_frame()
print("ended")
"""


@pytest.mark.parametrize("is_enabled", [True, False])
def test_the_collector_rests_meanwhile_and_is_then_as_it_was(monkeypatch, is_enabled):
    seen, real = [], sys._current_frames

    def frames():
        seen.append(gc.isenabled())
        return real()

    monkeypatch.setattr(sys, "_current_frames", frames)
    before = gc.isenabled()
    try:
        gc.enable() if is_enabled else gc.disable()
        here = main_frame()
        assert gc.isenabled() == is_enabled
    finally:
        gc.enable() if before else gc.disable()
    assert seen == [False] and here.f_back.f_code.co_name == "main_frame"


def test_what_the_main_thread_has_in_hand_goes_without_a_collection():
    """Frames that keep each other would keep arrays too, in heaps that neighbors see."""
    before = gc.isenabled()
    gc.disable()
    try:
        assert _seen_by_a_thread()() is None
    finally:
        gc.enable() if before else gc.disable()


def _seen_by_a_thread():
    """Return a weak reference to what this function holds while a thread asks for its frame."""
    held = threading.Thread(target=main_frame)
    held.start()
    held.join()
    return weakref.ref(held)


@pytest.mark.thorough
def test_no_process_stands_still_though_threads_come_and_go():
    """With CPython 3.11 and a collector that works, three of four did within two seconds."""
    done = subprocess.run(
        [sys.executable, "-c", BUSY],
        capture_output=True,
        text=True,
        timeout=200,
        env={**environment_without_launcher(), "PYTHONPATH": str(ROOT)},
    )
    assert done.stdout == "ended\n", done.stderr


def test_frames_of_threads_are_asked_for_in_one_place():
    found = [
        str(path)
        for path, module in sources.files()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute)
        and node.attr in ("_current_frames", "_current_exceptions")
    ]
    assert found == ["comm/watch/frames.py"]


def test_the_collector_works_again_after_the_last_thread_that_wanted_it_to_rest():
    """Threads that come and go in each other's time leave it as it was, however they cross."""
    assert gc.isenabled()
    inner, outer = resting(), resting()
    outer.__enter__()
    inner.__enter__()
    outer.__exit__(None, None, None)
    assert not gc.isenabled(), "one still wants it to rest"
    inner.__exit__(None, None, None)
    assert gc.isenabled()
    with pytest.raises(KeyError), resting():
        raise KeyError
    assert gc.isenabled()
