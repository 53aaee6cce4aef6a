"""Many trainings side by side, on groups of the ranks of one job, and what they say together.

ensemble    sk.Ensemble: run, predict
desk        which group trains which trial, and the messages about it
group       what a group of ranks does
record      sweep.h5: settings, results and curves
space       settings that are tried; comparing, asking: who goes on, by our rules or by Optuna
prediction  mean and spread over trials
"""

from ..public import public_names

__getattr__, __dir__, __all__ = public_names(__name__, {"ensemble": "Ensemble"})
