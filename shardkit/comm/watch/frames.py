"""Frames of the interpreter: what the main thread is at, and whose code called this room."""

import os
import sys
import threading
from functools import cache
from types import FrameType

from ...public import resting

OF_VERB = 3  # depth, for Names.site(), of the caller of a verb whose body asks by one function
_ROOM = os.path.dirname(os.path.dirname(__file__))
_DOOR = os.path.join(os.path.dirname(_ROOM), "array", "waits.py")  # of waits that calls.py notes


def main_frame() -> FrameType | None:
    """Return the frame that the main thread is in.

    The garbage collector rests meanwhile. CPython before 3.12 makes the frames while it holds a
    lock of the interpreter: a collection in between lets other threads go on, and one that begins
    or ends waits for that lock with the GIL, so that the process stands still for ever.
    Source: CPython issue 106883.
    No name here is all frames, since this one is among them: they would keep each other, and what
    the main thread had in hand, until the next collection.
    """
    with resting():
        return sys._current_frames().get(threading.main_thread().ident or 0)


@cache
def is_of_room(file_name: str) -> bool:
    """Return True if this is a file of this room, comm, or the door to what it watches."""
    return file_name.startswith(_ROOM) or file_name == _DOOR


def first_frame(frame: FrameType | None, *, of_room: bool) -> FrameType | None:
    """Return the first frame of code of this room, or of other code; None if there is none.

    frame   to begin with; then come its callers
    """
    while frame is not None and is_of_room(frame.f_code.co_filename) is not of_room:
        frame = frame.f_back
    return frame
