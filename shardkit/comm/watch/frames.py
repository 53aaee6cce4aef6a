"""Frames of the interpreter: whose code called this room, and whether code of others runs in it."""

import os
from functools import cache

_ROOM = os.path.dirname(os.path.dirname(__file__))


@cache
def is_of_room(file_name: str) -> bool:
    """Return True if this is a file of this room, comm."""
    return file_name.startswith(_ROOM)


def first_frame(frame, *, of_room: bool):
    """Return the first frame of code of this room, or of other code; None if there is none.

    frame   to begin with; then come its callers
    """
    while frame is not None and is_of_room(frame.f_code.co_filename) is not of_room:
        frame = frame.f_back
    return frame
