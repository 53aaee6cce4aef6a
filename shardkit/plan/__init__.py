"""PLANNING: what a layout takes in memory and in time, and which one is best. No array is made.

shape        what the planner asks of a model
model, mlp   a GPT, an MLP by their sizes: weights, how they are cut
run          the model and the settings of a run, from its file
software     what a program does: shardkit itself, and others to compare it with
settings     which settings of a run are counted, searched for, or left out with a note
hardware     what a cluster does per second; hardware/*.toml
layouts      all choices of a run, and why a program would refuse them
stages       which blocks are in which stage
activations, memory                        bytes on each device; read memory.py first
operations, collectives, timeline, cost    seconds of a step; then read cost.py
search       all layouts, ranked
measure      `shardkit bench hardware`
report       the tables of `shardkit plan`

VALIDATION.md compares the planner with published runs.
"""

from .cost import PARTS, StepCost, step_cost
from .hardware import Cluster
from .hardware_file import known_clusters, read_cluster
from .layouts import RECOMPUTATIONS, RunLayout, why_not
from .memory import MemoryEstimate, memory_of, rank_memory
from .mlp import MLPShape
from .model import ModelShape
from .run import read_run
from .search import Candidate, Search, search
from .software import (
    MIXED,
    SHARDKIT,
    SHARDKIT_BF16,
    SHARDKIT_FP16,
    SOFTWARE,
    Software,
    software_named,
)

__all__ = [
    "Candidate",
    "Cluster",
    "RunLayout",
    "MIXED",
    "MLPShape",
    "MemoryEstimate",
    "ModelShape",
    "PARTS",
    "RECOMPUTATIONS",
    "SHARDKIT",
    "SHARDKIT_BF16",
    "SHARDKIT_FP16",
    "SOFTWARE",
    "Search",
    "Software",
    "StepCost",
    "known_clusters",
    "memory_of",
    "rank_memory",
    "read_cluster",
    "read_run",
    "search",
    "software_named",
    "step_cost",
    "why_not",
]
