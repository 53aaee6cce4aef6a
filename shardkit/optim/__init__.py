"""Optimizer rules on 1-D spans, clipping by the global norm, and learning-rate schedules."""

from .clipping import clip_factor
from .rules import RULES, SGD, Adam, AdamW, Momentum, Rule
from .schedules import Constant, Cosine, Linear

__all__ = [
    "Adam",
    "AdamW",
    "Constant",
    "Cosine",
    "Linear",
    "Momentum",
    "RULES",
    "Rule",
    "SGD",
    "clip_factor",
]
