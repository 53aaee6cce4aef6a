"""TIME: who does what, when. A training step is a program; this room writes, lowers, checks and times it. Pure integers.

    orders    gpipe, 1f1b: which micro-batch each pipeline rank works on next      <- read this one first
    actions   the instructions of a program and their text form
    lowering  passes that add what an order leaves open: units, gathers, reductions, transfers, the optimizer step
    check     is this program well formed?
    simulate  does it end if MPI buffers nothing, how long does it take, what stays in memory?

    program = lower(one_f_one_b(stages=4, micro_batches=8), {0: 3, 1: 2, 2: 2, 3: 3})
    simulate(program).bubble_fraction
"""
from .actions import COMPUTE, Action, Kind, Program, from_text, receive_of, to_text, wait_of
from .check import validate
from .lowering import add_gathers, add_reductions, add_step, add_transfers, expand, lower
from .orders import ORDERS, gpipe, one_f_one_b, order_named, rank_of
from .simulate import Event, Timeline, simulate

__all__ = ["COMPUTE", "Action", "Event", "Kind", "ORDERS", "Program", "Timeline", "add_gathers", "add_reductions",
           "add_step", "add_transfers", "expand", "from_text", "gpipe", "lower", "one_f_one_b", "order_named", "rank_of",
           "receive_of", "simulate", "to_text", "validate", "wait_of"]
