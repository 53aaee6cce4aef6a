"""SPACE: who owns which elements of which tensor. Pure integer arithmetic, without an array library
or MPI.

axes        the axes of the mesh: what each cuts, who has what alike
box         an N-D rectangle of a tensor, and the test that boxes tile a tensor exactly once
piece       a named box and where its owner keeps its elements
flat        many tensors in one flat buffer, cut into equal shards; read it first
mesh_shape  rank <-> (pipeline, data, tensor) coordinates
policy      what is sharded over the data axis: DDP, ZeRO-1, ZeRO-2, FSDP, HSDP
part        the part of each sample that a rank reads, and arrays that hold it
cuts        even parts of a dim, the units of a model, the stages of a pipeline
"""

from ..public import import_names

__all__ = import_names(
    __name__,
    {
        "axes": "AXES Axis Held alike apart",
        "box": "Box flat_range_to_boxes tiles_exactly",
        "cuts": "balanced_stages even_span merged_blocks minimum_for_stages",
        "flat": "FlatLayout Slot",
        "mesh_shape": "Coordinates MeshShape",
        "part": "Rows SamplePart",
        "piece": "Piece",
        "policy": "POLICIES Policy policy_named",
    },
)
