"""Batch jobs: the templates of the jobs folder, filled in from a configuration."""

from .planned import script_of_plan
from .render import SCHEDULERS, TEMPLATES, JobPlan, render

__all__ = ["JobPlan", "SCHEDULERS", "TEMPLATES", "render", "script_of_plan"]
