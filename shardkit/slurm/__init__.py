"""Batch jobs: fills in the templates of the jobs folder from the settings of a run."""

from ..public import import_names

__all__ = import_names(
    __name__, {"planned": "script_of_plan", "render": "SCHEDULERS TEMPLATES JobPlan render"}
)
