"""slurm: batch scripts."""

from . import open_door

ROOM = "shardkit.slurm"
NAMES = {"": "JobPlan TEMPLATES render"}

open_door(__name__)
