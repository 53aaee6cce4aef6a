"""SPACE: who owns which elements of which tensor. Pure integer arithmetic, without an array library
or MPI.

box         an N-D rectangle of a tensor, and the test that boxes tile a tensor exactly once
piece       a named box and where its owner keeps its elements
flat        many tensors in one flat buffer, cut into equal shards; read it first
mesh_shape  rank <-> (pipeline, data, tensor) coordinates
policy      what is sharded over the data axis: DDP, ZeRO-1, ZeRO-2, FSDP, HSDP
cuts        even parts of a dim, the units of a model, the stages of a pipeline
"""

from .box import Box, flat_range_to_boxes, tiles_exactly
from .cuts import balanced_stages, even_span, merged_blocks, minimum_for_stages
from .flat import FlatLayout, Slot
from .mesh_shape import AXES, Coordinates, MeshShape
from .piece import Piece
from .policy import POLICIES, Policy, policy_named

__all__ = [
    "AXES",
    "Box",
    "Coordinates",
    "FlatLayout",
    "MeshShape",
    "POLICIES",
    "Piece",
    "Policy",
    "Slot",
    "balanced_stages",
    "even_span",
    "flat_range_to_boxes",
    "merged_blocks",
    "minimum_for_stages",
    "policy_named",
    "tiles_exactly",
]
