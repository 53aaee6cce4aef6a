# Written by packaging/stubs.py, from the table in __init__.py.
from . import schedules as schedules
from .average import EMA as EMA
from .clipping import clip_factor as clip_factor
from .groups import ParameterGroup as ParameterGroup
from .muon import (
    MatrixRule as MatrixRule,
    Muon as Muon,
)
from .rules import (
    Adam as Adam,
    AdamW as AdamW,
    Lion as Lion,
    Momentum as Momentum,
    RULES as RULES,
    Rule as Rule,
    SGD as SGD,
)
