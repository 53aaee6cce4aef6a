"""optim: rules by name, and their settings."""

from . import open_door

ROOM = "shardkit.optim"
NAMES = {
    "": "RULES Rule clip_factor",
    "description": "describe_rule",
    "groups": "groups_by_name",
    "settings": "Optimizer",
}

open_door(__name__)
