"""The system calls of a program that name a file or look at an open one, counted by strace."""

import shutil
from pathlib import Path

import pytest

NODE_LOCAL = ("/proc", "/sys", "/dev", "/etc", "/tmp")  # files of the node itself
needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")


def traced(folder: Path) -> list[str]:
    """Return what comes before a command, so that what it calls is written to this folder.

    Each process has a file of its own there: in one, a call that another interrupts is two lines.
    """
    return ["strace", "-ff", "-qq", "-e", "trace=%file", "-o", str(folder / "trace")]


def file_calls_in(folder: Path) -> int:
    """Return how many calls were written there, without those for files of the node itself."""
    texts = (path.read_text(errors="replace") for path in folder.glob("trace.*"))
    lines = [line for text in texts for line in text.splitlines()]
    return sum(not any(f'"{local}' in line for local in NODE_LOCAL) for line in lines)
