# Written by packaging/stubs.py, from the table in __init__.py.
from .ensemble import Ensemble as Ensemble
