# Written by packaging/stubs.py, from the table in __init__.py.
from .coupled import Coupled as Coupled
from .moments import FieldMoments as FieldMoments
