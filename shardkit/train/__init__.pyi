# Written by packaging/stubs.py, from the table in __init__.py.
from ..parallel.model.callback import Callback as Callback
from .bench import bench_run as bench_run
from .elastic import ElasticTraining as ElasticTraining
from .loop import train_run as train_run
from .survivors import SurvivingRun as SurvivingRun
from .training import Training as Training
