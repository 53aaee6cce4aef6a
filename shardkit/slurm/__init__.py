"""Batch jobs: fills in the templates of the jobs folder from the settings of a run."""

from .planned import script_of_plan
from .render import SCHEDULERS, TEMPLATES, JobPlan, render

__all__ = ["JobPlan", "SCHEDULERS", "TEMPLATES", "render", "script_of_plan"]
