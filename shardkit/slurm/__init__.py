"""Batch jobs: the templates of the jobs folder, filled in from a configuration."""
from .render import SCHEDULERS, TEMPLATES, JobPlan, render

__all__ = ["JobPlan", "SCHEDULERS", "TEMPLATES", "render"]
