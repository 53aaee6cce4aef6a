"""Optimizer rules on 1-D spans, clipping by the global norm, and learning-rate schedules."""

from . import schedules
from .average import EMA
from .clipping import clip_factor
from .groups import ParameterGroup
from .muon import MatrixRule, Muon
from .rules import RULES, SGD, Adam, AdamW, Lion, Momentum, Rule

__all__ = [
    "Adam",
    "AdamW",
    "EMA",
    "Lion",
    "MatrixRule",
    "Momentum",
    "Muon",
    "ParameterGroup",
    "RULES",
    "Rule",
    "SGD",
    "clip_factor",
    "schedules",
]
