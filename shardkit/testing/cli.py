"""cli: the command line as a function, and what its commands call."""

from . import open_door

ROOM = "shardkit.cli"
NAMES = {
    "": "main make_parser",
    "sweep": "parted",
    "arguments": "local_path",
    "settings": "Given configuration trust_in",
}
MODULES = {"bench": "bench", "inspect": "inspect"}

open_door(__name__)
