"""layout: boxes, cuts, meshes and policies."""

from . import open_door

ROOM = "shardkit.layout"
NAMES = {
    "": (
        "AXES Box Coordinates FlatLayout Held MeshShape POLICIES Piece alike apart balanced_stages "
        "even_span flat_range_to_boxes merged_blocks minimum_for_stages policy_named tiles_exactly"
    ),
    "axes": "ORDER parallel_sizes",
    "cuts": "divisors",
    "pictures": "draw_memory draw_mesh draw_policies",
    "policy": "WHOLE check_tree",
}

open_door(__name__)
