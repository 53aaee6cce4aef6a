"""Optimizer rules on 1-D spans, clipping by the global norm, and learning-rate schedules."""

from ..public import public_names

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
