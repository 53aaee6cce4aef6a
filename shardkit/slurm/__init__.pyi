# Written by packaging/stubs.py, from the table in __init__.py.
from .planned import script_of_plan as script_of_plan
from .render import (
    SCHEDULERS as SCHEDULERS,
    TEMPLATES as TEMPLATES,
    JobPlan as JobPlan,
    render as render,
)
