# Written by packaging/stubs.py, from the table in __init__.py.
from .axes import (
    AXES as AXES,
    Axis as Axis,
    Held as Held,
    alike as alike,
    apart as apart,
)
from .box import (
    Box as Box,
    flat_range_to_boxes as flat_range_to_boxes,
    tiles_exactly as tiles_exactly,
)
from .cuts import (
    balanced_stages as balanced_stages,
    even_span as even_span,
    merged_blocks as merged_blocks,
    minimum_for_stages as minimum_for_stages,
)
from .flat import (
    FlatLayout as FlatLayout,
    Slot as Slot,
)
from .mesh_shape import (
    Coordinates as Coordinates,
    MeshShape as MeshShape,
)
from .part import (
    Rows as Rows,
    SamplePart as SamplePart,
)
from .piece import Piece as Piece
from .policy import (
    POLICIES as POLICIES,
    Policy as Policy,
    policy_named as policy_named,
)
