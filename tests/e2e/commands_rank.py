"""Commands one behind the other in one job; rank 0 says ENDED after each.

arguments   a list of the words of each command, in JSON
"""

import json
import sys

from shardkit.testing.base import launcher
from shardkit.testing.cli import main

ENDED = "the command has ended"

if __name__ == "__main__":
    for words in json.loads(sys.argv[1]):
        if code := main(words):
            sys.exit(code)
        if launcher().rank == 0:
            print(ENDED, flush=True)
