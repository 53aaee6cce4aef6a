"""A rank of `shardkit bench hardware` whose parts take as few tries as there may be.

arguments   those of the command after `bench hardware`
"""

import sys

from shardkit.testing.cli import main
from shardkit.testing.plan import collectives_measured, measured, runtime_measured

measured._PART_SECONDS = 0.0  # five tries of each part, however short
collectives_measured._TRIES = 5
collectives_measured._PIECE_PRODUCTS = 2  # a message waits less for a core, which nobody looks at
runtime_measured._TURNS = runtime_measured._ROUNDS = 5
sys.exit(main(["bench", "hardware", *sys.argv[1:]]))
