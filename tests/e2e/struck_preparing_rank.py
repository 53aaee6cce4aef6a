"""A rank of `shardkit prepare` that stops, dies or turns in a loop when it notes its work.

arguments   how, which rank, at which note; then those of the command
"""

import os
import signal
import sys

from shardkit import CommunicationBackend
from shardkit.testing.base import launcher
from shardkit.testing.cli import main

how, rank, at = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
work, num_notes = CommunicationBackend.work, [0]


def work_until_struck(self):
    work(self)
    num_notes[0] += 1
    if launcher().rank == rank and num_notes[0] == at:
        if how == "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        while True:
            pass


CommunicationBackend.work = work_until_struck
sys.exit(main(sys.argv[4:]))
