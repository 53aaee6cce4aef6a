# Written by packaging/stubs.py, from the table in __init__.py.
from .cost import (
    PARTS as PARTS,
    StepCost as StepCost,
    step_cost as step_cost,
)
from .hardware import Cluster as Cluster
from .hardware_file import (
    known_clusters as known_clusters,
    read_cluster as read_cluster,
)
from .layouts import (
    RunLayout as RunLayout,
    why_not as why_not,
)
from .memory import (
    MemoryEstimate as MemoryEstimate,
    memory_of as memory_of,
    rank_memory as rank_memory,
)
from .mlp import MLPShape as MLPShape
from .model import ModelShape as ModelShape
from .run import read_run as read_run
from .search import (
    Candidate as Candidate,
    Search as Search,
    search as search,
)
from .software import (
    MIXED as MIXED,
    RECOMPUTATIONS as RECOMPUTATIONS,
    SHARDKIT as SHARDKIT,
    SHARDKIT_BF16 as SHARDKIT_BF16,
    SHARDKIT_FP16 as SHARDKIT_FP16,
    Software as Software,
    known_programs as known_programs,
    software_named as software_named,
)
