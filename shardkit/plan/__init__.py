"""KNOWING BEFORE: what a layout takes in memory and in time, and which one is best. No array is
made.

model       a GPT by its sizes: its weights, cut over tensor ranks
software    what a program does: shardkit itself, and programs that published times are of
settings    what of a run's settings is counted, searched for, or left out, which is said
hardware    what a cluster does per second; hardware/*.toml
layouts     all choices of a run, and why a program would refuse them
stages      which blocks stand in which stage
activations, in_flight, memory           bytes on each device                    <- read memory.py first
operations, collectives, timeline, cost  seconds of a step                       <- then cost.py
search      all layouts, ranked
measure     `shardkit bench hardware`; report and command: `shardkit plan`
validation  published runs beside the planner's own figures; VALIDATION.md is the page
"""

from .cost import PARTS, StepCost, step_cost
from .hardware import Cluster, known_clusters, read_cluster
from .layouts import RECOMPUTATIONS, Layout, why_not
from .memory import Memory, memory_of, rank_memory
from .model import ModelShape, read_model
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
    "Layout",
    "MIXED",
    "Memory",
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
    "read_model",
    "search",
    "software_named",
    "step_cost",
    "why_not",
]
