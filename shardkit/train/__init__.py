"""Training runs: the loop over the steps of a task, its reports, its end and its beginning."""

from ..parallel.model.callback import Callback
from .bench import bench_run
from .elastic import ElasticTraining
from .loop import train_run
from .survivors import SurvivingRun
from .training import Training

__all__ = [
    "Callback",
    "ElasticTraining",
    "SurvivingRun",
    "Training",
    "bench_run",
    "train_run",
]
