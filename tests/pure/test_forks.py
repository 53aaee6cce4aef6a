"""What a process owns is not its child's, whether that was forked by it or by a child."""

import subprocess
import sys

PROGRAM = """
import os
from shardkit.testing.base import disown, is_of_parent, own

class Thing:
    def __init__(self, name):
        self.name = name

told = []
kept, given, later = map(Thing, ("kept", "given", "later"))
own(kept, lambda thing: told.append(thing.name))
own(given)
own(later)
disown(later)

def says():
    print([is_of_parent(each) for each in (kept, given, later)], told, flush=True)

def forked(function):
    child = os.fork()
    if child == 0:
        function()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0

def child():
    says()
    own(later)
    forked(says)

forked(child)
says()
"""


def test_a_child_leaves_what_its_parent_owns_and_is_told_of_it_once():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=300, check=True
    )
    assert done.stdout.splitlines() == [
        "[True, True, False] ['kept']",  # in the child
        "[True, True, True] ['kept']",  # in its own child
        "[False, False, False] []",  # in the parent
    ]
