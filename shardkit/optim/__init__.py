"""Optimizer rules on 1-D spans, clipping by the global norm, and learning-rate schedules."""

from typing import TYPE_CHECKING

from ..public import public_names

if TYPE_CHECKING:
    from . import schedules as schedules
    from .average import EMA as EMA
    from .clipping import clip_factor as clip_factor
    from .groups import ParameterGroup as ParameterGroup
    from .muon import MatrixRule as MatrixRule, Muon as Muon
    from .rules import (
        RULES as RULES,
        SGD as SGD,
        Adam as Adam,
        AdamW as AdamW,
        Lion as Lion,
        Momentum as Momentum,
        Rule as Rule,
    )
else:
    __getattr__, __dir__, __all__ = public_names(
        __name__,
        {
            ".": "schedules",
            "average": "EMA",
            "clipping": "clip_factor",
            "groups": "ParameterGroup",
            "muon": "MatrixRule Muon",
            "rules": "Adam AdamW Lion Momentum RULES Rule SGD",
        },
    )
