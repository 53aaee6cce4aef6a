"""PLANNING: what a layout takes in memory and in time, and which one is best. No array is made.

shape        what the planner asks of a model
model, mlp   a GPT, an MLP by their sizes: weights, how they are cut
run          the model and the settings of a run, from its file
software     what a program does: shardkit itself, and others; programs/*.toml
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

from ..public import import_names

__all__ = import_names(
    __name__,
    {
        "cost": "PARTS StepCost step_cost",
        "hardware": "Cluster",
        "hardware_file": "known_clusters read_cluster",
        "layouts": "RunLayout why_not",
        "memory": "MemoryEstimate memory_of rank_memory",
        "mlp": "MLPShape",
        "model": "ModelShape",
        "run": "read_run",
        "search": "Candidate Search search",
        "software": (
            "MIXED RECOMPUTATIONS SHARDKIT SHARDKIT_BF16 SHARDKIT_FP16 Software known_programs "
            "software_named"
        ),
    },
)
