"""TIME: who does what, when. A training step is a program; this room writes, lowers, checks and
times it. It is pure integer arithmetic.

orders       gpipe, 1f1b and more: which micro-batch each pipeline rank works on next; read it first
zero_bubble  the order ZB-V, made by a list scheduler
catalog      the registry of orders: their names, and what is particular to each
actions      the instructions of a program and their text form
lowering     passes that add units, gathers, reductions, transfers and the optimizer step
overlap      passes that let messages between data ranks travel while units compute
check        is this program well formed?
simulate     does it end if MPI buffers nothing, how long does it take, what stays in memory?
grid         a timeline as a diagram, in text and in SVG

program = lower(order_named("1f1b")(4, 8), {0: 3, 1: 2, 2: 2, 3: 3})
simulate(program).bubble_fraction
"""

from ..public import import_names

__all__ = import_names(
    __name__,
    {
        "actions": (
            "COMPUTE RECEIVES Action Kind Program from_text peak_live receive_of to_text wait_of"
        ),
        "catalog": "ORDERS Order order order_named rank_of",
        "check": "validate",
        "grid": "describe_timeline draw_svg draw_text unit_timeline",
        "lowering": "Uses add_gathers add_reductions add_step add_transfers expand lower",
        "orders": "gpipe interleaved_1f1b one_f_one_b zero_bubble_h1",
        "overlap": "begin_gathers begin_reductions",
        "simulate": "Event Timeline simulate",
        "zero_bubble": "v_shape zero_bubble_v",
    },
)
