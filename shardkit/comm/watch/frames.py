"""What the threads of this process are at, asked from one of them."""

import gc
import sys
import threading
from types import FrameType

_LOCK = threading.Lock()


def main_frame() -> FrameType | None:
    """Return the frame that the main thread is in.

    The garbage collector rests meanwhile. CPython before 3.12 makes the frames while it holds a
    lock of the interpreter: a collection in between lets other threads go on, and one that begins
    or ends waits for that lock with the GIL, so that the process stands still for ever.
    Source: CPython issue 106883.
    """
    with _LOCK:  # or else one thread would wake the collector of another
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            frames = sys._current_frames()
        finally:
            if was_enabled:
                gc.enable()
    return frames.get(threading.main_thread().ident or 0)
