"""schedule: orders, their lowering and their simulation."""

from . import open_door

ROOM = "shardkit.schedule"
NAMES = {
    "": (
        "Action COMPUTE Kind ORDERS Uses begin_gathers begin_reductions describe_timeline draw_svg "
        "draw_text expand from_text gpipe interleaved_1f1b lower one_f_one_b order order_named "
        "peak_live rank_of receive_of simulate to_text unit_timeline validate wait_of "
        "zero_bubble_h1 zero_bubble_v"
    )
}
MODULES = {
    "grid": "grid",
    "lowering": "lowering",
    "orders": "orders",
    "overlap": "overlap",
    "zero_bubble": "zero_bubble",
}

open_door(__name__)
