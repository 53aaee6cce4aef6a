# Written by packaging/stubs.py, from the table in __init__.py.
from .actions import (
    COMPUTE as COMPUTE,
    RECEIVES as RECEIVES,
    Action as Action,
    Kind as Kind,
    Program as Program,
    from_text as from_text,
    peak_live as peak_live,
    receive_of as receive_of,
    to_text as to_text,
    wait_of as wait_of,
)
from .catalog import (
    ORDERS as ORDERS,
    Order as Order,
    order as order,
    order_named as order_named,
    rank_of as rank_of,
)
from .check import validate as validate
from .grid import (
    describe_timeline as describe_timeline,
    draw_svg as draw_svg,
    draw_text as draw_text,
    unit_timeline as unit_timeline,
)
from .lowering import (
    Uses as Uses,
    add_gathers as add_gathers,
    add_reductions as add_reductions,
    add_step as add_step,
    add_transfers as add_transfers,
    expand as expand,
    lower as lower,
)
from .orders import (
    gpipe as gpipe,
    interleaved_1f1b as interleaved_1f1b,
    one_f_one_b as one_f_one_b,
    zero_bubble_h1 as zero_bubble_h1,
)
from .overlap import (
    begin_gathers as begin_gathers,
    begin_reductions as begin_reductions,
)
from .simulate import (
    Event as Event,
    Timeline as Timeline,
    simulate as simulate,
)
from .zero_bubble import (
    v_shape as v_shape,
    zero_bubble_v as zero_bubble_v,
)
