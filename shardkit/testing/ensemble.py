"""ensemble: the trials of an ensemble, who goes on, and their file."""

from . import open_door

ROOM = "shardkit.ensemble"
NAMES = {
    "comparing": "Exchange Halving",
    "desk": "Book",
    "group": "loss_of",
    "record": "SweepRecord read_record",
    "settings": "OnlySweep check_run",
    "space": "Space",
    "trials": "Report Trial",
}

open_door(__name__)
